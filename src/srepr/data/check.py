"""Check a data set: decode every image, and compare every CIFAR file with its checksum."""

from __future__ import annotations

from pathlib import Path

from srepr.data.cifar import wrong_files
from srepr.data.cifar_files import LAYOUTS
from srepr.data.files import why_bad
from srepr.data.sources import load
from srepr.errors import InputError


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
        data = load(source, data_dir=data_dir, skip_bad_images=True)
    except InputError as error:
        return [str(error)]
    return [f"{path} {why_bad(Path(path))}" for path in data.skipped]
