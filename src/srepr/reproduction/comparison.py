"""Our numbers beside the paper's: mean and sample standard deviation over the seeds, and what the means differ by."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srepr import runs
from srepr.recipes import RECIPES
from srepr.reproduction.experiments import SPLITS, TABLES
from srepr.reproduction.paper import TITLES, Number, mean_of, numbers
from srepr.reproduction.records import Record
from srepr.reproduction.work import Experiment, named
from srepr.tables import COLUMNS

if TYPE_CHECKING:
    from rich.table import Table

DIGITS = {"nll": 3, "ece": 3, "seconds": 1}
ORDER_ONLY = "Data set or length of training are not the paper's: only the order of the rows compares."


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A row with the numbers of both sides: [mean, standard deviation], "N/A" where it diverged, None where none is.

    >>> Compared(name="swa", label="SWA", ours={"acc": [50.0, 1.0]}, paper={"acc": [47.08, 0.12]}).difference
    {'acc': 2.92}
    """

    name: str
    label: str
    ours: dict[str, Number | None]
    paper: dict[str, Number | None]

    @property
    def difference(self) -> dict[str, float | None]:
        """Our mean less the paper's, where there are both."""
        means = {column: (mean_of(self.ours[column]), mean_of(self.paper[column])) for column in self.ours}
        return {
            column: None if ours is None or paper is None else round(ours - paper, 6)
            for column, (ours, paper) in means.items()
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table on our data set beside the paper's.

    >>> Comparison(table="main", source="digits-lt", paper="imagenet-lt", caption="", columns=("acc",), rows=[],
    ...            notes=[]).header
    ['', 'ACC']
    """

    table: str
    source: str
    paper: str
    """The paper's data set."""
    caption: str
    columns: tuple[str, ...]
    rows: list[Compared]
    notes: list[str]

    @property
    def header(self) -> list[str]:
        """The titles of the columns, as in the paper."""
        titles = COLUMNS | {"seconds": "Seconds"} | ({} if "many" in self.columns else {"acc": "ACC"})
        return ["", *(titles[column] for column in self.columns)]

    @property
    def lines(self) -> list[list[str]]:
        """The cells: a line for what is ours, one for the paper's numbers and one for the difference."""
        found = []
        for row in self.rows:
            found.append([row.label, *(cell(column, row.ours[column]) for column in self.columns)])
            if any(row.paper.values()):
                found.append(["  paper", *(cell(column, row.paper[column]) for column in self.columns)])
            if any(value is not None for value in row.difference.values()):
                found.append(["  difference", *(signed(column, row.difference[column]) for column in self.columns)])
        return found


def compare(experiment: Experiment, measured: Sequence[Record]) -> Comparison:
    """Mean and standard deviation over the seeds, beside the paper's numbers on this data set or the nearest one.

    >>> experiment = Experiment(table="main", base=RECIPES["cifar100-lt"], seeds=2, out=Path("O"))
    >>> record = {"name": "srepr", "part": "test", "nll": 2.25, "ece": 0.125}
    >>> measured = [{**record, "acc": 0.47}, {**record, "acc": 0.48}]
    >>> row = compare(experiment, measured).rows[-1]
    >>> [cell("acc", row.ours["acc"]), cell("acc", row.paper["acc"]), signed("acc", row.difference["acc"])]
    ['47.50±0.71', '47.81±0.02', '-0.31']
    """
    table, base = TABLES[experiment.table], experiment.base
    paper, theirs = numbers(experiment.table, base.source)
    rows = [
        Compared(
            name=row.name,
            label=row.label,
            ours={column: aggregate(column, measured, row.name) for column in table.columns},
            paper={column: theirs.get(row.name, {}).get(column) for column in table.columns},
        )
        for row in experiment.rows
    ]
    length = RECIPES[paper].epochs
    part = next((record["part"] for record in measured if record["part"]), table.part)
    seeds = "seed 0" if experiment.seeds == 1 else f"seeds 0 to {experiment.seeds - 1}"
    caption = (
        f"{table.title}. Ours: {base.source}, {base.epochs} epochs of stage 1, {seeds}, {part} part;"
        f" paper: {TITLES[paper]}, {length} epochs, {table.part} part."
    )
    notes = [] if (base.source, base.epochs) == (paper, length) else [ORDER_ONLY]
    diverged = {record["label"]: record["diverged"] for record in measured if "diverged" in record}
    notes += [f"N/A: {label}: {reason}" for label, reason in diverged.items()]
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
    """Mean and sample standard deviation of a metric over the seeds of a row, accuracies in per cent.

    >>> rows = [{"name": "la", "ece": 0.25}, {"name": "la", "ece": 0.75}, {"name": "crt", "diverged": "at last"}]
    >>> aggregate("ece", rows, "la"), aggregate("ece", rows[:1], "la"), aggregate("ece", rows, "crt")
    ([0.5, 0.3535533905932738], [0.25, None], 'N/A')
    """
    own = [record for record in measured if record["name"] == name]
    if any("diverged" in record for record in own):
        return "N/A"
    if not own or any(record[column] is None for record in own):
        return None
    values = [float(record[column]) * (100 if column in SPLITS else 1) for record in own]
    spread = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
    return [statistics.fmean(values), spread]


def cell(column: str, number: Number | None) -> str:
    """A number of either side in the paper's digits.

    >>> cell("nll", [2.1484, 0.009]), cell("acc", [47.8, None]), cell("acc", "N/A"), cell("few", None)
    ('2.148±0.009', '47.80', 'N/A', '-')
    """
    if not isinstance(number, list):
        return number or "-"
    return "±".join(f"{value:.{DIGITS.get(column, 2)}f}" for value in number if value is not None)


def signed(column: str, difference: float | None) -> str:
    """A difference with its sign.

    >>> signed("acc", 1.5), signed("ece", -0.01), signed("nll", None)
    ('+1.50', '-0.010', '-')
    """
    return "-" if difference is None else f"{difference:+.{DIGITS.get(column, 2)}f}"


def as_table(comparison: Comparison) -> Table:
    """The comparison for a terminal; six columns of numbers with their spread fit into 100 characters.

    >>> as_table(Comparison(table="main", source="digits-lt", paper="imagenet-lt", caption="", columns=("acc",),
    ...                     rows=[], notes=[])).row_count
    0
    """
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
    r"""The comparison as a page.

    >>> as_markdown(Comparison(table="main", source="digits-lt", paper="imagenet-lt", caption="Methods.",
    ...                        columns=("acc",), rows=[], notes=["A note."]))
    '# main\n\nMethods.\n\n|  | ACC |\n| --- | ---: |\n\nA note.\n'
    """
    rule = ["---", *["---:"] * len(comparison.columns)]
    table = [f"| {' | '.join(line)} |" for line in (comparison.header, rule, *comparison.lines)]
    return "\n".join([f"# {comparison.table}", "", comparison.caption, "", *table, "", *comparison.notes, ""])


def as_csv(comparison: Comparison) -> str:
    r"""The comparison for a spreadsheet, a line for each row and metric.

    >>> as_csv(Comparison(table="main", source="digits-lt", paper="imagenet-lt", caption="", columns=("acc",),
    ...                   rows=[], notes=[]))
    'name,label,metric,ours,ours_std,paper,paper_std,difference\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "label", "metric", "ours", "ours_std", "paper", "paper_std", "difference"])
    for row in comparison.rows:
        for column in comparison.columns:
            sides = [
                side if isinstance(side, list) else [side, None] for side in (row.ours[column], row.paper[column])
            ]
            writer.writerow([row.name, row.label, column, *sides[0], *sides[1], row.difference[column]])
    return text.getvalue()


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison for machines.

    >>> row = Compared(name="swa", label="SWA", ours={"acc": [50.0, 1.0]}, paper={"acc": [47.08, 0.12]})
    >>> as_json(Comparison(table="main", source="digits-lt", paper="imagenet-lt", caption="", columns=("acc",),
    ...                    rows=[row], notes=[]))["rows"][0]["difference"]
    {'acc': 2.92}
    """
    rows = [{**asdict(row), "difference": row.difference} for row in comparison.rows]
    return {**asdict(comparison), "rows": rows}


def write(out: Path, measured: Sequence[Record], comparison: Comparison) -> None:
    """Keep the records, the comparison and its page in a folder, as TABLE-SOURCE.*

    >>> out = getfixture("tmp_path")
    >>> write(out, [], Comparison(table="main", source="digits-lt", paper="imagenet-lt", caption="",
    ...                           columns=("acc",), rows=[], notes=[]))
    >>> sorted(file.name for file in out.iterdir())
    ['main-digits-lt.csv', 'main-digits-lt.json', 'main-digits-lt.md']
    """
    name, table, page = f"{comparison.table}-{named(comparison.source)}", as_csv(comparison), as_markdown(comparison)
    out.mkdir(parents=True, exist_ok=True)
    runs.write_json(out / f"{name}.json", measured)
    runs.write_whole(out / f"{name}.csv", lambda path: path.write_text(table))
    runs.write_whole(out / f"{name}.md", lambda path: path.write_text(page))
