"""A network on disk that says itself what it is: weights as safetensors, and in their metadata how to build it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from srepr import runs
from srepr.errors import InputError
from srepr.models import build
from srepr.posterior import Posterior


@dataclass(frozen=True, kw_only=True)
class About:
    """Everything beside the weights that using a network needs.

    >>> About(network="resnet8", options={"channels": 1}, class_names=("a", "b"), counts=(9, 3), shape=(1, 8, 8),
    ...       mean=(0.3,), std=(0.4,)).build().fc.out_features
    2
    """

    network: str
    options: dict[str, Any]
    class_names: tuple[str, ...]
    counts: tuple[int, ...]
    """Training examples of each class."""
    shape: tuple[int, ...]
    """Of one input: (C, H, W), or (D,)."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """What inputs are normalised with."""

    @classmethod
    def from_json(cls, text: str) -> About:
        """What `json.dumps(asdict(about))` wrote down."""
        fields: dict[str, Any] = json.loads(text)
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **lists})

    def build(self) -> nn.Module:
        """The network, with fresh weights."""
        return build(self.network, len(self.class_names), **self.options)


def save_model(path: Path, network: nn.Module, about: About) -> None:
    """Write the network's weights and its description.

    >>> about = About(network="resnet8", options={}, class_names=("a", "b"), counts=(9, 3), shape=(3, 8, 8),
    ...               mean=(0.5,), std=(0.5,))
    >>> save_model(getfixture("tmp_path") / "model.safetensors", about.build(), about)
    """
    runs.save_tensors(path, network.state_dict(), {"about": json.dumps(asdict(about))})


def load_model(path: Path) -> tuple[nn.Module, About]:
    """The network of a file written by `save_model`, in eval mode, and its description.

    >>> load_model(getfixture("tmp_path") / "model.safetensors")
    Traceback (most recent call last):
    srepr.errors.InputError: .../model.safetensors does not exist. Is the training finished?
    """
    tensors, metadata = runs.load_tensors(path)
    if "about" not in metadata:
        raise InputError(f"{path} does not say which network it holds. Use a model written by `srepr train`.")
    about = About.from_json(metadata["about"])
    network = about.build()
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"{path} does not hold the {about.network} that it describes: {reason}") from None
    return network.eval(), about


def save_posterior(path: Path, posterior: Posterior) -> None:
    """Write mean, variance and count, as `mean.NAME` and `variance.NAME`.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> posterior = Posterior(network)
    >>> posterior.update(network)
    >>> save_posterior(getfixture("tmp_path") / "posterior.safetensors", posterior)
    """
    mean = {f"mean.{name}": tensor for name, tensor in posterior.mean().items()}
    variance = {f"variance.{name}": tensor for name, tensor in posterior.variance().items()}
    runs.save_tensors(path, mean | variance, {"count": str(posterior.count), "classifier": posterior.classifier or ""})


def load_posterior(path: Path, network: nn.Module) -> Posterior:
    """The posterior of a file written by `save_posterior`, around the network (whose buffers it keeps).

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> posterior = Posterior(network)
    >>> posterior.update(network)
    >>> path = getfixture("tmp_path") / "posterior.safetensors"
    >>> save_posterior(path, posterior)
    >>> load_posterior(path, network).count
    1
    """
    tensors, metadata = runs.load_tensors(path)
    mean = {name.removeprefix("mean."): tensor for name, tensor in tensors.items() if name.startswith("mean.")}
    variance = {name.removeprefix("variance."): t for name, t in tensors.items() if name.startswith("variance.")}
    classifier = metadata.get("classifier") or None
    return Posterior.from_moments(network, mean, variance, int(metadata["count"]), classifier)
