"""Build a network from a checkpoint; depths, widths, experts and classes follow from the tensor shapes."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from srepr.data import LongTailData
from srepr.data.about import About
from srepr.errors import InputError, printable
from srepr.importing.layouts import Parts, Tensors, take_apart
from srepr.models import build
from srepr.storage.reader import read, shown

NETWORK = "resnet"
COUNTER = ".num_batches_tracked"
TENSORS_OF_A_BLOCK = 10
"""At least: two convolutions, and two BatchNorms of four."""
STAGE = re.compile(r"layer(\d+)(?:s\.(\d+))?\.(\d+)\.")  # stage, expert, block


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A network built from another project's checkpoint, and its origin."""

    network: nn.Module
    options: dict[str, Any]
    """Options that build the same network with `srepr.models.build("resnet", classes, ...)`."""
    classes: int
    """0 for a body without a classifier; the network then has one with random weights."""
    layout: str
    foreign: tuple[str, ...]
    """Names in the file besides its tensors; they were neither imported nor called."""


def read_checkpoint(path: Path, *, layout: str = "auto", scale: float = 30.0) -> Checkpoint:
    """Build the network of another project's checkpoint, in eval mode. Nothing in the file is executed.

    `scale` is the scale of cosine classifiers. Checkpoints do not store it; all supported projects use 30.
    """
    if not 0 < scale < math.inf:
        raise InputError(f"`scale` is {scale}: it must be a number above 0")
    content = read(path)
    report(path, content.unusual)
    try:
        name, parts = take_apart(content.value, layout)
        check_numbers(parts)
        options = described(parts.body)
        own = classifier(parts, options, scale) if parts.heads else fresh(options)
        tensors = {**renamed(parts.body, options), **own}
        classes = len(tensors["fc.weight"])
        with torch.device("meta"):  # allocate nothing until the shapes match the file
            network = build(NETWORK, classes, **options)
        network = filled(network, tensors)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ArithmeticError, IndexError, RuntimeError, ValueError) as error:  # inconsistent shapes
        raise InputError(
            f"{path}: cannot build a network from its tensors ({shown(str(error))}). Only ResNets are supported."
        ) from None
    return Checkpoint(
        network=network.eval(),
        options=options,
        classes=classes if parts.heads else 0,
        layout=name,
        foreign=content.foreign,
    )


