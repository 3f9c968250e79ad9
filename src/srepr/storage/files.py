"""Text, JSON and CSV files that appear whole or not at all.

Every file is written under a temporary name beside its final one, flushed to the disk and renamed. A process killed at
any moment leaves either the old file or the new one. The JSON files and logs of a run folder have checksums
(`srepr.storage.checksums`), which are checked when the files are read.
"""

from __future__ import annotations

import csv
import glob
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from srepr.errors import InputError
from srepr.storage import checksums, schema
from srepr.storage.outside import LARGEST_TEXT, open_regular


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Make `path` appear only after `write(temporary)` has finished and its bytes are on the disk.

    >>> folder = getfixture("tmp_path")
    >>> write_whole(folder / "note.txt", lambda temporary: temporary.write_text("whole"))
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if not _is_alive(left.suffixes[-2].removeprefix(".")):
            left.unlink(missing_ok=True)
    temporary.unlink(missing_ok=True)  # of another process of this number, or a link to another place
    try:
        with naming(path):
            temporary.touch()
            mode = temporary.stat().st_mode  # by the umask: the library of safetensors makes files of its own mode
            write(temporary)
            with temporary.open("rb+") as file:
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the operating system name the file or folder: a full disk does not say which.

    >>> with naming(Path("big.bin")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'big.bin'
    """
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


def _is_alive(process: str) -> bool:
    """Whether a process of that number runs; the unfinished files of others are left over."""
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, "utf-8", "backslashreplace"))


def write_checked(path: Path, text: str) -> None:
    """Write a text file of a run folder, whole or not at all, and its checksum; elsewhere there is no checksum.

    The checksums of the old content and of the new are recorded first: either is right, whenever the process ends.
    """
    record = checksums.record_of(path)
    if record is not None:
        before = path.read_bytes() if path.is_file() else None
        kept = [] if before is None or not checksums.is_intact(path, before) else [before]
        record.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, "".join(checksums.line(content) for content in (text.encode(), *kept)))
    write_text(path, text)


def read_checked(path: Path, *, growing: bool = False) -> bytes:
    """A text file of a run folder; one that was changed since it was written is an InputError.

    A `growing` file, a log, may have lines that came after its checksum.
    """
    with open_regular(path, LARGEST_TEXT) as file:
        content = file.read()
    if not checksums.is_intact(path, content, growing=growing):
        raise InputError(
            f"{path} was damaged or changed after srepr wrote it. Restore it, or delete {checksums.record_of(path)} to"
            " use it as it is."
        )
    return content


def adopt(run: Path, names: Iterable[str]) -> None:
    """Record the checksums of the files of a run folder, by patterns of their names, that have none yet."""
    (run / checksums.FOLDER).mkdir(exist_ok=True)
    for path in checksums.unrecorded(run, names):
        record = run / checksums.FOLDER / path.relative_to(run)
        record.parent.mkdir(exist_ok=True)
        write_text(record, checksums.line(path.read_bytes()))


def write_json(path: Path, content: object) -> None:
    """Write `content` as JSON, whole or not at all; inf and nan, which JSON does not have, become strings."""
    write_checked(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


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


def read_json(path: Path, kind: Any = Any) -> Any:
    """The content of a JSON file of a run, of the given type (`srepr.storage.schema`).

    A missing, broken or changed file is an InputError, and so is one of another type.
    """
    try:
        return schema.parsed_text(read_checked(path), kind)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Is its folder a run made by `srepr train`?") from None
    except schema.Invalid as error:
        raise InputError(
            f"{path} is not valid JSON ({error}). Restore it, or train again into a new folder."
        ) from None
    except schema.Mismatch as error:
        raise InputError(f"{path} is not as srepr writes it: {error}. Restore it.") from None


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


def check_output(path: Path, argument: str = "out") -> None:
    """Raise an InputError unless a file can be at the path that a user chose: a device would be replaced.

    `argument` is the name under which the path was chosen.

    >>> check_output(Path("/dev/null"))
    Traceback (most recent call last):
    srepr.errors.InputError: /dev/null is no file. Choose the name of a file with `out`.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder. Make it, or choose another `{argument}`.")
    is_open = path.is_symlink() and str(path.readlink()).startswith("/proc/")  # as /dev/stdout
    if is_open or (path.exists() and not path.is_file()):
        raise InputError(f"{path} is no file. Choose the name of a file with `{argument}`.")


def create_folder(path: Path) -> None:
    """Make the folder, and raise an InputError if it cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / ".writable", lambda temporary: temporary.touch())
        (path / ".writable").unlink()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path} cannot be written ({reason}). Choose another folder with `out`.") from None
