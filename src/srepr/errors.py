"""The one exception for input that a person can fix; the command line turns it into one line and exit code 2.

A message names Python arguments in backticks. The command line shows them as the flags that the user typed.
"""

import difflib
from collections.abc import Iterable


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


def check(holds: bool, complaint: str) -> None:
    """Raise an InputError with the complaint unless the condition holds.

    >>> check(1 > 2, "`epochs` is 0: at least 1 is needed")
    Traceback (most recent call last):
    srepr.errors.InputError: `epochs` is 0: at least 1 is needed
    """
    if not holds:
        raise InputError(complaint)
