"""What the JSON files of a run folder hold: a type for each of them, against which it is checked when it is read.

Keys that are not listed are let through: other versions, and metrics of your own, may add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from srepr.config import Stage1
from srepr.errors import InputError
from srepr.methods import METHODS, Method
from srepr.storage import schema
from srepr.storage.files import read_json
from srepr.storage.tensors import load_metadata

T = TypeVar("T")


class Examples(TypedDict, total=False):
    """What config.json says about the data."""

    name: str
    sizes: dict[str, int]
    fingerprint: str


class _TrainedWith(TypedDict):
    source: str
    network: str
    batch_size: int


class Settings(_TrainedWith, total=False):
    """The settings of a training, in config.json."""

    epochs: int
    seed: int
    data: dict[str, Any]
    freeze: str
    optim: dict[str, Any]
    imported: dict[str, Any]


class Facts(TypedDict, total=False):
    """What config.json says beside the settings."""

    examples: Examples
    data_dir: str
    command: str
    versions: dict[str, str]
    machine: dict[str, Any]


class Config(Facts):
    """The content of config.json."""

    settings: Settings


class Bin(TypedDict):
    """A bin of a reliability diagram."""

    count: float
    confidence: float | None
    accuracy: float | None


class Metrics(TypedDict, total=False):
    """What was measured of one classifier: an entry of results.json, or of a head's note."""

    acc: float | None
    many: float | None
    medium: float | None
    few: float | None
    balanced_acc: float | None
    nll: float | None
    ece: float | None
    brier: float | None
    classwise_ece: float | None
    per_class: list[float | None]
    bins: list[Bin]
    n: int
    tested: dict[str, int]
    seconds: float
    diverged: str
    called: str
    validation: dict[str, Any]
    views: dict[str, dict[str, Any]]


class HeadSettings(TypedDict):
    """The settings of stage 2 that are read back."""

    rho: float
    temperature: float
    epochs: int
    samples: int
    on_the_fly: bool


class Candidate(TypedDict):
    """A row of the comparison that `auto` makes."""

    title: str
    penalty: float
    distill_weight: float | None
    temperature: float
    balanced_acc: float
    nll: float
    excess: float
    standard_error: float
    chosen: bool


class Choice(TypedDict):
    """What a head was chosen on, and from what."""

    on: str
    candidates: list[Candidate]


class Asked(TypedDict):
    """What the command that made a head asked for."""

    stage1: Stage1
    method: dict[str, Any] | Literal["auto"]
    settings: dict[str, Any]


class _Made(TypedDict):
    stage1: Stage1
    method: dict[str, Any] | Literal["auto"]
    settings: HeadSettings
    metrics: Metrics


class Note(_Made, total=False):
    """The content of heads/NAME.json."""

    dirichlet_temperature: float
    joined: bool
    """Whether it is trained on the validation set as well."""
    choice: Choice
    asked: Asked


class _Sampled(TypedDict):
    representation: str


class _Lasted(TypedDict):
    epochs: int
    samples: int
    on_the_fly: bool


class Timed(TypedDict):
    """What the time of a head is estimated from, in its note."""

    method: _Sampled | Literal["auto"]
    settings: _Lasted
    metrics: Metrics


class Point(TypedDict):
    """The metrics of an ensemble of draws, or of one network."""

    acc: float | None
    nll: float | None
    ece: float | None


class Draws(Point):
    """The metrics of an ensemble of so many draws."""

    samples: int


class Spread(TypedDict):
    """The dispersion of the draws in one space."""

    pearson: float | None
    quartiles: list[Any]
    per_class: list[float | None]


class Analysis(TypedDict):
    """What is read back of analysis/analysis.json."""

    head: str
    classifier: str
    samples: int
    ensemble: list[Draws]
    single: Point
    dispersion: dict[str, Spread]
    metrics: dict[str, Metrics]


class LogLine(TypedDict, total=False):
    """A line of log.jsonl."""

    branch: Literal["trunk", "swa", "sgd"]
    epoch: int
    loss: float
    acc: float
    lr: float
    images_per_second: float
    peak_memory_mib: int


class StateNote(TypedDict):
    """The note of a state: where the training stands, and the sums of its epoch."""

    position: list[int]
    sums: list[float]