def report(path: Path, names: Sequence[str]) -> None:
    """Say on stderr which names in a checkpoint are unusual, in one line; they were not executed."""
    if names:
        some = ", ".join(map(shown, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
        said = f"{path} names {some}, which is unusual in a checkpoint: not executed"
        print(printable(said), file=sys.stderr)


def check_numbers(parts: Parts) -> None:
    """Raise an InputError for a tensor that cannot be a weight: empty, of integers, not finite, a variance below 0."""
    others = {"the factors of its classifier": parts.factors} if parts.factors is not None else {}
    for weight, bias in parts.heads:
        others |= {"the weight of its classifier": weight} | ({} if bias is None else {"its bias": bias})
        check_weights(others)
    check_weights({shown(name): tensor for name, tensor in parts.body.items() if not name.endswith(COUNTER)})


def check_weights(tensors: Tensors) -> None:
    """The checks of `check_numbers`."""
    for name, tensor in tensors.items():
        problem = None
        if not tensor.numel():
            problem = f"has no numbers, {list(tensor.shape)}"
        elif not tensor.is_floating_point():
            problem = f"has numbers of the type {tensor.dtype}: only floating-point weights can be imported"
        elif not tensor.float().isfinite().all():
            problem = "contains NaN or infinity: its training has diverged"
        elif name.endswith("running_var") and (tensor < 0).any():
            problem = "contains variances below 0"
        if problem:
            raise InputError(f"{name} {problem}. Pass another checkpoint.")


def fitted(path: Path, found: Checkpoint, data: LongTailData) -> tuple[nn.Module, About]:
    """The network and its metadata for `data`, which must have the same classes and channels."""
    if not found.classes:
        raise InputError(f"{path} has no classifier. Train one on its body: srepr train {data.name} --from {path}")
    shape = data.train.shape
    here = {"classes": len(data.class_names), "channels": shape[0] if len(shape) == 3 else 0}
    for name, there in {"classes": found.classes, "channels": found.options["channels"]}.items():
        if there != here[name]:
            raise InputError(
                f"{path} has {there} {name}, {data.name} has {here[name]}. Pass the data that it was trained on."
            )
    about = About.of(data, NETWORK, found.options)
    return found.network, about


def described(body: Tensors) -> dict[str, Any]:
    """Options of `srepr.models.ResNet`, except the classifier's, inferred from tensor names and shapes.

    >>> from srepr.models import resnext50
    >>> with torch.device("meta"):
    ...     options = described(resnext50(10).state_dict())
    >>> options["depths"], options["widths"], options["groups"], options["squeeze"]
    ((3, 4, 6, 3), (256, 512, 1024, 2048), 32, 2)
    """
    found = [match.groups() for match in map(STAGE.match, body) if match]
    if "conv1.weight" not in body or "layer1.0.conv1.weight" not in body:
        raise InputError("it is not a ResNet with conv1 and layer1. Use srepr.retrain in Python instead")
    blocks: dict[str, set[str]] = {}
    for stage, _, block in found:
        blocks.setdefault(stage, set()).add(block)
    stages = sorted(blocks, key=int)
    own = {stage for stage, expert, _ in found if expert}
    if TENSORS_OF_A_BLOCK * len(set(found)) > len(body):
        raise InputError("its blocks lack most of their tensors. The checkpoint may be incomplete.")
    bottleneck = "layer1.0.conv3.weight" in body
    last = "conv3.weight" if bottleneck else "conv2.weight"
    outputs = [f"layer{stage}s.0.0.{last}" if stage in own else f"layer{stage}.0.{last}" for stage in stages]
    missing = [name for name in ("layer1.0.conv2.weight", *outputs) if name not in body]
    if missing:
        raise InputError(f"the tensor {missing[0]} is missing. The checkpoint may be incomplete.")
    stem, middle = body["conv1.weight"].shape, body["layer1.0.conv2.weight"].shape
    if stem[2:] not in ((3, 3), (7, 7)):
        raise InputError(
            f"its conv1.weight is {list(stem)}: only stems of 3x3 (CIFAR) and 7x7 (ImageNet) are supported"
        )
    widths = tuple(body[name].shape[0] for name in outputs)
    with_parameters = any(".shortcut." in name or ".downsample." in name for name in body)
    return {
        "channels": stem[1],
        "stem": stem[0],
        "kernel": stem[2],
        "bottleneck": bottleneck,
        # Count the blocks, do not trust the numbers: a name can claim a billion blocks.
        "depths": tuple(len(blocks[stage]) for stage in stages),
        "widths": widths,
        "squeeze": widths[0] // middle[0] if bottleneck else 4,
        "groups": middle[0] // middle[1] if bottleneck else 1,
        "shortcut": "B" if with_parameters else "A",
        "experts": len({expert for _, expert, _ in found if expert}) or 1,
        "private": len(own),
    }


def renamed(body: Tensors, options: dict[str, Any]) -> Tensors:
    """Rename the shortcuts, the only names that differ between projects, as in `srepr.models`."""
    old, new = (".shortcut.", ".downsample.") if options["bottleneck"] else (".downsample.", ".shortcut.")
    return {name.replace(old, new): tensor for name, tensor in body.items()}


def classifier(parts: Parts, options: dict[str, Any], scale: float) -> Tensors:
    """Tensors of `fc`, the mean of the experts' heads on concatenated features; sets bias and scale in `options`."""
    length, experts = options["widths"][-1], options["experts"]
    if len(parts.heads) != experts:
        raise InputError(
            f"it has {experts} experts and {len(parts.heads)} classifiers. The checkpoint may be incomplete."
        )
    weights, biases = [weight for weight, _ in parts.heads], [bias for _, bias in parts.heads if bias is not None]
    cosine = parts.normed and not biases and all(weight.shape[0] == length for weight in weights)
    if cosine:
        weights = [weight.T for weight in weights]
    shapes = {tuple(weight.shape) for weight in weights}
    if len(shapes) > 1 or weights[0].shape[1] != length or len(biases) not in (0, experts):
        raise InputError(
            f"its classifier is {list(weights[0].shape)}, its features are {length}. The checkpoint may be incomplete."
        )
    weight = torch.cat(weights, 1).float()
    if any(bias.shape != weight.shape[:1] for bias in biases):
        raise InputError(
            f"its bias is not [{len(weight)}], a number for each class. The checkpoint may be incomplete."
        )
    options["bias"] = bool(biases)
    if cosine:
        options["scale"] = [scale] * experts if experts > 1 else scale
        return {"fc.weight": weight, "fc.scale": torch.tensor(options["scale"])}
    factors = torch.ones(len(weight)) if parts.factors is None else parts.factors.float().flatten()
    if len(factors) != len(weight):
        raise InputError(f"it has {len(factors)} factors for {len(weight)} classes. The checkpoint may be incomplete.")
    fc = {"fc.weight": factors[:, None] * weight / experts}
    if biases:
        fc["fc.bias"] = factors * torch.stack(biases).float().mean(0)
    return fc


def fresh(options: dict[str, Any]) -> Tensors:
    """Tensors of a new classifier of two classes, to be replaced by one for the data."""
    layer = nn.Linear(options["widths"][-1] * options["experts"], 2)
    options["bias"] = True
    return {"fc.weight": layer.weight.detach(), "fc.bias": layer.bias.detach()}


def filled(network: nn.Module, tensors: Tensors) -> nn.Module:
    """Load the tensors into a network on the meta device; names and shapes must match exactly."""
    own = network.state_dict()
    # Files from before PyTorch 0.4.1 lack these counters, which are not used here.
    counters = [name for name in own if name.endswith(COUNTER)]
    tensors = dict.fromkeys(counters, torch.tensor(0)) | tensors
    problems = {
        "tensors are missing": own.keys() - tensors.keys(),
        "of its tensors are unexpected": tensors.keys() - own.keys(),
        "tensors have the wrong shape": {n for n in own.keys() & tensors.keys() if own[n].shape != tensors[n].shape},
    }
    for problem, names in problems.items():
        if names:
            some = ", ".join(map(shown, sorted(names)[:3])) + ", ..." * (len(names) > 3)
            raise InputError(f"{len(names)} {problem}: {some}. This ResNet variant is not supported.")
    network.to_empty(device="cpu").load_state_dict(tensors)
    return network
