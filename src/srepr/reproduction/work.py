"""A table of the paper as work: the trainings and re-trainings that its rows share, and doing what is not done yet.

    O/stage1/SOURCE-E-epochs-seedS/     a run folder for each training, with every head that some table asked for

Both stages go on where they were cut short and leave alone what is finished, and so does a table.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from srepr.config import Machine, Retrain, Train
from srepr.data import load
from srepr.errors import InputError
from srepr.evaluation import Stage1
from srepr.methods import Method
from srepr.recipes import RECIPES, settings_for
from srepr.reproduction.experiments import TABLES, Row
from srepr.stage1 import train
from srepr.stage2 import retrain_run

Results = dict[Path, dict[str, dict[str, Any]]]
"""Of each run folder, the metrics of its networks and heads."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A piece of work: stage 1 into a run folder, from scratch or from a network that is trained already.

    >>> str(Training(run=Path("R"), settings=replace(RECIPES["digits-lt"], mixup=0.2)))
    'train digits-lt, 40 epochs, seed 0, mixup0.2'
    """

    run: Path
    settings: Train
    start: Path | None = None
    """The checkpoint to go on from."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return (self.run / "results.json").exists()

    def __str__(self) -> str:
        what = "train" if self.start is None else f"collect around {self.start.name} on"
        return f"{what} {', '.join(described(self.settings))}"


