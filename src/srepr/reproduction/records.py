"""The measurements behind a table as records: how each number was made, with the commands that make it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from srepr.config import Precision, Retrain, Stage1, Train, collect_settings, settings_for
from srepr.reproduction.experiments import EVERYTHING, TABLES, Row, head_name
from srepr.reproduction.plan import Experiment, Results
from srepr.run.folder import flag, flatten
from srepr.run.log import seconds_of_training

Record = dict[str, Any]


def records(experiment: Experiment, results: Results) -> list[Record]:
    """A record for each row and seed: how it was made, its metrics (fractions) and its seconds."""
    found = []
    for row, settings, run in experiment.runs():
        metrics = results[run][row.head or row.stage1]
        part, measured = part_of(metrics, TABLES[experiment.table].part)
        how = row.how if row.head and row.how != "auto" else None
        record = {
            "name": row.name,
            "label": row.label,
            "stage1": row.stage1,
            "method": row.method or None,
            "balance": how and how.balance,
            "representation": how and how.representation,
            "distill": how and how.distill,
            "epochs": settings.epochs,
            "seed": settings.seed,
            **row.varied,
            "part": part,
            **{name: measured.get(name) for name in EVERYTHING},
            "seconds": metrics.get("seconds") if row.head else stage1_seconds(run, row.stage1),
            "command": command(row, settings, run, experiment.data_dir, experiment.precision),
        }
        found.append(record | ({"diverged": metrics["diverged"]} if "diverged" in metrics else {}))
    return found


def part_of(metrics: Mapping[str, Any], wanted: str) -> tuple[str | None, Mapping[str, Any]]:
    """The set that is reported and the metrics on it: the wanted one, or else the one that there is.

    >>> part_of({"acc": 0.5}, "validation")
    ('test', {'acc': 0.5})
    >>> part_of({"diverged": "the re-training diverged"}, "validation")
    (None, {})
    """
    if "diverged" in metrics:
        return None, {}
    if "validation" in metrics and (wanted == "validation" or "acc" not in metrics):
        return "validation", metrics["validation"]
    return "test", metrics


def stage1_seconds(run: Path, stage1: Stage1) -> float | None:
    """Training time of a network of stage 1, from the log of its run; None without a log of it."""
    seconds = [value for branch, value in seconds_of_training(run).items() if branch in ("trunk", stage1)]
    return round(sum(seconds), 1) if seconds else None


def command(
    row: Row, settings: Train, run: Path, data_dir: Path | None = None, precision: Precision = "32-true"
) -> str:
    """The commands that make a row.

    >>> from srepr.reproduction.experiments import head
    >>> settings = replace(settings_for("digits-lt"), epochs=4, baseline=True, seed=1)
    >>> print(command(head(settings, "crt"), settings, Path("O/stage1/run")).replace(" && ", chr(10)))
    srepr train digits-lt --epochs 4 --baseline --seed 1 --out O/stage1/run
    srepr retrain O/stage1/run --method crt --solver sgd --seed 1
    """
    recipe = settings_for(settings.source)
    train = [
        *("srepr", "train", settings.source),
        *(["--from", str(row.start)] if row.start else []),
        *(["--data-dir", str(data_dir)] if data_dir else []),
        *flags(settings, collect_settings(recipe) if row.start else recipe),
        *(["--precision", precision] if precision != "32-true" else []),
        *("--out", str(run)),
    ]
    if row.head is None:
        return shlex.join(train)
    retrain = [
        *("srepr", "retrain", str(run), "--method", row.method),
        *(word for name, value in row.changes.items() if name != "distill" for word in (flag(name), value)),
        *(["--no-distill"] if "distill" in row.changes else []),
        *(["--stage1", row.stage1] if row.stage1 != "swa" else []),
        *flags(replace(row.retrain, seed=settings.seed), Retrain()),
        *(["--name", row.head] if row.head != head_name(row.method, row.stage1) else []),
    ]
    return f"{shlex.join(train)} && {shlex.join(retrain)}"


def flags(settings: Train | Retrain, default: Train | Retrain) -> list[str]:
    """The options that turn the default settings into these.

    >>> flags(Retrain(temperature=5, solver="sgd"), Retrain())
    ['--solver', 'sgd', '--temperature', '5']
    """
    usual = flatten(asdict(default))
    words = []
    for name, value in flatten(asdict(settings)).items():
        if value != usual[name]:
            words += [flag(name)] if value is True else [flag(name), str(value)]
    return words
