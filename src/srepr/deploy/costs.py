"""The costs of decisions, as people write them down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from srepr.data.table import csv_cells
from srepr.decisions.costs import Costs
from srepr.errors import InputError, check, unknown


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
    places = {name: place for place, name in enumerate(columns)}
    twice = next((name for place, name in enumerate(columns) if places[name] != place), None)
    check(twice is None, f"{path} has several columns {twice!r}. Remove all but one")
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
    for what, found in (("column", places), ("row", rows)):
        missing = next((name for name in class_names if name not in found), None)
        check(missing is None, f"{path} has no {what} for the class {missing!r}. Add one")
    decisions = (*class_names, *(name for name in columns if name not in classes))
    order = torch.tensor([places[name] for name in decisions])
    return Costs(decisions, torch.stack([rows[name] for name in class_names])[:, order])


def _costs(cells: Sequence[str], where: str) -> Tensor:
    try:
        costs = torch.tensor([float(cell) for cell in cells], dtype=torch.float64)
    except ValueError as error:
        raise InputError(f"{where}: a cost is no number ({error}). Correct it") from None
    check(bool(costs.isfinite().all()), f"{where}: a cost is infinite or NaN. Write a finite number")
    return costs
