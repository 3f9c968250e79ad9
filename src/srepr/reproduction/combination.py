"""The paper's recipe on other projects' checkpoints (appendix B.4), before and after, beside its own numbers.

CHECKPOINT  ->  about 10 epochs of SGD at the SWA rate, captured  ->  stage 2

O/combine/NAME-seedS/     a run folder for each; the network as it was given is its `sgd`
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from srepr.config import Retrain, Train
from srepr.errors import InputError
from srepr.foreign import read_checkpoint
from srepr.methods import METHODS
from srepr.recipes import RECIPES, collecting, settings_for
from srepr.reproduction.comparison import Compared, Comparison, aggregate
from srepr.reproduction.experiments import EVERYTHING, SCORES
from srepr.reproduction.paper import TITLES, numbers
from srepr.reproduction.records import Record
from srepr.reproduction.work import Piece, Results, Retraining, Training

SOURCES = {10: "cifar10-lt", 100: "cifar100-lt", 1000: "imagenet-lt", 8142: "inaturalist18"}
KNOWN = {"cmo": "ride-cmo", "ride": "ride", "sade": "sade", "bcl": "bcl"}
"""What in the name of a file says whose it is: RIDE and SADE cannot be told apart by their tensors."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The recipe on some checkpoints, over one data set.

    >>> settings = collecting(RECIPES["digits-lt"])
    >>> what = Combination(checkpoints=[Path("ride.pth")], settings=settings, seeds=2, out=Path("O"))
    >>> [(path.name, seed, str(run)) for path, seed, run in what.runs]
    [('ride.pth', 0, 'O/combine/ride-seed0'), ('ride.pth', 1, 'O/combine/ride-seed1')]
    """

    checkpoints: Sequence[Path]
    settings: Train
    """The collection."""
    seeds: int
    out: Path
    data_dir: Path | None = None

    @property
    def runs(self) -> list[tuple[Path, int, Path]]:
        """Every (checkpoint, seed) with its run folder."""
        return [
            (checkpoint, seed, self.out / "combine" / f"{checkpoint.stem}-seed{seed}")
            for checkpoint in self.checkpoints
            for seed in range(self.seeds)
        ]


def combination(
    checkpoints: Sequence[Path],
    source: str = "",
    *,
    seeds: int = 1,
    epochs: int | None = None,
    data_dir: Path | None = None,
    out: Path,
) -> Combination:
    """What to do for these checkpoints; without a `source` on the data set of the paper with as many classes.

    >>> combination([], out=Path("O"))
    Traceback (most recent call last):
    srepr.errors.InputError: srepr reproduce combine needs checkpoints. Name one or several files.
    """
    if not checkpoints:
        raise InputError("srepr reproduce combine needs checkpoints. Name one or several files.")
    sources = {source or source_of(checkpoint) for checkpoint in checkpoints}
    if len(sources) > 1:
        raise InputError(f"the checkpoints are of {' and '.join(sorted(sources))}: one table is about one data set.")
    repeated = {path.stem for path in checkpoints if [other.stem for other in checkpoints].count(path.stem) > 1}
    if repeated:
        raise InputError(f"two checkpoints are called {min(repeated)}: their runs would be one. Rename a file.")
    settings = collecting(settings_for(sources.pop()), epochs)
    return Combination(checkpoints=checkpoints, settings=settings, seeds=seeds, out=out, data_dir=data_dir)


def plan(what: Combination) -> list[Piece]:
    """The work: for each checkpoint and seed the collection, then the head.

    >>> settings = collecting(RECIPES["digits-lt"])
    >>> for piece in plan(Combination(checkpoints=[Path("ride.pth")], settings=settings, seeds=1, out=Path("O"))):
    ...     print(piece)
    collect around ride.pth on digits-lt, 10 epochs, seed 0
    re-train srepr on digits-lt, 10 epochs, seed 0
    """
    pieces: list[Piece] = []
    for checkpoint, seed, run in what.runs:
        settings = replace(what.settings, seed=seed)
        head, retrain = {"srepr": METHODS["srepr"]}, Retrain(seed=seed)
        pieces += [
            Training(run=run, settings=settings, start=checkpoint),
            Retraining(run=run, train=settings, stage1="swa", methods=head, settings=retrain),
        ]
    return pieces


def records(what: Combination, results: Results) -> list[Record]:
    """What was measured: a record before and one after, for each checkpoint and seed.

    >>> settings = collecting(RECIPES["digits-lt"])
    >>> what = Combination(checkpoints=[Path("ride.pth")], settings=settings, seeds=1, out=Path("O"))
    >>> results = {Path("O/combine/ride-seed0"): {"sgd": {"acc": 0.5}, "srepr": {"acc": 0.6}}}
    >>> [(row["name"], row["acc"]) for row in records(what, results)]
    [('ride', 0.5), ('ride+srepr', 0.6)]
    """
    found = []
    epochs, source = what.settings.epochs, what.settings.source
    place = ["--data-dir", what.data_dir] if what.data_dir else []
    for checkpoint, seed, run in what.runs:
        before, after = results[run]["sgd"], results[run]["srepr"]
        words = [
            "srepr",
            "train",
            source,
            "--from",
            checkpoint,
            *place,
            "--epochs",
            epochs,
            "--seed",
            seed,
            "--out",
            run,
        ]
        collect = shlex.join(map(str, words))
        retrain = f"{collect} && {shlex.join(['srepr', 'retrain', str(run), '--seed', str(seed)])}"
        found += [
            record(checkpoint.stem, "sgd", before, epochs, seed, collect),
            record(f"{checkpoint.stem}+srepr", "swa", after, epochs, seed, retrain),
        ]
    return found


def source_of(checkpoint: Path) -> str:
    """The data set of the paper that has as many classes as the checkpoint."""
    classes = read_checkpoint(checkpoint).classes
    if classes not in SOURCES:
        raise InputError(f"{checkpoint} has {classes} classes, as no data set of the paper. Name one with --source.")
    return SOURCES[classes]


def record(name: str, stage1: str, metrics: dict[str, Any], epochs: int, seed: int, command: str) -> Record:
    """A row of one seed, as in the other tables.

    >>> record("ride", "sgd", {"acc": 0.5}, 10, 0, "srepr train ...")["method"] is None
    True
    """
    how = METHODS["srepr"] if stage1 == "swa" else None
    return {
        "name": name,
        "stage1": stage1,
        "method": how and "srepr",
        "balance": how and how.balance,
        "representation": how and how.representation,
        "distill": how and how.distill,
        "epochs": epochs,
        "seed": seed,
        **{column: metrics.get(column) for column in EVERYTHING},
        "seconds": metrics.get("seconds"),
        "command": command,
        **({"diverged": metrics["diverged"]} if "diverged" in metrics else {}),
    }


def beside_the_paper(what: Combination, measured: Sequence[Record]) -> Comparison:
    """The table: two rows for each checkpoint, beside the paper's for a file that says whose it is.

    >>> settings = collecting(RECIPES["cifar100-lt"])
    >>> what = Combination(checkpoints=[Path("sade_cifar100.pth")], settings=settings, seeds=1, out=Path("O"))
    >>> rows = beside_the_paper(what, []).rows
    >>> [(row.label, row.paper["acc"]) for row in rows]
    [('sade_cifar100', [49.9, None]), ('  + SWA + SRepr', [50.1, None])]
    """
    source = what.settings.source
    paper, theirs = numbers("combining", source)
    rows = []
    for checkpoint in what.checkpoints:
        known = next((row for word, row in KNOWN.items() if word in checkpoint.stem.lower()), "")
        for suffix, label in (("", checkpoint.stem), ("+srepr", "  + SWA + SRepr")):
            quoted = theirs.get(known + suffix, {}) if known else {}
            rows.append(
                Compared(
                    name=checkpoint.stem + suffix,
                    label=label,
                    ours={column: aggregate(column, measured, checkpoint.stem + suffix) for column in SCORES},
                    paper={column: quoted.get(column) for column in SCORES},
                )
            )
    same = source in RECIPES and source == paper
    return Comparison(
        table="combine",
        source=source,
        paper=paper,
        caption=f"Other projects' checkpoints, and SWA + SRepr on them. Ours: {source}, {what.settings.epochs}"
        f" epochs of collection; paper: {TITLES[paper]}, about 10.",
        columns=SCORES,
        rows=rows,
        notes=[] if same else ["The data set is not the paper's: only the direction of the changes compares."],
    )
