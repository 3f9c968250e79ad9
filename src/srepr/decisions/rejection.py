"""Rejection: the most doubtful inputs go to a person. What remains is right more often: risk and coverage.

An input is rejected if its doubt d is above a threshold t. To reject a share r of the inputs, t is the smallest doubt
of H held-out examples with

    sum_i w_i [d_i > t]  <=  r sum_i w_i.

The weights w_i = q(y_i) / n(y_i), where n counts the held-out examples of a class, are for the class mix q at the
place of use. With equal weights, a new input that is exchangeable with the held-out ones is rejected with the
probability (floor(r H) + 1) / (H + 1) if no two doubts are equal.

Of N inputs in the order of doubt, the i most certain ones are kept: their coverage is i / N, their risk the share of
errors among them (El-Yaniv and Wiener, On the Foundations of Noise-free Selective Classification, 2010). The area
under the risk-coverage curve, the mean of the risk over i = 1..N, judges the order of the doubt, whatever its scale
(AURC; Geifman, Uziel and El-Yaniv 2019). Inputs of equal doubt count as if in random order, by the expected numbers of
errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from srepr.decisions.cells import six_digits
from srepr.decisions.numbers import as_numbers
from srepr.errors import InputError, check, tell
from srepr.prediction import Row

ROUNDING = 1e-12  # of sums of weights, relative


@dataclass(frozen=True)
class Rejection:
    """A rule that rejects about this share of the inputs: those whose doubt is above a threshold.

    >>> Rejection(0.1, (0.5, 0.8)).rejects([0.6, 0.6], [0, 1])
    tensor([ True, False])
    """

    share: float
    thresholds: tuple[float, ...]
    """The largest doubt [K] that is accepted, for each predicted class."""
    borrowed: tuple[int, ...] = ()
    """Classes that are predicted too seldom for a threshold of their own; they have that of all classes."""

    def rejects(self, doubt: Any, label: Any) -> Tensor:
        """Whether each input [N] is rejected, from its doubt [N] and its predicted class [N]."""
        values = _numbers(doubt, "doubt")
        return (
            values > torch.tensor(self.thresholds, dtype=torch.float64)[_labels(label, values, len(self.thresholds))]
        )


def calibrate(
    doubt: Any, label: Any, share: float, classes: int, *, weights: Any = None, by_class: bool = False
) -> Rejection:
    """The rule that rejects this share of held-out examples, from their doubt [H] and predicted classes [H].

    `weights` [H] make them stand for another mix of classes. With `by_class`, the same share of each predicted class
    is rejected: rare classes, which are more doubtful, are not rejected more often. A class that is predicted for
    fewer than 1 / share held-out examples takes the threshold of all classes together.

    >>> calibrate([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1], share=0.25, classes=2).thresholds
    (0.3, 0.3)
    """
    check_share(share)
    d = _numbers(doubt, "doubt")
    y = _labels(label, d, classes)
    w = torch.ones_like(d) if weights is None else _numbers(weights, "weights")
    if not len(d) or w.shape != d.shape or bool((w < 0).any()) or not 0 < float(w.sum()) < math.inf:
        raise InputError("`weights` must be numbers >= 0, one for each of the held-out examples, and not all 0")
    thresholds = [_threshold(d, w, share)] * classes
    borrowed = []
    for k in range(classes) if by_class else ():
        own = y == k
        if int(own.sum()) * share >= 1 and bool(w[own].any()):
            thresholds[k] = _threshold(d[own], w[own], share)
        else:
            borrowed.append(k)
    return Rejection(share, tuple(thresholds), tuple(borrowed))


def most_doubtful(doubt: Any, label: Any, share: float, *, by_class: bool = False) -> Tensor:
    """Which of these inputs [N] to reject if there are no held-out examples: the floor(share N) most doubtful.

    With `by_class`, inputs are compared by their rank among those of the same predicted class.

    >>> most_doubtful([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], share=0.5)
    tensor([False, False,  True,  True])
    >>> most_doubtful([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], share=0.5, by_class=True)
    tensor([False,  True, False,  True])
    """
    check_share(share)
    d = _numbers(doubt, "doubt")
    if by_class:
        y = _labels(label, d, math.inf)
        for k in torch.unique(y):
            own = (y == k).nonzero().flatten()
            ranks = torch.empty(len(own), dtype=torch.float64)
            ranks[d[own].argsort(stable=True)] = torch.arange(len(own), dtype=torch.float64)
            d = d.index_copy(0, own, (ranks + 0.5) / len(own))
    rejected = torch.zeros(len(d), dtype=torch.bool)
    rejected[d.argsort(descending=True, stable=True)[: math.floor(share * len(d) * (1 + ROUNDING))]] = True
    return rejected


def mark(
    rows: Iterable[Row], class_names: Sequence[str], share: float, rule: Rejection | None, *, by_class: bool = False
) -> Iterator[Row]:
    """The rows of predictions, each with the key `reject`: whether the rule rejects it.

    Without a rule, the rows are compared with each other, so all of them are awaited; stderr says so.

    >>> rows = [{"label": "wren", "uncertainty": 0.1}, {"label": "crow", "uncertainty": 0.7}]
    >>> [row["reject"] for row in mark(rows, ["crow", "wren"], 0.1, Rejection(0.1, (0.5, 0.5)))]
    [False, True]
    """
    check_share(share)
    if rule is not None:
        if rule.borrowed:
            few = f"{len(rule.borrowed)} of {len(class_names)} classes are predicted for too few held-out examples"
            tell(f"{few} to have a threshold of their own: they take that of all.")
        # The rows have six digits.
        limits = dict(zip(class_names, map(six_digits, rule.thresholds), strict=True))
        return ({**row, "reject": row["uncertainty"] > limits[row["label"]]} for row in rows)

    def compared() -> Iterator[Row]:
        every, numbers = list(rows), {name: k for k, name in enumerate(class_names)}
        tell(f"the model has no held-out examples: the most doubtful of these {len(every):,} inputs are rejected.")
        doubts, labels = [row["uncertainty"] for row in every], [numbers[row["label"]] for row in every]
        rejected = most_doubtful(doubts, labels, share, by_class=by_class).tolist()
        yield from ({**row, "reject": one} for row, one in zip(every, rejected, strict=True))

    return compared()


class Curve(NamedTuple):
    """What is kept of N inputs, or of a group of them, and what is wrong about it, as rejection goes down to none."""

    coverage: Tensor
    """[N], i / N: the share of all inputs that is kept."""
    kept: Tensor
    """[N], the share of the group that is kept."""
    risk: Tensor
    """[N], the share of errors among what is kept of the group; 0 as long as nothing is."""

    @property
    def area(self) -> float:
        """AURC, the mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(doubt: Any, wrong: Any, group: Any = None) -> Curve:
    """The curve of N inputs from their doubt [N] and whether the prediction is wrong [N].

    `group` [N] marks the inputs, such as those of few-shot classes, whose fate is shown while all are rejected by the
    same doubt. If less of it is kept than of all, rejection is at its expense.

    >>> risk_coverage([0.1, 0.2, 0.3, 0.4], [False, False, True, False]).risk
    tensor([0.0000, 0.0000, 0.3333, 0.2500], dtype=torch.float64)
    >>> risk_coverage([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 0], group=[0, 0, 1, 1]).kept
    tensor([0.0000, 0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    d, errors = _numbers(doubt, "doubt"), _numbers(wrong, "wrong")
    members = torch.ones_like(d) if group is None else _numbers(group, "group")
    if not len(d) or not d.shape == errors.shape == members.shape:
        raise InputError("`doubt`, `wrong` and `group` must have one number for each input, and there must be one")
    if bool(((members != 0) & (members != 1)).any()) or not bool(members.any()):
        raise InputError("`group` must be true or false for each input, and true for one at least")
    values, place = torch.unique(d, return_inverse=True)
    sums = torch.zeros(3, len(values), dtype=torch.float64)
    sums.index_add_(1, place, torch.stack([torch.ones_like(d), members, members * errors]))
    ties = sums[0].long()
    means = (sums / sums[0]).repeat_interleave(ties, dim=1)  # what to expect of each place among equal doubts
    coverage, inside, bad = means.cumsum(1) / means.new_tensor([[len(d)], [1], [1]])
    return Curve(coverage, inside / members.sum(), bad / inside.clamp(min=math.ulp(0.0)))


def check_share(share: float) -> None:
    """Raise an InputError unless it is a share of inputs that can be rejected.

    >>> check_share(10)
    Traceback (most recent call last):
    srepr.errors.InputError: `reject` is 10: it must lie between 0 and 1, for example 0.1 for a tenth
    """
    check(0 < share < 1, f"`reject` is {share}: it must lie between 0 and 1, for example 0.1 for a tenth")


def _threshold(doubt: Tensor, weights: Tensor, share: float) -> float:
    values, place = torch.unique(doubt, return_inverse=True)
    mass = torch.zeros(len(values), dtype=torch.float64).index_add_(0, place, weights)
    above = mass.flip(0).cumsum(0).flip(0) - mass
    return float(values[above <= share * mass.sum() * (1 + ROUNDING)][0])


def _numbers(values: Any, name: str) -> Tensor:
    numbers = as_numbers(values, name)
    if numbers.ndim != 1 or not bool(numbers.isfinite().all()):
        raise InputError(f"`{name}` must be finite numbers [N], one for each input")
    return numbers


def _labels(values: Any, doubt: Tensor, classes: float) -> Tensor:
    labels = _numbers(values, "label")
    fits = labels.shape == doubt.shape and bool((labels == labels.floor()).all())
    if not fits or (len(labels) and not 0 <= float(labels.min()) <= float(labels.max()) < classes):
        raise InputError("`label` must be the predicted class of each input, a whole number from 0")
    return labels.long()
