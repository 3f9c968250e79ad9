"""Networks by name, and tools that split any network: features, classifier, BatchNorm."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from srepr.errors import InputError, unknown
from srepr.models.batchnorm import update_batchnorm
from srepr.models.cosine import Cosine
from srepr.models.efficientnet import efficientnet_lite0
from srepr.models.fold import fold_batchnorm
from srepr.models.function import build_function, is_function
from srepr.models.huggingface import huggingface
from srepr.models.linear import linear
from srepr.models.mlp import mlp
from srepr.models.resnet import ResNet, resnet8, resnet14, resnet18, resnet20, resnet32, resnet50, resnext50
from srepr.models.split import feature_extractor, find_classifier, replace_classifier, unwrap

__all__ = [
    "NETWORKS",
    "Cosine",
    "ResNet",
    "build",
    "efficientnet_lite0",
    "feature_extractor",
    "find_classifier",
    "fold_batchnorm",
    "huggingface",
    "linear",
    "mlp",
    "replace_classifier",
    "resnet8",
    "resnet14",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet50",
    "resnext50",
    "unwrap",
    "update_batchnorm",
]

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "resnet8": resnet8,
    "resnet14": resnet14,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnext50": resnext50,
    "resnet": ResNet,
    "mlp": mlp,
    "linear": linear,
    "efficientnet-lite0": efficientnet_lite0,
    "hf": huggingface,
}


def build(name: str, classes: int, **options: Any) -> nn.Module:
    """Build a network by name. `options` are `channels` for images or `inputs` for vectors, and its own.

    A name package.module:function stands for a function of yours, which gets the number of classes only.

    >>> build("resnet8", 10, channels=1).conv1.in_channels
    1
    >>> build("resnet23", 10)
    Traceback (most recent call last):
    srepr.errors.InputError: unknown network 'resnet23'; did you mean resnet32? Known: resnet8, resnet14, ...
    """
    if is_function(name):
        return build_function(name, classes)
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    signature = inspect.signature(NETWORKS[name])
    try:
        arguments = signature.bind(classes, **options)
    except TypeError as error:
        raise InputError(f"{name}: {error}. It takes {', '.join(signature.parameters)}") from None
    return NETWORKS[name](*arguments.args, **arguments.kwargs)
