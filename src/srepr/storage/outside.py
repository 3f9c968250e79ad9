"""Files from outside, such as a user's lists and tables: only regular files are opened, and only up to a size.

Nothing is believed about them. They are UTF-8 text or JSON, or an InputError says in one line why not.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from srepr.errors import InputError, reading
from srepr.storage import schema

LARGEST_TEXT = 1 << 30
"""Bytes of a text file: texts and lists are kept in memory."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | Path, largest: int) -> BinaryIO:
    """Open a regular file of at most `largest` bytes; a pipe, socket or device, which may never end, is refused.

    >>> open_regular("/dev/zero", 1000)
    Traceback (most recent call last):
    srepr.errors.InputError: /dev/zero is a device. Pass a regular file
    """
    check_regular(path, Path(path).stat())
    # A pipe that takes the file's place meanwhile is opened without waiting for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    try:
        found = os.fstat(file.fileno())
        check_regular(path, found)
        if found.st_size > largest:
            raise InputError(f"{path} has {found.st_size:,} bytes, and at most {largest:,} are read. Split it")
    except BaseException:
        file.close()
        raise
    return file


def check_regular(path: str | Path, found: os.stat_result) -> None:
    """Raise an InputError unless it is a regular file."""
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'special')}. Pass a regular file")


@contextmanager
def open_text(path: Path, largest: int = LARGEST_TEXT) -> Iterator[Iterator[str]]:
    r"""The lines of a text file, with their ends. It must be UTF-8, and a line with a NUL is no text.

    >>> path = getfixture("tmp_path") / "list.txt"
    >>> _ = path.write_bytes("wren\ncrow".encode("utf-16"))
    >>> with open_text(path) as lines:
    ...     list(lines)
    Traceback (most recent call last):
    srepr.errors.InputError: ...list.txt is not UTF-8. Save it in that encoding
    """
    with reading(path):
        try:
            file = open_regular(path, largest)
        except FileNotFoundError:
            raise InputError(f"{path} does not exist. Check its name, or restore it") from None
        with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines:
            try:
                yield _without_nul(path, lines)
            except UnicodeDecodeError:
                raise InputError(f"{path} is not UTF-8. Save it in that encoding") from None


def _without_nul(path: Path, lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise InputError(f"{path}, line {number}: there is a NUL, so this is no text. Save it as text in UTF-8")
        yield line


def read_text(path: Path, largest: int = LARGEST_TEXT) -> str:
    """The content of a text file."""
    with open_text(path, largest) as lines:
        return "".join(lines)


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text. `where` begins the line of the InputError about one that is none.

    >>> parse_json('{"wren": NaN}', "prior.json is")
    Traceback (most recent call last):
    srepr.errors.InputError: prior.json is no JSON (NaN is no number of JSON). Correct it
    """
    try:
        return schema.parsed_text(text, Any)
    except schema.Invalid as error:
        raise InputError(f"{where} no JSON ({error}). Correct it") from None