@dataclass(frozen=True, kw_only=True)
class Retraining:
    """A piece of work: heads on a network of a run folder, which share their settings.

    >>> from srepr.methods import METHODS
    >>> heads = {"sgd-crt": METHODS["crt"], "sgd-la": METHODS["la"]}
    >>> train = RECIPES["digits-lt"]
    >>> str(Retraining(run=Path("R"), train=train, stage1="sgd", methods=heads, settings=Retrain()))
    're-train sgd-crt, sgd-la on digits-lt, 40 epochs, seed 0'
    """

    run: Path
    train: Train
    stage1: Stage1
    methods: dict[str, Method]
    settings: Retrain
    cold: bool = False
    """Without the features that are kept in the run folder."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return all((self.run / "heads" / f"{name}.json").exists() for name in self.methods)

    def __str__(self) -> str:
        return f"re-train {', '.join(self.methods)} on {', '.join(described(self.train))}"


Piece = Training | Retraining


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of the paper on one data set.

    >>> experiment = Experiment(table="mixup", base=Train(source="digits-lt", epochs=4), seeds=2, out=Path("O"))
    >>> [row.name for row in experiment.rows]
    ['crt', 'mixup-crt', 'srepr', 'mixup-srepr']
    """

    table: str
    base: Train
    """Stage 1 as the recipe has it, with the SGD baseline: the run that most tables share."""
    seeds: int
    out: Path
    data_dir: Path | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows of the table."""
        return TABLES[self.table].rows(self.base)

    @property
    def source(self) -> str:
        """The data set in the names of files."""
        return named(self.base.source)

    def run(self, settings: Train) -> Path:
        """The run folder of a training."""
        source, epochs, *others = described(settings)
        name = "-".join([named(source), epochs.replace(" ", "-"), *(other.replace(" ", "") for other in others)])
        return self.out / "stage1" / name


def named(source: str) -> str:
    """A data set in the names of files.

    >>> named("cifar100-lt"), named("photos/birds")
    ('cifar100-lt', 'birds')
    """
    return source if source in RECIPES else Path(source).resolve().name


def described(settings: Train) -> list[str]:
    """What tells trainings apart: data set, length, seed, and what is not as in the recipe.

    >>> described(replace(RECIPES["imagenet-lt"], epochs=180, network="resnext50", seed=1))
    ['imagenet-lt', '180 epochs', 'seed 1', 'resnext50']
    """
    recipe = settings_for(settings.source)
    optim, usual = settings.optim, recipe.optim
    words = [settings.source, f"{settings.epochs} epochs", f"seed {settings.seed}"]
    words += [f"mixup{settings.mixup:g}"] if settings.mixup != recipe.mixup else []
    words += [f"wd{optim.weight_decay:g}"] if optim.weight_decay != usual.weight_decay else []
    words += [f"swalr{optim.swa_lr:g}"] if optim.swa_lr != usual.swa_lr else []
    return words + ([settings.network] if settings.network != recipe.network else [])


def base_settings(source: str, *, epochs: int | None = None, data_dir: Path | None = None) -> Train:
    """Stage 1 of a data set as every table starts from it.

    A named data set that comes with a validation part is trained with it held beside, at no cost to the training.

    >>> base_settings("digits-lt", epochs=4).baseline
    True
    """
    recipe = settings_for(source)
    settings = replace(recipe, epochs=recipe.epochs if epochs is None else epochs, baseline=True)
    if source in RECIPES:
        plain, held = (load(source, data_dir=data_dir, protocol=protocol) for protocol in ("paper", "holdout"))
        if len(plain.train) == len(held.train):
            settings = replace(settings, data=replace(settings.data, protocol="holdout"))
    return settings


def sources_for(table: str, data_dir: Path | None) -> list[str]:
    """The data sets of a table that are there; without a folder to look in, the embedded digits.

    >>> sources_for("main", None)
    ['digits-lt']
    """
    if data_dir is None:
        return ["digits-lt"]
    found = []
    for source in TABLES[table].sources:
        try:
            load(source, data_dir=data_dir)
        except InputError as error:
            print(f"going on without {source}: {error}", file=sys.stderr)
        else:
            found.append(source)
    if not found:
        wanted = ", ".join(TABLES[table].sources)
        raise InputError(f"{data_dir} has none of {wanted}. Name a SOURCE, or get one with: srepr data get --help")
    return found


def plan(experiment: Experiment) -> list[Piece]:
    """The work behind a table, each piece once, a training before the heads on it.

    >>> settings = replace(RECIPES["digits-lt"], epochs=4, baseline=True)
    >>> for piece in plan(Experiment(table="swa-crt", base=settings, seeds=1, out=Path("O"))):
    ...     print(piece)
    train digits-lt, 4 epochs, seed 0
    re-train sgd-crt on digits-lt, 4 epochs, seed 0
    re-train crt on digits-lt, 4 epochs, seed 0
    """
    pieces: dict[object, Piece] = {}
    for seed, row, settings in every_row(experiment):
        run = experiment.run(settings)
        pieces.setdefault(run, Training(run=run, settings=settings))
        if row.head is None:
            continue
        retrain = replace(row.retrain, seed=seed)
        key = (run, row.stage1, retrain, row.head if row.cold else None)
        fresh = Retraining(run=run, train=settings, stage1=row.stage1, methods={}, settings=retrain, cold=row.cold)
        piece = pieces.setdefault(key, fresh)
        assert isinstance(piece, Retraining)
        piece.methods[row.head] = row.how
    return list(pieces.values())


def every_row(experiment: Experiment) -> Iterator[tuple[int, Row, Train]]:
    """The rows that are ours, for each seed, with their trainings.

    >>> experiment = Experiment(table="long-training", base=Train(source="digits-lt"), seeds=2, out=Path("O"))
    >>> len(list(every_row(experiment)))
    10
    """
    for seed in range(experiment.seeds):
        for row in experiment.rows:
            if row.train is not None:
                yield seed, row, replace(row.train, seed=seed)


def carry_out(pieces: Sequence[Piece], *, data_dir: Path | None = None, workers: int = 0) -> Results:
    """Do what is not done yet of the work behind a table, and return the metrics of all of it.

    >>> base = base_settings("digits-lt", epochs=1)
    >>> experiment = Experiment(table="swa-crt", base=base, seeds=1, out=getfixture("tmp_path"))
    >>> [sorted(metrics) for metrics in carry_out(plan(experiment)).values()]
    [['crt', 'sgd', 'sgd-crt', 'swa']]
    """
    left = [piece for piece in pieces if not piece.done]
    results: Results = {piece.run: {} for piece in pieces}
    for piece in pieces:
        if piece in left:
            print(f"[{left.index(piece) + 1}/{len(left)}] {piece}", file=sys.stderr, flush=True)
        metrics = results[piece.run]
        if isinstance(piece, Training):
            machine = Machine(workers=workers)
            metrics |= train(piece.settings, piece.run, data_dir=data_dir, machine=machine, start=piece.start)
        else:
            place = data_dir if piece.train.source in RECIPES else None
            with cold_cache(piece) as cache:
                metrics |= retrain_run(
                    piece.run,
                    piece.methods,
                    piece.settings,
                    stage1=piece.stage1,
                    data_dir=place,
                    cache=cache,
                    workers=workers,
                )
    return results


@contextmanager
def cold_cache(piece: Retraining) -> Iterator[Path | None]:
    """An empty folder for features, where the piece is not to find those that are kept in the run folder.

    >>> train = RECIPES["digits-lt"]
    >>> piece = Retraining(run=Path("R"), train=train, stage1="swa", methods={}, settings=Retrain(), cold=True)
    >>> with cold_cache(piece) as folder:
    ...     print(folder)
    R/cost-cache
    """
    if not piece.cold:
        yield None
        return
    folder = piece.run / "cost-cache"
    shutil.rmtree(folder, ignore_errors=True)  # a process that was killed leaves it
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
