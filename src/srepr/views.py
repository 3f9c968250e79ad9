"""A test part whose classes are not equally frequent, judged in two views.

A re-trained head expects the classes to be equally frequent. If they are not, its accuracy and its calibration say
little about it: either the examples must be weighted, or the head must be moved to the mix that is there.

equal      every class counts the same: each example has the weight 1 / n_k(test), scaled to mean 1
natural    as the classes come: no weights; a re-trained head is moved to the class shares of the test part,
           z + log p(test) - log p(expected), with p(test) ~ n_k(test) + 1

The networks of stage 1 expect the mix of their training data and are not moved.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from srepr.analysis import Array
from srepr.balance import Shares, adjust_to_prior
from srepr.data.longtail import Indices, Labels
from srepr.errors import unknown
from srepr.metrics import COLUMNS, LongTailMetrics, Measured, measure

BALANCED = 1.5
"""A test part is balanced if its largest class has at most so many times the examples of its smallest."""
SMALL = 30
"""A group with fewer test examples is too small to judge."""


class View(NamedTuple):
    """How a view is called and explained."""

    title: str
    about: str


VIEWS = {
    "equal": View("every class counts the same", "The test examples are weighted to equal classes."),
    "natural": View("as the classes come", "Re-trained classifiers are moved to the test part's class shares."),
}


class Judged(NamedTuple):
    """A classifier on a test part: as it is and, if the part is not balanced, in each view."""

    plain: Measured
    views: dict[str, Measured]

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics as it is, with those of the views under `views`."""
        views = {view: measured.metrics for view, measured in self.views.items()}
        return {**self.plain.metrics, "views": views} if views else self.plain.metrics


def judge(
    outputs: Iterable[tuple[Tensor, Any]],
    metrics: LongTailMetrics,
    labels: Labels,
    *,
    share: Indices | None = None,
    expects: Shares | None = None,
) -> Judged:
    """Measure batches of (logits [B, K], labels [B]) in one pass.

    `labels` are those of the whole test part, and `share` the indices of this process's examples. `expects` are the
    class shares that a re-trained head expects; a classifier without them is not moved.

    >>> logits, labels = torch.tensor([[0.0, 0.5], [0.0, 0.5], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 0, 1])
    >>> judged = judge([(logits, labels)], LongTailMetrics([9, 3]), labels, expects=[1, 1])
    >>> judged.plain.metrics["acc"], {view: found.metrics["acc"] for view, found in judged.views.items()}
    (0.5, {'equal': 0.6666666666666666, 'natural': 1.0})
    """
    if is_balanced(labels):
        return Judged(measure(outputs, metrics), {})
    kept = [(logits.cpu(), y) for logits, y in outputs]
    weights = share_weights(np.ones(metrics.classes), labels)
    plain = natural = measure(kept, copy.deepcopy(metrics))
    equal = measure(kept, copy.deepcopy(metrics), weights if share is None else weights[share])
    if expects is not None:
        shares = np.bincount(labels, minlength=metrics.classes) + 1
        moved = [(adjust_to_prior(logits, expects, shares), y) for logits, y in kept]
        natural = measure(moved, copy.deepcopy(metrics))
    return Judged(plain, {"equal": equal, "natural": natural})


def is_balanced(labels: Labels) -> bool:
    """Whether the largest class has at most 1.5 times the examples of the smallest; classes without any do not count.

    >>> is_balanced(np.repeat([0, 1, 3], [63, 54, 60])), is_balanced(np.repeat([0, 1], [31, 20]))
    (True, False)
    """
    counts = np.unique(labels, return_counts=True)[1]
    return not len(counts) or bool(counts.max() <= BALANCED * counts.min())


def too_small(metrics: Mapping[str, Any]) -> dict[str, int]:
    """The groups with too few test examples to judge, and how many they have.

    >>> too_small({"tested": {"many": 300, "medium": 0, "few": 12}})
    {'few': 12}
    """
    return {name: count for name, count in metrics.get("tested", {}).items() if 0 < count < SMALL}


def footnotes(small: Mapping[str, int]) -> list[str]:
    """What a table says about the groups of `too_small`, whose cells it marks.

    >>> footnotes({"few": 12})
    ['* Few has 12 test examples: too small to judge']
    """
    examples = {name: f"{count} test example{'s' if count > 1 else ''}" for name, count in small.items()}
    return [f"* {COLUMNS[name].title} has {words}: too small to judge" for name, words in examples.items()]


def share_weights(shares: Array, labels: Labels) -> Tensor:
    """Weights [N] with mean 1 that give the classes of a test set these shares [K]; one without examples gets none.

    >>> share_weights(np.ones(3), np.array([0, 0, 0, 1]))
    tensor([0.6667, 0.6667, 0.6667, 2.0000], dtype=torch.float64)
    """
    present = np.bincount(labels, minlength=len(shares)) / len(labels)
    target = np.where(present > 0, shares, 0)
    target = target / target.sum()
    return torch.from_numpy((target / np.where(present > 0, present, 1))[labels])


def prior_weights(prior: str, counts: Sequence[int], labels: Labels) -> Tensor | None:
    """Weights [N] that make a test set stand for another class prior; None for the prior that it has.

    `test` is that prior; `uniform` gives every class the same share; `forwardR` and `backwardR` are long tails
    with imbalance R, in the order of the training counts and against it: share_k ~ R^(-rank_k / (K - 1)).

    >>> prior_weights("forward4", [90, 10], np.array([0, 1, 1, 1]))
    tensor([3.2000, 0.2667, 0.2667, 0.2667], dtype=torch.float64)
    """
    if prior == "test":
        return None
    if prior == "uniform":
        return share_weights(np.ones(len(counts)), labels)
    match = re.fullmatch(r"(forward|backward)(\d+)", prior)
    if not match or int(match[2]) < 1:
        known = ["test", "uniform", "forward50", "backward50"]
        raise unknown("test prior", prior, known, hint=" (any imbalance)")
    rank = np.empty(len(counts))
    rank[np.argsort(-np.asarray(counts), kind="stable")] = np.linspace(0, 1, len(counts))
    return share_weights(float(match[2]) ** (-rank if match[1] == "forward" else rank - 1), labels)
