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

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from srepr.data.table import csv_cells
from srepr.errors import InputError, check, unknown


class Costs(NamedTuple):
    """What decisions cost.

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
    p, c = _numbers(probabilities, "probabilities", "[N, K]"), _numbers(costs, "costs", "[K, J]")
    if p.shape[1] != len(c):
        raise InputError(f"`costs` has {len(c)} rows for {p.shape[1]} classes: give one for each class")
    if (p < 0).any() or (p.sum(1) - 1).abs().gt(1e-3).any():
        raise InputError(
            "`probabilities` must be >= 0 and sum to 1 over the classes: pass logits through softmax first"
        )
    return p @ c


def decide(probabilities: Any, costs: Any) -> Tensor:
    """The decision [N] of the least expected cost, as a column of `costs`; of equal ones, the first.

    >>> decide([[0.99, 0.01], [0.9, 0.1], [0.3, 0.7]], [[0.0, 1.0, 0.2], [5.0, 0.0, 0.2]])
    tensor([0, 2, 2])
    """
    return expected_costs(probabilities, costs).argmin(1)


def read_costs(path: Path, class_names: Sequence[str]) -> Costs:
    r"""Read a CSV file of costs: a column for each decision, a row for each true class, whose name comes first.

    Every class must have a row and a column; they may stand in any order. Other columns are further decisions.

    >>> path = getfixture("tmp_path") / "costs.csv"
    >>> _ = path.write_text("truth,crow,wren,person\nwren,1,0,0.2\ncrow,0,5,0.2\n")
    >>> read_costs(path, ["wren", "crow"])
    Costs(decisions=('wren', 'crow', 'person'), costs=tensor([[0.0000, 1.0000, 0.2000],
            [5.0000, 0.0000, 0.2000]], dtype=torch.float64))
    """
    lines = csv_cells(path)
    _, header = next(lines, (1, []))
    columns = [name.strip() for name in header[1:]]
    for name in columns:
        check(columns.count(name) == 1, f"{path} has several columns {name!r}. Remove all but one")
    classes = set(class_names)
    rows: dict[str, Tensor] = {}
    for line, (first, *cells) in lines:
        name = first.strip()
        if name not in classes:
            raise unknown(f"class in {path}, line {line}:", name, class_names)
        check(name not in rows, f"{path}, line {line}: class {name!r} has a second row. Remove one")
        if len(cells) != len(columns):
            raise InputError(
                f"{path}, line {line}: {len(cells)} costs for {len(columns)} decisions. Give one for each"
            )
        rows[name] = _costs(cells, f"{path}, line {line}")
    for what, found in (("column", columns), ("row", rows)):
        missing = next((name for name in class_names if name not in found), None)
        check(missing is None, f"{path} has no {what} for the class {missing!r}. Add one")
    decisions = (*class_names, *(name for name in columns if name not in classes))
    order = torch.tensor([columns.index(name) for name in decisions])
    return Costs(decisions, torch.stack([rows[name] for name in class_names])[:, order])


def _costs(cells: Sequence[str], where: str) -> Tensor:
    try:
        costs = torch.tensor([float(cell) for cell in cells], dtype=torch.float64)
    except ValueError as error:
        raise InputError(f"{where}: a cost is no number ({error}). Correct it") from None
    check(bool(costs.isfinite().all()), f"{where}: a cost is infinite or NaN. Write a finite number")
    return costs


def _numbers(values: Any, name: str, shape: str) -> Tensor:
    try:
        numbers = torch.as_tensor(values).detach().double()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"`{name}` are not numbers: pass {shape}") from None
    if numbers.ndim != 2 or not numbers.shape[1]:
        raise InputError(f"`{name}` has shape {list(numbers.shape)}: pass {shape}")
    check(bool(numbers.isfinite().all()), f"`{name}` contains NaN or infinity: pass finite numbers")
    return numbers
