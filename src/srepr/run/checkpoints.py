"""One codec for every file of weights: networks, posteriors, heads and whole classifiers, as safetensors.

A file says in its metadata what it holds; no file needs another to be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from srepr import heads
from srepr.classifier import Classifier
from srepr.data.about import About
from srepr.errors import InputError
from srepr.models import build
from srepr.models.cosine import Cosine
from srepr.models.split import swap
from srepr.posterior import Posterior
from srepr.storage.files import plain
from srepr.storage.tensors import below, load_tensors, save_tensors


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
    about = _about(path, metadata)
    return _filled(path, build_network(about), tensors, about), about


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
    classifier = metadata.get("classifier") or None
    return Posterior.from_moments(network, mean, variance, int(metadata["count"]), classifier)


def save_head(path: Path, head: nn.Module, made_of: Mapping[str, Any]) -> None:
    """Write a head and the settings that it was made with.

    >>> path = getfixture("tmp_path") / "disalign.safetensors"
    >>> save_head(path, heads.DisAlign(*nn.Linear(2, 3).parameters()), {"stage1": "swa"})
    >>> type(load_head(path)).__name__
    'DisAlign'
    """
    kind = "cosine" if isinstance(head, Cosine) else "linear"
    kind = next((name for name, row in heads.HEADS.items() if row.mark and hasattr(head, row.mark)), kind)
    save_tensors(path, head.state_dict(), {"kind": kind, "made of": json.dumps(made_of)})


def load_head(path: Path) -> nn.Module:
    """The head of a file written by `save_head`."""
    return heads.from_tensors(load_tensors(path)[0]).requires_grad_(False)


def save_classifier(path: Path, classifier: Classifier, facts: Mapping[str, Any]) -> None:
    """Write a classifier with its prior and its facts; `load_classifier` gives the same logits, bit for bit.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,), std=(1.0,))
    >>> path = getfixture("tmp_path") / "model.safetensors"
    >>> save_classifier(path, Classifier(build_network(about), about=about).with_prior([9, 3]), {})
    >>> load_classifier(path).shift
    tensor([ 0.4055, -0.6931])
    """
    tensors = {**classifier.model.state_dict()}
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
    about = _about(path, metadata)
    network, shift = build_network(about), tensors.pop("shift", None)
    # A network of stage 1 expects the classes as often as it saw them.
    how = json.loads(metadata["classifier"]) if "classifier" in metadata else {"expects": about.counts}
    if "classifier" in metadata:
        own = below(f"{about.classifier}.", tensors)
        swap(network, network.get_submodule(about.classifier), heads.from_tensors(own))
    return ready(_filled(path, network, tensors, about), about, **how, shift=shift)


def load_facts(path: Path) -> dict[str, Any]:
    """What an exported file says about how it was made; empty for a plain network."""
    facts: dict[str, Any] = json.loads(load_tensors(path)[1].get("facts", "{}"))
    return facts


def ready(network: nn.Module, about: About, **options: Any) -> Classifier:
    """A classifier for inference: in eval mode, without gradients."""
    return Classifier(network, about=about, **options).eval().requires_grad_(False)


def _about(path: Path, metadata: Mapping[str, str]) -> About:
    if "about" not in metadata:
        raise InputError(f"{path} does not say which network it holds. Use a model written by `srepr train`.")
    return About.from_json(metadata["about"])


def _filled(path: Path, network: nn.Module, tensors: dict[str, Tensor], about: About) -> nn.Module:
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"{path} does not hold the {about.network} that it describes: {reason}") from None
    return network.eval()
