"""A CSV file with a row per image: `path,label` and, optionally, `split`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from srepr.data.dataset import LongTailData
from srepr.data.files import Listing, Survey, surveyed

_PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


def read(path: Path, *, image_size: int | None = None, skip_bad_images: bool = False) -> LongTailData:
    r"""Read a CSV of images. Paths are relative to the file; classes are names or numbers, sorted.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "birds.csv").write_text("path,label\n1.jpg,wren\n2.jpg,\n")
    ...     read(Path(folder, "birds.csv"))
    Traceback (most recent call last):
    srepr.errors.InputError: ...birds.csv, line 3: the label is empty. Fill it in, or remove the line
    """
    return surveyed(path.stem, survey(path), image_size=image_size, skip_bad_images=skip_bad_images)


def survey(path: Path) -> Survey:
    """The images in the table, and what is wrong with its lines."""
    names: dict[str, list[str]] = {"train": []}
    labels: dict[str, list[str]] = {"train": []}
    faults = []
    with path.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.DictReader(lines)
        columns = rows.fieldnames or []
        for column in ("path", "label"):
            if column not in columns:
                fault = f"{path} has no column {column!r}. Its first line must be path,label or path,label,split"
                return Survey(path.parent, {}, [], [fault])
        for row in rows:
            fault = _fault(row)
            if fault:
                faults.append(f"{path}, line {rows.line_num}: {fault}")
                continue
            part = _PARTS[row.get("split", "train").strip()]
            names.setdefault(part, []).append(row["path"].strip())
            labels.setdefault(part, []).append(row["label"].strip())
    if not names["train"] and not faults:
        faults.append(f"{path} has no training rows. Add some")

    known = set(labels["train"])
    class_names = sorted(known, key=int) if all(label.isdecimal() for label in known) else sorted(known)
    unknown = sorted({label for found in labels.values() for label in found} - known)
    faults += [f"{path}: class {name!r} has no training rows. Add some, or remove its rows" for name in unknown]
    number = {name: k for k, name in enumerate([*class_names, *unknown])}
    parts = {
        part: Listing(names[part], np.array([number[label] for label in labels[part]], dtype=np.int64))
        for part in names
    }
    return Survey(path.parent, parts, class_names, faults)


def _fault(row: Mapping[str, str | None]) -> str:
    """What is wrong with a row; empty if nothing is."""
    for column in ("path", "label", "split"):
        if column in row and not (row[column] or "").strip():
            return f"the {column} is empty. Fill it in, or remove the line"
    split = (row.get("split") or "train").strip()
    return "" if split in _PARTS else f"{split!r} is not a split. Use train, validation or test"
