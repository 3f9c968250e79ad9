"""Arrays that may not fit into memory: written chunk by chunk to the files of a folder, and mapped when read.

An array is named by a fingerprint of its description, and its description is written last, with the size and the
checksum of the array. Whatever changes either file, or cuts the writing short, makes the array unknown.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from srepr.errors import InputError, tell
from srepr.storage import checksums
from srepr.storage.files import naming, plain, read_json, write_text

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

    def __init__(
        self,
        folder: Path | None = None,
        *,
        beside: Path | None = None,
        rank: int = 0,
        meet: Callable[[], None] | None = None,
    ) -> None:
        """Arrays that are not in the folder are looked for in the folder `beside`, which is not written to.

        Several processes write an array together if they `meet`: a function that returns once all have called it. The
        one with rank 0 makes the files, and describes them when all have written.
        """
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory()
            folder = Path(self._temporary.name)
        self.folder, self.beside, self.leads, self.meet = folder, beside, rank == 0, meet

    def read(self, about: Description, dtype: npt.DTypeLike) -> Array | None:
        """The array with that description, flat and mapped; None if there is none, or if it is not as written."""
        for folder in (self.folder, self.beside):
            if folder is not None and (found := self._read(folder, about, np.dtype(dtype))) is not None:
                return found
        return None

    def _read(self, folder: Path, about: Description, dtype: np.dtype[Any]) -> Array | None:
        path = folder / _name(about)
        try:
            note, found = read_json(path.with_suffix(".json")), path.stat()
        except (InputError, OSError):
            return None
        checksum = note.pop("checksum", None) if isinstance(note, dict) else None
        if note != {**plain(about), "bytes": found.st_size} or not found.st_size or found.st_size % dtype.itemsize:
            return None
        if checksum is not None and checksum != _checksum_now(path):
            tell(f"{path} is damaged: it is made again")
            return None
        return np.memmap(path, dtype, "r")

    @contextmanager
    def write(self, abouts: Sequence[Description], first: int = 0) -> Iterator[list[Callable[[Array], None]]]:
        """A function for each description that appends to its array; the arrays appear at the end of the block.

        Of several processes, each appends its own rows, from the row `first` on.
        """
        writer = os.getpid() if self.meet is None else "shared"
        unfinished = [self.folder / f".{_name(about)}.{writer}.partial" for about in abouts]
        with naming(self.folder), ExitStack() as stack:
            if self.leads:
                self.folder.mkdir(parents=True, exist_ok=True)
                for path in unfinished:
                    stack.callback(path.unlink, missing_ok=True)
                    path.write_bytes(b"")
            if self.meet is not None:
                self.meet()
            # For writing only: a network file system would read, and write back, what borders on the rows of others.
            files = [stack.enter_context(os.fdopen(os.open(path, os.O_WRONLY), "wb")) for path in unfinished]
            growing = [_Growing(file, xxhash.xxh3_64(), first) for file in files]
            yield [each.append for each in growing]
            for file in files:
                file.flush()
                os.fsync(file.fileno())
            if self.meet is not None:
                self.meet()
            for about, each, written in zip(abouts, growing, unfinished, strict=True) if self.leads else ():
                path = self.folder / _name(about)
                written.replace(path)
                checksum = each.digest.hexdigest() if self.meet is None else _checksum_now(path)
                note = {**about, "bytes": path.stat().st_size, "checksum": checksum}
                write_text(path.with_suffix(".json"), json.dumps(plain(note), indent=2) + "\n")

    def clear(self) -> None:
        """Delete every array."""
        for path in self.folder.glob("*.*"):
            path.unlink()


class _Growing(NamedTuple):
    """A file that is being written from a row on, and the checksum of what was written so far."""

    file: BinaryIO
    digest: xxhash.xxh3_64
    first: int

    def append(self, array: Array) -> None:
        content = array.tobytes()
        if self.first and not self.file.tell():
            self.file.seek(self.first * array[0].nbytes)
        self.file.write(content)
        self.digest.update(content)


@lru_cache(maxsize=4096)
def _checksum(path: Path, _inode: int, _modified: int, _size: int) -> str:
    """The checksum of a file, computed once in a process as long as the file is the same."""
    return checksums.of_file(path)


def _checksum_now(path: Path) -> str:
    found = path.stat()
    return _checksum(path, found.st_ino, found.st_mtime_ns, found.st_size)


def _name(about: Description) -> str:
    fingerprint = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return f"{fingerprint[:32]}.bin"
