"""Stage 1, the representation: SGD on a cosine, then SWA and the moments of SWAG (paper, sections 2.2 and 2.3).

    epochs   0 ............. 75 % ............. 100 %
    rate     warm-up, cosine | constant eta_SWA, weights captured after every epoch   -> representation, posterior
                             | the same cosine to its end (the baseline)              -> sgd

`srepr train`, `srepr.fit` and `srepr.collect` all run the one loop in `descend`. They differ in where the batches come
from and in what they do between steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from srepr.config import Optim
from srepr.errors import InputError, check, unknown
from srepr.models.batchnorm import frozen_norms
from srepr.models.call import call
from srepr.posterior import Posterior

CHECK_EVERY = 25  # steps between looks at the loss
EXPLODED = 100.0  # times the loss of guessing
STATE = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "step": "step"}
"""What SGD and AdamW remember of a parameter, and its name in a saved state."""

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Epoch:
    """One epoch of the plan: the branch it belongs to, and its number in the schedule."""

    branch: Literal["trunk", "swa", "sgd"]
    number: int


def plan(epochs: int, swa_start: int, *, baseline: bool = False) -> list[Epoch]:
    """All epochs in the order in which they are run: the common trunk, the SWA branch, the end of the baseline.

    >>> [f"{epoch.branch} {epoch.number}" for epoch in plan(4, swa_start=3, baseline=True)]
    ['trunk 0', 'trunk 1', 'trunk 2', 'swa 3', 'sgd 3']
    """
    trunk = [Epoch("trunk", number) for number in range(swa_start)]
    swa = [Epoch("swa", number) for number in range(swa_start, epochs)]
    sgd = [Epoch("sgd", epoch.number) for epoch in swa] if baseline else []
    return [*trunk, *swa, *sgd]


def learning_rate(optim: Optim, branch: str, progress: float, epochs: int) -> float:
    """The learning rate `progress` epochs into the schedule: eta_SWA while capturing, else a warmed-up cosine.

    >>> optim = Optim(lr=0.5, swa_lr=0.1, warmup_epochs=1)
    >>> [round(learning_rate(optim, "trunk", t, 200), 3) for t in (0.5, 1.0, 100.0, 200.0)]
    [0.25, 0.5, 0.25, 0.0]
    >>> learning_rate(optim, "swa", 180.0, 200)
    0.1
    """
    if branch == "swa":
        return optim.swa_lr
    warm = min(1.0, progress / optim.warmup_epochs) if optim.warmup_epochs else 1.0
    return optim.lr * warm * 0.5 * (1 + math.cos(math.pi * progress / epochs))


@dataclass(frozen=True)
class Learner:
    """What training changes: the network, the state of its optimiser, and the moments of the captured weights.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> learner = Learner(network, optimizer_for(network, Optim()), Posterior(network))
    >>> learner.load(learner.state())
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    posterior: Posterior

    def state(self) -> dict[str, Tensor]:
        """Everything a resume needs, as one flat dict."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{STATE.get(key, key)}.{name}"] = value
        return tensors | {f"posterior.{name}": tensor for name, tensor in self.posterior.state_dict().items()}

    def load(self, tensors: Mapping[str, Tensor], *, with_posterior: bool = True) -> None:
        """Restore a `state()`; a switch to another branch keeps the present posterior."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

        self.network.load_state_dict(part("network."))
        kept = {key: part(f"{prefix}.") for key, prefix in STATE.items()}
        for name, parameter in self.network.named_parameters():
            state = {key: values[name] for key, values in kept.items() if name in values}
            self.optimizer.state.pop(parameter, None)
            if state:
                self.optimizer.state[parameter] = {
                    key: torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
                    for key, value in state.items()
                }
        if with_posterior:
            self.posterior.load_state_dict(part("posterior."))


def optimizer_for(network: nn.Module, optim: Optim, classifier: str | None = None) -> torch.optim.Optimizer:
    """The optimiser of the trainable parameters: the paper's SGD, or AdamW.

    With a `body` below 1, all layers but the classifier have a group of their own with the smaller rate.

    >>> optimizer_for(nn.Linear(2, 2), Optim(lr=0.5)).defaults["nesterov"]
    True
    """
    own = set() if classifier is None else set(network.get_submodule(classifier).parameters())
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained, "share": 1.0}]
    if optim.body < 1 and own:
        groups = [
            {"params": [parameter for parameter in trained if parameter not in own], "share": optim.body},
            {"params": [parameter for parameter in trained if parameter in own], "share": 1.0},
        ]
    groups = [group for group in groups if group["params"]]
    if optim.name == "adamw":
        return torch.optim.AdamW(groups, lr=optim.lr, weight_decay=optim.weight_decay)
    return torch.optim.SGD(
        groups, lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, nesterov=True
    )


