"""Texts in files: for training and evaluation with labels (.csv, .jsonl), for prediction without (.txt as well)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from srepr.data.about import About
from srepr.data.dataset import LongTailData
from srepr.data.table import Row, csv_rows, opened, text_data
from srepr.data.tokens import TextExamples
from srepr.errors import InputError

TEXT_SUFFIXES = {".csv", ".jsonl", ".txt"}


def read(path: Path) -> LongTailData:
    r"""Read a file with a JSON object in each line: `text`, `label` and, optionally, `split`.

    >>> path = getfixture("tmp_path") / "birds.jsonl"
    >>> _ = path.write_text('{"text": "small and brown", "label": "wren"}\n{"text": "large and black", "label": 3}\n')
    >>> read(path).class_names
    ('3', 'wren')
    """
    rows = list(json_rows(path))
    columns = {name for row in rows for name in row.cells} or {"text", "label"}
    return text_data(path, rows, columns)


def json_rows(path: Path) -> Iterator[Row]:
    """The objects in the lines of a file, with labels as words; blank lines are left out."""
    with opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: no JSON ({error}). Write one object in each line") from None
            if not isinstance(found, dict):
                raise InputError(f'{path}, line {number}: not an object. Write {{"text": ..., "label": ...}}')
            if not isinstance(found.get("text", ""), str):
                raise InputError(f"{path}, line {number}: the text is not a string. Put it in quotes")
            yield Row(number, {name: "" if value is None else str(value) for name, value in found.items()})


def read_texts(path: Path) -> list[str]:
    """The texts of a file: its column `text` (.csv), the `text` of each line (.jsonl), or its lines (.txt)."""
    if path.suffix not in TEXT_SUFFIXES:
        raise InputError(f"{path}: this network reads texts. Pass them in a .csv, .jsonl or .txt file.")
    if path.suffix == ".txt":
        with opened(path) as lines:
            return [line.strip() for line in lines if line.strip()]
    rows = json_rows(path)
    if path.suffix == ".csv":
        rows = csv_rows(path)
        if "text" not in next(rows).cells:
            raise InputError(f"{path} has no column 'text'. It must hold the texts.")
    texts = []
    for line, cells in rows:
        texts.append(cells.get("text", "").strip())
        if not texts[-1]:
            raise InputError(f"{path}, line {line}: the text is empty. Fill it in, or remove the line")
    return texts


def read_labelled_texts(path: Path, about: About) -> TextExamples:
    """Texts with labels, to evaluate a network that knows these classes: the test set of the file, or all of it."""
    data = read(path) if path.suffix == ".jsonl" else text_data(path, rows := csv_rows(path), next(rows).cells)
    part = data.train if data.test is None else data.test
    assert isinstance(part, TextExamples)
    number = {name: k for k, name in enumerate(about.class_names)}
    for name in data.class_names:
        if name not in number:
            raise InputError(f"{path}: the network has no class {name!r}. Remove its rows")
    labels = np.array([number[data.class_names[k]] for k in part.labels], dtype=np.int64)
    return TextExamples(part.texts, labels, about.class_names).prepared(about)
