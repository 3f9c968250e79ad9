"""`srepr predict`: the rows of a classifier as CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TextIO

from srepr.classifier import Row
from srepr.storage.files import check_output, no_formula, plain, write_whole

Format = Literal["csv", "jsonl"]


def write_rows(rows: Iterable[Row], names: Sequence[str], out: Path | None, form: Format) -> None:
    """Write rows as they come: a file appears when it is whole, standard output gets line by line.

    In CSV, a name or label that a spreadsheet would take for a formula begins with an apostrophe.

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
                table.writerow({name: no_formula(value) for name, value in row.items()})
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
