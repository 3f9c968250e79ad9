"""`srepr evaluate`: the metrics of every classifier of a run folder, or of one file on labelled arrays."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from srepr.data import LongTailData
from srepr.data.arrays import read_labelled
from srepr.data.examples import ArrayExamples, Examples
from srepr.data.workers import batches
from srepr.errors import InputError, unknown
from srepr.metrics import LongTailMetrics, measure
from srepr.models.call import eval_mode
from srepr.progress import Progress
from srepr.run.checkpoints import load_classifier
from srepr.run.classifiers import Frozen, open_run
from srepr.run.folder import head_notes, sole_writer
from srepr.storage.files import read_json, write_json

BATCH = 250


def measure_network(
    network: nn.Module,
    examples: Examples,
    counts: Sequence[int],
    *,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    prior: str = "test",
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a network on one part of a data set; with several processes, each takes its share of it.

    `prior` re-weights the examples as `prior_weights` says.
    """
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device = next(network.parameters()).device
    share = np.arange(len(examples))[rank::world_size]
    parts = [share[begin : begin + BATCH] for begin in range(0, len(share), BATCH)]
    weights = prior_weights(prior, counts, examples.labels)

    def outputs() -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels, _ in batches(examples, parts, workers=workers):
            yield network(inputs.to(device)), labels
            progress.advance()

    with torch.inference_mode(), eval_mode(network), Progress("evaluate", total=len(parts), quiet=quiet) as progress:
        metrics = LongTailMetrics(counts).to(device)
        return measure(outputs(), metrics, None if weights is None else weights[share]).metrics


def on_parts(data: LongTailData, metrics: Callable[[Examples], dict[str, Any]]) -> dict[str, Any]:
    """The metrics on the test set and, as `validation`, on the validation set.

    >>> from srepr.data import load
    >>> on_parts(load("digits-lt", protocol="holdout"), lambda part: {"n": len(part)})
    {'n': 597, 'validation': {'n': 35}}
    """
    result = metrics(data.test) if data.test is not None else {}
    return result if data.validation is None else {**result, "validation": metrics(data.validation)}


def evaluate_run(
    path: Path, *, data_dir: Path | None = None, workers: int = 0, prior: str = "test", quiet: bool = False
) -> dict[str, dict[str, Any]]:
    """Evaluate every network and head of a run folder; with the prior "test", results.json keeps the metrics."""
    run = open_run(path, data_dir=data_dir, workers=workers, quiet=quiet)
    results: dict[str, dict[str, Any]] = {}
    for name, frozen in run.networks.items():
        results[name] = on_parts(
            run.data,
            lambda part, frozen=frozen: measure_network(  # type: ignore[misc]
                frozen.network, part, frozen.about.counts, workers=workers, prior=prior, quiet=quiet
            ),
        )
    finished = (path / "results.json").exists()  # an unfinished training holds its folder, and has no heads yet
    with sole_writer(path) if finished else contextlib.nullcontext():
        for note in head_notes(path):
            kept = read_json(note)["metrics"]
            if note.stem in run.classifiers:
                stage1, head, _ = run.classifiers[note.stem]
                frozen = run.networks[stage1]
                kept = measure_head(frozen, head, run.data, prior) | {"seconds": kept["seconds"]}
            results[note.stem] = kept
        if prior == "test" and finished:
            write_json(path / "results.json", results)
    return results


def measure_head(frozen: Frozen, head: nn.Module, data: LongTailData, prior: str = "test") -> dict[str, Any]:
    """The metrics of a head on both parts, from cached features."""

    def metrics(part: Examples) -> dict[str, Any]:
        return frozen.measure(head, part, prior_weights(prior, frozen.about.counts, part.labels)).metrics

    return on_parts(data, metrics)


def evaluate_file(path: Path, arrays: Path) -> dict[str, Any]:
    """The metrics of a saved network or exported classifier on the arrays x, y (or x_test, y_test) of a file."""
    classifier = load_classifier(path)
    about = classifier.description
    inputs, labels = read_labelled(arrays, about.class_names)
    if inputs.shape[1:] != about.shape:
        raise InputError(f"{arrays} has inputs of shape {inputs.shape[1:]}, {path} takes {about.shape}.")
    part = ArrayExamples(inputs, labels, about.class_names, about.mean, about.std)
    return measure_network(classifier, part, about.counts)


def prior_weights(prior: str, counts: Sequence[int], labels: npt.NDArray[np.int64]) -> Tensor | None:
    """Weights [N] that make a test set stand for another class prior; None for the prior that it has.

    `test` is that prior; `uniform` gives every class the same share; `forwardR` and `backwardR` are long tails
    with imbalance R, in the order of the training counts and against it: share_k ~ R^(-rank_k / (K - 1)).

    >>> prior_weights("forward4", [90, 10], np.array([0, 1, 1, 1]))
    tensor([3.2000, 0.2667, 0.2667, 0.2667], dtype=torch.float64)
    """
    if prior == "test":
        return None
    shares = np.bincount(labels, minlength=len(counts)) / len(labels)
    target = np.full(len(counts), 1 / len(counts))
    if prior != "uniform":
        match = re.fullmatch(r"(forward|backward)(\d+)", prior)
        if not match or int(match[2]) < 1:
            known = ["test", "uniform", "forward50", "backward50"]
            raise unknown("test prior", prior, known, hint=" (any imbalance)")
        rank = np.empty(len(counts))
        rank[np.argsort(-np.asarray(counts), kind="stable")] = np.linspace(0, 1, len(counts))
        target = float(match[2]) ** (-rank if match[1] == "forward" else rank - 1)
    target = np.where(shares > 0, target, 0)
    target = target / target.sum()
    return torch.from_numpy((target / np.where(shares > 0, shares, 1))[labels])
