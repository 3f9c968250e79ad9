"""Files of numpy from outside: the header of an array is checked before its numbers are read.

An array of an .npz file is read when it is asked for. An .npy file is mapped: its numbers are read as they are used.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from srepr.errors import check, reading
from srepr.storage.outside import open_regular

KINDS = "biufU"
"""Kinds of numbers, and words: no objects, records, dates or bytes."""
LARGEST_MAPPED = 1 << 48
UNPACKED_TIMES, UNPACKED = 20, 1 << 28
"""Arrays of an .npz file are unpacked up to 20 times its size, or 256 MB if that is more."""
_LARGEST_HEADER = 1 << 14
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_FIX = "Write it with numpy.savez or numpy.save, as numbers or words"


class Header(NamedTuple):
    """What an array says of itself, and where its numbers begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int


class Archive:
    """The arrays of an .npz file by name. Nothing is read of those that are not asked for.

    >>> path = getfixture("tmp_path") / "birds.npz"
    >>> np.savez(path, x=np.eye(2), y=np.array([0, 1]))
    >>> arrays = Archive(path)
    >>> "x" in arrays, arrays["y"], arrays.header("x").shape, str(arrays)
    (True, array([0, 1]), (2, 2), 'x, y')
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, _FIX), open_regular(path, LARGEST_MAPPED) as file, zipfile.ZipFile(file) as archive:
            members = {member.filename: member for member in archive.infolist()}
            self._size = os.fstat(file.fileno()).st_size
        self._members = {name.removesuffix(".npy"): member for name, member in members.items()}
        self._left = max(UNPACKED_TIMES * self._size, UNPACKED)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __str__(self) -> str:
        shown = [ascii(name)[1:-1][:40] for name in list(self._members)[:10]]
        more = len(self._members) - len(shown)
        return ", ".join(shown) + (f" and {more:,} more" if more else "") if shown else "nothing"

    def header(self, name: str) -> Header:
        """The shape and dtype of an array; an InputError if they are absurd, or do not fit the bytes."""
        member = self._members[name]
        stored = member.compress_type == zipfile.ZIP_STORED
        with reading(f"{name} in {self.path}", _FIX):
            check(
                stored or member.compress_type == zipfile.ZIP_DEFLATED,
                f"{name} in {self.path} is packed in a way that numpy does not use. {_FIX}",
            )
            room = member.compress_size if stored else self._left
            check(
                member.compress_size <= self._size and member.file_size <= room,
                f"{name} in {self.path} would be unpacked to {member.file_size:,} bytes, far more than the file has. "
                "Write it with numpy.savez, which does not pack",
            )
            with self._open(member) as array:
                return read_header(array, member.file_size, f"{name} in {self.path}")

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        self.header(name)
        member = self._members[name]
        self._left -= member.file_size
        with reading(f"{name} in {self.path}", _FIX), self._open(member) as array:
            found: npt.NDArray[Any] = np.lib.format.read_array(array, allow_pickle=False)
            return found

    @contextmanager
    def _open(self, member: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
        file = open_regular(self.path, LARGEST_MAPPED)
        with file, zipfile.ZipFile(file) as archive, archive.open(member) as array:
            yield array


def read_header(file: IO[bytes], size: int, what: str) -> Header:
    """Read the header of an array that has `size` bytes with it; an InputError says what is wrong with it.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**15, 8)})
    >>> _ = file.seek(0)
    >>> read_header(file, 128, "x.npy")
    Traceback (most recent call last):
    srepr.errors.InputError: x.npy has the shape (1000000000000000, 8), for which its 128 bytes are too few. Write ...
    """
    head = io.BytesIO(file.read(_LARGEST_HEADER))  # a header may claim to have gigabytes
    version = np.lib.format.read_magic(head)
    check(version in _HEADERS, f"{what} has the version {version} of numpy's format, which is for records. {_FIX}")
    shape, fortran, dtype = _HEADERS[version](head)
    usable = dtype.kind in KINDS and dtype.subdtype is None and dtype.itemsize > 0
    check(usable, f"{what} cannot be read: it holds {str(dtype)[:80]}. {_FIX}")
    told = f"{what} has the shape {str(shape)[:80]}"
    sizes = all(type(n) is int and n >= 0 for n in shape) and 0 not in shape[1:]
    check(sizes, f"{told}, which holds nothing. {_FIX}")
    needed = head.tell() + math.prod(shape) * dtype.itemsize
    check(needed <= size, f"{told}, for which its {size:,} bytes are too few. {_FIX}")
    return Header(shape, fortran, dtype, head.tell())


def map_array(path: Path) -> npt.NDArray[Any]:
    """The array of an .npy file, mapped.

    >>> path = getfixture("tmp_path") / "x.npy"
    >>> np.save(path, np.eye(2))
    >>> map_array(path)
    memmap([[1., 0.],
            [0., 1.]])
    """
    with reading(path, _FIX), open_regular(path, LARGEST_MAPPED) as file:
        shape, fortran, dtype, start = read_header(file, os.fstat(file.fileno()).st_size, str(path))
        if 0 in shape:  # nothing to map
            return np.empty(shape, dtype)
        return np.memmap(file, dtype, "r", start, shape, "F" if fortran else "C")
