"""Decisions in the rows of a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from torch import Tensor

from srepr.decisions.conformal import Thresholds
from srepr.decisions.costs import Costs, decide
from srepr.prediction import Prediction, Row, columns


def rows_of(
    answer: Prediction,
    inputs: Sequence[str],
    names: Sequence[str],
    top: int = 1,
    thresholds: Thresholds | None = None,
    costs: Costs | None = None,
) -> Iterator[Row]:
    """A row for each of these inputs, of which the classes have these names; the numbers have six digits.

    >>> import torch
    >>> answer = Prediction(torch.tensor([[0.2, 0.8]]), torch.tensor([2.0]), torch.tensor([0.2]))
    >>> list(rows_of(answer, ["1.jpg"], ["wren", "crow"]))
    [{'input': '1.jpg', 'label': 'crow', 'probability': 0.8, 'uncertainty': 0.2}]
    """
    keys = columns(top, sets=thresholds is not None, costs=costs is not None)
    best = answer.probabilities.topk(top)
    numbers = (best.values, best.indices, answer.uncertainty)
    more = decided(answer.probabilities, names, thresholds, costs)
    told = zip(inputs, *(values.tolist() for values in numbers), more, strict=True)
    for name, shares, labels, uncertainty, decisions in told:
        first, *others = ((names[k], six_digits(p)) for k, p in zip(labels, shares, strict=True))
        values = [name, *first, six_digits(uncertainty), *chain(*others), *decisions]
        yield dict(zip(keys, values, strict=True))


def decided(p: Tensor, names: Sequence[str], thresholds: Thresholds | None, costs: Costs | None) -> list[list[Any]]:
    """The set, the decision and its expected cost, as far as they are asked for, for each row of probabilities [B, K].

    >>> import torch
    >>> decided(torch.tensor([[0.2, 0.8]]), ["wren", "crow"], Thresholds("marginal", 0.9, (0.1, 0.1)), None)
    [[['crow', 'wren']]]
    """
    cells: list[list[Any]] = [[] for _ in p]
    if thresholds is not None:
        ranks = p.argsort(1, descending=True)
        for row, ranked, inside in zip(cells, ranks.tolist(), thresholds.sets(p).tolist(), strict=True):
            row.append([names[k] for k in ranked if inside[k]])
    if costs is not None:
        least = decide(p, costs.costs)
        for row, decision, cost in zip(cells, *(values.tolist() for values in least), strict=True):
            row += [costs.decisions[decision], six_digits(cost)]
    return cells


def six_digits(value: float) -> float:
    """The number without the digits that single precision does not have.

    >>> six_digits(0.9123456478118896)
    0.912346
    """
    return float(f"{value:.6g}")
