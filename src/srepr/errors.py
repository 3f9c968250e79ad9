"""The one exception for input that a person can fix; the command line turns it into one line and exit code 2.

A message names Python arguments in backticks. The command line shows them as the flags that the user typed.
"""

import difflib
import errno
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_LINE = 2000
JOINERS = "\u200c\u200d"  # part of words in Persian and Hindi
LARGEST_FLOAT32 = 3.4028234663852886e38
FIXES = {
    errno.EEXIST: "It is no folder: choose another path",
    errno.ENOTDIR: "A part of this path is no folder: choose another path",
    errno.EISDIR: "It is a folder: choose a file",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.EMFILE: "Raise the limit of open files: ulimit -n",
}


class InputError(ValueError):
    """Something about the input is wrong: the message names it and says what to do next.

    >>> raise InputError("`epochs` is 0: at least 1 is needed")
    Traceback (most recent call last):
    srepr.errors.InputError: `epochs` is 0: at least 1 is needed
    """


def unknown(kind: str, name: object, known: Iterable[str], *, hint: str = "") -> InputError:
    """The error for a name that is not among the known ones, with the nearest of them.

    >>> raise unknown("method", "sreper", ["crt", "srepr"])
    Traceback (most recent call last):
    srepr.errors.InputError: unknown method 'sreper'; did you mean srepr? Known: crt, srepr
    """
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    nearest = f"; did you mean {close[0]}?" if close else "."
    return InputError(f"unknown {kind} {str(name)!r}{nearest} Known: {', '.join(known)}{hint}")


def explained(error: OSError) -> str:
    """An error of the operating system in one line: what it is about, and what to do next.

    >>> explained(FileExistsError(errno.EEXIST, "File exists", "runs"))
    'runs: File exists. It is no folder: choose another path.'
    """
    fix = FIXES.get(error.errno or 0, "Free space or fix access")
    return f"{error.filename or 'the file system'}: {error.strerror or error}. {fix}."


def tell(line: str) -> None:
    """Print one line for people on stderr. What a terminal would obey or cannot print is escaped."""
    words = " ".join(line.split())
    print("srepr:", printable(words if len(words) <= LONGEST_LINE else f"{words[:LONGEST_LINE]}..."), file=sys.stderr)


def printable(words: str) -> str:
    r"""The words with all that is no printable character escaped.

    >>> print(printable("wren\x1b[2J"))
    wren\x1b[2J
    """
    return "".join(c if c.isprintable() or c in JOINERS else ascii(c)[1:-1] for c in words)


def check(holds: bool, complaint: str) -> None:
    """Raise an InputError with the complaint unless the condition holds.

    >>> check(1 > 2, "`epochs` is 0: at least 1 is needed")
    Traceback (most recent call last):
    srepr.errors.InputError: `epochs` is 0: at least 1 is needed
    """
    if not holds:
        raise InputError(complaint)


def check_count(name: str, value: int, most: int = 1_000_000) -> None:
    """Raise an InputError unless a number of things is possible.

    >>> check_count("epochs", 10**9)
    Traceback (most recent call last):
    srepr.errors.InputError: `epochs` is 1000000000: at most 1,000,000 are possible
    """
    check(value >= 1, f"`{name}` is {value}: at least 1 is needed")
    check(value <= most, f"`{name}` is {value}: at most {most:,} are possible")


def check_seed(seed: int) -> None:
    """Raise an InputError for a seed that the generators of random numbers do not take.

    >>> check_seed(-1)
    Traceback (most recent call last):
    srepr.errors.InputError: `seed` is -1: it must lie in 0 .. 4294967295
    """
    check(0 <= seed < 2**32, f"`seed` is {seed}: it must lie in 0 .. 4294967295")


def check_finite(settings: object) -> None:
    """Raise an InputError if one of the settings is no number, or infinite, as float32 has it.

    >>> from types import SimpleNamespace
    >>> check_finite(SimpleNamespace(lr=float("inf")))
    Traceback (most recent call last):
    srepr.errors.InputError: `lr` is inf: it must be a finite number
    """
    for name, value in vars(settings).items():
        finite = not isinstance(value, float) or abs(value) <= LARGEST_FLOAT32
        check(finite, f"`{name}` is {value}: it must be a finite number")


@contextmanager
def reading(path: str | Path, fix: str = "Replace it by a valid file") -> Iterator[None]:
    """Turn whatever goes wrong while a file from outside is read into an InputError that names the file.

    Readers say what is wrong with a file wherever they can foresee it. This is for the rest.

    >>> with reading("birds.json"):
    ...     {}["label"]
    Traceback (most recent call last):
    srepr.errors.InputError: birds.json cannot be read (KeyError: 'label'). Replace it by a valid file
    """
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}). {fix}") from error
    except Exception as error:  # a hostile file can make a parser raise anything
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {str(error)[:200]}). {fix}") from error
