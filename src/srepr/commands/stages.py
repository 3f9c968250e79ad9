"""`srepr train`, `retrain`, `evaluate` and `demo`: the two stages, and what they came to."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, arg

from srepr.commands.output import show_results
from srepr.config import Machine, Retrain, Train
from srepr.errors import InputError
from srepr.methods import METHODS, Balance, Head, Representation, Start
from srepr.recipes import RECIPES, collecting


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Stage 1: train with SGD, average with SWA, collect the SWAG posterior, evaluate; or go on where that stopped."""

    EXAMPLE: ClassVar[str] = "srepr train cifar100-lt --data-dir data --out runs/cifar100 --baseline"

    settings: Annotated[Train, arg(name="")]
    out: Path
    """The run folder; a run cut short goes on with the same command."""
    data_dir: Path | None = None
    """Where the data set's files are."""
    start: Annotated[Path | None, arg(name="from")] = None
    """A network that is trained already, a run folder or a checkpoint: its posterior is collected in a few epochs
    (10 when not given) at the constant rate --optim.swa-lr."""
    machine: Annotated[Machine, arg(name="")] = field(default_factory=Machine)
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Train, then print the table."""
        from srepr.devices import process_rank
        from srepr.stage1 import train

        results = train(self.settings, self.out, data_dir=self.data_dir, machine=self.machine, start=self.start)
        if process_rank() > 0:
            return
        show_results(results, f"{self.settings.source}, seed {self.settings.seed}", as_json=self.json)


def train_default(words: Sequence[str]) -> TrainCommand:
    """What `srepr train` assumes: the recipe named among the words, or the defaults for people's own data.

    >>> train_default(["cifar100-lt", "--out", "R"]).settings.epochs
    200
    >>> train_default(["cifar100-lt", "--from", "ride.pth", "--out", "R"]).settings.captures
    10
    """
    paths = ("--out", "--data-dir", "--from")
    named = [word for before, word in itertools.pairwise(["", *words]) if before not in paths]
    recipe = next((RECIPES[word] for word in named if word in RECIPES), Train(source=tyro.MISSING))
    if any(word.split("=")[0] == "--from" for word in words):
        recipe = collecting(recipe)
    return TrainCommand(settings=recipe, out=tyro.MISSING)


@dataclass(frozen=True, kw_only=True)
class RetrainCommand:
    """Stage 2: re-train the classifier on frozen features; several methods share one feature cache."""

    EXAMPLE: ClassVar[str] = "srepr retrain runs/cifar100 --method crt lws la disalign srepr"

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """A run folder made by `srepr train`."""
    method: tuple[str, ...] = ("srepr",)
    """crt, lws, la, grw, disalign, srepr, tau-norm, ncm: one or several."""
    name: str | None = None
    """What to call the head (the method's name when not given)."""
    stage1: Literal["swa", "sgd"] = "swa"
    """Which network: the averaged one, or the SGD baseline."""
    head: Head | None = None
    """What is trained, instead of the method's own."""
    start: Start | None = None
    """Where the head starts, instead of the method's own."""
    balance: Balance | None = None
    """How the tail gets its chance, instead of the method's own."""
    representation: Representation | None = None
    """Which features, instead of the method's own."""
    distill: FlagCreatePairsOff[bool] = False
    """Distil, also where the method does not."""
    no_distill: FlagCreatePairsOff[bool] = False
    """Do not distil, also where the method does."""
    settings: Annotated[Retrain, arg(name="")] = field(default_factory=Retrain)
    data_dir: Path | None = None
    """Where the run's data are, if they have moved."""
    workers: int = 2
    """Processes that decode image files."""
    compile: bool = False
    """Compile the feature extractors, once for all draws."""
    overwrite: bool = False
    """Replace a head of the same name that has other settings."""
    json: bool = False
    """Print the metrics as JSON."""

    def run(self) -> None:
        """Re-train, then print the table."""
        from srepr.methods import method as choose
        from srepr.stage2 import retrain_run

        if self.name and len(self.method) > 1:
            raise InputError("--name is for one method. Leave it out, or name one --method.")
        if self.distill and self.no_distill:
            raise InputError("--distill and --no-distill exclude each other. Leave one of them out.")
        changes = {name: getattr(self, name) for name in ("head", "start", "balance", "representation")}
        changes["distill"] = self.distill if self.distill or self.no_distill else None
        prefix = "sgd-" if self.stage1 == "sgd" else ""
        results = retrain_run(
            self.run_folder,
            {self.name or prefix + method: choose(method, **changes) for method in self.method},
            self.settings,
            stage1=self.stage1,
            data_dir=self.data_dir,
            workers=self.workers,
            compiled=self.compile,
            overwrite=self.overwrite,
            quiet=self.json,
        )
        show_results(results, str(self.run_folder), as_json=self.json)
        diverged = [metrics["diverged"] for metrics in results.values() if "diverged" in metrics]
        if diverged:
            raise InputError(" ".join(diverged))


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """The metrics of every network in a run folder, or of one saved network on arrays (--data FILE.npz)."""

    EXAMPLE: ClassVar[str] = "srepr evaluate runs/cifar100 --json"

    what: Positional[Annotated[Path, arg(metavar="RUN|MODEL.safetensors")]]
    """A run folder, or a network written by srepr."""
    data: Path | None = None
    """Arrays x and y to evaluate a saved network on."""
    data_dir: Path | None = None
    """Where the run's data are, if they have moved."""
    test_prior: str = "test"
    """Weigh the test set to another class prior: uniform, forward50 or backward50 (any imbalance)."""
    workers: int = 2
    """Processes that decode image files."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Evaluate, then print the table."""
        from srepr.evaluation import evaluate_file
        from srepr.opened import evaluate_run

        if self.what.suffix == ".safetensors":
            if self.data is None:
                raise InputError(
                    f"{self.what} is a single network. Name arrays to evaluate it on with --data FILE.npz."
                )
            results = {self.what.stem: evaluate_file(self.what, self.data)}
        else:
            results = evaluate_run(
                self.what, data_dir=self.data_dir, workers=self.workers, prior=self.test_prior, quiet=self.json
            )
        show_results(results, str(self.what), as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """The whole method on real handwritten digits, long-tailed, embedded: no download, a minute on two cores."""

    EXAMPLE: ClassVar[str] = "srepr demo --out runs/demo"

    out: Path = Path("runs/demo")
    """The run folder."""
    seed: int = 0
    """Decides everything that is random."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Train with the baseline, re-train with every method, print the table and write the page about it."""
        from srepr.report import write_report
        from srepr.stage1 import train
        from srepr.stage2 import retrain_run

        settings = dataclasses.replace(RECIPES["digits-lt"], baseline=True, seed=self.seed)
        stage_1 = train(settings, self.out)
        heads = retrain_run(self.out, METHODS, Retrain(seed=self.seed), quiet=self.json)
        show_results({**stage_1, **heads}, f"digits-lt, seed {self.seed}", as_json=self.json)
        page = self.out / "report.html"
        write_report([self.out], page, quiet=self.json)
        if not self.json:
            print(f"The report is {page}")
