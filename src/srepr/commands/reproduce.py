"""`srepr reproduce`: the tables of the paper, on whichever data set there is."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from srepr.commands.output import show, show_json
from srepr.errors import InputError

if TYPE_CHECKING:
    from srepr.reproduction.combination import Combination
    from srepr.reproduction.comparison import Comparison
    from srepr.reproduction.records import Record
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
        if self.table != "combine" and len(self.words) + bool(self.source) > 1:
            raise InputError(f"{self.table} is made on one data set at a time. Name one SOURCE.")
        if self.dry_run:
            self.say_what_is_to_do()
        elif self.table == "combine":
            self.combine()
        else:
            self.reproduce()

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

    def combination(self) -> Combination:
        """The recipe on the checkpoints that are named."""
        from srepr.reproduction.combination import combination

        return combination(
            [Path(word) for word in self.words],
            self.source,
            seeds=self.seeds,
            epochs=self.epochs,
            data_dir=self.data_dir,
            out=self.out,
        )

    def reproduce(self) -> None:
        """Table by table, so that one is there before the next begins."""
        from srepr.reproduction.comparison import compare
        from srepr.reproduction.records import records
        from srepr.reproduction.work import carry_out, plan

        found = []
        for experiment in self.experiments():
            results = carry_out(plan(experiment), data_dir=self.data_dir, workers=self.workers)
            measured = records(experiment, results)
            found.append(self.kept(measured, compare(experiment, measured)))
        if self.json:
            show_json(found)

    def combine(self) -> None:
        """Collect and re-train around each checkpoint, then print before and after."""
        from srepr.reproduction.combination import beside_the_paper, plan, records
        from srepr.reproduction.work import carry_out

        what = self.combination()
        measured = records(what, carry_out(plan(what), data_dir=self.data_dir, workers=self.workers))
        found = self.kept(measured, beside_the_paper(what, measured))
        if self.json:
            show_json([found])

    def kept(self, measured: list[Record], comparison: Comparison) -> dict[str, Any]:
        """The table as JSON, after writing its files and, for people, printing it."""
        from srepr.reproduction.comparison import as_json, as_table, write

        write(self.out, measured, comparison)
        if not self.json:
            show(as_table(comparison))
        return as_json(comparison)

    def say_what_is_to_do(self) -> None:
        """A line for each piece of work."""
        from srepr.progress import duration
        from srepr.reproduction import combination, work
        from srepr.reproduction.timing import estimates

        if self.table == "combine":
            plans = [combination.plan(self.combination())]
        else:
            plans = [work.plan(experiment) for experiment in self.experiments()]
        found = [
            estimate
            for pieces in plans
            for estimate in estimates(pieces, self.out, data_dir=self.data_dir, workers=self.workers)
        ]
        if self.json:
            show_json([{"work": str(piece), "done": piece.done, "seconds": seconds} for piece, seconds in found])
            return
        for piece, seconds in found:
            print(f"{'done' if piece.done else 'about ' + duration(seconds):<20} {piece}")
        left = [seconds for piece, seconds in found if not piece.done]
        print(f"{len(left)} of {len(found)} to do, about {duration(sum(left))}")
