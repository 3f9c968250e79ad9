"""A table of the paper as work: the trainings and re-trainings that its rows share.

    O/stage1/SOURCE-E-epochs-seedS/     run folder of a training, with the heads of every table
    O/combine/CHECKPOINT-seedS/         run folder of a collection around a checkpoint

Both stages resume where they stopped and keep what is finished, and so does a table.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from srepr.config import Machine, Precision, Retrain, Stage1, Train, settings_for
from srepr.data.sources import NAMED
from srepr.errors import check
from srepr.importing.start import start_network
from srepr.methods import Method
from srepr.reproduction.experiments import TABLES, Row
from srepr.run.retrain import retrain_run
from srepr.run.train import train

Results = dict[Path, dict[str, dict[str, Any]]]
"""The metrics of the networks and heads of each run folder."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Stage 1 into a run folder, from random weights or from the checkpoint `start`."""

    run: Path
    train: Train
    start: Path | None = None

    @property
    def done(self) -> bool:
        """Whether the training is finished."""
        return (self.run / "results.json").exists()

    def __str__(self) -> str:
        what = "train" if self.start is None else f"collect around {self.start.name} on"
        return f"{what} {', '.join(described(self.train))}"


@dataclass(frozen=True, kw_only=True)
class Retraining:
    """Heads with the same settings on a network of a run folder."""

    run: Path
    train: Train
    start: Path | None = None
    stage1: Stage1
    methods: dict[str, Method | Literal["auto"]]
    settings: Retrain
    cold: bool = False
    """Compute all features anew instead of reading those cached in the run folder."""

    @property
    def left(self) -> list[str]:
        """The heads that are not trained yet."""
        return [name for name in self.methods if not (self.run / "heads" / f"{name}.json").exists()]

    @property
    def done(self) -> bool:
        """Whether all heads are trained."""
        return not self.left

    def __str__(self) -> str:
        return f"re-train {', '.join(self.methods)} on {', '.join(described(self.train))}"


Piece = Training | Retraining


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of the paper on one data set."""

    table: str
    base: Train
    """Stage 1 as in the recipe, with the SGD baseline: the run that most tables share."""
    seeds: int
    out: Path
    data_dir: Path | None = None
    checkpoints: tuple[Path, ...] = ()
    precision: Precision = "32-true"

    def __post_init__(self) -> None:
        check(self.seeds >= 1, f"`seeds` is {self.seeds}: at least 1 is needed")

    @property
    def rows(self) -> list[Row]:
        """The rows of the table."""
        return TABLES[self.table].rows(self.base, *self.checkpoints)

    def run(self, settings: Train, start: Path | None = None) -> Path:
        """The run folder of a training."""
        if start is not None:
            return self.out / "combine" / f"{start.stem}-seed{settings.seed}"
        source, epochs, *others = described(settings)
        name = "-".join([named(source), epochs.replace(" ", "-"), *(other.replace(" ", "") for other in others)])
        return self.out / "stage1" / name

    def runs(self) -> Iterator[tuple[Row, Train, Path]]:
        """Each row that is ours with its training and run folder, for one seed after the other."""
        for seed in range(self.seeds):
            for row in self.rows:
                if row.train is not None:
                    settings = replace(row.train, seed=seed)
                    yield row, settings, self.run(settings, row.start)


def named(source: str) -> str:
    """A data set in the names of files."""
    return source if source in NAMED else Path(os.path.realpath(source)).name


def described(settings: Train) -> list[str]:
    """What tells trainings apart: data set, length, seed, and the settings that differ from the recipe."""
    recipe = settings_for(settings.source)
    optim, usual = settings.optim, recipe.optim
    words = [settings.source, f"{settings.epochs} epochs", f"seed {settings.seed}"]
    words += [f"mixup{settings.mixup:g}"] if settings.mixup != recipe.mixup else []
    words += [f"wd{optim.weight_decay:g}"] if optim.weight_decay != usual.weight_decay else []
    words += [f"swalr{optim.swa_lr:g}"] if optim.swa_lr != usual.swa_lr else []
    return words + ([settings.network] if settings.network != recipe.network else [])


def plan(experiment: Experiment) -> list[Piece]:
    """The work behind a table: each piece once, a training before the heads on it.

    >>> settings = replace(settings_for("digits-lt"), epochs=4, baseline=True)
    >>> for piece in plan(Experiment(table="swa-crt", base=settings, seeds=1, out=Path("O"))):
    ...     print(piece)
    train digits-lt, 4 epochs, seed 0
    re-train sgd-crt on digits-lt, 4 epochs, seed 0
    re-train crt on digits-lt, 4 epochs, seed 0
    """
    pieces: dict[object, Piece] = {}
    for row, settings, run in experiment.runs():
        pieces.setdefault(run, Training(run=run, train=settings, start=row.start))
        if row.head is None:
            continue
        retrain = replace(row.retrain, seed=settings.seed)
        key = (run, row.stage1, retrain, row.head if row.cold else None)
        piece = Retraining(
            run=run,
            train=settings,
            start=row.start,
            stage1=row.stage1,
            methods={},
            settings=retrain,
            cold=row.cold,
        )
        shared = pieces.setdefault(key, piece)
        assert isinstance(shared, Retraining)
        shared.methods[row.head] = row.how
    return list(pieces.values())


def carry_out(
    pieces: Sequence[Piece], *, data_dir: Path | None = None, workers: int = 0, precision: Precision = "32-true"
) -> Results:
    """Do the work that is left, and return the metrics of every run folder."""
    left = [piece for piece in pieces if not piece.done]
    results: Results = {piece.run: {} for piece in pieces}
    for piece in pieces:
        if piece in left:
            print(f"[{left.index(piece) + 1}/{len(left)}] {piece}", file=sys.stderr, flush=True)
        metrics = results[piece.run]
        if isinstance(piece, Training):
            start = None if piece.start is None else partial(start_network, piece.start)
            machine = Machine(workers=workers, precision=precision)
            metrics |= train(piece.train, piece.run, data_dir=data_dir, machine=machine, start=start)
        else:
            with cold_cache(piece) as cache:
                metrics |= retrain_run(
                    piece.run,
                    piece.methods,
                    piece.settings,
                    stage1=piece.stage1,
                    data_dir=data_dir if piece.train.source in NAMED else None,
                    cache=cache,
                    workers=workers,
                )
    return results


@contextmanager
def cold_cache(piece: Retraining) -> Iterator[Path | None]:
    """An empty folder for the features of a cold piece; None for the cache of the run folder."""
    if not piece.cold:
        yield None
        return
    folder = piece.run / "cost-cache"
    shutil.rmtree(folder, ignore_errors=True)  # a killed process leaves it
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
