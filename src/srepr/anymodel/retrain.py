"""Stage 2 around your own network, or on your own embeddings: `srepr.retrain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from srepr.anymodel.network import prepare
from srepr.classifier import Classifier
from srepr.config import BATCH_SIZE, Retrain, stage2_epochs
from srepr.data.inputs import LoaderInputs, seeded
from srepr.data.loaders import as_labels, count_labels, loader, shuffled
from srepr.errors import InputError, unknown
from srepr.features import Given, NetworkFeatures
from srepr.methods import Method, Representation, Start
from srepr.methods import method as choose
from srepr.models.cosine import Cosine
from srepr.posterior import Posterior
from srepr.retraining import train_head
from srepr.storage.arrays import ArrayFolder


def retrain(
    posterior_or_model: Posterior | nn.Module,
    train: Any,
    method: str = "srepr",
    *,
    epochs: int = stage2_epochs(0),
    balance: str | None = None,
    samples: int = 10,
    seed: int = 0,
    head: str | None = None,
    start: Start | None = None,
    representation: Representation | None = None,
    distill: bool | None = None,
    batch_size: int = BATCH_SIZE,
    class_counts: Sequence[int] | None = None,
    classifier: str | None = None,
    quiet: bool = True,
    **settings: Any,
) -> Classifier:
    """Re-train the classifier of a network on frozen features and return a drop-in module.

    `train` is a DataLoader or Dataset of (input, label), or of dicts with "labels". A posterior is averaged, and its
    BatchNorm statistics are recomputed on `train`; a plain model is taken as it is and has nothing to draw from.
    `balance`, `head`, `start`, `representation` and `distill` override the method's own choices. `settings` takes the
    other fields of `srepr.config.Retrain`. With embeddings only, pass an `nn.Linear` and (features, labels), features
    [N, L] or [M, N, L]. A cosine classifier stays one.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> data = (torch.randn(60, 2), torch.tensor([0] * 50 + [1] * 10))
    >>> better = retrain(model, data, "la", epochs=2)
    >>> better.predict(torch.zeros(1, 2)).probabilities.shape
    torch.Size([1, 2])
    """
    choices = {"head": head, "start": start, "balance": balance, "representation": representation, "distill": distill}
    numbers = {"epochs": epochs, "samples": samples, "seed": seed, "batch_size": batch_size}
    how, wanted = chosen(method, **choices, **numbers, **settings)
    if isinstance(posterior_or_model, nn.Linear | Cosine):
        layer = posterior_or_model
        given = given_features(train, layer, seed, several=how.representation != "deterministic")
        if class_counts is None:
            class_counts = np.bincount(given.labels, minlength=len(layer.weight)).tolist()
        network = train_head(given, layer, class_counts, how, wanted, quiet=quiet).to(layer.weight)
    else:
        if how.representation == "swag" and not isinstance(posterior_or_model, Posterior):
            raise InputError(
                f"{method} draws from a posterior, and a plain model has none. Pass a srepr.Posterior that was updated"
                " during training, or one of srepr.collect, or set `representation` to 'augment'."
            )
        inputs = LoaderInputs(shuffled(train, seed=seed), seed)
        ready = prepare(posterior_or_model, inputs, classifier)
        layer = ready.layer
        if class_counts is None:
            with seeded(train, seed):
                class_counts = count_labels(train, len(layer.weight))
        source = NetworkFeatures(
            ready.network,
            ready.posterior,
            inputs,
            ArrayFolder(),
            how.representation,
            wanted,
            device=layer.weight.device,
            quiet=quiet,
        )
        network = ready.finished(train_head(source, layer, class_counts, how, wanted, quiet=quiet))
    return Classifier(
        network,
        temperature=wanted.temperature,
        classes=len(class_counts),
        expects=how.expected_prior(class_counts, wanted.rho),
    ).eval()


def chosen(method: str, **keywords: Any) -> tuple[Method, Retrain]:
    """The method and the settings that keywords of `retrain` ask for.

    >>> chosen("srepr", balance="cbs", samples=5)[0].balance
    'cbs'
    >>> chosen("srepr", sampels=5)
    Traceback (most recent call last):
    srepr.errors.InputError: unknown setting of retrain 'sampels'; did you mean samples? Known: ...
    """
    choices = {entry.name: keywords.pop(entry.name, None) for entry in fields(Method)}
    known = sorted(entry.name for entry in fields(Retrain))
    for name in keywords:
        if name not in known:
            raise unknown("setting of retrain", name, known)
    return choose(method, **choices), Retrain(**keywords)


def given_features(train: Any, layer: nn.Linear | Cosine, seed: int, *, several: bool) -> Given:
    """Your own embeddings for this classifier, from (features, labels) or batches; their mean unless `several`."""
    if isinstance(train, tuple | list) and len(train) == 2 and getattr(train[0], "ndim", 0) == 3:
        features, labels = train
    else:
        parts = list(LoaderInputs(loader(train), seed).sweep(0))
        features, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    if features.shape[-1] != layer.weight.shape[1]:
        raise InputError(f"{layer} needs features of that length, and these are {list(features.shape)}.")
    array = features.detach().float().cpu().numpy() if isinstance(features, Tensor) else features
    given = Given(array, as_labels(labels, len(layer.weight)).cpu().numpy())
    return given if several else Given(given.epoch(0).mean, given.labels)
