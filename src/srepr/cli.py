"""The command line: words in, the command of that verb run, mistakes as one line and exit code 2."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

import tyro

from srepr import __version__
from srepr.commands.analyze import AnalyzeCommand
from srepr.commands.data import DataCommand
from srepr.commands.doctor import DoctorCommand
from srepr.commands.export import ExportCommand
from srepr.commands.import_ import ImportCommand
from srepr.commands.predict import PredictCommand
from srepr.commands.report import ReportCommand
from srepr.commands.reproduce import ReproduceCommand
from srepr.commands.stages import DemoCommand, EvaluateCommand, RetrainCommand, TrainCommand, train_default
from srepr.errors import InputError

USAGE = """usage: srepr VERB ...

Long-tailed classification: a better model for rare classes, and probabilities that can be believed.

  srepr demo                               the whole method on embedded digits, in a minute
  srepr data list|get|check|show           data sets: which, fetch, verify, picture of the classes
  srepr train SOURCE --out R               stage 1: SGD, SWA and the SWAG posterior
  srepr retrain R --method srepr           stage 2: the classifier, on stochastic features
  srepr evaluate R                         the metrics of everything in a run folder
  srepr analyze R                          the paper's analyses: numbers, and figures for print
  srepr report R -o report.html            one page: what changed, class by class
  srepr reproduce NAME                     the paper's tables, our numbers beside its own
  srepr predict R INPUT... -o out.csv      label, probability and uncertainty of images, tables, arrays
  srepr export R --format onnx -o FILE     a file to deploy: safetensors, torch.export or ONNX
  srepr import CHECKPOINT --out R          another project's network as a run folder, read without executing it
  srepr doctor                             what this machine can do

Every verb takes --help. Example: srepr train digits-lt --out runs/digits --baseline
"""


class Command(Protocol):
    """A verb: its fields are the arguments, its docstring the help."""

    EXAMPLE: ClassVar[str]

    def run(self) -> None:
        """Do it and print."""


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
        parse(words[0], words[1:]).run()
        sys.stdout.flush()
    except InputError as error:
        return complain(str(error))
    except BrokenPipeError:  # the reader has seen enough; Python would complain about the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' where something known is close.

    >>> nearest("trian", ["train", "data"])
    ', did you mean train?'
    """
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else "."


def parse(verb: str, words: Sequence[str]) -> Command:
    """The command with its arguments; a mistake in them becomes one line.

    >>> parse("train", ["digits-lt", "--out", "R", "--epoch", "3"])
    Traceback (most recent call last):
    srepr.errors.InputError: Unrecognized options: --epoch, 3, did you mean --epochs? See: srepr train --help
    """
    kind = VERBS[verb]
    default = train_default(words) if kind is TrainCommand else tyro.MISSING_NONPROP
    description = f"{kind.__doc__}\n\nExample: {kind.EXAMPLE}"
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, args=list(words), prog=f"srepr {verb}", description=description, default=default)
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise InputError(f"{in_one_line(complaint.getvalue())} See: srepr {verb} --help") from None


def in_one_line(box: str) -> str:
    r"""The complaint in tyro's frame as one line, without what --help says as well.

    >>> in_one_line("+- Error -+\n| Unknown: --epoch |\n| --- |\n| Perhaps you meant: |\n| --epochs INT |\n+---+")
    'Unknown: --epoch, did you mean --epochs?'
    """
    text = re.sub(r"[^\x20-\x7e\n]|(?<!\S)[-+|]+(?!\S)", " ", box)  # the frame and its rules, in either alphabet
    _title, _, body = text.partition("\n")
    complaint, *others = [" ".join(part.split()) for part in re.split(r"\n\s*\n", body) if part.strip()]
    line = re.sub(r"^Error parsing [\w.]+: (?=--)", "", complaint)
    hint = re.search(r"Perhaps you meant: (--\S+)", " ".join(others))
    return f"{line}, did you mean {hint[1]}?" if hint else line.rstrip(".") + "."


VERBS: dict[str, type[Command]] = {
    "demo": DemoCommand,
    "data": DataCommand,
    "train": TrainCommand,
    "retrain": RetrainCommand,
    "evaluate": EvaluateCommand,
    "analyze": AnalyzeCommand,
    "report": ReportCommand,
    "reproduce": ReproduceCommand,
    "predict": PredictCommand,
    "export": ExportCommand,
    "import": ImportCommand,
    "doctor": DoctorCommand,
}