class Exported(TypedDict):
    """How an exported classifier answers."""

    temperature: float
    expects: list[float] | None


class Made(TypedDict, total=False):
    """What an exported classifier says about how it was made."""

    head: str | None
    command: str | None
    versions: dict[str, str] | None
    training: dict[str, Any]
    method: dict[str, Any] | Literal["auto"]
    settings: dict[str, Any]
    metrics: Metrics
    choice: Choice


def read_config(run: Path) -> dict[str, Any]:
    """The content of config.json."""
    config: dict[str, Any] = read_json(run / "config.json", Config)
    return config


def read_results(run: Path) -> dict[str, dict[str, Any]]:
    """The content of results.json: the metrics of each classifier, also those in `validation` and `views`."""
    file = run / "results.json"
    try:
        results: dict[str, dict[str, Any]] = read_json(file, dict[str, Metrics])
        return {name: _complete(metrics, name) for name, metrics in results.items()}
    except (schema.Mismatch, InputError) as error:
        again = str(error) if isinstance(error, InputError) else f"{file} is not as srepr writes it: {error}."
        raise InputError(f"{again} Make it again with: srepr evaluate {run}") from None


def read_note(file: Path) -> dict[str, Any]:
    """The content of a head's note, heads/NAME.json; the InputError about one that cannot be used has the way out."""
    try:
        note: dict[str, Any] = read_json(file, Note)
        try:
            if isinstance(note["method"], dict):
                schema.parsed(note["method"], Method, "method")
            elif "diverged" not in note["metrics"]:
                raise schema.Mismatch("method is auto, and not what was chosen")
            if not note["metrics"].keys() & {"diverged", "seconds"}:
                raise schema.Mismatch("metrics.seconds is missing")
            note["metrics"] = _complete(note["metrics"], "metrics")
        except (schema.Mismatch, InputError) as error:
            raise InputError(f"{file} is not as srepr writes it: {str(error).rstrip('.')}. Restore it.") from None
    except InputError as error:
        raise unusable(file, str(error)) from None
    return note


def unusable(note: Path, problem: str) -> InputError:
    """The error about a head that cannot be read, by its note, with the command that makes it again.

    >>> print(unusable(Path("R/heads/la.json"), "its note is empty."))
    the head la cannot be used; make it again with `srepr retrain R --method la --overwrite`: its note is empty.
    """
    name = note.stem
    how = f"--method {name}" if name in ("auto", *METHODS) else f"--method METHOD --name {name}"
    again = f"srepr retrain {note.parent.parent} {how} --overwrite"
    return InputError(f"the head {name} cannot be used; make it again with `{again}`: {problem}")


def read_entry(path: Path, metadata: Mapping[str, str], key: str, kind: type[T], usual: str | None = None) -> T:
    """An entry of a safetensors file's metadata, which is JSON of that type."""
    text = metadata.get(key, usual)
    if text is None:
        raise InputError(f"{path} is not as srepr writes it: {key} is missing. Make it again.")
    try:
        found: T = schema.parsed_text(text, kind)
    except schema.Mismatch as error:
        raise InputError(f"{path} is not as srepr writes it: in {key}, {error}. Make it again.") from None
    return found


def read_made(path: Path) -> dict[str, Any]:
    """What an exported file says about how it was made; nothing for a plain network."""
    facts: dict[str, Any] = dict(read_entry(path, load_metadata(path), "facts", Made, usual="{}"))
    try:
        return facts | ({"metrics": _complete(facts["metrics"], "metrics")} if "metrics" in facts else {})
    except schema.Mismatch as error:
        raise InputError(f"{path} is not as srepr writes it: in facts, {error}. Make it again.") from None


def _complete(metrics: dict[str, Any], name: str) -> dict[str, Any]:
    """The metrics, with those inside of them checked as well."""
    inner = dict(metrics)
    if "validation" in metrics:
        inner["validation"] = _complete(
            schema.parsed(metrics["validation"], Metrics, f"{name}.validation"), f"{name}.validation"
        )
    if "views" in metrics:
        inner["views"] = schema.parsed(metrics["views"], dict[str, Metrics], f"{name}.views")
    return inner
