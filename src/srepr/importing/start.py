"""Initial network for `train --from`: from a run folder, a model of srepr, or another project's checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from srepr.data import LongTailData
from srepr.errors import InputError
from srepr.importing.checkpoint import load_checkpoint
from srepr.run.checkpoints import load_model
from srepr.run.folder import STAGE_1
from srepr.run.train import Start
from srepr.storage.tensors import load_tensors


def start_network(path: Path, data: LongTailData) -> Start:
    """Load a network from a run folder, a model saved by srepr, or a checkpoint that `srepr import` supports.

    >>> from srepr.data import load
    >>> start_network(Path("nothing.pth"), load("digits-lt"))
    Traceback (most recent call last):
    srepr.errors.InputError: nothing.pth does not exist. Pass a run folder or a checkpoint to start from.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist. Pass a run folder or a checkpoint to start from.")
    file = path / STAGE_1["swa"] if path.is_dir() else path
    if path.is_dir() or (file.suffix == ".safetensors" and "about" in load_tensors(file)[1]):
        network, about = load_model(file)
    else:
        network, about = load_checkpoint(file, data)
    if (len(about.class_names), about.shape) != (len(data.class_names), data.train.shape):
        raise InputError(
            f"{path} has {len(about.class_names)} classes and inputs {about.shape}, {data.name} has"
            f" {len(data.class_names)} and {data.train.shape}. Pass the data that it was trained on."
        )
    return Start(network, about.on(data), hashlib.sha256(file.read_bytes()).hexdigest())
