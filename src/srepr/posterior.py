"""SWA and diagonal SWAG: a Gaussian fitted to the weights along the training trajectory (paper, sections 2.2 and 2.3).

    q(theta) = N(mean, diag(variance)),   mean = E[theta],   variance = E[theta^2] - E[theta]^2

over the captured weights. The difference of two large numbers loses a small variance to rounding, so the moments are
accumulated by Welford's update, in float64 (Technometrics 4(3), 1962):

    delta = x - mean,   mean <- mean + delta / n,   m2 <- m2 + delta (x - mean),   variance = m2 / n
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from srepr.errors import InputError
from srepr.models.split import duplicate, find_classifier, unwrap


class Posterior:
    """Mean and variance of a model's parameters over the weights captured by `update`, and draws from them.

    Only the feature extractor's weights theta are sampled; the classifier stays at its mean in every draw. Set
    `classifier` to the name of that layer if it is not found by structure. By default, `srepr.retrain` searches again
    by running a batch. `model` is a CPU copy of the network, used to build networks. Buffers and integer parameters
    are not averaged; the copy takes them from the latest capture. All dicts map names to CPU tensors.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))
    >>> posterior = Posterior(model)
    >>> for value in (1.0, 3.0):
    ...     _ = nn.init.constant_(model[0].bias, value)
    ...     posterior.update(model)
    >>> posterior.count, posterior.mean()["0.bias"], posterior.variance()["0.bias"]
    (2, tensor([2., 2.]), tensor([1., 1.]))
    >>> draw = posterior.draw(torch.Generator().manual_seed(0))
    >>> outputs = torch.func.functional_call(model, draw, torch.zeros(1, 2))
    """

    def __init__(self, model: nn.Module, *, classifier: str | None = None) -> None:
        if any(is_lazy(parameter) for parameter in unwrap(model).parameters()):
            raise InputError("the model has lazy layers without weights: run one batch through it first")
        self.model = duplicate(model).cpu()
        self.count = 0
        self.classifier = self.named = classifier
        self._no_classifier = ""  # why the search failed; raised only when a draw needs it
        floating = {name: p for name, p in self.model.named_parameters() if p.is_floating_point()}
        self._mean = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in floating.items()}
        self._m2 = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in floating.items()}
        if classifier is not None:
            if classifier not in dict(self.model.named_modules()):
                raise InputError(
                    f"the model has no module {classifier!r}: set `classifier` to the name of its last layer"
                )
        elif list(self.model.children()):  # a single layer is all theta
            try:
                self.classifier = find_classifier(self.model)
            except InputError as error:
                self._no_classifier = str(error)

    @classmethod
    def from_moments(
        cls,
        model: nn.Module,
        mean: Mapping[str, Tensor],
        variance: Mapping[str, Tensor],
        count: int,
        classifier: str | None = None,
    ) -> "Posterior":
        """Rebuild a posterior from the values of `mean()` and `variance()` after `count` updates.

        >>> model = nn.Linear(1, 1)
        >>> q = Posterior.from_moments(model, {"weight": torch.ones(1, 1), "bias": torch.ones(1)},
        ...                            {"weight": torch.zeros(1, 1), "bias": torch.ones(1)}, count=5)
        >>> q.variance()["bias"]
        tensor([1.])
        """
        posterior = cls(model, classifier=classifier)
        parameters = dict(posterior.model.named_parameters())
        _check_same("the mean", mean, parameters)
        _check_same("the variance", variance, parameters)
        finite = all(moment.isfinite().all() for moment in [*mean.values(), *variance.values()])
        if not isinstance(count, int) or count < 1 or not finite or any((v < 0).any() for v in variance.values()):
            raise InputError("the moments need count >= 1, finite means, and finite variances >= 0: save them again")
        posterior.count = count
        for name, parameter in parameters.items():
            if name in posterior._mean:
                posterior._mean[name].copy_(mean[name])
                posterior._m2[name].copy_(variance[name].double() * count)
            else:
                parameter.data.copy_(mean[name])
        return posterior

    def update(self, model: nn.Module) -> None:
        """Capture the model's current weights, usually at the end of an epoch; wrappers such as DDP are unwrapped."""
        newest = _tensors(unwrap(model))
        own = _tensors(self.model)
        _check_same("the model", newest, own)
        for name in self._mean:
            if not newest[name].isfinite().all():
                raise InputError(
                    f"the weight {name!r} is not finite: the training has diverged, lower its learning rate"
                )
        self.count += 1
        for name, mean in self._mean.items():
            x = newest[name].to("cpu", torch.float64)
            delta = x - mean
            mean += delta / self.count
            self._m2[name] += delta * (x - mean)
        for name in own.keys() - self._mean.keys():
            own[name].copy_(newest[name])

    def mean(self) -> dict[str, Tensor]:
        """The SWA weights, in each parameter's dtype."""
        self._require_captures()
        return {
            name: self._mean[name].to(p.dtype, copy=True) if name in self._mean else p.detach().clone()
            for name, p in self.model.named_parameters()
        }

    def variance(self) -> dict[str, Tensor]:
        """Population variance of each weight, in float32 or better; exactly 0 for constant weights."""
        self._require_captures()
        return {
            name: (self._m2[name] / self.count).to(torch.promote_types(p.dtype, torch.float32))
            if name in self._mean
            else torch.zeros(p.shape)
            for name, p in self.model.named_parameters()
        }

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw theta ~ N(mean, diag(variance)), with the classifier at its mean; depends only on the generator."""
        weights = self.mean()
        if self._no_classifier:
            raise InputError(f"{self._no_classifier} (in Posterior(model, classifier=...): it is not sampled)")
        if generator.device.type != "cpu":
            raise InputError(f"the generator is on {generator.device}: pass a torch.Generator() on the CPU")
        held = set() if self.classifier is None else set(self.model.get_submodule(self.classifier).parameters())
        for name, parameter in self.model.named_parameters():
            if name in self._mean and parameter not in held:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                spread = (self._m2[name] / self.count).sqrt()
                weights[name] = (self._mean[name] + spread * noise).to(parameter.dtype)
        return weights

    def apply_mean(self, model: nn.Module) -> None:
        """Copy the SWA weights into a model, in place. Recompute its BatchNorm statistics afterwards."""
        parameters = dict(unwrap(model).named_parameters())
        mean = self.mean()
        _check_same("the model", parameters, mean)
        for name, parameter in parameters.items():
            parameter.data.copy_(mean[name])

    def state_dict(self) -> dict[str, Tensor]:
        """All captured state as a flat dict of tensors for safetensors; loading it restores the same bits."""
        state = {"count": torch.tensor(self.count)}
        for name in self._mean:
            state[f"mean.{name}"] = self._mean[name].clone()
            state[f"m2.{name}"] = self._m2[name].clone()
        for name, tensor in _tensors(self.model).items():
            if name not in self._mean:
                state[f"newest.{name}"] = tensor.clone(memory_format=torch.contiguous_format)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the `state_dict()` of a posterior of the same network."""
        _check_same("the state", state, self.state_dict())
        spread = [tensor for name, tensor in state.items() if name.startswith("m2.") or name == "count"]
        means = [tensor for name, tensor in state.items() if name.startswith("mean.")]
        if not all(t.isfinite().all() for t in (*means, *spread)) or any((t < 0).any() for t in spread):
            raise InputError("the state holds NaN, infinity or a negative variance: it is damaged, use an older one")
        self.count = int(state["count"])
        for name in self._mean:
            self._mean[name].copy_(state[f"mean.{name}"])
            self._m2[name].copy_(state[f"m2.{name}"])
        for name, tensor in _tensors(self.model).items():
            if name not in self._mean:
                tensor.copy_(state[f"newest.{name}"])

    def _require_captures(self) -> None:
        if not self.count:
            raise InputError("the posterior is empty: call update(model) first, usually after each epoch")


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters (tied ones once) and persistent buffers, sharing the model's memory."""
    kept = model.state_dict().keys()
    named = [*model.named_parameters(), *((name, b) for name, b in model.named_buffers() if name in kept)]
    return {name: tensor.detach() for name, tensor in named}


def _check_same(what: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise InputError unless names and shapes match."""
    for name in [*expected, *given]:
        shapes = [list(side[name].shape) if name in side else "absent" for side in (given, expected)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"{what} does not fit this posterior: {name!r} is {shapes[0]}, not {shapes[1]}; use the same network"
            )
