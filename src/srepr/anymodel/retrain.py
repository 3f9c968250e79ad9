"""Stage 2 around your own network, or on your own embeddings: `srepr.retrain`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.anymodel.network import Prepared, prepare
from srepr.calibration import class_weights
from srepr.classifier import Classifier
from srepr.config import BATCH_SIZE, Retrain, stage2_epochs
from srepr.data.inputs import LoaderInputs, seeded
from srepr.data.loaders import as_labels, class_names, count_labels, loader, numbered, numbers, shuffled
from srepr.errors import InputError, unknown
from srepr.features import EpochFeatures, FeatureSource, Given, NetworkFeatures
from srepr.methods import Method, Representation, Start, choices
from srepr.models.cosine import Cosine
from srepr.posterior import Posterior
from srepr.retraining import check_samples, retrain_head
from srepr.storage.arrays import ArrayFolder


@torch.inference_mode(False)
@torch.enable_grad()
def retrain(
    posterior_or_model: Posterior | nn.Module,
    train: Any,
    method: str = "auto",
    *,
    validation: Any = None,
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

    `train` is a DataLoader or Dataset of (input, label), or of dicts with "labels", or a set of `srepr.data`, which is
    augmented. A posterior is averaged, and its BatchNorm statistics are recomputed on `train`; a plain model is taken
    as it is and has nothing to draw from. With embeddings only, pass an `nn.Linear`, which may be untrained, and
    (features, labels), features [N, L] or [M, N, L]. Labels of (inputs, labels) may be class names: class k is the
    k-th in sorted order, and `class_names` of the result lists them.

    `method="auto"` chooses among la, crt and srepr, and their penalty, on `validation`, data that the network was not
    trained on. Without it, embeddings and the features of networks with an untrained classifier are cross-validated;
    for other networks there is nothing to choose on, and `auto` is srepr for a posterior and la for a model, with the
    default penalty. `choice` of the result is the table of the candidates. `validation` also chooses the penalty of a
    named method.

    `balance`, `head`, `start`, `representation` and `distill` override the choices of a named method. `settings` takes
    the other fields of `srepr.config.Retrain`. With embeddings, `samples`, `views` and whatever else concerns networks
    have no effect: the representations are the M that you pass. A cosine classifier stays one.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> data = (torch.randn(60, 2), torch.tensor([0] * 50 + [1] * 10))
    >>> better = retrain(model, data, "la")
    >>> better.predict(torch.zeros(1, 2)).probabilities.shape
    torch.Size([1, 2])
    """
    changes = {"head": head, "start": start, "balance": balance, "representation": representation, "distill": distill}
    numbers = {"epochs": epochs, "samples": samples, "seed": seed, "batch_size": batch_size}
    methods, wanted = chosen(method, **changes, **numbers, **settings)
    held, ready = None, None
    source: FeatureSource
    if isinstance(posterior_or_model, nn.Linear | Cosine):
        layer = posterior_or_model
        names = class_names(train, len(layer.weight))
        source = given_features(train, layer, seed)
        draws, unseen = source.features.ndim == 3 and len(source.features) > 1, True
        methods = possible(method, methods, draws=draws, embeddings=True)
        if validation is not None:
            held = given_features(numbered(validation, names), layer, seed).epoch(0)
        if class_counts is None:
            class_counts = np.bincount(source.labels, minlength=len(layer.weight)).tolist()
    else:
        draws = isinstance(posterior_or_model, Posterior) and posterior_or_model.count > 1
        methods = possible(method, methods, draws=draws)
        check_samples(methods, wanted.draws)
        inputs = LoaderInputs(shuffled(train, seed=seed), seed)
        ready = prepare(posterior_or_model, inputs, classifier)
        layer = ready.layer
        names = class_names(train, len(layer.weight))
        if class_counts is None:
            with seeded(train, seed):
                class_counts = count_labels(train, len(layer.weight))
        several = [how.representation for how in methods.values() if how.representation != "deterministic"]
        reads: Representation = several[0] if several else "deterministic"
        source = network_features(ready, inputs, reads, wanted, quiet=quiet)
        if validation is not None:
            plain = LoaderInputs(loader(numbered(validation, names)), seed)
            held = network_features(ready, plain, "deterministic", wanted, quiet=quiet).epoch(0)
        unseen = held is None and method == "auto" and untrained(layer, source.epoch(0))
    made = retrain_head(
        source,
        layer,
        class_counts,
        methods,
        wanted,
        held=held,
        unseen=unseen and method == "auto",
        quiet=quiet,
    )
    finished = Classifier(
        made.head.to(layer.weight) if ready is None else ready.finished(made.head),
        temperature=made.temperature,
        classes=len(class_counts),
        expects=made.method.expected_prior(class_counts, wanted.rho),
        class_names=names,
        held=made.held,
    ).eval()
    finished.choice = None if made.choice is None else made.choice.table
    return finished


