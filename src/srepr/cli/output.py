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

    # Names of classes and files are shown as they are, whatever rich's markup would make of them.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, 100)
    console.print(renderable)


def show_results(results: dict[str, dict[str, Any]], title: str, *, as_json: bool) -> None:
    """The metrics as JSON, or as a table like the paper's; as one for each view if the test part is not balanced."""
    if as_json:
        show_json(results)
        return
    from srepr.views import VIEWS

    results = {metrics.get("called", name): metrics for name, metrics in results.items()}
    views = {name: metrics.get("views", {}) for name, metrics in results.items()}
    if not any(views.values()):
        print(title)
        show(results_table(results))
        return
    for number, (view, (words, about)) in enumerate(VIEWS.items()):
        rows = {name: found.get(view, {}) for name, found in views.items()}
        print(f"{'' if not number else chr(10)}{title}: {words}")
        show(results_table(rows, about))


def results_table(results: Mapping[str, Mapping[str, Any]], about: str = "") -> Table:
    """A row for each classifier, the best of each column in bold; a dash where there is nothing to measure.

    Groups that are too small to judge are marked, and no classifier is the best in them.
    """
    from rich.table import Table
    from rich.text import Text

    from srepr.methods import title as title_of
    from srepr.metrics import COLUMNS
    from srepr.views import footnotes, too_small

    small = {group: count for metrics in results.values() for group, count in too_small(metrics).items()}
    notes = "\n".join([*([about] if about else []), *footnotes(small)])
    table = Table(caption=notes or None, caption_justify="left")
    table.add_column("")
    for column in COLUMNS.values():
        table.add_column(column.title, justify="right")
    best = {}
    for name, column in COLUMNS.items():
        values = [float(row[name]) for row in results.values() if row.get(name) is not None and name not in small]
        best[name] = (min(values) if column.lower_is_better else max(values)) if values and len(results) > 1 else None
    for classifier, metrics in results.items():
        cells = []
        for name, column in COLUMNS.items():
            value = None if metrics.get(name) is None else float(metrics[name])
            cell = column.cell(value) + ("*" if value is not None and name in small else "")
            cells.append(Text(cell, style="bold") if value is not None and value == best[name] else cell)
        table.add_row(title_of(classifier), *cells)
    return table


def show_choice(name: str, choice: Mapping[str, Any]) -> None:
    """The candidates that a head was chosen from, or that there was nothing to choose on."""
    from rich.table import Table

    from srepr.methods import title

    if not choice["candidates"]:
        show(f"{title(name)}: there is no validation set to choose on, so it has the default method and penalty.")
        return
    print(f"{title(name)}: chosen on {choice['on']}")
    table = Table()
    for column in ("", "Penalty", "Distil", "Temperature", "Adjustment", "Balanced", "NLL", "Difference"):
        table.add_column(column, justify="left" if not column else "right")
    for row in choice["candidates"]:
        distil = "-" if row["distill_weight"] is None else f"{row['distill_weight']:g}"
        excess = f"{row['excess']:+.3f} ± {row['standard_error']:.3f}" if row["excess"] else "best"
        adjustment = f"{row.get('adjustment', 0.0):+.2f}"
        cells = [f"{row['penalty']:g}", distil, f"{row['temperature']:.2f}", adjustment]
        cells.append(f"{100 * row['balanced_acc']:.2f}")
        mark = "bold" if row["chosen"] else None
        table.add_row(row["title"], *cells, f"{row['nll']:.3f}", excess, style=mark)
    show(table)
