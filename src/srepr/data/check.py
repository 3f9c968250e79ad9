"""Check a data set: decode every image, and compare every CIFAR file with its checksum."""

from __future__ import annotations

import os
from pathlib import Path

from srepr.data import folder, table, texts
from srepr.data.cifar import wrong_files
from srepr.data.cifar_files import LAYOUTS
from srepr.data.files import Survey, reasons, why_bad
from srepr.data.sources import NAMED, load
from srepr.errors import InputError, reading

SURVEYS = {"": folder.survey, ".csv": table.survey, ".jsonl": texts.survey}
"""Sources whose every problem is found, by path suffix; a folder has none."""


def check(source: str | Path, *, data_dir: str | Path | None = None) -> list[str]:
    """List the problems of a data set, one line each; empty if there are none.

    >>> check("digits-lt")
    []
    >>> check("cifar10-lt", data_dir="nowhere")
    ['nowhere has neither cifar-10-batches-bin/data_batch_1.bin nor cifar-10-batches-py/data_batch_1. ...']
    """
    try:
        if source in LAYOUTS and data_dir is not None:
            wrong = wrong_files(str(source), Path(data_dir))
            if wrong:
                return wrong
        path, is_folder = Path(source), os.path.isdir(source)  # noqa: PTH112 (that of a Path fails on long names)
        kind = "" if is_folder else path.suffix.lower() or "no suffix"
        if str(source) not in NAMED and kind in SURVEYS and (is_folder or os.path.isfile(path)):  # noqa: PTH113
            with reading(path):
                return faults(SURVEYS[kind](path))
        data = load(source, data_dir=data_dir, skip_bad_images=True)
    except InputError as error:
        return [str(error)]
    return [f"{path} {why_bad(Path(path))}" for path in data.skipped]


def faults(survey: Survey) -> list[str]:
    """Everything that is wrong with a list of images and with the images on it, one line each."""
    found = list(survey.faults)
    if survey.root is None:
        return found
    for part, (names, labels) in survey.parts.items():
        bad = reasons(survey.root, names)
        found += [f"{survey.root / name} {reason}" for name, reason in zip(names, bad, strict=True) if reason]
        if part == "train":
            left = {k for k, reason in zip(labels.tolist(), bad, strict=True) if not reason}
            lost = (survey.class_names[k] for k in sorted(set(labels.tolist()) - left))
            found += [f"class {name!r} has no training image that can be used. Add one" for name in lost]
    return found
