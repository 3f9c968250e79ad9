"""Stage 2, the classifier: a head on frozen features [M, B, L] (paper, section 4).

    L = (1 - w) L_CE + w L_KD

A linear head is the solution of this problem with an L2 penalty (`srepr.solver`). Other heads, and linear ones with
`solver="sgd"`, are trained as in the paper: SGD with Nesterov momentum on a cosine to 0. It does not matter where the
features come from: cached, computed anew in every epoch, or passed in as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from srepr import heads
from srepr.balance import balancing
from srepr.calibration import Calibration
from srepr.config import BATCH_SIZE, Retrain, default_penalty, stage2_epochs
from srepr.data.loaders import as_labels
from srepr.data.sampling import chunks, epoch_batches
from srepr.decisions.held import Held
from srepr.errors import InputError
from srepr.features import EpochFeatures, FeatureSource, together
from srepr.methods import DEFAULT, Method
from srepr.models.cosine import Cosine
from srepr.objective import srepr_loss
from srepr.progress import Progress
from srepr.representation import EXPLODED, Diverged
from srepr.selection import Choice, Split, choose, cross_validation, deterministic, validation
from srepr.solver import UNCHANGED, Distillation, Problem


@dataclass(frozen=True)
class Retrained:
    """A head, and how it was made: by which method with which settings, and how these were chosen."""

    head: nn.Module
    method: Method
    settings: Retrain
    choice: Choice | None = None
    held: Held | None = None
    """Logits on the held-out examples, of the head or, if it is trained on them as well, of heads that are not."""

    @property
    def temperature(self) -> float:
        """The temperature of the Dirichlet that the head's logits parametrise."""
        return self.settings.temperature / (1.0 if self.choice is None else self.choice.score.calibration.temperature)


@dataclass(frozen=True)
class Joined:
    """The examples of two sources as one, those of the second last.

    >>> from srepr.features import Given
    >>> some = Given(np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 1]))
    >>> Joined(some, some).epoch(0).labels
    array([0, 1, 1, 0, 1, 1])
    """

    first: FeatureSource
    second: FeatureSource

    def epoch(self, number: int) -> EpochFeatures:
        """The features for that epoch, in memory."""
        one, two = self.first.epoch(number), self.second.epoch(number)
        return EpochFeatures(
            np.concatenate([one.labels, two.labels]),
            [np.concatenate(pair) for pair in zip(one.stochastic, two.stochastic, strict=True)],
            np.concatenate([one.mean, two.mean]),
        )


def retrain_head(
    source: FeatureSource,
    layer: nn.Linear | Cosine,
    counts: Sequence[int],
    methods: Mapping[str, Method],
    settings: Retrain,
    *,
    held: EpochFeatures | None = None,
    joining: FeatureSource | None = None,
    unseen: bool = False,
    quiet: bool = True,
) -> Retrained:
    """Choose among the methods and penalties, then train the head of the winner on all of `source`.

    The choice is made on the validation features `held`, or by cross-validation if the network has not been trained on
    these data (`unseen`). Without either there is nothing to choose on: the default one of several methods is taken,
    with the default penalty. A penalty that is set is kept.

    The examples of `joining`, those of `held` as stage 2 sees training examples, are trained on as well once the
    choice is made. They are few, but stage 1 has not fitted their features (results/joined.md).
    """
    splits, note = list[Split](), ""
    if choosable(methods, settings, layer) and (held is not None or unseen):
        features, classes = together(source, settings.views), len(counts)
        splits, note = (
            cross_validation(features, classes, seed=settings.seed)
            if held is None
            else validation(features, held, classes)
        )
    if not splits:
        how = next(methods[name] for name in (*DEFAULT, *methods) if name in methods)
        return Retrained(train_head(source, layer, counts, how, settings, quiet=quiet), how, settings)
    choice = choose(splits, note, methods, len(counts), settings, quiet=quiet)
    winner = choice.score.candidate
    distil = winner.distillation
    settings = replace(
        settings,
        penalty=winner.penalty,
        distill_weight=settings.distill_weight if distil is None else distil.weight,
    )
    if joining is not None:
        source = Joined(source, joining)
        counts = (np.asarray(counts) + np.bincount(joining.epoch(0).labels, minlength=len(counts))).tolist()
    head = train_head(
        source, layer, counts, winner.method, settings, calibration=choice.score.calibration, quiet=quiet
    )
    if held is None or joining is not None:  # what heads said that were solved without these examples
        return Retrained(head, winner.method, settings, choice, Held(choice.score.logits, choice.score.labels))
    labels = torch.tensor(held.labels)
    with torch.no_grad():
        logits = torch.cat([head(held.batch(part)[1]) for part in chunks(len(labels))])
    return Retrained(head, winner.method, settings, choice, Held(logits, labels))


