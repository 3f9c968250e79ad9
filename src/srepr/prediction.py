"""What a classifier says about inputs: numbers for a batch, or a row for each named input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch  # noqa: F401  (the examples use it)
from torch import Tensor

Row = dict[str, Any]


class Prediction(NamedTuple):
    """The result of one forward pass for a batch of inputs.

    >>> Prediction(torch.tensor([[0.9, 0.1]]), torch.tensor([2.5]), torch.tensor([0.1])).label
    tensor([0])
    """

    probabilities: Tensor
    """[B, K], softmax of the logits."""
    precision: Tensor
    """[B], sum_k alpha_k of the Dirichlet Dir(alpha), alpha = exp(logits / temperature): large where certain."""
    uncertainty: Tensor
    """[B], 0 .. 1: how likely the label is wrong, 1 - max_k p_k, and more for inputs unlike those that the network
    knows (`srepr.decisions.doubt`)."""

    @property
    def label(self) -> Tensor:
        """The most probable class [B]."""
        return self.probabilities.argmax(-1)


def columns(top: int = 1, *, sets: bool = False, costs: bool = False) -> Sequence[str]:
    """The keys of a row.

    >>> columns(top=2, sets=True, costs=True)[4:]
    ['label_2', 'probability_2', 'set', 'decision', 'expected_cost']
    """
    more = [f"{what}_{rank}" for rank in range(2, top + 1) for what in ("label", "probability")]
    decisions = ["set"] * sets + ["decision", "expected_cost"] * costs
    return ["input", "label", "probability", "uncertainty", *more, *decisions]
