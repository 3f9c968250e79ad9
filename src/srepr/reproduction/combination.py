"""The paper's recipe on other projects' checkpoints (appendix B.4), before and after, beside its own numbers.

CHECKPOINT  ->  about 10 epochs of SGD at the SWA rate, captured  ->  stage 2

O/combine/NAME-seedS/     a run folder for each; the network as it was given is its `sgd`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from srepr.config import Machine, Retrain
from srepr.errors import InputError
from srepr.foreign import read_checkpoint
from srepr.methods import METHODS
from srepr.recipes import RECIPES, collecting, settings_for
from srepr.reproduction.comparison import Compared, Comparison, aggregate
from srepr.reproduction.experiments import EVERYTHING, SCORES
from srepr.reproduction.paper import TITLES, numbers
from srepr.reproduction.records import Record
from srepr.stage1 import train
from srepr.stage2 import retrain_run

SOURCES = {10: "cifar10-lt", 100: "cifar100-lt", 1000: "imagenet-lt", 8142: "inaturalist18"}
KNOWN = {"cmo": "ride-cmo", "ride": "ride", "sade": "sade", "bcl": "bcl"}
"""What in the name of a file says whose it is: RIDE and SADE cannot be told apart by their tensors."""


def combine(
    checkpoints: Sequence[Path],
    source: str = "",
    *,
    seeds: int = 1,
    epochs: int | None = None,
    data_dir: Path | None = None,
    out: Path,
    workers: int = 0,
) -> tuple[list[Record], Comparison]:
    """Collect and re-train around each checkpoint; what was measured, and the table before / after.

    Without a `source` the data set of the paper with as many classes is taken. Work that is done is not done again.

    >>> combine([], out=Path("O"))
    Traceback (most recent call last):
    srepr.errors.InputError: srepr reproduce combine needs checkpoints. Name one or several files.
    """
    if not checkpoints:
        raise InputError("srepr reproduce combine needs checkpoints. Name one or several files.")
    sources = {source or source_of(checkpoint) for checkpoint in checkpoints}
    if len(sources) > 1:
        raise InputError(f"the checkpoints are of {' and '.join(sorted(sources))}: one table is about one data set.")
    source = sources.pop()
    repeated = {path.stem for path in checkpoints if [other.stem for other in checkpoints].count(path.stem) > 1}
    if repeated:
        raise InputError(f"two checkpoints are called {min(repeated)}: their runs would be one. Rename a file.")
    settings = collecting(settings_for(source), epochs)
    measured = []
    for checkpoint in checkpoints:
        for seed in range(seeds):
            run = out / "combine" / f"{checkpoint.stem}-seed{seed}"
            print(f"{checkpoint.name}, seed {seed}: collect, then re-train", file=sys.stderr, flush=True)
            results = train(
                replace(settings, seed=seed),
                run,
                data_dir=data_dir,
                machine=Machine(workers=workers),
                start=checkpoint,
            )
            results |= retrain_run(run, {"srepr": METHODS["srepr"]}, Retrain(seed=seed), workers=workers)
            place = f" --data-dir {data_dir}" if data_dir else ""
            command = f"srepr train {source} --from {checkpoint.name}{place} --seed {seed} --out {run}"
            measured += [
                record(checkpoint.stem, "sgd", results["sgd"], settings.epochs, seed, command),
                record(
                    f"{checkpoint.stem}+srepr",
                    "swa",
                    results["srepr"],
                    settings.epochs,
                    seed,
                    f"{command} && srepr retrain {run} --seed {seed}",
                ),
            ]
    return measured, beside_the_paper(checkpoints, source, measured, settings.epochs)


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


def beside_the_paper(checkpoints: Sequence[Path], source: str, measured: Sequence[Record], epochs: int) -> Comparison:
    """The table: two rows for each checkpoint, beside the paper's for a file that says whose it is.

    >>> rows = beside_the_paper([Path("sade_cifar100.pth")], "cifar100-lt", [], 10).rows
    >>> [(row.label, row.paper["acc"]) for row in rows]
    [('sade_cifar100', [49.9, None]), ('  + SWA + SRepr', [50.1, None])]
    """
    paper, theirs = numbers("combining", source)
    rows = []
    for checkpoint in checkpoints:
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
        caption=f"Other projects' checkpoints, and SWA + SRepr on them. Ours: {source}, {epochs} epochs of collection;"
        f" paper: {TITLES[paper]}, about 10.",
        columns=SCORES,
        rows=rows,
        notes=[] if same else ["The data set is not the paper's: only the direction of the changes compares."],
    )
