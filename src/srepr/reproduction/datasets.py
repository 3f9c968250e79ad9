"""The data sets that a table is made on: a named one, those in a data folder, or the one of the checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from srepr.config import Precision, Train, collect_settings, settings_for
from srepr.data import load
from srepr.data.sources import NAMED
from srepr.errors import InputError, check, printable, unknown
from srepr.importing.checkpoint import read_checkpoint
from srepr.reproduction.experiments import TABLES
from srepr.reproduction.paper import TITLES
from srepr.reproduction.plan import Experiment


def experiments_for(
    table: str,
    names: Sequence[str] = (),
    *,
    source: str = "",
    seeds: int = 1,
    epochs: int | None = None,
    data_dir: Path | None = None,
    out: Path,
    precision: Precision = "32-true",
) -> list[Experiment]:
    """A table on each of its data sets.

    `names` holds at most one data set, for `combine` the checkpoints. `source` is the data set of the checkpoints, or
    another way to name the one of a table. `epochs` is the length of stage 1, for `combine` of the collection.

    >>> experiments_for("ablatoin", out=Path("O"))
    Traceback (most recent call last):
    srepr.errors.InputError: unknown table 'ablatoin'; did you mean ablation? Known: swa-crt, ablation, ...
    """
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    if table == "combine":
        checkpoints = tuple(map(Path, names))
        source = common_source(checkpoints, source)
        load(source, data_dir=data_dir)  # missing data are reported before anything runs
        bases = [collect_settings(settings_for(source), epochs)]
    else:
        checkpoints, sources = (), [*names, *filter(None, [source])]
        check(len(sources) <= 1, f"{table} is made on one data set at a time. Name one SOURCE.")
        sources = sources or available_sources(table, data_dir)
        bases = [base_settings(name, epochs=epochs, data_dir=data_dir) for name in sources]
    return [
        Experiment(
            table=table,
            base=base,
            seeds=seeds,
            out=out,
            data_dir=data_dir,
            checkpoints=checkpoints,
            precision=precision,
        )
        for base in bases
    ]


def base_settings(source: str, *, epochs: int | None = None, data_dir: Path | None = None) -> Train:
    """Stage 1 of a data set as every table starts from it: the recipe, with the SGD baseline.

    A named data set that comes with a validation set uses it, since that takes no training examples away.
    """
    recipe = settings_for(source)
    settings = replace(recipe, epochs=recipe.epochs if epochs is None else epochs, baseline=True)
    data = load(source, data_dir=data_dir)
    if source in NAMED and len(load(source, data_dir=data_dir, protocol="holdout").train) == len(data.train):
        settings = replace(settings, data=replace(settings.data, protocol="holdout"))
    return settings


def available_sources(table: str, data_dir: Path | None) -> list[str]:
    """The default data sets of a table that `data_dir` has; without a folder, the embedded digits."""
    if data_dir is None:
        print("no data folder: the embedded digits-lt stands in for the paper's data sets", file=sys.stderr)
        return ["digits-lt"]
    found = []
    for source in TABLES[table].sources:
        try:
            load(source, data_dir=data_dir)
        except InputError as error:
            print(printable(f"without {source}: {error}"), file=sys.stderr)
        else:
            found.append(source)
    if not found:
        wanted = ", ".join(TABLES[table].sources)
        raise InputError(f"{data_dir} has none of {wanted}. Name a SOURCE, or get one with: srepr data get --help")
    return found


def common_source(checkpoints: Sequence[Path], source: str = "") -> str:
    """The data set of the checkpoints; default: the data set of the paper with as many classes.

    >>> common_source([])
    Traceback (most recent call last):
    srepr.errors.InputError: srepr reproduce combine needs checkpoints. Name one or several files.
    """
    if not checkpoints:
        raise InputError("srepr reproduce combine needs checkpoints. Name one or several files.")
    stems = [checkpoint.stem for checkpoint in checkpoints]
    for checkpoint in checkpoints:
        check(checkpoint.exists(), f"{checkpoint} does not exist. Name one or several checkpoints.")
        same = stems.count(checkpoint.stem) > 1
        check(not same, f"two checkpoints are called {checkpoint.stem}: their runs would be one. Rename a file.")
    sources = {source or source_of(checkpoint) for checkpoint in checkpoints}
    if len(sources) > 1:
        raise InputError(f"the checkpoints are of {' and '.join(sorted(sources))}: one table is about one data set.")
    return sources.pop()


def source_of(checkpoint: Path) -> str:
    """The data set of the paper that has as many classes as the checkpoint."""
    classes = read_checkpoint(checkpoint).classes
    found = [source for source in TITLES if NAMED[source].classes == classes]
    if not found:
        raise InputError(f"{checkpoint} has {classes} classes; no data set of the paper has. Name it with `source`.")
    return found[0]
