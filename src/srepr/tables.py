"""Results as the paper prints them: Many / Medium / Few / All, NLL, ECE, the best of each column in bold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = {"many": "Many", "medium": "Medium", "few": "Few", "acc": "All", "nll": "NLL", "ece": "ECE"}
LOWER_IS_BETTER = ("nll", "ece")
NAMES = {
    "sgd": "SGD",
    "swa": "SWA",
    "crt": "cRT",
    "lws": "LWS",
    "la": "LA",
    "grw": "GRW",
    "disalign": "DisAlign",
    "srepr": "SRepr",
    "ncm": "NCM",
}


def results_table(results: Mapping[str, Mapping[str, Any]], title: str = "") -> Table:
    """A row for each network, accuracies in per cent; a dash where no class is of that kind.

    >>> results_table({"swa": {"many": 0.7, "medium": None, "few": 0.1, "acc": 0.5, "nll": 1.5, "ece": 0.2}}).row_count
    1
    """
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    table.add_column("")
    for name in COLUMNS.values():
        table.add_column(name, justify="right")
    for name, metrics in results.items():
        cells = []
        for column in COLUMNS:
            values = [float(row[column]) for row in results.values() if row.get(column) is not None]
            value = None if metrics.get(column) is None else float(metrics[column])
            best = values and value == (min(values) if column in LOWER_IS_BETTER else max(values)) and len(results) > 1
            cells.append(f"[bold]{cell(column, value)}[/bold]" if best else cell(column, value))
        table.add_row(NAMES.get(name, name), *cells)
    return table


def cell(column: str, value: float | None) -> str:
    """One number in the paper's digits.

    >>> cell("acc", 0.47813), cell("nll", 2.1484), cell("few", None)
    ('47.81', '2.148', '-')
    """
    if value is None:
        return "-"
    return f"{value:.3f}" if column in LOWER_IS_BETTER else f"{100 * value:.2f}"
