"""How the commands print: JSON for machines, tables for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def show_json(content: object) -> None:
    """Print for machines.

    >>> show_json({"ece": float("inf")})
    {
      "ece": "inf"
    }
    """
    from srepr.storage.files import plain

    print(json.dumps(plain(content), indent=2, allow_nan=False))


def show(renderable: object) -> None:
    """Print for people; without a terminal the lines are long enough for every table.

    >>> show("digits-lt")
    digits-lt
    """
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 100)
    console.print(renderable)


def show_results(results: dict[str, dict[str, Any]], title: str, *, as_json: bool) -> None:
    """The metrics as JSON, or as a table like the paper's."""
    if as_json:
        show_json(results)
    else:
        show(results_table(results, title))


def results_table(results: Mapping[str, Mapping[str, Any]], title: str = "") -> Table:
    """A row for each classifier, the best of each column in bold; a dash where there is nothing to measure."""
    from rich.table import Table

    from srepr.methods import title as title_of
    from srepr.metrics import COLUMNS

    table = Table(title=title or None, title_justify="left")
    table.add_column("")
    for column in COLUMNS.values():
        table.add_column(column.title, justify="right")
    best = {}
    for name, column in COLUMNS.items():
        values = [float(row[name]) for row in results.values() if row.get(name) is not None]
        best[name] = (min(values) if column.lower_is_better else max(values)) if values and len(results) > 1 else None
    for classifier, metrics in results.items():
        cells = []
        for name, column in COLUMNS.items():
            value = None if metrics.get(name) is None else float(metrics[name])
            cell = column.cell(value)
            cells.append(f"[bold]{cell}[/bold]" if value is not None and value == best[name] else cell)
        table.add_row(title_of(classifier), *cells)
    return table
