"""A CSV file with a row per image: `path,label` and, optionally, `split`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from srepr.data.dataset import LongTailData
from srepr.data.files import Listing, image_data
from srepr.errors import InputError

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
    names: dict[str, list[str]] = {}
    labels: dict[str, list[str]] = {}
    with path.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.DictReader(lines)
        columns = rows.fieldnames or []
        for column in ("path", "label"):
            if column not in columns:
                raise InputError(
                    f"{path} has no column {column!r}. Its first line must be path,label or path,label,split"
                )
        for row in rows:
            for column in ("path", "label", "split"):
                if column in columns and not (row[column] or "").strip():
                    raise InputError(
                        f"{path}, line {rows.line_num}: the {column} is empty. Fill it in, or remove the line"
                    )
            split = row.get("split", "train").strip()
            if split not in _PARTS:
                raise InputError(
                    f"{path}, line {rows.line_num}: {split!r} is not a split. Use train, validation or test"
                )
            names.setdefault(_PARTS[split], []).append(row["path"].strip())
            labels.setdefault(_PARTS[split], []).append(row["label"].strip())
    if "train" not in names:
        raise InputError(f"{path} has no training rows. Add some")

    known = set(labels["train"])
    class_names = sorted(known, key=int) if all(label.isdecimal() for label in known) else sorted(known)
    number = {name: k for k, name in enumerate(class_names)}
    parts = {}
    for part in names:
        unknown = set(labels[part]) - known
        if unknown:
            raise InputError(f"{path}: class {min(unknown)!r} has no training rows. Add some, or remove its rows")
        parts[part] = Listing(names[part], np.array([number[label] for label in labels[part]], dtype=np.int64))
    return image_data(
        path.stem, path.parent, parts, class_names, image_size=image_size, skip_bad_images=skip_bad_images
    )
