"""`srepr reproduce`: the tables of the paper, on whichever data set there is."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional, arg

from srepr.commands.output import show, show_json
from srepr.errors import InputError

if TYPE_CHECKING:
    from srepr.reproduction.work import Experiment


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand:
    """A table of the paper, our numbers beside its own; tables share their work, and one cut short goes on."""

    EXAMPLE: ClassVar[str] = "srepr reproduce main cifar100-lt --data-dir data --seeds 4"

    table: Positional[Annotated[str, arg(metavar="NAME")]]
    """swa-crt, ablation, main, full, cifar, temperature, weight-decay, swa-lr, cost, representation, mixup,
    long-training; or combine, the method on other projects' checkpoints."""
    words: Positional[Annotated[tuple[str, ...], arg(metavar="[SOURCE|CHECKPOINT ...]")]] = ()
    """A named data set, or a folder, .csv or .npz of yours; when not given, those of the table that --data-dir has.
    For combine: the checkpoints."""
    source: str = ""
    """The data set, instead of naming it after the table; for combine, that of the checkpoints."""
    seeds: int = 1
    """How many: 0 to N - 1."""
    epochs: int | None = None
    """Length of stage 1, the recipe's own when not given; for combine, of the collection (10)."""
    data_dir: Path | None = None
    """Where the data set's files are."""
    out: Path = Path("runs/reproduce")
    """Where the runs and the tables are kept."""
    workers: int = 2
    """Processes that decode image files."""
    dry_run: bool = False
    """Say what would run, and for how long, and write nothing."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Do what is not done yet, then print the table; or say what there is to do."""
        from srepr.reproduction.experiments import TABLES

        known = [*TABLES, "combine"]
        if self.table not in known:
            close = difflib.get_close_matches(self.table, known, n=1)
            hint = f", did you mean {close[0]}?" if close else "."
            raise InputError(f"no table is called {self.table!r}{hint} Known: {', '.join(known)}")
        if self.seeds < 1:
            raise InputError(f"--seeds is {self.seeds}: at least 1 is needed")
        if self.table == "combine":
            self.combine()
            return
        if len(self.words) + bool(self.source) > 1:
            raise InputError(f"{self.table} is made on one data set at a time. Name one SOURCE.")
        experiments = self.experiments()
        if self.dry_run:
            self.say_what_is_to_do(experiments)
        else:
            self.reproduce(experiments)

    def experiments(self) -> list[Experiment]:
        """The table on each of the data sets."""
        from srepr.reproduction.work import Experiment, base_settings, sources_for

        named = [*self.words, *filter(None, [self.source])]
        if not named and self.data_dir is None:
            print("no --data-dir: digits-lt, which is embedded, stands in for the paper's data", file=sys.stderr)
        return [
            Experiment(
                table=self.table,
                base=base_settings(source, epochs=self.epochs, data_dir=self.data_dir),
                seeds=self.seeds,
                out=self.out,
                data_dir=self.data_dir,
            )
            for source in named or sources_for(self.table, self.data_dir)
        ]

    def reproduce(self, experiments: list[Experiment]) -> None:
        """Table by table, so that one is there before the next begins."""
        from srepr.reproduction.comparison import as_json, as_table, compare, write
        from srepr.reproduction.records import records
        from srepr.reproduction.work import carry_out

        found = []
        for experiment in experiments:
            measured = records(experiment, carry_out(experiment, workers=self.workers))
            comparison = compare(experiment, measured)
            write(self.out, measured, comparison)
            found.append(as_json(comparison))
            if not self.json:
                show(as_table(comparison))
        if self.json:
            show_json(found)

    def combine(self) -> None:
        """Collect and re-train around each checkpoint, then print before and after."""
        from srepr.reproduction.combination import combine
        from srepr.reproduction.comparison import as_json, as_table, write

        if self.dry_run:
            raise InputError("--dry-run is for the tables that train from scratch. Leave it out for combine.")
        measured, comparison = combine(
            [Path(word) for word in self.words],
            self.source,
            seeds=self.seeds,
            epochs=self.epochs,
            data_dir=self.data_dir,
            out=self.out,
            workers=self.workers,
        )
        write(self.out, measured, comparison)
        if self.json:
            show_json([as_json(comparison)])
        else:
            show(as_table(comparison))

    def say_what_is_to_do(self, experiments: list[Experiment]) -> None:
        """A line for each piece of work."""
        from srepr.progress import duration
        from srepr.reproduction.timing import estimates

        work = [estimate for each in experiments for estimate in estimates(each, workers=self.workers)]
        if self.json:
            show_json([{"work": str(piece), "done": piece.done, "seconds": seconds} for piece, seconds in work])
            return
        for piece, seconds in work:
            print(f"{'done' if piece.done else 'about ' + duration(seconds):<20} {piece}")
        left = [seconds for piece, seconds in work if not piece.done]
        print(f"{len(left)} of {len(work)} to do, about {duration(sum(left))}")
