"""The method around a network of somebody else's, without a run folder: both stages at once, or a posterior collected
around a network that is already trained.

    fit       SGD on a warmed-up cosine, SWA from 75 % on, then stage 2            (paper, sections 2 and 4)
    collect   a few epochs of SGD at a constant rate, captured after each          (paper, appendix B.4)

Any module, loader and loss of the shape (logits, labels) -> scalar works; what is given is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, IterableDataset

from srepr.balance import logit_offset
from srepr.batches import as_labels, call, count_labels, loader, split
from srepr.classifier import Classifier
from srepr.config import Optim, stage2_epochs
from srepr.devices import default_device
from srepr.errors import InputError
from srepr.inputs import seeded
from srepr.models.modes import eval_mode
from srepr.models.split import duplicate, find_classifier
from srepr.posterior import Posterior
from srepr.prepared import HALF
from srepr.progress import Progress
from srepr.representation import learning_rate
from srepr.retraining import BATCH, EPOCHS, chosen, retrain

Loss = Callable[[Tensor, Tensor], Tensor]


def fit(
    model: nn.Module,
    train: Any,
    *,
    epochs: int,
    method: str = "srepr",
    lr: float = 0.1,
    swa_lr: float | None = None,
    weight_decay: float = 5e-4,
    momentum: float = 0.9,
    warmup_epochs: float | None = None,
    swa_start: float = 0.75,
    batch_size: int = BATCH,
    loss: Loss = F.cross_entropy,
    classifier: str | None = None,
    class_counts: Iterable[int] | None = None,
    seed: int = 0,
    quiet: bool = False,
    **stage2: Any,
) -> Classifier:
    """Train a network from where it stands and re-train its classifier; the finished module, called like the given.

    `train` is a DataLoader, which keeps its own order and batches, or a Dataset or (inputs, labels), shuffled here in
    every epoch. `lr` suits networks with BatchNorm that are trained from scratch; transformers and fine-tuning want a
    tenth of it or less. Where they are not given, `swa_lr` is a fifth of `lr`, and the rate is warmed up over one
    epoch or a tenth of them all. `stage2` are keywords of `srepr.retrain`; those that would be taken for stage 1's
    are called `stage2_epochs` (a tenth of `epochs`, and at least 10, where not given), `stage2_lr` and so on.

    >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> x = torch.randn(220, 2) + torch.tensor([3.0, 0.0]) * (torch.arange(220) >= 200).unsqueeze(1)
    >>> y = (torch.arange(220) >= 200).long()
    >>> better = fit(model, (x, y), epochs=8, quiet=True)
    >>> better(torch.tensor([[3.0, 0.0], [-1.0, 0.0]])).argmax(1)
    tensor([1, 0])
    """
    if epochs < 1:
        raise InputError(f"epochs is {epochs}: at least 1 is needed")
    optim = Optim(
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup_epochs=min(1.0, 0.1 * epochs) if warmup_epochs is None else warmup_epochs,
        swa_lr=lr / 5 if swa_lr is None else swa_lr,
        swa_start=swa_start,
    )
    captured_from = min(int(swa_start * epochs), epochs - 1)
    # Whatever stage 2 would refuse is refused now, and not after the hours of stage 1.
    keywords: dict[str, Any] = {"epochs": stage2_epochs(epochs), "seed": seed}
    keywords |= {name.removeprefix("stage2_"): value for name, value in stage2.items()}
    how, _ = chosen(method, **keywords)
    if how.representation == "swag" and epochs - captured_from < 2:
        raise InputError(f"{epochs} epochs leave a single capture and no spread to draw from: give at least 5")
    start = begin(model, train, batch_size, classifier, seed)
    with seeded(start.batches, seed):
        counts = count_labels(train, start.classes) if class_counts is None else list(class_counts)
    if how.balance in ("la", "grw"):
        logit_offset(counts)
    posterior = descend(start, optim, epochs, captured_from, loss=loss, seed=seed, quiet=quiet, what="stage 1")
    finished = retrain(posterior, train, method, class_counts=counts, quiet=quiet, **keywords)
    return finished.to(next(chain(model.parameters(), model.buffers())).device)


def collect(
    model: nn.Module,
    train: Any,
    *,
    epochs: int = EPOCHS,
    lr: float,
    weight_decay: float = 5e-4,
    momentum: float = 0.9,
    batch_size: int = BATCH,
    loss: Loss = F.cross_entropy,
    classifier: str | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Posterior:
    """A posterior around a network that is already trained: SGD at a constant rate, captured after every epoch.

    `lr` is a rate at which the training of that network still moved, a tenth of its first one for example: a larger
    one makes the draws differ more, and costs accuracy where it is too large.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> posterior = collect(model, (torch.randn(40, 2), torch.arange(40) % 2), epochs=3, lr=0.01, quiet=True)
    >>> posterior.count
    3
    """
    if epochs < 2:
        raise InputError(f"epochs is {epochs}: two captures are the least that have a spread")
    optim = Optim(lr=lr, swa_lr=lr, momentum=momentum, weight_decay=weight_decay, warmup_epochs=0, swa_start=0)
    start = begin(model, train, batch_size, classifier, seed)
    return descend(start, optim, epochs, 0, loss=loss, seed=seed, quiet=quiet, what="collect")


@dataclass(frozen=True)
class Start:
    """A copy of the network to train, its data in batches, and the posterior that is going to be made."""

    network: nn.Module
    batches: Iterable[Any]
    posterior: Posterior
    classes: int


def begin(model: nn.Module, train: Any, batch_size: int, classifier: str | None, seed: int) -> Start:
    """Everything that the first batch tells, on a copy of the model.

    >>> start = begin(nn.Sequential(nn.LazyLinear(5)), (torch.zeros(4, 2), torch.arange(4)), 2, None, seed=0)
    >>> start.posterior.classifier, start.classes
    ('0', 5)
    """
    network, batches = duplicate(model), shuffling(train, batch_size)
    given = next(chain(network.parameters(), network.buffers()), None)
    if given is None or given.device.type == "cpu":
        network = network.to(default_device())
    if any(parameter.dtype in HALF for parameter in network.parameters()):
        network = network.float()  # a small step of SGD is lost in half precision; the posterior keeps it
    lazy = any(is_lazy(parameter) for parameter in network.parameters())
    with seeded(batches, seed):
        first = next(iter(batches), None)
        if first is None:
            raise InputError("the data has no examples: check where it is read from")
        inputs, _ = split(first)
        with torch.no_grad(), eval_mode(network):
            logits = call(network, inputs)  # also gives lazy layers their weights
        name = find_classifier(network, inputs, name=classifier)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("no parameter of the model requires a gradient: unfreeze what is to be trained")
    return Start(network, batches, Posterior(network if lazy else model, classifier=name), logits.shape[-1])


def descend(
    start: Start, optim: Optim, epochs: int, captured_from: int, *, loss: Loss, seed: int, quiet: bool, what: str
) -> Posterior:
    """SGD; the posterior over the weights after each epoch from `captured_from` on.

    >>> start = begin(nn.Sequential(nn.Linear(2, 3)), (torch.zeros(4, 2), torch.zeros(4).long()), 2, None, seed=0)
    >>> descend(start, Optim(), 4, 3, loss=F.cross_entropy, seed=0, quiet=True, what="stage 1").count
    1
    """
    network, batches = start.network, start.batches
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    normalises = any(isinstance(module, _BatchNorm) for module in network.modules())
    sgd = torch.optim.SGD(
        trained, lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, nesterov=True
    )
    steps = _count(batches, seed)
    with Progress(what, total=epochs * steps, quiet=quiet) as progress:
        for epoch in range(epochs):
            branch = "swa" if epoch >= captured_from else "trunk"
            network.train()
            # The loader's order and the network's dropout follow from the seed; no global generator moves.
            with seeded(batches, int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])):
                rate = None
                for step, (inputs, labels) in enumerate(map(split, batches), start=1):
                    progress.advance()
                    if normalises and len(labels) < 2:
                        continue  # a single example has no statistics
                    rate = learning_rate(optim, branch, epoch + min(step / steps, 1), epochs)
                    for group in sgd.param_groups:
                        group["lr"] = rate
                    logits = call(network, inputs)
                    value = loss(logits, as_labels(labels, logits.shape[-1]).to(logits.device))
                    sgd.zero_grad()
                    value.backward()  # type: ignore[no-untyped-call]
                    sgd.step()
            if rate is None:
                raise InputError("no batch has two examples, which BatchNorm needs: raise the batch size")
            if not all(parameter.isfinite().all() for parameter in trained):
                raise InputError(f"the training diverged in epoch {epoch}, at a rate of {rate:.3g}: lower lr")
            if branch == "swa":
                start.posterior.update(network)
    return start.posterior


def _count(batches: Iterable[Any], seed: int) -> int:
    """How many batches there are; those of a stream that does not say are read once."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        with seeded(batches, seed):
            return sum(1 for _ in batches)


def shuffling(train: Any, batch_size: int) -> Iterable[Any]:
    """Batches of the data in a new order each time; a DataLoader or a list of batches is taken as it is.

    >>> len(shuffling((torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64)), batch_size=4))
    3
    """
    batches = loader(train, batch_size=batch_size)
    if batches is train or not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return batches
    return DataLoader(batches.dataset, batch_size=batch_size, shuffle=True)
