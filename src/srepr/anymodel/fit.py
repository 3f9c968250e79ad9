"""Stage 1 around your own network: both stages in one call, or a posterior around a network that is already trained.

    fit       SGD on a warmed-up cosine, SWA from 75 % on, then stage 2            (paper, sections 2 and 4)
    collect   a few epochs of SGD at a constant rate, captured after each          (paper, appendix B.4)

Any module, any loader and any loss of the form (logits, labels) -> scalar work. The given model is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, IterableDataset, Subset

from srepr.anymodel.network import HALF
from srepr.anymodel.retrain import chosen, retrain
from srepr.balance import balancing
from srepr.classifier import Classifier
from srepr.config import BATCH_SIZE, COLLECT_EPOCHS, Optim, first_capture, stage2_epochs
from srepr.data.examples import Examples
from srepr.data.inputs import seeded
from srepr.data.loaders import as_labels, class_names, count_labels, loader, numbered, shuffled, split
from srepr.data.longtail import stratified_holdout
from srepr.errors import InputError, check_count
from srepr.models.call import call, eval_mode
from srepr.models.hardware import default_device
from srepr.models.split import duplicate, find_classifier
from srepr.posterior import Posterior
from srepr.progress import Progress
from srepr.representation import Batch, Diverged, Epoch, Learner, Loss, descend, freeze, optimizer_for, plan
from srepr.retraining import check_samples

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
SMALLEST_HELD_OUT = 10  # examples: of a smaller class none can be spared


@torch.inference_mode(False)
@torch.enable_grad()
def fit(
    model: nn.Module,
    train: Any,
    *,
    epochs: int,
    method: str = "auto",
    validation: Any = None,
    lr: float = 0.1,
    swa_lr: float | None = None,
    weight_decay: float = 5e-4,
    momentum: float = 0.9,
    warmup_epochs: float | None = None,
    swa_start: float = 0.75,
    batch_size: int = BATCH_SIZE,
    loss: Loss = F.cross_entropy,
    optimizer: MakeOptimizer | None = None,
    freeze: str | None = None,
    classifier: str | None = None,
    class_counts: Iterable[int] | None = None,
    seed: int = 0,
    quiet: bool = False,
    **stage2: Any,
) -> Classifier:
    """Train a network from where it stands and re-train its classifier; returns a module that is called like yours.

    `train` is a DataLoader, which keeps its order and batches, or a Dataset or (inputs, labels), which is shuffled in
    every epoch. A set of `srepr.data` is also augmented, anew in every epoch. Labels of (inputs, labels) may be class
    names, numbered in sorted order. `method="auto"` chooses the re-training on `validation` (see `srepr.retrain`).
    Without it, a tenth of each class with at least ten examples is held out of all but a DataLoader. The default `lr`
    suits networks with BatchNorm that are trained from scratch; transformers and fine-tuning want a tenth of it or
    less. `swa_lr` defaults to a fifth of `lr`, and the warm-up to one epoch, at most a tenth of all.

    `optimizer` is a function from parameters to a torch Optimizer, instead of SGD: `lambda p: AdamW(p, lr=1e-4)`. Its
    learning rates replace `lr` and follow the same schedule. `freeze` names layers that keep their weights and
    BatchNorm statistics, with commas between. `stage2` takes the keywords of `srepr.retrain`; those that stage 1 has
    as well are prefixed: `stage2_epochs` (default: a tenth of `epochs`, at least 10), `stage2_lr`,
    `stage2_batch_size` and so on.

        better = srepr.fit(model, loader, epochs=100)

    >>> fit(nn.Linear(2, 2), (torch.zeros(4, 2), [0, 0, 0, 1]), epochs=100, method="sreper")
    Traceback (most recent call last):
    srepr.errors.InputError: unknown method 'sreper'; did you mean srepr? Known: auto, crt, lws, la, ...
    """
    check_count("epochs", epochs)
    optim = Optim(
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup_epochs=min(1.0, 0.1 * epochs) if warmup_epochs is None else warmup_epochs,
        swa_lr=lr / 5 if swa_lr is None else swa_lr,
        swa_start=swa_start,
    )
    schedule = plan(epochs, first_capture(swa_start, epochs))
    # Whatever stage 2 would refuse is refused now, and not after the hours of stage 1.
    size = getattr(train, "batch_size", None) or batch_size  # stage 2 has the batches of stage 1, also a DataLoader's
    keywords: dict[str, Any] = {"epochs": stage2_epochs(epochs), "batch_size": size, "seed": seed}
    keywords |= {name.removeprefix("stage2_"): value for name, value in stage2.items()}
    try:
        methods, settings = chosen(method, **keywords)
    except InputError as error:
        raise InputError(_as_passed(str(error), stage2)) from None
    captures = [epoch.branch for epoch in schedule].count("swa")
    if captures < 2 and method != "auto" and any(how.representation == "swag" for how in methods.values()):
        raise InputError(f"`epochs` is {epochs}: a single capture has no spread to draw from; at least 5 are needed")
    if captures > 1:
        check_samples(methods, settings.draws)
    if method == "auto" and validation is None:
        train, validation = hold_out(train, seed)
    start = begin(model, train, batch_size, classifier, seed, freeze)
    learning = optimizer_of(start.network, optim, optimizer)
    validation = numbered(validation, class_names(train, start.classes))
    with seeded(start.batches, seed):
        counts = count_labels(train, start.classes) if class_counts is None else list(class_counts)
    for how in methods.values():
        balancing(how.balance, counts, settings.rho)
    posterior = captured(start, optim, schedule, loss, learning, seed=seed, quiet=quiet, what="stage 1")
    finished = retrain(posterior, train, method, validation=validation, class_counts=counts, quiet=quiet, **keywords)
    return finished.to(next(chain(model.parameters(), model.buffers())).device)


@torch.inference_mode(False)
@torch.enable_grad()
def collect(
    model: nn.Module,
    train: Any,
    *,
    epochs: int = COLLECT_EPOCHS,
    lr: float,
    weight_decay: float = 5e-4,
    momentum: float = 0.9,
    batch_size: int = BATCH_SIZE,
    loss: Loss = F.cross_entropy,
    optimizer: MakeOptimizer | None = None,
    freeze: str | None = None,
    classifier: str | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Posterior:
    """A posterior around a network that is already trained: SGD at a constant rate, captured after every epoch.

    Choose an `lr` at which the training still moved, for example a tenth of its initial rate. A larger one makes the
    draws differ more; one that is too large costs accuracy. `optimizer` and `freeze` are as in `fit`.

        posterior = srepr.collect(model, loader, lr=0.01)

    >>> collect(nn.Linear(2, 2), (torch.zeros(4, 2), [0, 0, 0, 1]), epochs=1, lr=0.01)
    Traceback (most recent call last):
    srepr.errors.InputError: `epochs` is 1: at least two captures are needed for a spread
    """
    if epochs < 2:
        raise InputError(f"`epochs` is {epochs}: at least two captures are needed for a spread")
    check_count("epochs", epochs)
    optim = Optim(lr=lr, swa_lr=lr, momentum=momentum, weight_decay=weight_decay, warmup_epochs=0, swa_start=0)
    start = begin(model, train, batch_size, classifier, seed, freeze)
    learning = optimizer_of(start.network, optim, optimizer)
    try:
        return captured(start, optim, plan(epochs, 0), loss, learning, seed=seed, quiet=quiet, what="collect")
    except Diverged as error:
        raise Diverged(str(error).replace("`swa_lr`", "`lr`")) from None  # there is one rate here


def hold_out(train: Any, seed: int) -> tuple[Any, Any]:
    """A tenth of each class with at least ten examples is held out; nothing of a DataLoader, a stream or few examples.

    >>> kept, held = hold_out((torch.zeros(24, 2), [0] * 20 + [1] * 4), seed=0)
    >>> len(kept), len(held)
    (22, 2)
    """
    batches = loader(train)
    if batches is train or not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return train, None
    if isinstance(train, Examples):
        labels = train.labels
    else:
        labels = torch.cat([torch.empty(0, dtype=torch.int64), *(split(batch)[1] for batch in batches)]).numpy()
    counts = np.bincount(labels)
    enough = np.flatnonzero(counts[labels] >= SMALLEST_HELD_OUT)
    if not len(enough):
        return train, None
    held = enough[stratified_holdout(labels[enough], 0.1, seed=seed)[1]]
    kept = np.setdiff1d(np.arange(len(labels)), held)
    if isinstance(train, Examples):
        return train.subset(kept), train.subset(held)
    return Subset(batches.dataset, kept.tolist()), Subset(batches.dataset, held.tolist())


@dataclass(frozen=True)
class Start:
    """A copy of the network to train, its data in batches, and its empty posterior."""

    network: nn.Module
    batches: Iterable[Any]
    posterior: Posterior
    classes: int


def begin(
    model: nn.Module, train: Any, batch_size: int, classifier: str | None, seed: int, frozen: str | None = None
) -> Start:
    """Copy the model and learn from the first batch what its classifier and its classes are."""
    network, batches = duplicate(model), shuffled(train, batch_size=batch_size)
    given = next(chain(network.parameters(), network.buffers()), None)
    if given is None or given.device.type == "cpu":
        network = network.to(default_device())
    if any(parameter.dtype in HALF for parameter in network.parameters()):
        network = network.float()  # a small step of SGD is lost in half precision; the posterior keeps it
    lazy = any(is_lazy(parameter) for parameter in network.parameters())
    with seeded(batches, seed):
        first = next(iter(batches), None)
        if first is None:
            raise InputError("the data is empty: check its path or Dataset")
        inputs, _ = split(first)
        with torch.no_grad(), eval_mode(network):
            logits = call(network, inputs)  # also gives lazy layers their weights
        name = find_classifier(network, inputs, name=classifier)
    freeze(network, frozen or "")
    class_names(train, logits.shape[-1])  # refused here if there are more or fewer
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("no parameter of the model requires a gradient: unfreeze those to train")
    posterior = Posterior(network if lazy else model, classifier=name)
    freeze(posterior.model, frozen or "")  # stage 2 keeps the same statistics
    return Start(network, batches, posterior, logits.shape[-1])


def optimizer_of(network: nn.Module, optim: Optim, make: MakeOptimizer | None) -> torch.optim.Optimizer:
    """The paper's optimiser, or the one that `make` gives for the trainable parameters, with the same schedule.

    >>> adam = optimizer_of(nn.Linear(2, 2), Optim(lr=0.1), lambda parameters: torch.optim.Adam(parameters, lr=0.02))
    >>> round(adam.param_groups[0]["share"], 3)
    0.2
    """
    if make is None:
        return optimizer_for(network, optim)
    made = make([parameter for parameter in network.parameters() if parameter.requires_grad])
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"`optimizer` returned {type(made).__name__}: it must return a torch Optimizer")
    for group in made.param_groups:
        group["share"] = float(group["lr"]) / optim.lr
    return made


def captured(
    start: Start,
    optim: Optim,
    schedule: list[Epoch],
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    *,
    seed: int,
    quiet: bool,
    what: str,
) -> Posterior:
    """The posterior over the weights that the schedule captures."""
    network, data = start.network, start.batches
    normalises = any(isinstance(module, _BatchNorm) for module in network.modules())
    steps = _count(data, seed)

    def batches(index: int, epoch: Epoch, first: int) -> Iterator[Batch]:
        fed, seen = False, 0
        # The loader's order and the network's dropout follow from the seed; no global generator moves.
        with seeded(data, int(np.random.SeedSequence((seed, epoch.number)).generate_state(1)[0])):
            for inputs, labels in map(split, data):
                seen += len(labels)
                if normalises and len(labels) < 2:
                    progress.advance()
                    continue  # a single example has no statistics
                fed = True
                labels = as_labels(labels, start.classes)
                yield Batch(inputs, labels, labels)
        if not fed:
            few = "there are too few training examples: add some" if seen < 2 else "raise `batch_size`"
            raise InputError(f"no batch has two examples, which BatchNorm needs: {few}")

    learner = Learner(network, optimizer, start.posterior)
    with Progress(what, total=len(schedule) * steps, quiet=quiet) as progress:
        for _ in descend(learner, schedule, batches, optim=optim, loss=loss, steps=steps, advance=progress.advance):
            pass
    return start.posterior


def _as_passed(message: str, stage2: Mapping[str, Any]) -> str:
    """A message of stage 2 with its arguments under the names that `fit` was given."""
    return re.sub(
        r"`(\w+)`", lambda found: f"`stage2_{found[1]}`" if f"stage2_{found[1]}" in stage2 else found[0], message
    )


def _count(batches: Iterable[Any], seed: int) -> int:
    """How many batches there are; a stream that does not say is read once."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        with seeded(batches, seed):
            return sum(1 for _ in batches)
