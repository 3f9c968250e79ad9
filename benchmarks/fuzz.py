"""Fuzz every reader of files from outside (`benchmarks.readers`): valid files with changed bytes, headers and fields.

    python -m benchmarks.fuzz --cases 100000

Only `InputError` may come out of a reader. The table has the number of cases, how many were refused and accepted,
other exceptions, the longest time of a case, and by how much the memory of the process grew at most (on Linux).
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import logging
import random
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.readers import READERS, Reader
from srepr.errors import InputError

FIELDS = [
    *(b"-1", b"0", b"1e999", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"9" * 5000, b"18446744073709551615"),
    *(b"\xff\xfe", b"\0", b"\r", b"\n", b'"', b"'", b",", b"\\ud800", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"../" * 2000),
    *(b"[" * 5000, b'{"a":' * 5000, b"(10**15,)", b"(1000000000000000,)", b"True", b"|O", b"<U0", b"<M8[s]"),
    *(b"2020-01-01", b"\xe2\x80\xa8", b"=1+1", b"%s%n", b"a" * 200_000),
]
"""Bytes that readers stumble over."""
NUMBERS = (b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\0\0\0\x01")


VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        [],
        {},
        "",
        "a",
        "../..",
        "/",
        "nan",
        "inf",
        "\ud800",
        "\x1b[2J",
        "a" * 9999,
        [[]],
        {"a": {}},
    ),
    *(0, -1, 1, 7, 0.5, 1e-320, 1e308, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30), 10**400, [0] * 9999),
    *("9" * 40, ["a"], [None], [1, "a"], {"0": 0}, {"": None}, "0", "1e5", "null", "{}", "[1]"),
)
"""Values of JSON that readers may not expect."""


@dataclass
class Row:
    """What came out of the cases of a reader."""

    cases: int = 0
    refused: int = 0
    accepted: int = 0
    longest: float = 0.0
    memory: int = 0
    others: dict[str, bytes] | None = None
    """Other exceptions, each with a content that raises it."""


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with up to four changes: bits, bytes, runs, fields, numbers of a header, the length."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed) + 1)
        end = min(len(changed), place + chance.choice((1, 2, 4, 8, 64)))
        kind = chance.randrange(8)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[place:end] = chance.randbytes(end - place)
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            del changed[place:end]
        elif kind == 4:
            changed[place:place] = changed[place:end] * chance.choice((1, 2, 100))
        elif kind == 5:
            changed[place:end] = chance.choice(FIELDS)
        elif kind == 6:
            number = chance.choice(NUMBERS)
            changed[place : place + len(number)] = number
        else:
            _swap_field(changed, chance)
    return bytes(changed)


def _swap_field(changed: bytearray, chance: random.Random) -> None:
    """Replace what stands between two marks of a text, such as a cell, a value of JSON or a size in a header."""
    marks = [place for place, byte in enumerate(changed[:4096]) if byte in b',:{}[]()"\n ']
    if len(marks) > 1:
        first = chance.randrange(len(marks) - 1)
        changed[marks[first] + 1 : marks[first + 1]] = chance.choice(FIELDS)


def retyped(content: bytes, chance: random.Random) -> bytes:
    """JSON, or lines of it, with up to three values of another kind, gone, or under another name."""
    lines = [json.loads(line) for line in (content.splitlines() if b"}\n{" in content else [content])]
    for _ in range(chance.randint(1, 3)):
        inside: list[tuple[Any, Any]] = [(lines, number) for number in range(len(lines))]
        for holder, key in inside:  # grows
            value = holder[key]
            keys: Iterable[Any] = (
                value if isinstance(value, dict) else range(len(value)) if type(value) is list else ()
            )
            inside += [(value, each) for each in keys]
        holder, key = chance.choice(inside)
        if holder is not lines and chance.random() < 0.2:
            del holder[key]
        elif isinstance(holder, dict) and chance.random() < 0.1:
            holder[chance.choice(("", "a" * 999, "__class__", "\ud800"))] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return b"\n".join(json.dumps(line).encode() for line in lines)


def repacked(content: bytes, chance: random.Random) -> bytes:
    """A zip archive with changes inside its members, whose checksums are right again."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.infolist():
            inside = old.read(member)
            new.writestr(member.filename, mutated(inside, chance) if chance.random() < 0.5 else inside)
    return out.getvalue()


def changed(content: bytes, chance: random.Random) -> bytes:
    """The content with changes of some kind: inside an archive, in the values of JSON, or of any bytes."""
    if content[:2] == b"PK" and chance.random() < 0.7:
        return repacked(content, chance)
    return retyped(content, chance) if content[:1] == b"{" and chance.random() < 0.7 else mutated(content, chance)


def fuzz(reader: Reader, cases: int, folder: Path, *, seed: int = 0) -> Row:
    """Read so many changed files."""
    chance = random.Random(seed)
    seeds, row = reader.seeds(), Row(others={})
    assert row.others is not None
    path = folder / reader.file
    for name in "abc":
        Image.new("RGB", (8, 8)).save(folder / f"{name}.png")
    before = memory("VmRSS", reset=True)
    for _ in range(cases):
        content = chance.choice(seeds)
        content = changed(content, chance)
        path.write_bytes(content)
        row.cases += 1
        begin = time.perf_counter()
        try:
            reader.read(path)
            row.accepted += 1
        except InputError:
            row.refused += 1
        except Exception as error:
            row.others.setdefault(f"{type(error).__name__}: {error}"[:120], content)
        row.longest = max(row.longest, time.perf_counter() - begin)
    row.memory = memory("VmHWM") - before
    return row


def memory(kind: str, *, reset: bool = False) -> int:
    """Kilobytes of this process now (VmRSS) or at most since a reset (VmHWM); 0 where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return 0
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind))


def main(words: Iterable[str] | None = None) -> int:
    """Fuzz all readers, print the table; exit code 1 if there were other exceptions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="number of files, over all readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name contains this")
    parser.add_argument("--keep", type=Path, help="folder for the files that raise other exceptions")
    asked = parser.parse_args(None if words is None else list(words))
    chosen = [reader for reader in READERS if asked.only in reader.name]
    warnings.filterwarnings("ignore", module=r"PIL\.")
    table = Table("reader", *(("cases", "InputErrors", "accepted", "other exceptions", "longest", "peak memory")))
    failed = {}
    logging.disable()  # transformers says on stderr what it thinks of a file
    print(f"seed {asked.seed}, {asked.cases:,} cases", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for reader in chosen:
            row = fuzz(reader, -(-asked.cases // len(chosen)), Path(folder), seed=asked.seed)
            others = row.others or {}
            failed.update({f"{reader.name}: {what}": content for what, content in others.items()})
            cells = (row.cases, row.refused, row.accepted, row.cases - row.refused - row.accepted)
            print(reader.name, *cells, file=sys.stderr, flush=True)
            numbers = [f"{row.longest:.3f} s", f"{row.memory / 1024:.0f} MB"]
            table.add_row(reader.name, *(f"{cell:,}" for cell in cells), *numbers)
    Console(width=110, markup=False).print(table)
    for number, (what, content) in enumerate(failed.items()):
        print(what)
        if asked.keep:
            asked.keep.mkdir(parents=True, exist_ok=True)
            (asked.keep / str(number)).write_bytes(content)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
