"""Your network, prepared for stage 2: averaged, on the fastest device, its last layer plainly linear or cosine.

Stage 2 needs features [B, L] and a layer W x + b or a cosine. A copy of your network is brought into that form. The
re-trained head is put back into the form, device and precision of the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from srepr.anymodel.layer import recognise
from srepr.data.inputs import LoaderInputs, seeded
from srepr.models.batchnorm import update_batchnorm
from srepr.models.cosine import Cosine
from srepr.models.hardware import default_device
from srepr.models.split import duplicate, find_classifier, replace_classifier, unwrap
from srepr.posterior import Posterior

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Prepared:
    """A network in the form that stage 2 needs."""

    given: nn.Module
    network: nn.Module
    """The averaged network with recomputed BatchNorm statistics, and its classifier as `layer`."""
    posterior: Posterior
    """Over the parameters of `network`."""
    factor: float
    """By which the network multiplies the output of its classifier."""

    @property
    def name(self) -> str:
        """The name of the classifier."""
        assert self.posterior.classifier is not None
        return self.posterior.classifier

    @property
    def layer(self) -> nn.Linear | Cosine:
        """The classifier, which includes the factor: its output is the logits."""
        return cast("nn.Linear | Cosine", self.network.get_submodule(self.name))

    def finished(self, head: nn.Module) -> nn.Module:
        """The original network, averaged, with the re-trained head; each tensor on its device and in its precision."""
        kept = dict(_tensors(self.given))
        weight = cast(Tensor, self.given.get_submodule(self.name).weight)
        network = replace_classifier(self.network, self.name, head if self.factor == 1 else Divided(head, self.factor))
        for name, tensor in _tensors(network):
            like = kept.get(name, weight)
            tensor.data = tensor.data.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)
        return network


class Divided(nn.Module):
    """A head for a network that multiplies its output by a factor."""

    def __init__(self, head: nn.Module, factor: float) -> None:
        super().__init__()
        self.head, self.factor = head, factor

    def forward(self, features: Tensor) -> Tensor:
        """Logits before the factor."""
        return cast(Tensor, self.head(features)) / self.factor


def prepare(posterior_or_model: Posterior | nn.Module, inputs: LoaderInputs, classifier: str | None) -> Prepared:
    """Prepare the mean of a posterior, with recomputed BatchNorm statistics, or a plain model for stage 2."""
    if isinstance(posterior_or_model, Posterior):
        given, posterior = posterior_or_model.model, posterior_or_model
        network = duplicate(given)
        posterior.apply_mean(network)
        network, classifier = network.to(default_device()), classifier or posterior.named
    else:
        given = unwrap(posterior_or_model)
        network = duplicate(given)
        posterior = Posterior(network)
        posterior.update(network)
    network = runnable(network).eval()
    with seeded(inputs.loader, inputs.seed):
        first, _ = next(inputs.sweep(0))
        name = find_classifier(network, first, name=classifier)
        if posterior.count > 1:
            update_batchnorm(network, (batch for batch, _ in inputs.sweep(0)))
        layer, factor = recognise(network, name, first)
    plain = replace_classifier(network, name, layer)
    return Prepared(given, plain, _moments_for(plain, posterior, name), factor)


def runnable(network: nn.Module) -> nn.Module:
    """A half-precision network on a CPU, converted to float32 in place: half is too coarse, slow and unsafe there."""
    half = any(tensor.dtype in HALF and tensor.device.type == "cpu" for _, tensor in _tensors(network))
    return network.float() if half else network


def _moments_for(plain: nn.Module, posterior: Posterior, name: str) -> Posterior:
    """The posterior over the parameters of `plain`, whose classifier may have others than the network of `posterior`.

    A parameter that was tied to the classifier's keeps its other name, and is sampled like any other.
    """
    mean, variance = posterior.mean(), posterior.variance()
    first = {parameter: key for key, parameter in posterior.model.named_parameters()}
    names = {key: first[p] for key, p in posterior.model.named_parameters(remove_duplicate=False)}
    held = set(plain.get_submodule(name).parameters())
    means = {key: p.detach() if p in held else mean[names[key]] for key, p in plain.named_parameters()}
    variances = {
        key: torch.zeros(p.shape) if p in held else variance[names[key]] for key, p in plain.named_parameters()
    }
    return Posterior.from_moments(plain, means, variances, posterior.count, name)


def _tensors(network: nn.Module) -> chain[tuple[str, Tensor]]:
    return chain(network.named_parameters(), network.named_buffers())
