"""A network that is trained already, to go on from: of a run folder, or of another project's checkpoint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from srepr import runs
from srepr.checkpoints import About, load_model
from srepr.data import LongTailData
from srepr.errors import InputError
from srepr.evaluation import STAGE_1


@dataclass(frozen=True)
class Given:
    """A network to go on from, described for the data that it goes on with, and a SHA-256 of the file it came from."""

    network: nn.Module
    about: About
    digest: str


def given_network(start: Path, data: LongTailData) -> Given:
    """The network of a run folder, of a model written by srepr, or of a checkpoint that `srepr import` knows.

    >>> from srepr.data import load
    >>> given_network(Path("nothing.pth"), load("digits-lt"))
    Traceback (most recent call last):
    srepr.errors.InputError: nothing.pth does not exist. Name a run folder or a checkpoint to go on from.
    """
    if not start.exists():
        raise InputError(f"{start} does not exist. Name a run folder or a checkpoint to go on from.")
    file = start / STAGE_1["swa"] if start.is_dir() else start
    if start.is_dir() or (file.suffix == ".safetensors" and "about" in runs.load_tensors(file)[1]):
        network, about = load_model(file)
    else:
        from srepr.foreign import load_checkpoint

        network, about = load_checkpoint(file, data)
    if (len(about.class_names), about.shape) != (len(data.class_names), data.train.shape):
        raise InputError(
            f"{start} has {len(about.class_names)} classes and inputs {about.shape}, {data.name} has"
            f" {len(data.class_names)} and {data.train.shape}. Choose the data that it was trained on."
        )
    here = replace(about, class_names=data.class_names, counts=tuple(map(int, data.counts)), mean=data.train.mean)
    return Given(network, replace(here, std=data.train.std), hashlib.sha256(file.read_bytes()).hexdigest())
