"""What a training starts from: the network for its data, described by name, options, classes and inputs."""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import nn

from srepr.config import FINE_TUNE, Train, collect_settings, settings_for
from srepr.data import LongTailData
from srepr.data.about import About
from srepr.data.tokens import TextExamples
from srepr.errors import InputError
from srepr.models import NETWORKS
from srepr.run.checkpoints import build_network


@dataclass(frozen=True)
class Start:
    """A network to continue from, described for the data that it continues with, and a SHA-256 of its weights."""

    network: nn.Module
    about: About
    digest: str
    trained: bool = True
    """Whether its classifier was trained for these classes; a new one starts at random."""
    notice: str = ""
    """One line for people about what is taken of it."""

    def __post_init__(self) -> None:
        for name, parameter in self.network.named_parameters():
            if not parameter.isfinite().all():
                raise InputError(f"the weight {name} to start from is not finite. Choose another network.")


def data_options(settings: Train) -> dict[str, Any]:
    """The settings of the data in the form that `srepr.data.load` takes."""
    options = {**asdict(settings.data), "counts": settings.data.counts or None}
    if settings.freeze == "body" and options["protocol"] is None:
        options["protocol"] = "paper"  # nothing is trained that could have seen the data: stage 2 cross-validates
    return options


def check_readable(data: LongTailData, network: str) -> None:
    """Raise an InputError if the data are texts, and the network reads none."""
    if isinstance(data.train, TextExamples) and not network.startswith("hf:"):
        raise InputError(f"{data.name} has texts. Name a `network` that reads them: hf:FOLDER, or hf: and a hub name.")


def describe(settings: Train, data: LongTailData) -> About:
    """The description of the network for these data; it takes `inputs` (vectors) or `channels` (images)."""
    check_readable(data, settings.network)
    shape = data.train.shape
    network = settings.network
    if network == "auto":
        network = "mlp" if len(shape) == 1 else "resnet32" if shape[1] <= 64 else "resnet18"
    known = {"inputs": math.prod(shape), "channels": shape[0], "shortcut": settings.shortcut, "skip": True}
    takes = inspect.signature(NETWORKS[network]).parameters if network in NETWORKS else ()
    if "channels" in takes and len(shape) == 1:
        raise InputError(f"{network} takes images, and {settings.source} has vectors. Set `network` to mlp.")
    about = About.of(data, network, {name: value for name, value in known.items() if name in takes})
    build_network(about)  # an unknown network is refused before anything is written
    return about


def suited(settings: Train, given: Start | None) -> Train:
    """The settings for this start: what `freeze="auto"` means, and the recipe for a classifier that is new.

    A trained network is collected around by default; if its classifier is new, the settings that were not changed are
    those of a fine-tuning.
    """
    fresh = given is not None and not given.trained
    if settings.freeze == "body" and given is None:
        raise InputError("`freeze` is body, and the network has random weights. Name a pretrained `network`.")
    settings = replace(settings, freeze={"auto": "body" if fresh else "none"}.get(settings.freeze, settings.freeze))
    usual = collect_settings(settings_for(settings.source))
    if not fresh or settings.optim.swa_start != usual.optim.swa_start:
        return settings
    optim = {
        field.name: getattr(FINE_TUNE.optim, field.name)
        for field in fields(settings.optim)
        if getattr(settings.optim, field.name) == getattr(usual.optim, field.name)
    }
    own = {
        name: getattr(FINE_TUNE, name)
        for name in ("epochs", "batch_size")
        if vars(settings)[name] == vars(usual)[name]
    }
    return replace(settings, optim=replace(settings.optim, **optim), **own)


def check_sizes(settings: Train, data: LongTailData, processes: int) -> None:
    """Refuse data with too few examples or classes, and batches that cannot be divided among the processes."""
    if len(data.train) < 2 * processes:
        kind = data.train.noun
        raise InputError(
            f"too few training {kind} in {settings.source}: BatchNorm needs {2 * processes}, and {len(data.train)}"
            f" remain beside the test and validation sets. Add more {kind}{', or lower `devices`' * (processes > 1)}."
        )
    if len(data.class_names) < 2:
        raise InputError(f"{settings.source} has one class, {data.class_names[0]!r}. Add examples of another one.")
    share = min(settings.batch_size, len(data.train)) // processes
    if share < 2:
        raise InputError(f"each process gets {share} of a batch, and BatchNorm needs 2. Raise `batch_size`.")
    if settings.mixup and share % 2:
        raise InputError(f"mixup pairs the examples of a process, and {share} is odd. Change `batch_size`.")
