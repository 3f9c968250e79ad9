"""A CSV file with a row per image or text: `path,label` or `text,label` and, optionally, `split`."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from srepr.data.dataset import LongTailData
from srepr.data.files import Listing, Survey, surveyed
from srepr.data.tokens import TextExamples
from srepr.errors import InputError, check
from srepr.storage.files import as_written
from srepr.storage.outside import LARGEST_TEXT, open_text

Kind = Literal["path", "text"]
COLUMNS = ("path", "text", "label", "split")
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
    columns, rows = csv_rows(path)
    if kind_of(columns) == "text":
        return text_data(path, rows, columns)
    found = listed(path, rows, columns, "path")
    return surveyed(path.stem, found, image_size=image_size, skip_bad_images=skip_bad_images)


def survey(path: Path) -> Survey:
    """The images or texts in the table, and what is wrong with its lines."""
    columns, rows = csv_rows(path)
    return listed(path, rows, columns, kind_of(columns))


def text_data(path: Path, rows: Iterable[Row], columns: Collection[str]) -> LongTailData:
    """The data set of a file with a text in each row."""
    _, listings, class_names, faults = listed(path, rows, columns, "text")
    if faults:
        raise InputError(faults[0])
    names = tuple(class_names)
    parts = {part: TextExamples(tuple(texts), labels, names) for part, (texts, labels) in listings.items()}
    return LongTailData(
        name=path.stem, train=parts["train"], validation=parts.get("validation"), test=parts.get("test")
    )


def csv_rows(path: Path) -> tuple[set[str], Iterator[Row]]:
    """Which of the columns `path`, `text`, `label` and `split` a CSV file has, and its rows with these cells alone."""
    lines = csv_cells(path)
    _, header = next(lines, (1, []))
    places = {name: place for place, name in enumerate(header) if name in COLUMNS}
    for name in places:
        check(header.count(name) == 1, f"{path} has several columns {name!r}. Remove all but one")

    def rows() -> Iterator[Row]:
        for line, cells in lines:
            yield Row(line, {name: cells[place] for name, place in places.items() if place < len(cells)})

    return set(places), rows()


def csv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line where it ends and the cells of each row of a CSV file, the header first; blank lines are left out.

    An apostrophe that keeps a cell from being a formula is taken off (`srepr.storage.files.no_formula`).
    """
    with open_text(path) as lines:
        csv.field_size_limit(LARGEST_TEXT)  # of the process: a text may be longer than the 131,072 characters of csv
        rows = csv.reader(lines)
        try:
            for cells in rows:
                if cells:
                    yield rows.line_num, [as_written(cell) for cell in cells]
        except csv.Error as error:
            raise InputError(f"{path} cannot be read: {error}. Write it with a tool that quotes its cells") from None


def kind_of(columns: Collection[str]) -> Kind:
    """What a row holds beside its label: a path or a text.

    >>> kind_of(["text", "label"]), kind_of(["path", "label"])
    ('text', 'path')
    """
    return "text" if "text" in columns and "path" not in columns else "path"


def listed(path: Path, rows: Iterable[Row], columns: Collection[str], kind: Kind) -> Survey:
    """The paths or texts and their labels, by set, and what is wrong with the rows."""
    root = path.parent if kind == "path" else None
    for column in (kind, "label"):
        if column not in columns:
            name = "'path' or 'text'" if column == "path" else repr(column)
            words = "path,label or text,label, with commas between them; perhaps also split"
            return Survey(root, {}, [], [f"{path} has no column {name}. Its columns must be {words}"])
    items: dict[str, list[str]] = {"train": []}
    labels: dict[str, list[str]] = {"train": []}
    faults = []
    for line, cells in rows:
        fault = _fault(cells, columns, kind)
        if fault:
            faults.append(f"{path}, line {line}: {fault}")
            continue
        part = _PARTS[cells.get("split", "train").strip()]
        items.setdefault(part, []).append(cells[kind].strip())
        labels.setdefault(part, []).append(cells["label"].strip())
    if not items["train"] and not faults:
        faults.append(f"{path} has no training rows. Add some")

    known = set(labels["train"])
    # As numbers, without making numbers of them: they may have thousands of digits.
    numbers = all(label.isdecimal() for label in known)
    class_names = sorted(known, key=(lambda name: (len(name.lstrip("0")), name)) if numbers else None)
    unknown = sorted({label for found in labels.values() for label in found} - known)
    faults += [f"{path}: class {name!r} has no training rows. Add some, or remove its rows" for name in unknown]
    number = {name: k for k, name in enumerate([*class_names, *unknown])}
    parts = {
        part: Listing(items[part], np.array([number[label] for label in labels[part]], dtype=np.int64))
        for part in items
    }
    return Survey(root, parts, class_names, faults)


def _fault(cells: Mapping[str, str], columns: Collection[str], kind: str) -> str:
    """What is wrong with a row; empty if nothing is."""
    for column in (kind, "label", "split"):
        if column in columns and not cells.get(column, "").strip():
            return f"the {column} is empty. Fill it in, or remove the line"
    split = cells.get("split", "train").strip()
    return "" if split in _PARTS else f"{split!r} is not a split. Use train, validation or test"
