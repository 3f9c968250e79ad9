"""`srepr demo`: the whole method on five seeds, in a minute."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, ClassVar

from srepr.cli.output import show, show_json
from srepr.config import RECIPES, Retrain
from srepr.errors import check
from srepr.methods import METHODS, title

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = {name: method for name, method in METHODS.items() if name != "grw"}
"""Solved exactly, GRW and cRT are the same head."""
Results = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """The whole method on real handwritten digits, long-tailed and embedded: no download, a minute on two cores."""

    EXAMPLE: ClassVar[str] = "srepr demo --out runs/demo"

    out: Path = Path("runs/demo")
    """Folder for the runs, one for each seed, and the report."""
    seeds: int = 5
    """Number of seeds; they are 0 to N - 1."""
    json: bool = False
    """Print the results as JSON."""

    def __post_init__(self) -> None:
        check(self.seeds >= 2, f"`seeds` is {self.seeds}: at least 2 are needed for a spread")

    def run(self) -> None:
        """Train and re-train for each seed, print mean and spread, write the report of the first seed."""
        from srepr.report.page import write_report

        if not self.json:
            show(f"331 digits, {self.seeds} seeds: SGD and SWA, then {len(SHOWN)} ways to re-train the classifier.")
        found: list[Results] = []
        with get_context("spawn").Pool(min(2, self.seeds)) as pool:
            for seed, results in enumerate(pool.imap(partial(run_seed, self.out), range(self.seeds))):
                found.append(results)
                if not self.json:
                    scores = [f"{100 * results[name]['few']:.1f} % ({title(name)})" for name in ("sgd", "srepr")]
                    show(f"seed {seed}: few-shot accuracy {', '.join(scores)}")
        page = self.out / "report.html"
        write_report([self.out / "seed0"], page, quiet=True)
        if self.json:
            show_json(found)
            return
        show(spread_table(found, f"digits-lt, mean ± standard deviation over {self.seeds} seeds"))
        show(conclusion(found, "srepr", "sgd"))
        show(conclusion(found, "srepr", "la"))
        print(f"The report of seed 0 is {page}")


def run_seed(out: Path, seed: int) -> Results:
    """Both stages for one seed, in a process of its own; a network this small is fastest on one thread."""
    import torch

    from srepr.run.retrain import retrain_run
    from srepr.run.train import train

    torch.set_num_threads(1)
    run = out / f"seed{seed}"
    settings = dataclasses.replace(RECIPES["digits-lt"], baseline=True, seed=seed)
    return train(settings, run, quiet=True) | retrain_run(run, SHOWN, Retrain(seed=seed), quiet=True)


def spread_table(found: list[Results], heading: str) -> Table:
    """A row for each classifier with mean and standard deviation over the seeds."""
    from rich.table import Table

    from srepr.metrics import COLUMNS

    table = Table(title=heading, title_justify="left")
    table.add_column("")
    columns = {key: COLUMNS[key] for key in ("many", "medium", "few", "acc", "nll", "ece")}
    for column in columns.values():
        table.add_column(column.title, justify="right", no_wrap=True)
    for name in found[0]:
        cells = []
        for key, column in columns.items():
            mean, spread = (number([results[name][key] for results in found]) for number in (fmean, stdev))
            cells.append(f"{100 * mean:.1f} ± {100 * spread:.1f}" if column.percent else f"{mean:.3f} ± {spread:.3f}")
        table.add_row(title(name), *cells)
    return table


def conclusion(found: list[Results], name: str, other: str) -> str:
    """What one classifier gains over another, and whether it is more than noise: paired over the seeds.

    >>> seeds = [{"sgd": {"few": 0.7, "nll": 0.5}, "la": {"few": 0.8 + n / 100, "nll": 0.4}} for n in range(3)]
    >>> print(conclusion(seeds, "la", "sgd"))
    LA against SGD: few-shot accuracy +11.0 points (+8.5 to +13.5), more than noise;
    NLL -0.100 (-0.100 to -0.100), more than noise.
    """
    accuracy, nll = ([one[name][key] - one[other][key] for one in found] for key in ("few", "nll"))
    return (
        f"{title(name)} against {title(other)}: few-shot accuracy"
        f" {gain([100 * value for value in accuracy], '+.1f', ' points')};\nNLL {gain(nll, '+.3f')}."
    )


def gain(differences: list[float], form: str, unit: str = "") -> str:
    """Mean of paired differences with its 95 % interval (Student's t), and whether that excludes 0.

    >>> gain([1.0, 2.0, 3.0], "+.1f")
    '+2.0 (-0.5 to +4.5), which may be noise'
    """
    from scipy.stats import t

    mean, spread = fmean(differences), stdev(differences)
    reach = float(t.ppf(0.975, len(differences) - 1)) * spread / len(differences) ** 0.5
    low, high = mean - reach, mean + reach
    told = "which may be noise" if low <= 0 <= high else "more than noise"
    return f"{mean:{form}}{unit} ({low:{form}} to {high:{form}}), {told}"
