"""One codec for every file of weights: networks, posteriors, heads and whole classifiers, as safetensors.

A file says in its metadata what it holds; no file needs another to be read. What it says is not believed: building its
network ends as soon as that is larger than the file, and weights that are not finite are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from srepr import heads
from srepr.classifier import Classifier
from srepr.data.about import About
from srepr.decisions.doubt import Familiar, Relative
from srepr.decisions.held import Held
from srepr.errors import InputError
from srepr.models import build
from srepr.models.cosine import Cosine
from srepr.models.function import is_function
from srepr.models.size import no_larger_than
from srepr.models.split import swap
from srepr.posterior import Posterior
from srepr.run.schema import Exported, read_entry
from srepr.storage.files import plain
from srepr.storage.tensors import below, load_tensors, save_tensors

LARGEST_INPUT = 1 << 26
"""Numbers of one input: an image of 4096 x 4096 pixels."""
OWN = ("mean", "scaled", "rest", "limit")
"""The tensors of `Familiar` itself."""


def build_network(about: About) -> nn.Module:
    """The network that a description stands for, with fresh weights."""
    return build(about.network, len(about.class_names), **about.options)


def save_model(path: Path, network: nn.Module, about: About) -> None:
    """Write the network's weights and its description.

    >>> from srepr.models import mlp
    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,), std=(1.0,))
    >>> path = getfixture("tmp_path") / "model.safetensors"
    >>> save_model(path, mlp(2, inputs=4), about)
    >>> load_model(path)[1] == about
    True
    """
    save_tensors(path, network.state_dict(), {"about": about.to_json()})


def load_model(path: Path) -> tuple[nn.Module, About]:
    """The network of a file written by `save_model`, in eval mode, and its description.

    >>> load_model(getfixture("tmp_path") / "model.safetensors")
    Traceback (most recent call last):
    srepr.errors.InputError: .../model.safetensors does not exist. Is the training finished?
    """
    tensors, metadata = load_tensors(path)
    about = read_about(path, metadata)
    return _filled(path, _built(path, about, tensors), tensors, about), about


def save_posterior(path: Path, posterior: Posterior) -> None:
    """Write mean, variance and count, as `mean.NAME` and `variance.NAME`.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> posterior = Posterior(network)
    >>> posterior.update(network)
    >>> path = getfixture("tmp_path") / "posterior.safetensors"
    >>> save_posterior(path, posterior)
    >>> load_posterior(path, network).count
    1
    """
    mean = {f"mean.{name}": tensor for name, tensor in posterior.mean().items()}
    variance = {f"variance.{name}": tensor for name, tensor in posterior.variance().items()}
    save_tensors(path, mean | variance, {"count": str(posterior.count), "classifier": posterior.classifier or ""})


def load_posterior(path: Path, network: nn.Module) -> Posterior:
    """The posterior of a file written by `save_posterior`, around the network, whose buffers it keeps."""
    tensors, metadata = load_tensors(path)
    mean, variance = below("mean.", tensors), below("variance.", tensors)
    try:
        count = read_entry(path, metadata, "count", int)
        return Posterior.from_moments(network, mean, variance, count, metadata.get("classifier") or None)
    except InputError as error:
        raise InputError(f"{path} does not hold a posterior of this network: {error}") from None


def save_head(
    path: Path,
    head: nn.Module,
    made_of: Mapping[str, Any],
    held: Held | None = None,
    familiar: Familiar | None = None,
) -> None:
    """Write a head, the settings that it was made with, its logits on held-out examples, and known features.

    >>> path = getfixture("tmp_path") / "disalign.safetensors"
    >>> save_head(path, heads.DisAlign(*nn.Linear(2, 3).parameters()), {"stage1": "swa"})
    >>> type(load_head(path)).__name__
    'DisAlign'
    """
    kind = "cosine" if isinstance(head, Cosine) else "linear"
    kind = next((name for name, row in heads.HEADS.items() if row.mark and hasattr(head, row.mark)), kind)
    tensors = {**head.state_dict(), **_as_tensors(held), **_named(familiar)}
    save_tensors(path, tensors, {"kind": kind, "made of": json.dumps(made_of)})


def load_head(path: Path, layer: nn.Module | None = None) -> nn.Module:
    """The head of a file written by `save_head`; one that cannot take the place of `layer` is refused."""
    return load_head_and_held(path, layer)[0]


def load_head_and_held(path: Path, layer: nn.Module | None = None) -> tuple[nn.Module, Held | None, Familiar | None]:
    """The head of a file written by `save_head`, its held-out logits and known features, if there are any."""
    tensors, _ = load_tensors(path)
    held, familiar = _taken(path, tensors), _known(path, tensors)
    head = _head(path, tensors).requires_grad_(False)
    ours, theirs = ([*weight.shape] for weight in (tensors["weight"], getattr(layer, "weight", tensors["weight"])))
    if ours != theirs:
        raise InputError(f"{path} has weights {ours}, and its network takes {theirs}. Make the head again.")
    return head, _fitting(path, held, ours[0]), familiar


def save_classifier(path: Path, classifier: Classifier, facts: Mapping[str, Any]) -> None:
    """Write a classifier with its prior and its facts; `load_classifier` gives the same logits, bit for bit.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,), std=(1.0,))
    >>> path = getfixture("tmp_path") / "model.safetensors"
    >>> save_classifier(path, Classifier(build_network(about), about=about).with_prior([9, 3]), {})
    >>> load_classifier(path).shift
    tensor([ 0.4055, -0.6931])
    """
    tensors = {**classifier.model.state_dict(), **_as_tensors(classifier.held), **_named(classifier.familiar)}
    if classifier.shift is not None:
        tensors["shift"] = classifier.shift
    expects = None if classifier.expects is None else [float(share) for share in classifier.expects]
    how = {"temperature": classifier.temperature, "expects": expects}
    metadata = {
        "about": classifier.description.to_json(),
        "classifier": json.dumps(how),
        "facts": json.dumps(plain(facts)),
    }
    save_tensors(path, tensors, metadata)


def load_classifier(path: Path) -> Classifier:
    """The classifier of a file written by `save_classifier`, or the network of one written by `save_model`."""
    tensors, metadata = load_tensors(path)
    about = read_about(path, metadata)
    shift, held, familiar = tensors.pop("shift", None), _taken(path, tensors), _known(path, tensors)
    network = _built(path, about, tensors)
    # A network of stage 1 expects the classes as often as it saw them.
    how: dict[str, Any] = {"expects": about.counts}
    if "classifier" in metadata:
        exported = read_entry(path, metadata, "classifier", Exported)
        how = {"expects": exported["expects"], "temperature": exported["temperature"]}
        own = below(f"{about.classifier}.", tensors)
        swap(network, _layer(path, network, about), _head(path, own))
    classes = len(about.class_names)
    expects = torch.tensor(how["expects"] or [1.0] * classes, dtype=torch.float64)
    fits = shift is None or (shift.shape == (classes,) and (shift < math.inf).all() and (shift > -math.inf).any())
    if len(expects) != classes or not (expects.isfinite() & (expects >= 0)).all() or not fits:
        raise InputError(f"{path} has no class prior for {classes} classes. Export it again.")
    try:
        held = _fitting(path, held, classes)
        network = _filled(path, network, tensors, about)
        return ready(network, about, **how, shift=shift, held=held, familiar=familiar)
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path}: {error}") from None


def _as_tensors(held: Held | None) -> dict[str, Tensor]:
    """The held-out logits in a file of weights."""
    tensors = {} if held is None else held.limited()._asdict()
    return {f"held.{name}": tensor for name, tensor in tensors.items() if tensor is not None}


def _named(familiar: Familiar | None) -> dict[str, Tensor]:
    """The known features in a file of weights."""
    if familiar is None:
        return {}
    own = {f"familiar.{name}": getattr(familiar, name) for name in OWN}
    relative = {} if familiar.relative is None else familiar.relative._asdict()
    return own | {f"familiar.relative.{name}": tensor for name, tensor in relative.items()}


def _known(path: Path, tensors: dict[str, Tensor]) -> Familiar | None:
    """The known features, taken from the tensors of a file; files of older versions have no relative distance."""
    own = [tensors.pop(f"familiar.{name}", None) for name in OWN]
    found = [tensors.pop(f"familiar.relative.{name}", None) for name in Relative._fields]
    if all(tensor is None for tensor in (*own, *found)):
        return None
    mean, scaled, rest, limit = (torch.empty(0) if tensor is None else tensor for tensor in own)
    relative = None
    if any(tensor is not None for tensor in found):
        relative = Relative(*(torch.empty(0) if tensor is None else tensor for tensor in found))
    try:
        return Familiar(mean, scaled, rest, limit, relative).checked()
    except InputError as error:
        raise InputError(f"{path}: {error}. Make it again.") from None


def _taken(path: Path, tensors: dict[str, Tensor]) -> Held | None:
    """The held-out logits, taken from the tensors of a file; not every file has their distances."""
    logits, labels, distances = found = [tensors.pop(f"held.{name}", None) for name in Held._fields]
    if logits is None or labels is None:
        if any(tensor is not None for tensor in found):
            raise InputError(f"{path} has half of its held-out examples. Make it again.")
        return None
    return Held(logits, labels, distances)


def _fitting(path: Path, held: Held | None, classes: int) -> Held | None:
    try:
        return None if held is None else held.checked(classes)
    except InputError as error:
        raise InputError(f"{path}: {error}. Make it again.") from None


def ready(network: nn.Module, about: About, **options: Any) -> Classifier:
    """A classifier for inference: in eval mode, without gradients."""
    return Classifier(network, about=about, layer=about.classifier, **options).eval().requires_grad_(False)


def read_about(path: Path, metadata: Mapping[str, str]) -> About:
    """The description of the network in a file of weights, from its metadata."""
    if "about" not in metadata:
        raise InputError(f"{path} does not say which network it holds. Use a model written by `srepr train`.")
    about = read_entry(path, metadata, "about", About)
    channels = about.shape[:1]
    problems = {
        "it has no classes": not about.class_names,
        "a class has a negative count": min(about.counts, default=0) < 0,
        f"inputs cannot have the shape {about.shape}"[:120]: not about.shape
        or min((*about.shape, *about.given)) < 1
        or max(math.prod(about.shape), math.prod(about.given)) > LARGEST_INPUT,
        "its normalisation is not finite": not all(map(math.isfinite, (*about.mean, *about.std))),
        "its standard deviation is not above 0": min(about.std, default=1) <= 0,
        "its normalisation does not fit its inputs": not {len(about.mean), len(about.std)} <= {0, 1, *channels},
    }
    for problem, found in problems.items():
        if found:
            raise InputError(f"{path} describes a network that cannot be: {problem}. Make it again.")
    return about


def _built(path: Path, about: About, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network of a file's description, built in vain for at most the size of the file."""
    if is_function(about.network):
        return build_network(about)  # code of the user, who knows how large its network is
    try:
        with no_larger_than(tensors, about.options):
            network = build_network(about)
    except InputError as error:
        raise InputError(f"{path} does not hold the {about.network[:60]} that it describes: {error}") from None
    except Exception as error:  # sizes of any kind: negative, text, beyond the memory
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(f"{path} does not hold the {about.network[:60]} that it describes: {reason}") from None
    _layer(path, network, about)
    return network


