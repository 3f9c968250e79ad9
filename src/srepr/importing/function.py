"""A network that a function of yours builds, as what `srepr train` starts from: --network package.module:function."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from srepr.data import ArrayExamples, LongTailData
from srepr.data.about import About
from srepr.data.examples import IMAGENET_MEAN, IMAGENET_STD
from srepr.errors import InputError
from srepr.models import build
from srepr.models.call import eval_mode, repeats
from srepr.models.split import find_classifier
from srepr.run.description import Start


def function_network(name: str, data: LongTailData) -> Start:
    """The network of the function, with the weights that it gives it.

    Colour images are normalised as `pretrained_cfg` of the network says, which timm's have, or else as for ImageNet;
    other inputs by their own mean and standard deviation.

    >>> from srepr.data import load
    >>> function_network("srepr.models:resnet8", load("digits-lt"))
    Traceback (most recent call last):
    srepr.errors.InputError: srepr.models:resnet8 cannot be run on inputs (1, 8, 8): ...
    """
    classes = len(data.class_names)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # a resumed run starts from the same weights, also those of lazy layers
        network = build(name, classes)
        about = described(name, network, data)
        about = replace(about, classifier=classifier_of(name, network, about.shape))
    layer = network.get_submodule(about.classifier)
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise InputError(f"{name}: the last layer {about.classifier} is {layer}. Make it an nn.Linear with a bias.")
    if layer.out_features != classes:
        raise InputError(f"{name} gives {layer.out_features:,} logits for {classes:,} classes. Check the function.")
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return Start(network, about, digest.hexdigest(), trained=False)


def classifier_of(name: str, network: nn.Module, shape: tuple[int, ...]) -> str:
    """The layer that gives the logits, of a network that takes inputs of this shape."""
    trial = torch.rand(2, *shape)
    try:
        with torch.no_grad(), eval_mode(network):
            output = network(trial)
        classifier = find_classifier(network, trial)
        same = repeats(network, trial)
    except InputError:
        raise InputError(f"{name}: no layer, or more than one, gives the logits. End in an nn.Linear.") from None
    except Exception as error:  # of code that is not ours
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name} cannot be run on inputs {shape}: {reason}. Check the function.") from None
    if not isinstance(output, torch.Tensor):
        raise InputError(f"{name}: the network returns a {type(output).__name__}. Let it return the logits, a tensor.")
    if not same:
        raise InputError(f"{name} gives other logits for the same inputs each time. Leave out what is random in it.")
    return classifier


def described(name: str, network: nn.Module, data: LongTailData) -> About:
    """The description of the network, with the size and the normalisation that it wants."""
    about, part = About.of(data, name, {}), data.train
    if len(part.shape) != 3 or part.shape[0] != 3:
        return about
    wanted: Any = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None)
    wanted = wanted if isinstance(wanted, dict) else {}
    mean, std = (tuple(wanted.get(key) or usual) for key, usual in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)))
    about = replace(about, mean=mean, std=std)
    shape = tuple(wanted.get("input_size") or part.shape)
    if shape == part.shape:
        return about
    if shape[0] != 3 or shape[1] != shape[2]:
        raise InputError(f"{name} takes inputs {shape}, and srepr makes square colour images. Choose another network.")
    return replace(about, shape=shape, given=part.raw_shape if isinstance(part, ArrayExamples) else ())
