"""Decisions by expected cost, for mistakes that are not equally bad.

C [K, J] has the cost of each decision j where the truth is class k. The decision of the least expected cost is

    argmin_j sum_k p_k C_kj

(Elkan, The Foundations of Cost-Sensitive Learning, 2001). With costs of 0 on the diagonal and 1 elsewhere it is the
most probable class. Decisions beyond the K classes, such as "send to a person", are further columns: one that always
costs c is Chow's rule, which takes it iff max_k p_k < 1 - c (Chow, On Optimum Recognition Error and Reject Tradeoff,
1970).

The probabilities must be those of the mix of classes at the place of use (`srepr.balance.adjust_to_prior`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from srepr.decisions.numbers import as_numbers, as_probabilities
from srepr.errors import InputError, check


class Costs(NamedTuple):
    """What decisions cost.

    >>> import torch
    >>> Costs(("wren", "crow", "person"), torch.tensor([[0.0, 1.0, 0.2], [5.0, 0.0, 0.2]])).costs.shape
    torch.Size([2, 3])
    """

    decisions: tuple[str, ...]
    """Their names [J]: the K classes in their order, then the others."""
    costs: Tensor
    """C [K, J] in float64."""


def expected_costs(probabilities: Any, costs: Any) -> Tensor:
    """The expected cost [N, J] of each decision, from probabilities [N, K] and costs [K, J].

    >>> expected_costs([[0.9, 0.1]], [[0.0, 1.0, 0.2], [5.0, 0.0, 0.2]])
    tensor([[0.5000, 0.9000, 0.2000]], dtype=torch.float64)
    """
    p, c = as_probabilities(probabilities), as_numbers(costs, "costs")
    if c.ndim != 2 or not c.shape[1]:
        raise InputError(f"`costs` has the shape {list(c.shape)}: pass [K, J], one row for each class")
    check(bool(c.isfinite().all()), "`costs` has a NaN or infinite cost: pass finite numbers")
    if p.shape[1] != len(c):
        raise InputError(f"`costs` has {len(c)} rows for {p.shape[1]} classes: give one for each class")
    return p @ c


def decide(probabilities: Any, costs: Any) -> tuple[Tensor, Tensor]:
    """The decision [N] of the least expected cost, as a column of `costs`, and that cost; of equal ones, the first.

    >>> decide([[0.99, 0.01], [0.9, 0.1], [0.3, 0.7]], [[0.0, 1.0, 0.2], [5.0, 0.0, 0.2]])
    (tensor([0, 2, 2]), tensor([0.0500, 0.2000, 0.2000], dtype=torch.float64))
    """
    expected = expected_costs(probabilities, costs)
    decision = expected.argmin(1)
    return decision, expected.gather(1, decision[:, None])[:, 0]
