"""What a table measured, as records: how each number was made, down to the command line that makes it by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from srepr.config import Retrain, Train
from srepr.recipes import settings_for
from srepr.reproduction.experiments import EVERYTHING, TABLES, Row
from srepr.reproduction.timing import trained_seconds
from srepr.reproduction.work import Experiment, Results, every_row

Record = dict[str, Any]


def records(experiment: Experiment, results: Results) -> list[Record]:
    """What was measured, a record for each row and seed: how it was made, its metrics (fractions) and its seconds.

    >>> from pathlib import Path
    >>> experiment = Experiment(table="swa-crt", base=Train(source="digits-lt"), seeds=1, out=Path("O"))
    >>> metrics = dict.fromkeys(EVERYTHING, 0.5)
    >>> results = {experiment.run(experiment.base): {name: metrics for name in ("sgd", "swa", "sgd-crt", "crt")}}
    >>> [(record["name"], record["acc"]) for record in records(experiment, results)]
    [('sgd', 0.5), ('swa', 0.5), ('sgd-crt', 0.5), ('crt', 0.5)]
    """
    found = []
    for seed, row, settings in every_row(experiment):
        run = experiment.run(settings)
        metrics = results[run][row.head or row.stage1]
        part, measured = part_of(metrics, TABLES[experiment.table].part)
        how = row.how if row.head else None
        record = {
            "name": row.name,
            "label": row.label,
            "stage1": row.stage1,
            "method": row.method or None,
            "balance": how and how.balance,
            "representation": how and how.representation,
            "distill": how and how.distill,
            "epochs": settings.epochs,
            "seed": seed,
            **row.varied,
            "part": part,
            **{name: measured.get(name) for name in EVERYTHING},
            "seconds": metrics.get("seconds") if row.head else trained_seconds(run, row.stage1),
            "command": command(experiment, row, settings),
        }
        found.append(record | ({"diverged": metrics["diverged"]} if "diverged" in metrics else {}))
    return found


def part_of(metrics: Mapping[str, Any], wanted: str) -> tuple[str | None, Mapping[str, Any]]:
    """The part of the data that is looked at, and the metrics on it: the wanted one where there is one.

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


def command(experiment: Experiment, row: Row, settings: Train) -> str:
    """What makes a row by hand, as it is typed.

    >>> from pathlib import Path
    >>> settings = replace(settings_for("digits-lt"), epochs=4, baseline=True, seed=1)
    >>> experiment = Experiment(table="main", base=settings, seeds=2, out=Path("O"))
    >>> print(command(experiment, experiment.rows[1], settings).replace(" && ", chr(10)))
    srepr train digits-lt --epochs 4 --baseline --seed 1 --out O/stage1/digits-lt-4-epochs-seed1
    srepr retrain O/stage1/digits-lt-4-epochs-seed1 --method crt --seed 1
    """
    run = str(experiment.run(settings))
    place = ["--data-dir", str(experiment.data_dir)] if experiment.data_dir else []
    words = ["srepr", "train", settings.source, *place, *flags(settings, settings_for(settings.source)), "--out", run]
    if row.head is None:
        return shlex.join(words)
    choices = [word for name, value in row.changes.items() if name != "distill" for word in (f"--{name}", value)]
    usual = row.method if row.stage1 == "swa" else f"{row.stage1}-{row.method}"
    head = [
        *("srepr", "retrain", run, "--method", row.method),
        *(choices if "distill" not in row.changes else [*choices, "--no-distill"]),
        *(["--stage1", row.stage1] if row.stage1 != "swa" else []),
        *flags(replace(row.retrain, seed=settings.seed), Retrain()),
        *(["--name", row.head] if row.head != usual else []),
    ]
    return f"{shlex.join(words)} && {shlex.join(head)}"


def flags(settings: Train | Retrain, default: Train | Retrain) -> list[str]:
    """The options that make the settings out of the default ones.

    >>> flags(Retrain(temperature=5, on_the_fly=True), Retrain())
    ['--on-the-fly', '--temperature', '5']
    """

    def changed(new: dict[str, Any], old: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, value in new.items():
            if isinstance(value, dict):
                yield from changed(value, old[name], "" if name == "data" else f"{name}.")
            elif value != old[name]:
                yield f"--{prefix}{name.replace('_', '-')}"
                if value is not True:
                    yield str(value)

    return list(changed(asdict(settings), asdict(default), ""))