def train_head(
    source: FeatureSource,
    layer: nn.Linear | Cosine,
    counts: Sequence[int],
    how: Method,
    settings: Retrain,
    *,
    calibration: Calibration = UNCHANGED,
    quiet: bool = True,
) -> nn.Module:
    """The head that the method makes of the stage-1 classifier on these features; frozen, in float32 on the CPU.

    The head of a cosine classifier is a cosine one, trained by SGD. The heads of several experts are trained together,
    on the averaged logits that are also the prediction. `calibration` is that of a solved head.

    >>> import numpy as np
    >>> from srepr.features import Given
    >>> from srepr.methods import METHODS
    >>> features, labels = np.eye(2, dtype=np.float32).repeat(50, 0), np.arange(2).repeat(50)
    >>> head = train_head(Given(features, labels), nn.Linear(2, 2), [50, 50], METHODS["crt"], Retrain())
    >>> head(torch.eye(2)).argmax(1)
    tensor([0, 1])
    """
    weight = layer.weight.detach().float().cpu()
    bias = None if layer.bias is None else layer.bias.detach().float().cpu()
    scale = layer.scale.float().cpu() if isinstance(layer, Cosine) else None
    if len(counts) != len(weight):
        raise InputError(f"there are {len(counts)} class counts for a classifier of {len(weight)} classes.")
    if how.head == "tau-norm":  # a cosine classifier stays as it is: lengths do not count
        norm = heads.tau_norm(weight, settings.tau) if scale is None else Cosine(weight, scale)
        return norm.requires_grad_(False)
    if how.head == "ncm":
        every = source.epoch(0)
        parts = chunks(len(every.labels))
        batches = ((every.batch(part)[1], torch.from_numpy(every.labels[part])) for part in parts)
        return heads.nearest_class_mean(batches, len(counts), 30.0 if scale is None else scale).requires_grad_(False)
    if solvable(how, settings, layer):
        features = together(source, settings.views)
        if how.representation == "deterministic":
            features = deterministic(features)
        problem = Problem(features, counts, how.balance, rho=settings.rho)
        distil = Distillation(settings.distill_weight, settings.temperature) if how.distill else None
        penalty = default_penalty(len(counts)) if settings.penalty is None else settings.penalty
        return problem.linear(problem.solve(penalty=penalty, distillation=distil), calibration)
    head = heads.build(how.head, weight=weight, bias=bias, start=how.start, seed=settings.seed, scale=scale)
    return _descend(head, source, counts, how, settings, quiet=quiet).requires_grad_(False)


def check_samples(methods: Mapping[str, Method], samples: int) -> None:
    """Raise an InputError if a method would distil a single representation into itself.

    >>> from srepr.methods import METHODS
    >>> check_samples({"srepr": METHODS["srepr"]}, 1)
    Traceback (most recent call last):
    srepr.errors.InputError: `samples` is 1: srepr distils several representations. Raise it, or turn distillation off.
    """
    for name, how in methods.items():
        if how.distill and samples < 2:
            raise InputError(
                f"`samples` is {samples}: {name} distils several representations. Raise it, or turn distillation off."
            )


def choosable(methods: Mapping[str, Method], settings: Retrain, layer: nn.Module) -> bool:
    """Whether there is something to choose: several methods or no set penalty, and heads that are solved.

    >>> from srepr.methods import METHODS
    >>> choosable({"la": METHODS["la"]}, Retrain(), nn.Linear(2, 2))
    True
    """
    solved = all(solvable(how, settings, layer) for how in methods.values())
    return solved and (len(methods) > 1 or settings.penalty is None)


def solvable(how: Method, settings: Retrain, layer: nn.Module) -> bool:
    """Whether the head is the solution of a convex problem rather than the end of a training.

    >>> from srepr.methods import METHODS
    >>> [solvable(METHODS[name], Retrain(), nn.Linear(2, 2)) for name in ("la", "lws")]
    [True, False]
    """
    return how.head == "linear" and settings.solver == "exact" and not isinstance(layer, Cosine)


def _descend(
    head: nn.Module, source: FeatureSource, counts: Sequence[int], how: Method, settings: Retrain, *, quiet: bool
) -> nn.Module:
    """The head after SGD on the balanced loss."""
    balance = balancing(how.balance, counts, settings.rho)
    sgd = torch.optim.SGD(
        head.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay if how.head == "linear" else 0.0,
        nesterov=True,
    )
    epochs = settings.epochs or stage2_epochs(0)
    limit = EXPLODED * math.log(max(len(counts), 2)) * (1 if balance.weight is None else balance.weight.max().item())
    if not settings.on_the_fly:  # made before the epochs are timed: features have a progress of their own
        for view in range(min(settings.views, epochs)):
            source.epoch(view)
    with Progress("re-train", total=epochs, quiet=quiet) as progress:
        for epoch in range(epochs):
            features = source.epoch(epoch)
            if how.representation == "deterministic":
                features = deterministic(features)
            labels = as_labels(features.labels, classes=len(counts))
            order = epoch_batches(
                features.labels,
                batch_size=settings.batch_size or BATCH_SIZE,
                seed=settings.seed,
                epoch=epoch,
                balanced=balance.sampling,
            )
            for step, indices in enumerate(order):
                done = (epoch + step / len(order)) / epochs
                for group in sgd.param_groups:
                    group["lr"] = settings.lr * 0.5 * (1 + math.cos(math.pi * done))
                stochastic, mean = features.batch(indices)
                loss = srepr_loss(
                    head(stochastic),
                    head(mean) if how.distill else None,
                    labels[indices],
                    weight=balance.weight,
                    offset=balance.offset,
                    distill_weight=settings.distill_weight,
                    temperature=settings.temperature,
                )
                if not loss.item() < limit:
                    remedy = f" at temperature {settings.temperature:g}. Raise `temperature`, or lower" * how.distill
                    raise Diverged(
                        f"the re-training diverged in epoch {epoch}, step {step}: the loss became {loss.item():.3g}"
                        f"{remedy or '. Lower'} `lr`."
                    )
                sgd.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                sgd.step()
            progress.advance()
    return head
