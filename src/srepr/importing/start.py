"""The network that `srepr train` starts from: pretrained, by name, or trained before, from a file.

    run folder, model of srepr, checkpoint of another project     --from
    EfficientNet-Lite0, a network of Hugging Face, a function of yours that builds a network     --network

If its classifier has other classes than the data, the body is kept and a new classifier is started.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from srepr.data import LongTailData
from srepr.data.about import About
from srepr.data.tokens import TextExamples
from srepr.errors import InputError
from srepr.importing.checkpoint import NETWORK, read_checkpoint
from srepr.importing.function import function_network
from srepr.importing.huggingface import huggingface_network
from srepr.models import build, efficientnet_lite0
from srepr.models.cosine import Cosine
from srepr.models.efficientnet import MEAN, STD, weights_file
from srepr.models.function import is_function
from srepr.models.split import replace_classifier
from srepr.run.checkpoints import load_classifier, load_model
from srepr.run.description import Start, check_readable
from srepr.run.folder import STAGE_1
from srepr.storage.tensors import is_own

SMALL, ENLARGED = 64, 160
"""Images up to 64 pixels are enlarged to 160 for a network that was pretrained on large ones."""


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
    if path.is_dir() and not file.exists() and (path / "preprocessor_config.json").exists():
        raise InputError(f"{path} is a folder of Hugging Face. Pass it as `network`: hf:{path}")
    if path.is_dir() or (file.suffix == ".safetensors" and is_own(file)):
        network, about = load_model(file) if path.is_dir() else exported(file)
        classes, inputs = len(about.class_names), about.given or about.shape
    else:
        found = read_checkpoint(file)
        network, classes = found.network, found.classes
        about = About.of(data, NETWORK, found.options)
        inputs = (found.options["channels"], *data.train.raw_shape[1:])
    ours = described(path, about, inputs, data)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if classes == len(data.class_names):
        own = network.get_submodule(about.classifier)
        if not isinstance(own, nn.Linear | Cosine):
            raise InputError(f"{path} has a classifier that stage 2 has changed. Start from its run folder.")
        return Start(network, ours, digest)
    what = f"{classes:,} classes" if classes else "no classifier"
    notice = (
        f"{path} has {what}, {data.name} has {len(data.class_names):,} classes: its body is kept, and a new classifier"
        " is started"
    )
    if about.network == NETWORK:
        ours = replace(ours, options={**about.options, "bias": True, "scale": None})
    network = fresh_classifier(network, about.classifier, len(data.class_names))
    return Start(network, ours, digest, trained=False, notice=notice)


def exported(file: Path) -> tuple[nn.Module, About]:
    """The network in a model of srepr, also in one that `srepr export` wrote, and its description."""
    classifier = load_classifier(file)
    return classifier.model.requires_grad_(True), classifier.description


def described(path: Path, about: About, inputs: tuple[int, ...], data: LongTailData) -> About:
    """The description of a trained network for these data; an InputError if they are of another kind."""
    given, texts = data.train.raw_shape, isinstance(data.train, TextExamples)
    if texts != bool(about.tokenizer):
        has = "texts" if texts else f"inputs {given}"
        raise InputError(f"{path} reads {'no ' if texts else ''}texts, {data.name} has {has}. Pass data of that kind.")
    ours = replace(About.of(data, about.network, about.options, about.classifier), mean=about.mean, std=about.std)
    if texts:
        return replace(ours, shape=about.shape, tokenizer=about.tokenizer)
    if len(inputs) != len(given) or (inputs != given if len(inputs) == 1 else inputs[0] != given[0]):
        raise InputError(f"{path} takes inputs {inputs}, {data.name} has {given}. Pass data of the same kind.")
    return replace(ours, shape=about.shape, given=about.given) if len(inputs) == 3 and inputs == given else ours


def fresh_classifier(network: nn.Module, name: str, classes: int) -> nn.Module:
    """The network with a new linear classifier for this many classes."""
    weight = network.get_submodule(name).weight
    assert isinstance(weight, torch.Tensor)
    return replace_classifier(network, name, nn.Linear(weight.shape[1], classes))


def pretrained_network(name: str, data: LongTailData) -> Start:
    """EfficientNet-Lite0, the linear classifier alone, a network of Hugging Face, or one of your own function.

    >>> from srepr.data import load
    >>> pretrained_network("efficientnet-lite0", load("digits-lt"))
    Traceback (most recent call last):
    srepr.errors.InputError: efficientnet-lite0 takes colour images, and digits-lt has inputs (1, 8, 8). ...
    """
    check_readable(data, name)
    if name.startswith("hf:"):
        return huggingface_network(name.removeprefix("hf:"), data)
    if is_function(name):
        return function_network(name, data)
    classes, part = len(data.class_names), data.train
    if name == "linear":
        if len(part.shape) != 1:
            raise InputError(f"linear takes vectors, and {data.name} has inputs {part.shape}. Choose a `network`.")
        about = replace(About.of(data, name, {"inputs": part.shape[0]}), mean=(0.0,), std=(1.0,))
        return Start(build(name, classes, inputs=part.shape[0]), about, "", trained=False)
    if len(part.shape) != 3 or part.shape[0] != 3:
        raise InputError(
            f"{name} takes colour images, and {data.name} has inputs {part.shape}. Choose another `network`."
        )
    options = {"layered": True}
    about = replace(About.of(data, name, options), mean=MEAN, std=STD)
    if part.scaled is None and part.raw_shape[1] <= SMALL:
        about = replace(about, shape=(3, ENLARGED, ENLARGED), given=part.raw_shape)
    file = weights_file()
    network = efficientnet_lite0(classes, weights="imagenet", **options)
    assert file is not None
    return Start(network, about, hashlib.sha256(file.read_bytes()).hexdigest(), trained=False)
