"""What a training starts from: the network for its data, described by name, options, classes and inputs."""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from srepr.config import Train
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
