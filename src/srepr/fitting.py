"""The method around a network of somebody else's, without a run folder: both stages at once, or a posterior collected
around a network that is already trained.

    fit       SGD on a warmed-up cosine, SWA from 75 % on, then stage 2            (paper, sections 2 and 4)
    collect   a few epochs of SGD at a constant rate, captured after each          (paper, appendix B.4)

Any module, loader and loss of the shape (inputs, labels) -> logits works; what is given is never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sized
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, IterableDataset

from srepr.batches import call, loader, split
from srepr.classifier import Classifier
from srepr.config import Optim
from srepr.devices import default_device
from srepr.errors import InputError
from srepr.inputs import seeded
from srepr.models.split import find_classifier, placed, unwrap
from srepr.posterior import Posterior
from srepr.progress import Progress
from srepr.representation import is_finite, learning_rate
from srepr.retraining import BATCH, EPOCHS, retrain

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
    warmup_epochs: float = 1.0,
    swa_start: float = 0.75,
    batch_size: int = BATCH,
    loss: Loss = F.cross_entropy,
    classifier: str | None = None,
    seed: int = 0,
    quiet: bool = False,
    **stage2: Any,
) -> Classifier:
    """Train a network from where it stands and re-train its classifier; the finished module, called like the given one.

    `train` is a DataLoader, which keeps its own order and batches, or a Dataset or (inputs, labels), shuffled here in
    every epoch. `swa_lr` is a fifth of `lr` where it is not given. `stage2` are the keywords of `srepr.retrain`, its
    epochs (as `stage2_epochs`) a tenth of `epochs`, and at least 10, where they are not given.

    >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> x = torch.randn(220, 2) + torch.tensor([3.0, 0.0]) * (torch.arange(220) >= 200).unsqueeze(1)
    >>> y = (torch.arange(220) >= 200).long()
    >>> better = fit(model, (x, y), epochs=8, quiet=True)
    >>> better(torch.tensor([[3.0, 0.0], [-1.0, 0.0]])).argmax(1)
    tensor([1, 0])
    """
    optim = Optim(
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup_epochs=min(warmup_epochs, 0.1 * epochs),
        swa_lr=lr / 5 if swa_lr is None else swa_lr,
        swa_start=swa_start,
    )
    if epochs < 1:
        raise InputError(f"epochs is {epochs}: at least 1 is needed")
    stage2_epochs = stage2.pop("stage2_epochs", max(EPOCHS, round(0.1 * epochs)))
    captured_from = min(int(optim.swa_start * epochs), epochs - 1)
    posterior = _descend(
        model,
        train,
        optim,
        epochs,
        captured_from=captured_from,
        batch_size=batch_size,
        loss=loss,
        classifier=classifier,
        seed=seed,
        quiet=quiet,
        what="stage 1",
    )
    if posterior.count < 2 and method == "srepr":
        raise InputError(f"{epochs} epochs leave a single capture and no spread to draw from: give at least 5.")
    return retrain(posterior, train, method, epochs=stage2_epochs, seed=seed, quiet=quiet, **stage2)


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
    return _descend(
        model,
        train,
        optim,
        epochs,
        captured_from=0,
        batch_size=batch_size,
        loss=loss,
        classifier=classifier,
        seed=seed,
        quiet=quiet,
        what="collect",
    )


def _descend(
    model: nn.Module,
    train: Any,
    optim: Optim,
    epochs: int,
    *,
    captured_from: int,
    batch_size: int,
    loss: Loss,
    classifier: str | None,
    seed: int,
    quiet: bool,
    what: str,
) -> Posterior:
    """SGD on a copy of the model; the posterior over its weights after each epoch from `captured_from` on."""
    batches = shuffling(train, batch_size)
    first = next(iter(batches), None)
    if first is None:
        raise InputError("the data has no examples: check where it is read from")
    posterior = Posterior(model, classifier=find_classifier(model, split(first)[0], name=classifier))
    network = copy.deepcopy(unwrap(model)).to(default_device())
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in network.parameters()):
        network = network.float()  # half precision is too coarse for steps of SGD; the posterior keeps it
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("no parameter of the model requires a gradient: unfreeze what is to be trained")
    like = next(parameter for parameter in trained if parameter.is_floating_point())
    normalises = any(isinstance(module, _BatchNorm) for module in network.modules())
    sgd = torch.optim.SGD(
        trained, lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, nesterov=True
    )
    steps = len(batches) if isinstance(batches, Sized) else sum(1 for _ in batches)
    with Progress(what, total=epochs * steps, quiet=quiet) as progress:
        for epoch in range(epochs):
            branch = "swa" if epoch >= captured_from else "trunk"
            network.train()
            # The loader's order and the network's dropout follow from the seed; no global generator moves.
            with seeded(batches, int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])):
                for step, (inputs, labels) in enumerate(map(split, batches), start=1):
                    progress.advance()
                    if normalises and len(labels) < 2:
                        continue  # a single example has no statistics
                    rate = learning_rate(optim, branch, epoch + min(step / steps, 1), epochs)
                    for group in sgd.param_groups:
                        group["lr"] = rate
                    value = loss(call(network, placed(inputs, like)), labels.to(like.device))
                    sgd.zero_grad()
                    value.backward()  # type: ignore[no-untyped-call]
                    sgd.step()
            if not is_finite(network):
                raise InputError(f"the training diverged in epoch {epoch}, at a rate of {rate:.3g}. Lower lr.")
            if branch == "swa":
                posterior.update(network)
    return posterior


def shuffling(train: Any, batch_size: int) -> Iterable[Any]:
    """Batches of the data in a new order each time; a DataLoader or a list of batches is taken as it is.

    >>> len(shuffling((torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64)), batch_size=4))
    3
    """
    batches = loader(train)
    if batches is train or not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return batches
    return DataLoader(batches.dataset, batch_size=batch_size, shuffle=True)