def possible(method: str, methods: dict[str, Method], *, draws: bool, embeddings: bool = False) -> dict[str, Method]:
    """The methods, those of `auto` only as far as there are several representations; others without them are refused.

    >>> from srepr.methods import METHODS
    >>> possible("srepr", {"srepr": METHODS["srepr"]}, draws=False, embeddings=True)
    Traceback (most recent call last):
    srepr.errors.InputError: srepr needs several representations of each example, and there is one. Pass features ...
    """
    if method == "auto":
        return choices("auto", draws=draws)
    for name, how in methods.items():
        if embeddings and not draws and how.representation != "deterministic":
            raise InputError(
                f"{name} needs several representations of each example, and there is one. Pass features [M, N, L] of M"
                " networks or views, or take the method la as it is."
            )
        if how.representation == "swag" and not draws:
            raise InputError(
                f"{name} draws from a posterior, and there is none. Pass a srepr.Posterior with at least two captures"
                " (srepr.collect makes one), or set `representation` to 'augment', or `method` to la."
            )
    return methods


def network_features(
    ready: Prepared, inputs: LoaderInputs, representation: Representation, settings: Retrain, *, quiet: bool
) -> NetworkFeatures:
    """The features of a prepared network on these inputs, kept in a temporary folder."""
    return NetworkFeatures(
        ready.network,
        ready.posterior,
        inputs,
        ArrayFolder(),
        representation,
        settings,
        device=ready.layer.weight.device,
        quiet=quiet,
    )


def untrained(layer: nn.Linear | Cosine, features: EpochFeatures) -> bool:
    """Whether the classifier does no better than chance on these data, so that its network has not seen their labels.

    >>> eye, labels = np.eye(2, dtype=np.float32).repeat(9, 0), np.arange(2).repeat(9)
    >>> layer = nn.Linear(2, 2).requires_grad_(False)
    >>> _ = layer.weight.zero_()
    >>> untrained(layer, Given(eye, labels).epoch(0))
    True
    """
    labels = torch.tensor(features.labels)
    with torch.no_grad():
        logits = layer(features.batch(np.arange(len(labels)))[1].to(layer.weight)).double().cpu()
    nll = float(class_weights(labels) @ F.cross_entropy(logits, labels, reduction="none"))
    return nll > 0.8 * math.log(max(logits.shape[1], 2))


def chosen(method: str, **keywords: Any) -> tuple[dict[str, Method], Retrain]:
    """The methods and the settings that keywords of `retrain` ask for.

    >>> chosen("srepr", balance="cbs", samples=5)[0]["srepr"].balance
    'cbs'
    >>> chosen("srepr", sampels=5)
    Traceback (most recent call last):
    srepr.errors.InputError: unknown setting of retrain 'sampels'; did you mean samples? Known: ...
    """
    changes = {entry.name: keywords.pop(entry.name, None) for entry in fields(Method)}
    known = sorted(entry.name for entry in fields(Retrain))
    for name in keywords:
        if name not in known:
            raise unknown("setting of retrain", name, known)
    return choices(method, **changes), Retrain(**keywords)


def given_features(train: Any, layer: nn.Linear | Cosine, seed: int) -> Given:
    """Your own embeddings for this classifier, from (features, labels) or batches."""
    if isinstance(train, tuple | list) and len(train) == 2 and getattr(train[0], "ndim", 0) == 3:
        features, labels = train[0], numbers(train[1])[0]
    else:
        parts = list(LoaderInputs(loader(train), seed).sweep(0))
        features, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    if features.shape[-1] != layer.weight.shape[1]:
        raise InputError(f"{layer} needs features of that length, and these are {list(features.shape)}.")
    array = features.detach().float().cpu().numpy() if isinstance(features, Tensor) else features
    return Given(array, as_labels(labels, len(layer.weight)).cpu().numpy())
