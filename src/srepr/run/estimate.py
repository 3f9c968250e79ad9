"""What a training is about to do, and how long it takes: from the time of one measured step, before it starts."""

from __future__ import annotations

import copy
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.config import Train
from srepr.data import LongTailData
from srepr.data.about import About
from srepr.models.call import call
from srepr.progress import duration
from srepr.representation import freeze, plan

TRIAL = 16  # examples of the measured step: larger batches take proportionally longer
FORWARD = 1 / 3  # of the time of a training step


def announce(network: nn.Module, about: About, data: LongTailData, settings: Train, *, pretrained: bool) -> None:
    """Print one line to stderr: what is trained, on what, and about how long it takes on this machine."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    shape = about.shape
    inputs = f"images of {shape[1]} x {shape[2]} pixels" if len(shape) == 3 else f"vectors of {shape[0]} numbers"
    if about.tokenizer:
        inputs = f"texts of at most {shape[0]} tokens"
    frozen = settings.freeze == "body"
    passes = sum(map(len, data.parts.values())) * FORWARD  # features of every set, once
    if not frozen:
        epochs = plan(settings.epochs, settings.swa_start, baseline=settings.baseline)
        passes += len(data.train) * len(epochs)
    what = "solving the classifier of" if frozen else "fine-tuning" if pretrained else "training"
    length = "" if frozen else f", {settings.epochs} epochs"
    counts = data.counts
    print(
        f"{what} {about.network} ({parameters / 1e6:.1f} million parameters) on {len(data.train):,} {inputs} in"
        f" {len(counts):,} classes of {counts.min():,} to {counts.max():,}{length}:"
        f" about {duration(seconds_per_example(network, data, settings) * passes)}",
        file=sys.stderr,
    )


def seconds_per_example(network: nn.Module, data: LongTailData, settings: Train) -> float:
    """Time of a training step for each of its examples, measured on a copy of the network."""
    trial = copy.deepcopy(network).train()
    if settings.freeze not in ("none", "body"):
        freeze(trial, settings.freeze)
    size = min(TRIAL, len(data.train))
    inputs, labels = data.train.load(torch.arange(size).numpy()), torch.from_numpy(data.train.labels[:size])

    def step() -> Tensor:
        loss = F.cross_entropy(call(trial, inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    step()  # the first one also sets up the kernels
    began = time.monotonic()
    step()
    return (time.monotonic() - began) / size
