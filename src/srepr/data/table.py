"""A CSV file with a row per image or text: `path,label` or `text,label` and, optionally, `split`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from srepr.data.dataset import LongTailData
from srepr.data.files import Listing, image_data
from srepr.data.longtail import Labels
from srepr.data.tokens import TextExamples
from srepr.errors import InputError

_PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


class Row(NamedTuple):
    """A row of a file: the line where it ends, and its cells by column."""

    line: int
    cells: Mapping[str, str]


def read(path: Path, *, image_size: int | None = None, skip_bad_images: bool = False) -> LongTailData:
    r"""Read a CSV of images or texts. Paths are relative to the file; classes are names or numbers, sorted.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "birds.csv").write_text("path,label\n1.jpg,wren\n2.jpg,\n")
    ...     read(Path(folder, "birds.csv"))
    Traceback (most recent call last):
    srepr.errors.InputError: ...birds.csv, line 3: the label is empty. Fill it in, or remove the line
    """
    rows = csv_rows(path)
    columns = next(rows).cells
    if "text" in columns and "path" not in columns:
        return text_data(path, rows, columns)
    names, labels, class_names = by_part(path, rows, columns, "path")
    listings = {part: Listing(names[part], labels[part]) for part in names}
    return image_data(
        path.stem, path.parent, listings, class_names, image_size=image_size, skip_bad_images=skip_bad_images
    )


def text_data(path: Path, rows: Iterable[Row], columns: Iterable[str]) -> LongTailData:
    """The data set of a file with a text in each row."""
    texts, labels, class_names = by_part(path, rows, columns, "text")
    parts = {part: TextExamples(tuple(texts[part]), labels[part], tuple(class_names)) for part in texts}
    return LongTailData(
        name=path.stem, train=parts["train"], validation=parts.get("validation"), test=parts.get("test")
    )


def csv_rows(path: Path) -> Iterator[Row]:
    """The rows of a CSV file; the first is the header."""
    with opened(path) as lines:
        rows = csv.DictReader(lines)
        columns = [name or "" for name in rows.fieldnames or []]
        yield Row(1, dict.fromkeys(columns, ""))
        for row in rows:
            yield Row(rows.line_num, {name: row[name] or "" for name in columns})


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """A text file; if it is not UTF-8, or no CSV file, that is an InputError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            yield lines
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8. Save it in that encoding") from None
    except csv.Error as error:
        raise InputError(f"{path} cannot be read: {error}. Write it with a tool that quotes its cells") from None


def by_part(
    path: Path, rows: Iterable[Row], columns: Iterable[str], kind: str
) -> tuple[dict[str, list[str]], dict[str, Labels], list[str]]:
    """The column `kind` and the labels of each part, and the names of the classes."""
    for column in (kind, "label"):
        if column not in columns:
            raise InputError(
                f"{path} has no column {column!r}. Its columns must be path,label or text,label; perhaps also split"
            )
    items: dict[str, list[str]] = {}
    labels: dict[str, list[str]] = {}
    for line, cells in rows:
        for column in (kind, "label", "split"):
            if column in columns and not cells.get(column, "").strip():
                raise InputError(f"{path}, line {line}: the {column} is empty. Fill it in, or remove the line")
        split = cells.get("split", "train").strip()
        if split not in _PARTS:
            raise InputError(f"{path}, line {line}: {split!r} is not a split. Use train, validation or test")
        items.setdefault(_PARTS[split], []).append(cells[kind].strip())
        labels.setdefault(_PARTS[split], []).append(cells["label"].strip())
    if "train" not in items:
        raise InputError(f"{path} has no training rows. Add some")

    known = set(labels["train"])
    class_names = sorted(known, key=int) if all(label.isdecimal() for label in known) else sorted(known)
    number = {name: k for k, name in enumerate(class_names)}
    for found in labels.values():
        unknown = set(found) - known
        if unknown:
            raise InputError(f"{path}: class {min(unknown)!r} has no training rows. Add some, or remove its rows")
    return items, {p: np.array([number[x] for x in found], dtype=np.int64) for p, found in labels.items()}, class_names
