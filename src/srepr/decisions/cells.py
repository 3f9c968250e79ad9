"""Decisions in the rows of a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from srepr.decisions.conformal import Thresholds
from srepr.decisions.costs import Costs, decide


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
