"""The command line: arguments in, one library call, text out.

torch is imported only by the verbs that need it, so that `srepr --help` answers at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from srepr import __version__
from srepr.errors import InputError

USAGE = """usage: srepr VERB ...

Long-tailed classification: a better model for rare classes, and probabilities that can be believed.

  srepr demo                               the whole method on embedded digits, in a minute
  srepr data list|get|check|show           data sets: which, fetch, verify, picture of the classes
  srepr train SOURCE --out R               stage 1: SGD, SWA and the SWAG posterior
  srepr evaluate R                         the metrics of everything in a run folder
  srepr doctor                             what this machine can do

Every verb takes --help. Example: srepr train digits-lt --out runs/digits --baseline
"""

Arguments = TypeVar("Arguments")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 2 is input that the one line on stderr says how to mend.

    >>> main(["--version"])
    srepr 0.1.0
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"srepr {__version__}")
        return 0
    try:
        if words[0] not in VERBS:
            raise InputError(f"no verb is called {words[0]!r}{nearest(words[0], VERBS)} See: srepr --help")
        VERBS[words[0]](words[1:])
    except InputError as error:
        return complain(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        return complain(f"{error.filename or 'the file system'}: {error.strerror or error}. Free space or fix access.")
    except KeyboardInterrupt:
        complain("stopped. The same command goes on from the last kept state.")
        return 130
    return 0


def complain(line: str) -> int:
    """Say what is wrong in one line; the exit code for it."""
    print(f"srepr: {' '.join(line.split())}", file=sys.stderr)
    return 2


def nearest(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    """'; did you mean X?' where something known is close.

    >>> nearest("trian", ["train", "data"])
    ', did you mean train?'
    """
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else "."


def parse(kind: type[Arguments], words: Sequence[str], prog: str, example: str, default: Any = None) -> Arguments:
    """The arguments of a verb; a mistake in them becomes one line."""
    import tyro

    description = f"{(kind.__doc__ or '').strip()}\n\nExample: {example}"
    complaint = io.StringIO()
    extra = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, args=list(words), prog=prog, description=description, **extra)
    except SystemExit as exit_:
        if not exit_.code:
            raise
        text = re.sub(r"[^\x20-\x7e\n]|─+", " ", complaint.getvalue())
        body = [line.strip() for line in text.splitlines() if line.strip()]
        line = " ".join(body[1:]) if len(body) > 1 else " ".join(body)
        raise InputError(re.sub(r"\s*For full helptext,? (?:run|see):?\s*.*$", f" See: {prog} --help", line)) from None
