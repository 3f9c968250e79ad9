"""Arrays that may not fit into memory: written chunk by chunk to the files of a folder, and mapped when read.

An array is named by a fingerprint of its description, and its description is written last. Whatever changes the
description, or cuts the writing short, makes the array unknown.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from srepr.storage.files import read_json, write_json

Array = npt.NDArray[Any]
Description = Mapping[str, Any]


class ArrayFolder:
    """Arrays in a folder, each found by its description; without a folder, in a temporary one.

    >>> arrays = ArrayFolder()
    >>> with arrays.write([{"name": "ones"}]) as (append,):
    ...     append(np.ones(2, np.float32))
    ...     append(np.ones(1, np.float32))
    >>> arrays.read({"name": "ones"}, np.float32), arrays.read({"name": "twos"}, np.float32)
    (memmap([1., 1., 1.], dtype=float32), None)
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory()
            folder = Path(self._temporary.name)
        self.folder = folder

    def read(self, about: Description, dtype: npt.DTypeLike) -> Array | None:
        """The array with that description, flat and mapped; None if there is none, or not all of it."""
        path = self._path(about)
        note = path.with_suffix(".json")
        if not (path.exists() and note.exists() and path.stat().st_size == read_json(note)["bytes"]):
            return None
        return np.memmap(path, dtype, "r")

    @contextmanager
    def write(self, abouts: Sequence[Description]) -> Iterator[list[Callable[[Array], None]]]:
        """A function for each description that appends to its array; the arrays appear at the end of the block."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            files = []
            for about in abouts:
                unfinished = self.folder / f".{self._path(about).name}.{os.getpid()}.partial"
                stack.callback(unfinished.unlink, missing_ok=True)
                files.append(stack.enter_context(unfinished.open("wb")))
            yield [partial(_append, file) for file in files]
            for about, file in zip(abouts, files, strict=True):
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(self._path(about))
                write_json(self._path(about).with_suffix(".json"), {**about, "bytes": file.tell()})

    def clear(self) -> None:
        """Delete every array."""
        for path in self.folder.glob("*.*"):
            path.unlink()

    def _path(self, about: Description) -> Path:
        fingerprint = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{fingerprint[:32]}.bin"


def _append(file: BinaryIO, array: Array) -> None:
    file.write(array.tobytes())
