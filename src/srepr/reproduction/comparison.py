"""Our numbers beside the paper's: mean and sample standard deviation over the seeds, and the difference of means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srepr.config import RECIPES
from srepr.metrics import COLUMNS
from srepr.reproduction.experiments import TABLES
from srepr.reproduction.paper import TITLES, Number, mean_of, numbers
from srepr.reproduction.plan import Experiment, named
from srepr.reproduction.records import Record
from srepr.storage.files import write_csv, write_json, write_text

if TYPE_CHECKING:
    from rich.table import Table

DIGITS = {name: 2 if column.percent else 3 for name, column in COLUMNS.items()} | {"seconds": 1}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A row with both sides: [mean, standard deviation], "N/A" if it diverged, None if there is none."""

    name: str
    label: str
    ours: dict[str, Number | None]
    paper: dict[str, Number | None]

    @property
    def difference(self) -> dict[str, float | None]:
        """Our mean minus the paper's; None if either is missing."""
        means = {column: (mean_of(self.ours[column]), mean_of(self.paper[column])) for column in self.ours}
        return {
            column: None if ours is None or paper is None else round(ours - paper, 6)
            for column, (ours, paper) in means.items()
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table on our data set beside the paper's."""

    table: str
    source: str
    paper: str
    """Data set of the paper."""
    caption: str
    columns: tuple[str, ...]
    rows: list[Compared]
    notes: list[str]

    @property
    def header(self) -> list[str]:
        """The titles of the columns, as in the paper."""
        titles = {name: column.title for name, column in COLUMNS.items()} | {"seconds": "Seconds"}
        return ["", *((titles if "many" in self.columns else titles | {"acc": "ACC"})[name] for name in self.columns)]

    @property
    def lines(self) -> list[list[str]]:
        """The cells: a line for our numbers, one for the paper's and one for the difference."""
        found = []
        for row in self.rows:
            found.append([row.label, *(cell(column, row.ours[column]) for column in self.columns)])
            if any(row.paper.values()):
                found.append(["  paper", *(cell(column, row.paper[column]) for column in self.columns)])
            if any(value is not None for value in row.difference.values()):
                found.append(["  difference", *(signed(column, row.difference[column]) for column in self.columns)])
        return found


def compare(experiment: Experiment, measured: Sequence[Record]) -> Comparison:
    """Our mean and standard deviation over the seeds beside the paper's numbers, on this data set or the nearest."""
    table, base = TABLES[experiment.table], experiment.base
    paper, theirs = numbers(experiment.table, base.source)
    rows = [
        Compared(
            name=row.name,
            label=row.label,
            ours={column: aggregate(column, measured, row.name) for column in table.columns},
            paper={column: theirs.get(row.paper_name or row.name, {}).get(column) for column in table.columns},
        )
        for row in experiment.rows
    ]
    epochs = RECIPES[paper].epochs
    part = next((record["part"] for record in measured if record["part"]), table.part)
    seeds = "seed 0" if experiment.seeds == 1 else f"seeds 0 to {experiment.seeds - 1}"
    caption = (
        f"{table.title}. Ours: {base.source}, {base.epochs} epochs of {table.stage}, {seeds}, {part} set;"
        f" paper: {TITLES[paper]}, {table.length or f'{epochs} epochs'}, {table.part} set."
    )
    notes = []
    if base.source != paper or (base.epochs != epochs and not table.length):
        notes.append(f"Data set or number of epochs differ from the paper's: only {table.comparable} compares.")
    diverged = {record["name"]: record for record in measured if "diverged" in record}
    for name, record in diverged.items():  # the indented labels of `combine` repeat
        notes.append(f"N/A: {name if record['label'].startswith(' ') else record['label']}: {record['diverged']}")
    return Comparison(
        table=experiment.table,
        source=base.source,
        paper=paper,
        caption=caption,
        columns=table.columns,
        rows=rows,
        notes=notes,
    )


def aggregate(column: str, measured: Sequence[Record], name: str) -> Number | None:
    """Mean and sample standard deviation of a metric over the seeds of a row; accuracies in per cent.

    >>> rows = [{"name": "la", "ece": 0.25}, {"name": "la", "ece": 0.75}, {"name": "crt", "diverged": "at last"}]
    >>> aggregate("ece", rows, "la"), aggregate("ece", rows[:1], "la"), aggregate("ece", rows, "crt")
    ([0.5, 0.3535533905932738], [0.25, None], 'N/A')
    """
    own = [record for record in measured if record["name"] == name]
    if any("diverged" in record for record in own):
        return "N/A"
    if not own or any(record[column] is None for record in own):
        return None
    factor = 100 if column in COLUMNS and COLUMNS[column].percent else 1
    values = [float(record[column]) * factor for record in own]
    spread = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
    return [statistics.fmean(values), spread]


def cell(column: str, number: Number | None) -> str:
    """A number with its standard deviation, in the paper's digits.

    >>> cell("nll", [2.1484, 0.009]), cell("acc", [47.8, None]), cell("acc", "N/A"), cell("few", None)
    ('2.148±0.009', '47.80', 'N/A', '-')
    """
    if not isinstance(number, list):
        return number or "-"
    return "±".join(f"{value:.{DIGITS[column]}f}" for value in number if value is not None)


def signed(column: str, difference: float | None) -> str:
    """A difference with its sign.

    >>> signed("acc", 1.5), signed("ece", -0.01), signed("nll", None)
    ('+1.50', '-0.010', '-')
    """
    return "-" if difference is None else f"{difference:+.{DIGITS[column]}f}"


def as_table(comparison: Comparison) -> Table:
    """The comparison for a terminal; six columns of numbers with their spread fit into 100 characters."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=comparison.caption,
        title_justify="left",
        caption="\n".join(comparison.notes) or None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, title in enumerate(comparison.header):
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    for line in comparison.lines:
        table.add_row(*line, style="dim" if line[0].startswith("  ") else "")
    return table


def as_markdown(comparison: Comparison) -> str:
    r"""The comparison as a Markdown page."""
    rule = ["---", *["---:"] * len(comparison.columns)]
    table = [f"| {' | '.join(line)} |" for line in (comparison.header, rule, *comparison.lines)]
    return "\n".join([f"# {comparison.table}", "", comparison.caption, "", *table, "", *comparison.notes, ""])


def csv_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """The comparison for a spreadsheet, a line for each row and metric."""
    for row in comparison.rows:
        for column in comparison.columns:
            line: dict[str, Any] = {"name": row.name, "label": row.label, "metric": column}
            for side, number in (("ours", row.ours[column]), ("paper", row.paper[column])):
                line[side], line[f"{side}_std"] = number if isinstance(number, list) else (number, None)
            yield {**line, "difference": row.difference[column]}


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison for machines."""
    rows = [{**asdict(row), "difference": row.difference} for row in comparison.rows]
    return {**asdict(comparison), "rows": rows}


def write(out: Path, measured: Sequence[Record], comparison: Comparison) -> None:
    """Write the records (.json), the comparison (.csv) and its page (.md) as TABLE-SOURCE.* into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    name = f"{comparison.table}-{named(comparison.source)}"
    write_json(out / f"{name}.json", measured)
    write_csv(out / f"{name}.csv", csv_rows(comparison))
    write_text(out / f"{name}.md", as_markdown(comparison))
