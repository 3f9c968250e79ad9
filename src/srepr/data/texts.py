"""Texts in files: for training and evaluation with labels (.csv, .jsonl), for prediction without (.txt as well)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from srepr.data.about import About
from srepr.data.dataset import LongTailData
from srepr.data.files import Survey
from srepr.data.table import COLUMNS, Row, csv_rows, listed, text_data
from srepr.data.tokens import TextExamples
from srepr.errors import InputError
from srepr.storage.outside import open_text, parse_json

TEXT_SUFFIXES = {".csv", ".jsonl", ".txt"}


def read(path: Path) -> LongTailData:
    r"""Read a file with a JSON object in each line: `text`, `label` and, optionally, `split`.

    >>> path = getfixture("tmp_path") / "birds.jsonl"
    >>> _ = path.write_text('{"text": "small and brown", "label": "wren"}\n{"text": "large and black", "label": 3}\n')
    >>> read(path).class_names
    ('3', 'wren')
    """
    rows = list(json_rows(path))
    return text_data(path, rows, _columns(rows))


def survey(path: Path) -> Survey:
    """The texts in such a file, and what is wrong with its lines."""
    faults: list[str] = []
    rows = list(json_rows(path, faults))
    found = listed(path, rows, _columns(rows), "text")
    return found._replace(faults=[*faults, *(found.faults if rows or not faults else [])])


def _columns(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows for name in row.cells} | (set() if rows else {"text", "label"})


def json_rows(path: Path, faults: list[str] | None = None) -> Iterator[Row]:
    """The objects in the lines of a file, with labels as words; blank lines are left out.

    A line that is wrong is an error, or one of the `faults` and left out.
    """
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = Row(number, _cells(line, f"{path}, line {number}:"))
            except InputError as error:
                if faults is None:
                    raise
                faults.append(str(error))
                continue
            yield row


def _cells(line: str, where: str) -> dict[str, str]:
    found = parse_json(line, where)
    if not isinstance(found, dict):
        raise InputError(f'{where} not an object. Write {{"text": ..., "label": ...}}')
    if not isinstance(found.get("text", ""), str):
        raise InputError(f"{where} the text is not a string. Put it in quotes")
    cells = {name: found[name] for name in COLUMNS if found.get(name) is not None}
    for name, value in cells.items():
        if not isinstance(value, str | int | float):
            raise InputError(f"{where} the {name} is not a word or a number. Correct it")
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError(f"{where} the {name} has half of a character (a lone surrogate). Correct it")
    return {name: str(value) for name, value in cells.items()}


def read_texts(path: Path) -> list[str]:
    """The texts of a file: its column `text` (.csv), the `text` of each line (.jsonl), or its lines (.txt)."""
    kind = path.suffix.lower()
    if kind not in TEXT_SUFFIXES:
        raise InputError(f"{path}: this network reads texts. Pass them in a .csv, .jsonl or .txt file.")
    if kind == ".txt":
        with open_text(path) as lines:
            return [line.strip() for line in lines if line.strip()]
    rows = json_rows(path)
    if kind == ".csv":
        columns, rows = csv_rows(path)
        if "text" not in columns:
            raise InputError(f"{path} has no column 'text'. It must hold the texts.")
    texts = []
    for line, cells in rows:
        texts.append(cells.get("text", "").strip())
        if not texts[-1]:
            raise InputError(f"{path}, line {line}: the text is empty. Fill it in, or remove the line")
    return texts


def read_labelled_texts(path: Path, about: About) -> TextExamples:
    """Texts with labels, to evaluate a network that knows these classes: the test set of the file, or all of it."""
    if path.suffix.lower() == ".jsonl":
        data = read(path)
    else:
        columns, rows = csv_rows(path)
        data = text_data(path, rows, columns)
    part = data.train if data.test is None else data.test
    assert isinstance(part, TextExamples)
    number = {name: k for k, name in enumerate(about.class_names)}
    for name in data.class_names:
        if name not in number:
            raise InputError(f"{path}: the network has no class {name!r}. Remove its rows")
    labels = np.array([number[data.class_names[k]] for k in part.labels], dtype=np.int64)
    return TextExamples(part.texts, labels, about.class_names).prepared(about)
