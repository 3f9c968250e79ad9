"""How long: a training that was done, from its log, and work that is to do, from the pace of this machine.

seconds = images / pace,      the pace from the logs of such trainings, or from a few real steps
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr import runs
from srepr.config import Train, stage2_epochs
from srepr.data import LongTailData, epoch_batches, load
from srepr.data.loading import batches
from srepr.devices import default_device
from srepr.evaluation import Stage1
from srepr.features import feature_length
from srepr.given import given_network
from srepr.objective import srepr_loss
from srepr.representation import plan as epochs_of
from srepr.reproduction.work import Piece, Retraining, Training
from srepr.retraining import sampling_for
from srepr.stage1 import data_options, describe

STEPS = 4
SAMPLES = 10
NUMBERS = 2_000_000  # in the inputs of a timed step: a few seconds for the largest network on a small machine


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much there is to do.

    >>> Amount(train=320).head
    0
    """

    train: int = 0
    """Images to train the network on."""
    forward: int = 0
    """Images to pass through it."""
    head: int = 0
    """Representations to train a head on."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How much is done in a second.

    >>> Pace(train=400.0, forward=1200.0, head=1e5).seconds(Amount(train=800, forward=1200))
    3.0
    """

    train: float
    forward: float
    head: float

    def seconds(self, amount: Amount) -> float:
        """The time for so much work."""
        return amount.train / self.train + amount.forward / self.forward + amount.head / self.head


def trained_seconds(run: Path, stage1: Stage1) -> float | None:
    """How long a network of a run took to train, by its log; None where the log is gone.

    >>> trained_seconds(getfixture("tmp_path"), "swa") is None
    True
    """
    lines = [line for line in runs.read_log(run) if line["branch"] in ("trunk", stage1)]
    if not lines:
        return None
    config = runs.read_json(run / "config.json")
    images = images_of_epoch(config["examples"]["sizes"]["train"], config["settings"]["batch_size"])
    return round(sum(images / float(line["images_per_second"]) for line in lines), 1)


def images_of_epoch(examples: int, batch_size: int) -> int:
    """How many images an epoch of stage 1 takes: whole batches only, unless there is just one.

    >>> images_of_epoch(331, 32), images_of_epoch(20, 32)
    (320, 20)
    """
    return max(examples - examples % batch_size, min(examples, batch_size))


def estimates(
    pieces: Iterable[Piece], out: Path, *, data_dir: Path | None = None, workers: int = 0
) -> Iterator[tuple[Piece, float]]:
    """Each piece of the work behind a table with the seconds that it will take, 0 where it is done.

    >>> run = getfixture("tmp_path")
    >>> piece = Training(run=run, settings=Train(source="digits-lt", network="resnet8"))
    >>> [seconds > 0 for _, seconds in estimates([piece], run)]
    [True]
    """
    data: dict[int, LongTailData] = {}
    paces: dict[tuple[str, Path | None], Pace] = {}
    starts: dict[Path, Path | None] = {}
    kept: set[object] = set()
    for piece in pieces:
        settings = piece.settings if isinstance(piece, Training) else piece.train
        seed = settings.seed
        if seed not in data:
            data[seed] = load(settings.source, data_dir=data_dir, seed=seed, **data_options(settings))
        if isinstance(piece, Training):
            starts[piece.run] = piece.start
            amount = of_training(piece, data[seed])
        else:
            amount = of_retraining(piece, data[seed], kept)
        key = settings.network, starts[piece.run]
        if not piece.done and key not in paces:
            paces[key] = pace_of(settings, data[seed], out, workers, start=starts[piece.run])
        yield piece, 0.0 if piece.done else paces[key].seconds(amount)


def of_training(piece: Training, data: LongTailData) -> Amount:
    """What a training has still to do: its epochs, then BatchNorm statistics and the evaluation.

    >>> piece = Training(run=Path("nowhere"), settings=Train(source="digits-lt", epochs=4, batch_size=32))
    >>> of_training(piece, load("digits-lt"))
    Amount(train=1280, forward=928, head=0)
    """
    left = len(epochs_of(piece.settings)) - len(runs.read_log(piece.run))
    networks = 2 if piece.settings.baseline or piece.start else 1
    evaluated = sum(len(part) for name, part in data.parts.items() if name != "train")
    images = images_of_epoch(len(data.train), piece.settings.batch_size)
    return Amount(train=left * images, forward=len(data.train) + networks * evaluated)