def freeze(network: nn.Module, names: str) -> nn.Module:
    """Take the gradients from the named layers, which have commas between, in place.

    >>> freeze(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "0")[0].weight.requires_grad
    False
    """
    known = dict(network.named_modules())
    wanted = [name.strip() for name in names.split(",") if name.strip() not in ("", "none", "auto")]
    for name in wanted:
        if name not in known:
            raise unknown("layer in `freeze`", name, [name for name, _ in network.named_children()])
        known[name].requires_grad_(False)
    left = any(parameter.requires_grad for parameter in network.parameters())
    check(left or not wanted, "`freeze` names every layer, and nothing is left to train. Name fewer.")
    return network


class Batch(NamedTuple):
    """One step's examples; the targets are the labels, or mixtures of them."""

    inputs: Any
    labels: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Moment:
    """Where the training stands: `step` steps into the epoch at `index` of the plan."""

    index: int
    epoch: Epoch
    step: int
    done: bool
    """Whether the epoch is finished."""
    sums: Tensor
    """Loss, correct predictions and examples, summed over the epoch and over all processes."""
    rate: float


class Diverged(InputError):  # noqa: N818  (what happened, not an error of the program)
    """The loss is not finite any more, or absurdly large."""


def descend(
    learner: Learner,
    epochs: Sequence[Epoch],
    batches: Callable[[int, Epoch, int], Iterable[Batch]],
    *,
    optim: Optim,
    loss: Loss,
    steps: int,
    model: nn.Module | None = None,
    optimizer: Any = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
    start: tuple[int, int] = (0, 0),
    sums: Sequence[float] = (0.0, 0.0, 0.0),
    limit: float = math.inf,
    advance: Callable[[], object] = lambda: None,
) -> Iterator[Moment]:
    """Run the plan, capturing weights after each SWA epoch; yields a Moment every 25 steps and after each epoch.

    `batches(index, epoch, first)` are those of an epoch from the step `first` on; an epoch has `steps` of them.
    `model` and `optimizer` are the learner's as a distributed run wraps them; `reduce` sums over its processes. To
    resume, pass the position and the sums of the Moment to start from. A mean loss above `limit` counts as divergence.
    """
    model, optimizer = model or learner.network, optimizer or learner.optimizer
    device = next(learner.network.parameters()).device
    begin, first = start
    total = torch.tensor(sums, dtype=torch.float64, device=device)
    length = 1 + max(epoch.number for epoch in epochs)
    for index in range(begin, len(epochs)):
        epoch = epochs[index]
        rate, step, recent = 0.0, first, torch.zeros_like(total)
        model.train()
        for norm in frozen_norms(learner.network):
            norm.eval()
        for step, (inputs, labels, targets) in enumerate(batches(index, epoch, first), start=first + 1):
            rate = learning_rate(optim, epoch.branch, epoch.number + min(step / steps, 1), length)
            for group in learner.optimizer.param_groups:
                group["lr"] = rate * group.get("share", 1.0)
            logits = call(model, inputs)
            value = loss(logits, targets.to(logits.device))
            backward(value)
            if optim.clip is not None:
                torch.nn.utils.clip_grad_norm_(learner.network.parameters(), optim.clip)
            optimizer.step()
            optimizer.zero_grad()

            hits = (logits.detach().argmax(1) == labels.to(logits.device)).sum()
            mean = value.detach().double().mean()
            recent += torch.stack([mean * len(labels), hits.double(), hits.new_tensor(len(labels)).double()])
            advance()
            if step % CHECK_EVERY == 0 or step == steps:
                total, recent = total + _checked(learner, reduce(recent), epoch, step, rate, limit), recent.zero_()
                if step < steps:
                    yield Moment(index, epoch, step, False, total, rate)
        if recent[2]:  # of a stream that is shorter or longer than announced
            total = total + _checked(learner, reduce(recent), epoch, step, rate, limit)
        if epoch.branch == "swa":
            learner.posterior.update(learner.network)
        yield Moment(index, epoch, step, True, total, rate)
        first, total = 0, torch.zeros_like(total)


def _checked(learner: Learner, sums: Tensor, epoch: Epoch, step: int, rate: float, limit: float) -> Tensor:
    mean = float(sums[0] / sums[2]) if is_finite(learner.network) else math.nan
    if not mean < limit:
        name = "swa_lr" if epoch.branch == "swa" else "lr"
        raise Diverged(
            f"the training diverged: the loss became {mean:.3g} in epoch {epoch.number}, step {step}, at a learning"
            f" rate of {rate:.3g}. Lower `{name}`."
        )
    return sums


def is_finite(network: nn.Module) -> bool:
    """Whether every weight and every BatchNorm statistic is finite; the loss would show one that is not a step later.

    >>> is_finite(nn.Linear(2, 2)), is_finite(nn.Linear(2, 2).apply(lambda layer: layer.bias.data.fill_(torch.inf)))
    (True, False)
    """
    norms = (module for module in network.modules() if isinstance(module, _BatchNorm))
    statistics = (buffer for norm in norms for buffer in norm.buffers())
    return all(bool(tensor.isfinite().all()) for tensor in (*network.parameters(), *statistics))
