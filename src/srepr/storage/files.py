"""Text, JSON and CSV files that appear whole or not at all.

Every file is written under a temporary name beside its final one, flushed to the disk and renamed. A process killed at
any moment leaves either the old file or the new one.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from srepr.errors import InputError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Make `path` appear only after `write(temporary)` has finished and its bytes are on the disk.

    >>> folder = getfixture("tmp_path")
    >>> write_whole(folder / "note.txt", lambda temporary: temporary.write_text("whole"))
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # a full disk does not say which file
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, "utf-8", "backslashreplace"))


def write_json(path: Path, content: object) -> None:
    """Write `content` as JSON, whole or not at all; inf and nan, which JSON does not have, become strings."""
    write_text(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def plain(content: Any) -> Any:
    """`content` in the types of JSON: paths and non-finite numbers as strings, tuples as lists.

    >>> plain({"out": Path("R"), "nll": float("nan"), "counts": (3, 1)})
    {'out': 'R', 'nll': 'nan', 'counts': [3, 1]}
    """
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return str(content) if isinstance(content, Path) else content


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run; a missing or broken one is an InputError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Is its folder a run made by `srepr train`?") from None
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8, and numbers of thousands of digits
        raise InputError(
            f"{path} is not valid JSON ({error}). Restore it, or train again into a new folder."
        ) from None


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows with the same keys to a CSV file, whole or not at all; None is an empty cell, formulas are words."""
    first, *others = rows

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow([no_formula(name) for name in first])
            table.writerows([no_formula(row[name]) for name in first] for row in [first, *others])

    write_whole(path, write)


_NUMBER = r"[+-][0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?"
_FORMULA = "'*[=+\\-@\t\r\n＝＋－＠]"


def no_formula(cell: Any) -> Any:
    """A cell of a CSV file that no spreadsheet takes for a formula: words that begin like one get an apostrophe.

    Numbers stay numbers, also those in words. Carriage returns, which are not quoted in CSV, become line breaks.

    >>> [no_formula(cell) for cell in ("=1+1", "wren", "-1.5", -1.5, "-wren", "'@wren")]
    ["'=1+1", 'wren', '-1.5', -1.5, "'-wren", "''@wren"]
    """
    if not isinstance(cell, str):
        return cell
    formula = re.match(_FORMULA, cell) and not re.fullmatch(_NUMBER, cell)
    return ("'" if formula else "") + cell.replace("\r\n", "\n").replace("\r", "\n")


def as_written(cell: str) -> str:
    """The words that `no_formula` made a cell of.

    >>> [as_written(cell) for cell in ("'=1+1", "''@wren", "'tis")]
    ['=1+1', "'@wren", "'tis"]
    """
    return cell[1:] if cell.startswith("'") and re.match(_FORMULA, cell) else cell


def create_folder(path: Path) -> None:
    """Make the folder, and raise an InputError if it cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / ".writable", lambda temporary: temporary.touch())
        (path / ".writable").unlink()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path} cannot be written ({reason}). Choose another folder with `out`.") from None
