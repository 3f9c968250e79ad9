"""`srepr predict`: the rows of a classifier as CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TextIO

from srepr.decisions.conformal import Thresholds
from srepr.decisions.prior import PriorEstimate
from srepr.prediction import Row
from srepr.storage.files import check_output, no_formula, plain, write_json, write_whole

Format = Literal["csv", "jsonl"]


def write_rows(rows: Iterable[Row], names: Sequence[str], out: Path | None, form: Format) -> None:
    """Write rows as they come: a file appears when it is whole, standard output gets line by line.

    In CSV, a name or label that a spreadsheet would take for a formula begins with an apostrophe, and the labels of a
    set are separated by `|`.

    >>> write_rows([{"input": "1.jpg", "label": "wren"}], ["input", "label"], None, "csv")
    input,label
    1.jpg,wren
    """

    def write(stream: TextIO) -> None:
        table = csv.DictWriter(stream, names, lineterminator="\n")
        if form == "csv":
            table.writeheader()
        for row in rows:
            if form == "csv":
                cells = {name: "|".join(value) if isinstance(value, list) else value for name, value in row.items()}
                table.writerow({name: no_formula(value) for name, value in cells.items()})
            else:
                stream.write(json.dumps(plain(row), ensure_ascii=False) + "\n")
            stream.flush()

    def write_file(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream:
            write(stream)

    if out is None:
        write(sys.stdout)
    else:
        check_output(out)
        write_whole(out, write_file)


def about_decisions(
    class_names: Sequence[str], estimate: PriorEstimate | None, thresholds: Thresholds | None
) -> dict[str, Any]:
    """What the decisions in a file of predictions are made with, by class name; empty without any.

    >>> about_decisions(["wren", "crow"], None, Thresholds("marginal", 0.9, (0.2, 0.2)))["sets"]["minimum"]
    {'wren': 0.2, 'crow': 0.2}
    """
    found: dict[str, Any] = {}
    if estimate is not None:
        found["prior"] = asdict(estimate)
    if thresholds is not None:
        found["sets"] = {**asdict(thresholds), "borrowed": [class_names[k] for k in thresholds.borrowed]}
    for told in found.values():
        for key, values in told.items():
            if key in ("shares", "low", "high", "minimum", "prior") and values is not None:
                told[key] = dict(zip(class_names, values, strict=True))
    return found


def write_beside(out: Path, content: dict[str, Any]) -> None:
    """Write what is known about the predictions in `out` to OUT.decisions.json, if anything is."""
    if content:
        write_json(out.with_suffix(".decisions.json"), content)
