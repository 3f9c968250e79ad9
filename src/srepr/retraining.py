"""Stage 2, the classifier: a head is trained on frozen features [M, B, L] and nothing else (paper, section 4).

    L = (1 - w) L_CE + w L_KD,      SGD with Nesterov momentum on a cosine to 0

It does not matter where the features come from: kept from one sweep, made anew in every epoch, or handed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset

from srepr import heads
from srepr.balance import grw_weights, logit_offset, mean_one
from srepr.batches import as_labels, count_labels, loader
from srepr.classifier import Classifier
from srepr.config import Retrain
from srepr.data.sampling import epoch_batches
from srepr.errors import InputError
from srepr.features import FeatureSource, Given, NetworkFeatures, Sampling
from srepr.inputs import LoaderInputs, seeded
from srepr.methods import Balance, Head, Method, Representation, Start
from srepr.methods import method as choose
from srepr.models.cosine import Cosine
from srepr.objective import srepr_loss
from srepr.posterior import Posterior
from srepr.prepared import prepare
from srepr.progress import Progress

EXPLODED = 100.0  # times the loss of guessing, on the class with the largest weight
EPOCHS, BATCH = 10, 128  # where nothing else is said


class Diverged(InputError):  # noqa: N818  (what happened, not an error of the program)
    """The loss of a re-training is not finite any more, or absurdly large."""


def train_head(
    source: FeatureSource,
    weight: Tensor,
    bias: Tensor | None,
    counts: Sequence[int],
    how: Method,
    settings: Retrain,
    *,
    scale: Tensor | None = None,
    quiet: bool = True,
) -> nn.Module:
    """The head that the method makes of the stage-1 classifier (weight [K, L], bias [K]) on these features.

    A `scale` says that the classifier is a cosine one (`srepr.models.cosine`), and the head becomes one. The heads of
    several experts are trained together, on the averaged logits that are also the prediction.

    >>> from srepr.features import Given
    >>> from srepr.methods import METHODS
    >>> features, labels = np.eye(2, dtype=np.float32).repeat(50, 0), np.arange(2).repeat(50)
    >>> head = train_head(Given(features, labels), torch.zeros(2, 2), torch.zeros(2), [50, 50], METHODS["crt"],
    ...                   Retrain(epochs=5))
    >>> head(torch.eye(2)).argmax(1)
    tensor([0, 1])
    """
    if len(counts) != len(weight):
        raise InputError(f"there are counts of {len(counts)} classes for a classifier of {len(weight)}. Give as many.")
    weight = weight.detach().float().cpu()
    scale = None if scale is None else scale.float().cpu()
    if how.head == "tau-norm":  # of a cosine classifier it is the classifier: lengths do not count
        norm = heads.tau_norm(weight, bias, settings.tau) if scale is None else Cosine(weight, scale)
        return norm.requires_grad_(False)
    if how.head == "ncm":
        every = source.epoch(0)
        parts = np.array_split(np.arange(len(every.labels)), -(-len(every.labels) // 1024))
        batches = ((every.batch(part)[1], torch.from_numpy(every.labels[part])) for part in parts)
        return heads.nearest_class_mean(batches, len(counts), 30.0 if scale is None else scale).requires_grad_(False)
    head = heads.build(how.head, weight=weight, bias=bias, start=how.start, seed=settings.seed, scale=scale)
    offset = logit_offset(counts, settings.rho) if how.balance == "la" else None
    class_weight = mean_one(grw_weights(counts, settings.rho), counts) if how.balance == "grw" else None
    sgd = torch.optim.SGD(
        head.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.decay(len(counts)) if how.head == "linear" else 0.0,
        nesterov=True,
    )
    epochs = settings.epochs or EPOCHS
    limit = EXPLODED * math.log(max(len(counts), 2)) * (1 if class_weight is None else class_weight.max().item())
    with Progress("re-train", total=epochs, quiet=quiet) as progress:
        for epoch in range(epochs):
            features = source.epoch(epoch)
            labels = as_labels(features.labels, classes=len(counts))
            order = epoch_batches(
                features.labels,
                batch_size=settings.batch_size or BATCH,
                seed=settings.seed,
                epoch=epoch,
                balanced=how.balance == "cbs",
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
                    weight=class_weight,
                    offset=offset,
                    distill_weight=settings.distill_weight,
                    temperature=settings.temperature,
                )
                if not loss.item() < limit:
                    remedy = f" at temperature {settings.temperature:g}. Raise --temperature, or lower" * how.distill
                    raise Diverged(
                        f"the re-training diverged in epoch {epoch}, step {step}: the loss became {loss.item():.3g}"
                        f"{remedy or '. Lower'} --lr."
                    )
                sgd.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                sgd.step()
            progress.advance()
    return head.requires_grad_(False)


def retrain(
    posterior_or_model: Posterior | nn.Module,
    train: Any,
    method: str = "srepr",
    *,
    epochs: int = EPOCHS,
    balance: Balance | None = None,
    samples: int = 10,
    seed: int = 0,
    head: Head | None = None,
    start: Start | None = None,
    representation: Representation | None = None,
    distill: bool | None = None,
    class_counts: Sequence[int] | None = None,
    classifier: str | None = None,
    quiet: bool = True,
    **settings: Any,
) -> Classifier:
    """Re-train the classifier of a network on frozen features and return a drop-in module.

    `train` is a DataLoader or Dataset of (input, label), or of dicts with "labels". A posterior is averaged, and its
    BatchNorm statistics recomputed on `train`; a plain model is taken as it is, with nothing to draw from. The named
    method's choices can be changed one by one. `settings` are the fields of `srepr.config.Retrain`. Who has only
    embeddings passes their `nn.Linear` and (features, labels), features [N, L] or [M, N, L]. A classifier that is a
    cosine one stays one.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> data = (torch.randn(60, 2), torch.tensor([0] * 50 + [1] * 10))
    >>> better = retrain(model, data, "la", epochs=2)
    >>> better.predict(torch.zeros(1, 2)).probabilities.shape
    torch.Size([1, 2])
    """
    choices = {"head": head, "start": start, "balance": balance, "representation": representation, "distill": distill}
    how, wanted = chosen(method, epochs=epochs, samples=samples, seed=seed, **choices, **settings)
    if isinstance(posterior_or_model, nn.Linear | Cosine):
        layer = posterior_or_model
        given = given_features(train, layer, seed)
        if how.representation == "deterministic":
            given = Given(given.epoch(0).mean, given.labels)
        if class_counts is None:
            class_counts = np.bincount(given.labels, minlength=len(layer.weight)).tolist()
        new = train_head(
            given, layer.weight, bias_of(layer), class_counts, how, wanted, scale=scale_of(layer), quiet=quiet
        )
        return Classifier(new.to(layer.weight), temperature=wanted.temperature).eval()

    if how.representation == "swag" and not isinstance(posterior_or_model, Posterior):
        raise InputError(
            f"{method} draws from a posterior, and a plain model has none. Pass a srepr.Posterior that was updated"
            " during training, or one of srepr.collect, or representation='augment'."
        )
    inputs = LoaderInputs(shuffled(train, seed), seed)
    ready = prepare(posterior_or_model, inputs, classifier)
    layer = ready.layer
    if class_counts is None:
        with seeded(train, seed):
            class_counts = count_labels(train, len(layer.weight))
    source = NetworkFeatures(
        ready.network, ready.posterior, inputs, sampling_for(how, wanted), device=layer.weight.device, quiet=quiet
    )
    new = train_head(
        source, layer.weight, bias_of(layer), class_counts, how, wanted, scale=scale_of(layer), quiet=quiet
    )
    return Classifier(ready.finished(new), temperature=wanted.temperature).eval()


def chosen(method: str, **keywords: Any) -> tuple[Method, Retrain]:
    """The method and the settings that keywords of `retrain` ask for.

    >>> chosen("srepr", balance="cbs", samples=5)[0].balance
    'cbs'
    >>> chosen("srepr", sampels=5)
    Traceback (most recent call last):
    srepr.errors.InputError: retrain has no setting 'sampels'. Known: ...
    """
    choices = {entry.name: keywords.pop(entry.name, None) for entry in fields(Method)}
    known = {entry.name for entry in fields(Retrain)}
    if not keywords.keys() <= known:
        raise InputError(f"retrain has no setting {min(keywords.keys() - known)!r}. Known: {', '.join(sorted(known))}")
    return choose(method, **choices), Retrain(**keywords)


def sampling_for(how: Method, settings: Retrain) -> Sampling:
    """The representations that a method asks for.

    >>> from srepr.methods import METHODS
    >>> sampling_for(METHODS["la"], Retrain()).representation
    'deterministic'
    """
    return Sampling(
        representation=how.representation,
        samples=settings.samples,
        views=settings.views,
        fresh=settings.on_the_fly,
        batchnorm=settings.batchnorm,
        calibration=settings.calibration,
        seed=settings.seed,
    )


def linear_classifier(network: nn.Module, name: str) -> nn.Linear | Cosine:
    """The classifier of that name, which must be a linear layer, or one that is linear in directions.

    >>> linear_classifier(nn.Sequential(nn.ReLU()), "0")
    Traceback (most recent call last):
    srepr.errors.InputError: the classifier '0' is a ReLU. Re-training needs an nn.Linear or a srepr.models.Cosine.
    """
    layer = network.get_submodule(name)
    if not isinstance(layer, nn.Linear | Cosine):
        raise InputError(
            f"the classifier {name!r} is a {type(layer).__name__}. Re-training needs an nn.Linear or a"
            " srepr.models.Cosine."
        )
    return layer


def bias_of(layer: nn.Linear | Cosine) -> Tensor | None:
    """The bias in float32 on the CPU, where there is one."""
    return layer.bias.detach().float().cpu() if layer.bias is not None else None


def scale_of(layer: nn.Linear | Cosine) -> Tensor | None:
    """The scale of a cosine classifier; a linear one has none."""
    return layer.scale if isinstance(layer, Cosine) else None


def given_features(train: Any, layer: nn.Linear | Cosine, seed: int) -> Given:
    """A user's own embeddings for this classifier, (features, labels) or batches of them."""
    if isinstance(train, tuple | list) and len(train) == 2 and getattr(train[0], "ndim", 0) == 3:
        features, labels = train
    else:
        parts = list(LoaderInputs(loader(train), seed).sweep(0))
        features, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    if features.shape[-1] != layer.weight.shape[1]:
        raise InputError(f"{layer} needs features of that length, and these are {list(features.shape)}.")
    array = features.detach().float().cpu().numpy() if isinstance(features, Tensor) else features
    return Given(array, as_labels(labels, len(layer.weight)).cpu().numpy())


def shuffled(train: Any, seed: int) -> Iterable[Any]:
    """Batches of the data; what comes without an order of its own gets a random one, as BatchNorm statistics need it.

    >>> [labels.tolist() for _, labels in shuffled((torch.zeros(5, 2), [0, 0, 0, 1, 1]), seed=0)]
    [[0, 1, 1, 0, 0]]
    """
    batches = loader(train)
    if batches is train or not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return batches
    order = np.random.default_rng(seed).permutation(len(batches.dataset))  # type: ignore[arg-type]
    return loader(Subset(batches.dataset, order.tolist()))
