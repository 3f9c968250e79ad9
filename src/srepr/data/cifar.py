"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the official binary files or the Python pickles.

A pickle can run code. Only files with the official md5 are opened, by an unpickler that can only build arrays.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from srepr.data.cifar_files import LAYOUTS, PIXELS, Layout
from srepr.data.dataset import LongTailData
from srepr.data.examples import ArrayExamples
from srepr.data.longtail import Labels
from srepr.errors import InputError, check, reading
from srepr.storage.outside import open_regular

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

LARGEST = 200_000_000
"""Bytes of a file; the official ones have up to 153,700,000."""

Images = npt.NDArray[np.uint8]


def read(data_dir: Path, *, name: str) -> LongTailData:
    """Read all images of "cifar10-lt" or "cifar100-lt"; `data_dir` is the folder of the files or its parent.

    >>> read(Path("nowhere"), name="cifar100-lt")
    Traceback (most recent call last):
    srepr.errors.InputError: nowhere has neither cifar-100-binary/train.bin nor cifar-100-python/train.
    Fetch them with: srepr data get cifar100-lt --data-dir nowhere
    """
    layout = LAYOUTS[name]
    folder, binary = find(name, data_dir)
    parts = {}
    for part in ("train", "test"):
        if binary:
            pieces = [_read_binary(folder / file, name, layout) for file in getattr(layout, part)]
        else:
            checksums = getattr(layout, f"pickle_{part}")
            pieces = [_read_pickle(folder / file, md5, name, layout) for file, md5 in checksums.items()]
        images = np.concatenate([images for images, _ in pieces])
        labels = np.concatenate([labels for _, labels in pieces])
        parts[part] = ArrayExamples(images, labels, layout.class_names, MEAN, STD, padding=4, flip=True)
    return LongTailData(name=name, train=parts["train"], test=parts["test"])


def find(name: str, data_dir: Path) -> tuple[Path, bool]:
    """The folder with the files, and whether they are the binary version."""
    layout = LAYOUTS[name]
    kinds = (
        (layout.folder, next(iter(layout.train)), True),
        (layout.pickle_folder, next(iter(layout.pickle_train)), False),
    )
    for subfolder, first, binary in kinds:
        for folder in (data_dir / subfolder, data_dir):
            if (folder / first).is_file():
                return folder, binary
    choices = " nor ".join(f"{subfolder}/{first}" for subfolder, first, _ in kinds)
    raise InputError(f"{data_dir} has neither {choices}. Fetch them with: srepr data get {name} --data-dir {data_dir}")


def wrong_files(name: str, data_dir: Path) -> list[str]:
    """List the files that are missing or do not have the official md5, one line each."""
    layout = LAYOUTS[name]
    folder, binary = find(name, data_dir)
    checksums = {**layout.train, **layout.test} if binary else {**layout.pickle_train, **layout.pickle_test}
    return [
        f"{folder / file} is not the official file (md5)"
        if (folder / file).is_file()
        else f"{folder / file} is missing"
        for file, md5 in checksums.items()
        if not (folder / file).is_file() or _md5(_bytes_of(folder / file, name)) != md5
    ]


def _read_binary(path: Path, name: str, layout: Layout) -> tuple[Images, Labels]:
    content = np.frombuffer(_bytes_of(path, name), dtype=np.uint8)
    record = layout.label_bytes + PIXELS
    if len(content) == 0 or len(content) % record:
        raise InputError(
            f"{path} has {len(content):,} bytes, which is not a whole number of {record:,}-byte records. "
            f"Fetch it again with: srepr data get {name} --data-dir DIR --force"
        )
    rows = content.reshape(-1, record)
    labels = rows[:, layout.label_bytes - 1].astype(np.int64)
    if labels.max() >= len(layout.class_names):
        raise InputError(
            f"{path}: record {labels.argmax():,} has label {labels.max()}, not one from 0 to "
            f"{len(layout.class_names) - 1}. Fetch it again with: srepr data get {name} --data-dir DIR --force"
        )
    return rows[:, layout.label_bytes :].reshape(-1, 3, 32, 32), labels


def _read_pickle(path: Path, md5: str, name: str, layout: Layout) -> tuple[Images, Labels]:
    content = _bytes_of(path, name)
    if _md5(content) != md5:
        raise InputError(
            f"{path} is not the official file (its md5 differs), and unofficial pickles are not safe to open. "
            f"Fetch the binary files with: srepr data get {name} --data-dir DIR"
        )
    batch = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    return batch["data"].reshape(-1, 3, 32, 32), np.array(batch[layout.pickle_labels], dtype=np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds containers, numbers, strings and numpy arrays, and rejects everything else."""

    def find_class(self, module: str, name: str) -> Any:
        # `_reconstruct` moved between numpy 1 and 2: take it from an array.
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): np.ndarray(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) not in allowed:
            raise InputError(f"a CIFAR pickle asks for {module}.{name}, which is no array. Use the binary files")
        return allowed[module, name]


def _bytes_of(path: Path, name: str) -> bytes:
    fix = f"Fetch it with: srepr data get {name} --data-dir DIR --force"
    check(path.exists(), f"{path} is missing. {fix}")
    with reading(path, fix), open_regular(path, LARGEST) as file:
        return file.read()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
