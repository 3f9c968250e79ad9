"""Recognise a checkpoint's project by its container and tensor names, and rename its tensors.

Every layout is a function from a file's content to `Parts`, or None if the content has another layout:

    body      conv1, bn1, layer1.., and layer3s.E.. for the stages of expert E
    heads     (weight, bias) of each expert's classifier; empty for a body without one
    factors   [K], by which the logits are multiplied (LWS), or None
    normed    whether a head without bias is a cosine classifier, with weight [L, K]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from srepr.errors import InputError, unknown
from srepr.storage.tensors import below

Tensors = dict[str, Tensor]
CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "network")
WRAPPERS = ("module.", "_orig_mod.")
PROJECTORS = ("fc.", "head.", "projector.", "projection", "predictor.", "encoder_k.", "queue")


class Parts(NamedTuple):
    """The parts of a checkpoint; see the module docstring."""

    body: Tensors
    heads: list[tuple[Tensor, Tensor | None]]
    factors: Tensor | None = None
    normed: bool = False


def take_apart(content: Any, layout: str = "auto") -> tuple[str, Parts]:
    """Layout and parts of a checkpoint; "auto" tries every layout."""
    if layout != "auto" and layout not in LAYOUTS:
        raise unknown("layout", layout, ["auto", *LAYOUTS])
    for name in LAYOUTS if layout == "auto" else [layout]:
        parts = LAYOUTS[name](content) if isinstance(content, dict) else None
        if parts is not None:
            return name, parts
    if layout != "auto":
        raise InputError(f"its layout is not {layout}. Leave `layout` out.")
    raise InputError(
        f"its layout is unknown. Known: {', '.join(LAYOUTS)}; for other models use srepr.retrain in Python"
    )


def mislas(content: Mapping[str, Any]) -> Parts | None:
    """`state_dict_model`, `state_dict_classifier` and, after stage 2, `state_dict_lws_model`."""
    if not {"state_dict_model", "state_dict_classifier"} <= content.keys():
        return None
    learned = tensors_of(content.get("state_dict_lws_model", {})).get("learned_norm")
    head = head_of(tensors_of(content["state_dict_classifier"]), "fc")
    return Parts(tensors_of(content["state_dict_model"]), [head], learned) if head else None


def classifier_balancing(content: Mapping[str, Any]) -> Parts | None:
    """`state_dict_best` with `feat_model` and `classifier`; LWS adds `scales` to `fc` (OLTR is the same)."""
    best = content.get("state_dict_best")
    if not isinstance(best, dict) or not {"feat_model", "classifier"} <= best.keys():
        return None
    classifier = tensors_of(best["classifier"])
    head = head_of(classifier, "fc")
    return Parts(tensors_of(best["feat_model"]), [head], classifier.get("scales")) if head else None


def ride(content: Mapping[str, Any]) -> Parts | None:
    """RIDE and SADE: all below `backbone`, a head in `linears` per expert; early-exit predictors are dropped."""
    state = below("backbone.", weights(content))
    heads = [head_of(state, f"linears.{expert}") for expert in range(len(below("linears.", state)))]
    found = [head for head in (*heads, head_of(state, "linear")) if head]
    return Parts(without(state, "linears.", "linear.", "expert_help_pred"), found, normed=True) if found else None


def bcl(content: Mapping[str, Any]) -> Parts | None:
    """The network below `encoder`, the classifier `fc`; the heads of the contrastive loss are dropped."""
    state = weights(content)
    body, head = below("encoder.", state), head_of(state, "fc")
    return Parts(body, [head], normed=True) if "conv1.weight" in body and head else None


def huggingface(content: Mapping[str, Any]) -> Parts | None:
    """`ResNetForImageClassification` of transformers."""
    state = weights(content)
    head = head_of(state, "classifier.1")
    if head is None or "resnet.embedder.embedder.convolution.weight" not in state:
        return None

    def renamed(name: str) -> str:
        name = name.removeprefix("resnet.").replace("embedder.embedder.convolution", "conv1")
        name = name.replace("embedder.embedder.normalization", "bn1")
        name = re.sub(r"encoder\.stages\.(\d+)\.layers\.", lambda found: f"layer{int(found[1]) + 1}.", name)
        name = re.sub(r"layer\.(\d+)\.convolution", lambda found: f"conv{int(found[1]) + 1}", name)
        name = re.sub(r"layer\.(\d+)\.normalization", lambda found: f"bn{int(found[1]) + 1}", name)
        return name.replace("shortcut.convolution", "downsample.0").replace("shortcut.normalization", "downsample.1")

    return Parts({renamed(name): tensor for name, tensor in without(state, "classifier.").items()}, [head])


def ldam(content: Mapping[str, Any]) -> Parts | None:
    """LDAM-DRW and CMO: the classifier is `linear`, plain or normalised."""
    state = weights(content)
    head = head_of(state, "linear")
    return Parts(without(state, "linear."), [head], normed=True) if head else None


def plain(content: Mapping[str, Any]) -> Parts | None:
    """Names of torchvision and timm."""
    state = weights(content)
    for name in ("fc", "head.fc", "head", "classifier"):
        head = head_of(state, name)
        if head and "conv1.weight" in state:
            return Parts(without(state, f"{name}."), [head])
    return None


def body_only(content: Mapping[str, Any]) -> Parts | None:
    """A body without a classifier: MoCo, SimCLR and their like; momentum encoders and projectors are dropped."""
    state = weights(content)
    for prefix in ("encoder_q.", "base_encoder.", "online_network.", "backbone.", "encoder.", ""):
        body = below(prefix, state)
        if "conv1.weight" in body and "layer1.0.conv1.weight" in body:
            return Parts(without(body, *PROJECTORS), [])
    return None


LAYOUTS: dict[str, Callable[[Mapping[str, Any]], Parts | None]] = {
    "mislas": mislas,
    "classifier-balancing": classifier_balancing,
    "ride": ride,
    "bcl": bcl,
    "huggingface": huggingface,
    "ldam": ldam,
    "plain": plain,
    "body": body_only,
}


def weights(content: Mapping[str, Any]) -> Tensors:
    """The state dict of a checkpoint: under one of the usual keys, or the checkpoint itself.

    >>> import torch
    >>> weights({"epoch": 3, "state_dict": {"module.fc.bias": torch.zeros(2)}})
    {'fc.bias': tensor([0., 0.])}
    """
    inside = [content[name] for name in CONTAINERS if isinstance(content.get(name), dict)]
    return tensors_of(inside[0] if inside else content)


def tensors_of(state: Any) -> Tensors:
    """Tensors of a state dict, without the name prefixes of DataParallel and torch.compile; none in other objects."""
    if not isinstance(state, dict):
        return {}
    tensors = {key: value for key, value in state.items() if isinstance(key, str) and isinstance(value, Tensor)}
    for prefix in WRAPPERS:
        if tensors and all(key.startswith(prefix) for key in tensors):
            tensors = below(prefix, tensors)
    return tensors


def without(state: Tensors, *prefixes: str) -> Tensors:
    """The state dict without names that start with a prefix."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefixes)}


def head_of(state: Tensors, name: str) -> tuple[Tensor, Tensor | None] | None:
    """(weight, bias) of the classifier `name`, or None if it does not exist."""
    weight = state.get(f"{name}.weight")
    return None if weight is None or weight.dim() != 2 else (weight, state.get(f"{name}.bias"))
