"""Checksums of the files that are read back: XXH3 with 64 bits, which costs a fraction of reading the bytes.

    safetensors    in the header, over the whole file with zeros in the checksum's place   (`srepr.storage.tensors`)
    arrays         in the note beside the array                                            (`srepr.storage.arrays`)
    JSON, logs     in RUN/.checksums, under the same name; the files themselves stay as they are

A file without a checksum is read as it is: versions before 0.2.0 wrote none. The first command that locks a run folder
records those of the files that are there (`adopt`).
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path

import xxhash

FOLDER = ".checksums"
DIGITS = 16
ZEROS = "0" * DIGITS
CHUNK = 1 << 24  # bytes that are mapped at once


def of_bytes(content: bytes | memoryview) -> str:
    """The checksum of some bytes.

    >>> of_bytes(b"whole")
    'd35c10d541c3c98b'
    """
    return str(xxhash.xxh3_64_hexdigest(content))


def of_file(path: Path, hole: int | None = None) -> str:
    """The checksum of a file, with zeros in place of the checksum that starts at `hole`.

    >>> path = getfixture("tmp_path") / "note.txt"
    >>> _ = path.write_bytes(b"whole")
    >>> of_file(path) == of_bytes(b"whole")
    True
    """
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return str(digest.hexdigest())
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping, memoryview(mapping) as view:
            begin = 0
            if hole is not None:
                digest.update(view[:hole])
                digest.update(ZEROS.encode())
                begin = hole + DIGITS
            for start in range(begin - begin % CHUNK, len(view), CHUNK):
                digest.update(view[max(start, begin) : start + CHUNK])
                mapping.madvise(mmap.MADV_DONTNEED, start, min(CHUNK, len(view) - start))  # the pages count as memory
    return str(digest.hexdigest())


def record_of(path: Path) -> Path | None:
    """Where the checksum of a file of a run folder is kept; None in a folder without checksums.

    >>> run = getfixture("tmp_path")
    >>> record_of(run / "heads" / "la.json") is None
    True
    >>> (run / FOLDER).mkdir()
    >>> record_of(run / "heads" / "la.json").relative_to(run).as_posix()
    '.checksums/heads/la.json'
    """
    for run in (path.parent, path.parent.parent):
        if (run / FOLDER).is_dir():
            return run / FOLDER / path.relative_to(run)
    return None


def line(content: bytes) -> str:
    """What is recorded of a file: checksum and size."""
    return f"{of_bytes(content)} {len(content)}\n"


def is_intact(path: Path, content: bytes, *, growing: bool = False) -> bool:
    """Whether the content of a file is what was written; a `growing` file may have got longer since.

    A file without a checksum is. While a file is replaced there are two: of the old content and of the new.
    """
    record = record_of(path)
    if record is None or not os.path.lexists(record):
        return True
    if not record.is_file():
        return False
    known = record.read_text(encoding="ascii", errors="replace").splitlines(keepends=True)
    sizes = {
        int(size) for _, _, size in (one.rstrip().partition(" ") for one in known) if re.fullmatch("[0-9]{1,18}", size)
    }
    return any(
        line(content[:size]) in known for size in sizes if size == len(content) or (growing and size < len(content))
    )


def unrecorded(run: Path, names: Iterable[str]) -> list[Path]:
    """The files of a run folder with these names (patterns) that have no checksum yet."""
    there = [path for name in names for path in sorted(run.glob(name)) if path.is_file()]
    return [path for path in there if not (run / FOLDER / path.relative_to(run)).exists()]
