"""`srepr reproduce`: the tables of the paper, on any data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional, arg

from srepr.cli.output import show, show_json
from srepr.config import Precision

if TYPE_CHECKING:
    from srepr.reproduction.plan import Experiment


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand:
    """A table of the paper with our numbers beside its own. Tables share their runs; an unfinished table resumes."""

    EXAMPLE: ClassVar[str] = "srepr reproduce main cifar100-lt --data-dir data --seeds 4"

    table: Positional[Annotated[str, arg(metavar="NAME")]]
    """swa-crt, ablation, main, full, cifar, temperature, weight-decay, swa-lr, cost, representation, mixup,
    long-training; or combine, the method on other projects' checkpoints."""
    words: Positional[Annotated[tuple[str, ...], arg(metavar="[SOURCE|CHECKPOINT ...]")]] = ()
    """Data set by name, or your own folder, .csv or .npz; default: the paper's data sets found in --data-dir.
    For combine: one or several checkpoints."""
    source: str = ""
    """Data set, as an alternative to naming it after the table; for combine, the data set of the checkpoints."""
    seeds: int = 1
    """Number of seeds; they are 0 to N - 1."""
    epochs: int | None = None
    """Number of stage-1 epochs, by default the recipe's; for combine, of the collection (default 10)."""
    data_dir: Path | None = None
    """Folder with the files of the data set."""
    out: Path = Path("runs/reproduce")
    """Folder for the runs and the tables."""
    precision: Precision = "32-true"
    """Floating-point precision of stage 1."""
    workers: int = 2
    """Processes that decode image files."""
    dry_run: bool = False
    """List the work that is left with estimates from the logs in --out; nothing is run or written."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Do the work that is left and print the tables, each as soon as it is complete."""
        from srepr.reproduction.comparison import as_json, as_table, compare, write
        from srepr.reproduction.datasets import experiments_for
        from srepr.reproduction.plan import carry_out, plan
        from srepr.reproduction.records import records

        experiments = experiments_for(
            self.table,
            self.words,
            source=self.source,
            seeds=self.seeds,
            epochs=self.epochs,
            data_dir=self.data_dir,
            out=self.out,
            precision=self.precision,
        )
        if self.dry_run:
            self.show_plan(experiments)
            return
        found = []
        for experiment in experiments:
            results = carry_out(
                plan(experiment), data_dir=self.data_dir, workers=self.workers, precision=self.precision
            )
            measured = records(experiment, results)
            comparison = compare(experiment, measured)
            write(self.out, measured, comparison)
            found.append(as_json(comparison))
            if not self.json:
                show(as_table(comparison))
        if self.json:
            show_json(found)

    def show_plan(self, experiments: list[Experiment]) -> None:
        """Print a line for each piece of work, and the total."""
        from srepr.progress import duration
        from srepr.reproduction.plan import plan
        from srepr.reproduction.timing import estimates

        pieces = [piece for experiment in experiments for piece in plan(experiment)]
        found = list(estimates(pieces, self.out, data_dir=self.data_dir))
        if self.json:
            show_json([{"work": str(piece), "done": piece.done, "seconds": seconds} for piece, seconds in found])
            return
        for piece, seconds in found:
            time = "no estimate yet" if seconds is None else f"about {duration(seconds)}"
            print(f"{'done' if piece.done else time:<20} {piece}")
        left = [seconds for piece, seconds in found if not piece.done]
        total, missing = duration(sum(filter(None, left))), left.count(None)
        time = f"at least {total}: {missing} of them have no estimate yet" if missing else f"about {total}"
        print(f"{len(left)} of {len(found)} to do, {time}")
