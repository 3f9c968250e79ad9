"""How long the work behind a table takes, from the logs and head notes of earlier runs in the same folder.

A piece of work is estimated from runs of the same network on the same data set. Without any there is no estimate.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from srepr.config import settings_for, stage2_epochs
from srepr.data import load
from srepr.representation import plan as epochs_of
from srepr.reproduction.plan import Piece, Retraining, Training
from srepr.run.description import describe
from srepr.run.folder import head_notes
from srepr.run.log import read_log, seconds_of_training
from srepr.run.schema import Timed, read_config
from srepr.storage.files import read_json


def estimates(
    pieces: Iterable[Piece], out: Path, *, data_dir: Path | None = None
) -> Iterator[tuple[Piece, float | None]]:
    """Each piece of work with the seconds that it will take: 0 if it is done, None if there is no estimate yet.

    >>> out = getfixture("tmp_path")
    >>> [seconds for _, seconds in estimates([Training(run=out / "run", train=settings_for("digits-lt"))], out)]
    [None]
    """
    earlier = {file.parent: read_config(file.parent)["settings"] for file in sorted(out.glob("*/*/config.json"))}

    @cache
    def network_of(source: str, name: str) -> str:
        """The network by name; "auto" depends on the data."""
        return name if name != "auto" else describe(settings_for(source), load(source, data_dir=data_dir)).network

    def alike(piece: Piece, run: Path) -> bool:
        """Whether a run has the same network and data; the network of a checkpoint is known by its folder."""
        if earlier[run]["source"] != piece.train.source:
            return False
        if piece.start is not None:
            return run.parent == piece.run.parent and seedless(run) == seedless(piece.run)
        return bool(earlier[run]["network"] == network_of(piece.train.source, piece.train.network))

    for piece in pieces:
        if piece.done:
            yield piece, 0.0
            continue
        runs = [run for run in earlier if alike(piece, run)]
        if isinstance(piece, Training):
            yield piece, training_seconds(piece, runs)
        else:
            yield piece, retraining_seconds(piece, runs)


def seedless(run: Path) -> str:
    """The name of a run folder without its seed.

    >>> seedless(Path("O/combine/ride-seed0"))
    'ride'
    """
    return run.name.rpartition("-seed")[0]


def training_seconds(piece: Training, runs: Iterable[Path]) -> float | None:
    """The epochs that are left, at the median seconds per epoch of the runs."""
    paces = [sum(seconds_of_training(run).values()) / len(log) for run in runs if (log := read_log(run))]
    epochs = epochs_of(piece.train.epochs, piece.train.swa_start, baseline=piece.train.baseline)
    return max(0, len(epochs) - len(read_log(piece.run))) * statistics.median(paces) if paces else None


def retraining_seconds(piece: Retraining, runs: Iterable[Path]) -> float | None:
    """The heads that are left, each at the mean seconds per epoch of heads with the same name.

    For a new name the heads with the same representation stand in. Heads share cached features, and only the first
    computes them: the mean over several heads spreads that time evenly.
    """
    notes = {note: read_json(note, Timed) for run in runs for note in head_notes(run)}
    timed = {note: content for note, content in notes.items() if "seconds" in content["metrics"]}  # not diverged
    settings, total = piece.settings, 0.0
    for name in piece.left:
        same = [content for note, content in timed.items() if note.stem == name]
        if not same and not piece.cold:
            how = piece.methods[name]
            reads = "swag" if how == "auto" else how.representation
            kind = (reads, settings.on_the_fly, settings.draws)
            same = [content for content in timed.values() if kind_of(content) == kind]
        if not same:
            return None
        pace = statistics.fmean(content["metrics"]["seconds"] / content["settings"]["epochs"] for content in same)
        total += pace * (settings.epochs or stage2_epochs(piece.train.epochs))
    return total


def kind_of(note: dict[str, Any]) -> tuple[str, bool, int]:
    """What the time of a head depends on, from its note."""
    return note["method"]["representation"], note["settings"]["on_the_fly"], note["settings"]["samples"]