def _layer(path: Path, network: nn.Module, about: About) -> nn.Module:
    """The classifier of a network."""
    layer: nn.Module | None = dict(network.named_modules()).get(about.classifier)
    if layer is None or not about.classifier:
        raise InputError(f"{path} does not hold the {about.network} that it describes: no layer {about.classifier!r}")
    return layer


def _head(path: Path, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The head of these tensors."""
    try:
        head = heads.from_tensors(tensors)
    except Exception as error:  # tensors that are missing, or of any shape
        reason = f"{type(error).__name__}: {error}".splitlines()[-1].strip()[:200]
        raise InputError(f"{path} does not hold a head ({reason}). Make it again.") from None
    return _finite(path, head.float())  # as networks are built


def _finite(path: Path, module: nn.Module) -> nn.Module:
    """The module, if its weights and BatchNorm statistics are finite; other tensors may be infinite, as masks are."""
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.isnan().any():
            raise InputError(f"{path}: the weight {name!r} is not a number. Train again.")
    norms = [(name, norm) for name, norm in module.named_modules() if isinstance(norm, _BatchNorm)]
    statistics = (found for name, norm in norms for found in norm.named_buffers(prefix=name))
    for name, tensor in (*module.named_parameters(), *statistics):
        if not tensor.isfinite().all():
            raise InputError(f"{path}: the weight {name!r} is not finite. Train again.")
    return module


def _filled(path: Path, network: nn.Module, tensors: dict[str, Tensor], about: About) -> nn.Module:
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"{path} does not hold the {about.network} that it describes: {reason}") from None
    if len(about.counts) != len(about.class_names):
        raise InputError(f"{path} has {len(about.counts)} counts of {len(about.class_names)} classes. Make it again.")
    return _finite(path, network).eval()