def of_retraining(piece: Retraining, data: LongTailData, kept: set[object]) -> Amount:
    """What a re-training has to do; features that are in `kept` are there, and those it makes and keeps join them.

    >>> from srepr.config import Retrain
    >>> from srepr.methods import METHODS
    >>> heads, train = {"srepr": METHODS["srepr"]}, Train(source="digits-lt")
    >>> piece = Retraining(run=Path("R"), train=train, stage1="swa", methods=heads, settings=Retrain(samples=2))
    >>> data, kept = load("digits-lt"), set()
    >>> of_retraining(piece, data, kept).forward == (1 + 2 + 2) * 331 + 597  # averaged, draws and their BatchNorm
    True
    >>> of_retraining(piece, data, kept)
    Amount(train=0, forward=0, head=9930)
    """
    settings, examples, images, representations = piece.settings, len(data.train), 0, 0
    held = set() if piece.cold else kept
    for how in piece.methods.values():
        sampling = sampling_for(how, settings)
        epochs = settings.epochs or stage2_epochs(piece.train.epochs)
        representations += epochs * examples * len(sampling.sources(0))
        for source in {source for epoch in range(epochs) for source in sampling.sources(epoch)}:
            array = (piece.run, piece.stage1, source, sampling.fresh)
            if array not in held:
                recalibrates = source[0].startswith("draw") and sampling.batchnorm == "recalibrate"
                images += examples + recalibrates * min(sampling.calibration, examples)
            if not sampling.fresh:
                held.add(array)
    for name, part in data.parts.items():
        if name != "train" and (piece.run, piece.stage1, name) not in held:
            images += len(part)
            held.add((piece.run, piece.stage1, name))
    return Amount(forward=images, head=representations)


def pace_of(settings: Train, data: LongTailData, out: Path, workers: int = 0, *, start: Path | None = None) -> Pace:
    """The pace of a network on these inputs: by the logs under `out` where it was trained there, else by trying it.

    With `start` it is the network of that checkpoint, which no log knows.

    >>> pace = pace_of(Train(source="digits-lt", network="resnet8"), load("digits-lt"), Path("nowhere"))
    >>> min(pace.train, pace.forward, pace.head) > 0
    True
    """
    about, device = describe(settings, data), default_device()
    network = about.build() if start is None else given_network(start, data).network
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    sgd = torch.optim.SGD(network.parameters(), lr=0.0)

    def train(inputs: Tensor, labels: Tensor) -> None:
        loss = F.cross_entropy(network(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        sgd.zero_grad()
        loss.item()  # waits for a GPU

    def forward(inputs: Tensor, labels: Tensor) -> None:
        with torch.inference_mode():
            network(inputs).sum().item()

    def retrain(inputs: Tensor, labels: Tensor) -> None:
        logits = classifier(features[:, : len(labels)])
        loss = srepr_loss(logits, logits[0], labels.cpu(), distill_weight=0.5, temperature=20.0)
        loss.backward()  # type: ignore[no-untyped-call]

    batch = max(2, min(settings.batch_size, NUMBERS // math.prod(about.shape)))
    order = (epoch_batches(data.train.labels, batch_size=batch, seed=0, epoch=0) * STEPS)[:STEPS]
    classifier = nn.Linear(feature_length(network, "fc"), len(about.counts))
    features = torch.randn(SAMPLES, batch, classifier.in_features)
    stream = ((inputs, labels) for inputs, labels, _ in batches(data.train, order, view=(0, 0)))
    steps: list[tuple[Tensor, Tensor]] = []
    loading = max(workers, 1) * images_per_second(
        lambda inputs, labels: steps.append((inputs.to(device), labels.to(device))), stream
    )
    logged = logged_pace(out, settings.source, about.network) if start is None else None
    return Pace(
        train=logged or min(loading, images_per_second(train, steps)),
        forward=min(loading, images_per_second(forward, steps)),
        head=SAMPLES * images_per_second(retrain, steps),
    )


def images_per_second(step: Callable[[Tensor, Tensor], object], steps: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The median pace of the steps after the first, which pays for what is done once; loading them counts.

    >>> images_per_second(lambda inputs, labels: time.sleep(0.01), [(torch.zeros(8), torch.zeros(8))] * 3) < 800
    True
    """
    paces, began = [], time.monotonic()
    for inputs, labels in steps:
        step(inputs, labels)
        ended = time.monotonic()
        paces.append(len(labels) / (ended - began))
        began = ended
    return statistics.median(paces[1:])


def logged_pace(out: Path, source: str, network: str) -> float | None:
    """The pace of trainings of that network on that data set under `out`; None where there is none.

    >>> logged_pace(getfixture("tmp_path"), "digits-lt", "resnet8") is None
    True
    """
    paces = [
        line["images_per_second"]
        for config in out.glob("stage1/*/config.json")
        if (settings := runs.read_settings(config.parent))["source"] == source and settings["network"] == network
        for line in runs.read_log(config.parent)
    ]
    return statistics.median(paces) if paces else None
