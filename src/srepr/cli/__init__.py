"""The command line: parse the words, run the command, turn bad input into one line and exit code 2."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Protocol, cast, get_args, get_origin, get_type_hints

import tyro

from srepr import __version__
from srepr.cli.analyze import AnalyzeCommand
from srepr.cli.data import DataCommand
from srepr.cli.demo import DemoCommand
from srepr.cli.doctor import DoctorCommand
from srepr.cli.evaluate import EvaluateCommand
from srepr.cli.export import ExportCommand
from srepr.cli.import_ import ImportCommand
from srepr.cli.predict import PredictCommand
from srepr.cli.report import ReportCommand
from srepr.cli.reproduce import ReproduceCommand
from srepr.cli.retrain import RetrainCommand
from srepr.cli.train import TrainCommand, train_default
from srepr.errors import InputError, check, explained, tell, unknown

USAGE = """usage: srepr COMMAND ...

Long-tailed classification: better accuracy on rare classes, and calibrated probabilities.

  srepr demo                               the whole method on embedded digits, in a minute
  srepr data list|get|check|show           list, download, verify and show data sets
  srepr train SOURCE --out R               stage 1: SGD, SWA and the SWAG posterior
  srepr retrain R --method srepr           stage 2: the classifier, on stochastic features
  srepr evaluate R                         the metrics of everything in a run folder
  srepr analyze R                          the paper's analyses: numbers, and figures for print
  srepr report R -o report.html            one page: what changed, class by class
  srepr reproduce NAME                     the paper's tables with our numbers beside them
  srepr predict R INPUT... -o out.csv      label, probability and uncertainty of images, tables, arrays
  srepr export R --format onnx -o FILE     a file to deploy: safetensors, torch.export or ONNX
  srepr import CHECKPOINT --out R          another project's checkpoint as a run folder, read without executing it
  srepr doctor                             what this machine supports

Every command takes --help, and --debug, which shows where in the code an error comes from.
Example: srepr train digits-lt --out runs/digits --baseline
"""


POSITIONAL = get_args(tyro.conf.Positional[str])[1]


class Command(Protocol):
    """A command: its fields are the arguments, its docstring is the help."""

    EXAMPLE: ClassVar[str]

    def run(self) -> None:
        """Run the command and print its results."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit code 0 is success, 2 is bad input, explained in one line on stderr, 1 a bug of srepr."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    _print_everything()
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"srepr {__version__}")
        return 0
    kind = VERBS.get(words[0])
    try:
        if kind is None:
            raise unknown("command", words[0], VERBS, hint=". See: srepr --help")
        with traced(debug):
            check(not any("\0" in word for word in words), "an argument has a NUL. Leave it out.")
            parse(words[0], words[1:]).run()
            sys.stdout.flush()
    except InputError as error:
        return complain(str(error) if kind is None else in_flags(str(error), kind))
    except BrokenPipeError:  # the reader has seen enough; Python would complain about the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return complain(explained(error))
    except KeyboardInterrupt:
        complain("stopped. The same command resumes from the last checkpoint.")
        return 130
    except Exception as error:  # readers name the file that they cannot read, so this is no file's fault
        complain(
            f"this is a bug of srepr ({type(error).__name__}: {error}). "
            f"{'Please report it' if debug else 'Please report it with what --debug shows'}."
        )
        return 1
    return 0


def complain(line: str) -> int:
    """Print one line about bad input; returns its exit code."""
    tell(line)
    return 2


@contextlib.contextmanager
def traced(debug: bool) -> Iterator[None]:
    """Print the traceback of an exception under --debug, before its one line."""
    try:
        yield
    except Exception:
        if debug:
            traceback.print_exc()
        raise


def _print_everything() -> None:
    """Let standard output take every character, and leave it to srepr to say what is wrong with a file."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names need not be UTF-8, terminals neither
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    vars(warnings)["showwarning"] = _show_warning
    warnings.filterwarnings("ignore", module=r"PIL\.")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    warnings.filterwarnings("ignore", message="Reading `.npy` or `.npz` file")


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    """One line, as for errors, without the place in the code."""
    tell(str(message))


def in_flags(message: str, kind: type) -> str:
    """A message of the library with its arguments, which stand in backticks, as the flags of a command.

    A way out that the command does not have is left out.

    >>> in_flags("`lr` is -1: it must be above 0; see `srepr train`", TrainCommand)
    '--optim.lr is -1: it must be above 0; see `srepr train`'
    >>> in_flags("1.jpg does not exist. Restore it, or skip it with `skip_bad_images`", EvaluateCommand)
    '1.jpg does not exist. Restore it'
    """
    known = dict(flags(kind))
    message = re.sub(r", or [a-z ]+`(\w+)`(?=\.|$)", lambda found: found[0] if found[1] in known else "", message)
    return re.sub(r"`(?:[a-z]\w*\.)*([a-z]\w*)`", lambda found: known.get(found[1], found[0]), message)


def flags(kind: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(argument, flag) for every argument of a command, under its name in Python and under the one that is typed."""
    hints = get_type_hints(kind, include_extras=True)
    for name in (field.name for field in dataclasses.fields(kind)):
        plain, marks = hints[name], tuple[Any, ...]()
        while get_origin(plain) is Annotated:
            plain, *found = get_args(plain)
            marks = (*marks, *found)
        renamed = next((mark.name for mark in marks if getattr(mark, "name", None) is not None), name)
        if dataclasses.is_dataclass(plain):
            yield from flags(cast(type, plain), f"{prefix}{renamed}." if renamed else prefix)
        else:
            shown = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), name.upper())
            flag = shown if POSITIONAL in marks else f"--{prefix}{renamed.replace('_', '-')}"
            yield name, flag
            yield renamed, flag


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
            command = tyro.cli(
                kind,
                args=list(words),
                prog=f"srepr {verb}",
                description=description,
                default=default,
                config=[tyro.conf.DisallowNone],  # an option is left out, not set to None
            )
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise InputError(f"{in_one_line(complaint.getvalue())} See: srepr {verb} --help") from None
    workers = getattr(command, "workers", 0)
    check(workers >= 0, f"`workers` is {workers}: it must not be negative. See: srepr {verb} --help")
    return command


def in_one_line(box: str) -> str:
    r"""The complaint in tyro's frame as one line, without what --help says as well.

    >>> in_one_line("+- Error -+\n| Unknown: --epoch |\n| --- |\n| Perhaps you meant: |\n| --epochs INT |\n+---+")
    'Unknown: --epoch, did you mean --epochs?'
    """
    text = re.sub(r"[^\x20-\x7e\n]|(?<!\S)[-+|]+(?!\S)", " ", box)  # the frame and its rules, in either alphabet
    _title, _, body = text.partition("\n")
    complaint, *others = [" ".join(part.split()) for part in re.split(r"\n\s*\n", body) if part.strip()]
    line = re.sub(r"^Error parsing [\w.]+: (?=`)", "", complaint)
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
