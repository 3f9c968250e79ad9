"""Metrics of the networks in a run folder, or of one saved network on arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from srepr import runs
from srepr.checkpoints import About, load_model
from srepr.data import LongTailData, load
from srepr.data.arrays import read_labelled
from srepr.data.examples import ArrayExamples, Examples
from srepr.data.loading import batches
from srepr.errors import InputError
from srepr.metrics import LongTailMetrics
from srepr.models.modes import eval_mode
from srepr.progress import Progress

BATCH = 250
STAGE_1 = {"sgd": "sgd.safetensors", "swa": "representation.safetensors"}


def measure(
    network: nn.Module,
    examples: Examples,
    counts: tuple[int, ...],
    *,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a network on one part of a data set; with several processes, each takes its share of it.

    >>> from srepr.models import resnet8
    >>> sorted(measure(resnet8(10, channels=1), load("digits-lt").test, (100,) * 10))[:3]
    ['acc', 'balanced_acc', 'bins']
    """
    metrics = LongTailMetrics(counts)
    device = next(network.parameters()).device
    metrics.to(device)
    share = np.arange(len(examples))[rank::world_size]
    parts = [share[begin : begin + BATCH] for begin in range(0, len(share), BATCH)]
    with torch.inference_mode(), eval_mode(network), Progress("evaluate", total=len(parts), quiet=quiet) as progress:
        for inputs, labels, _ in batches(examples, parts, workers=workers):
            metrics.update(network(inputs.to(device)), labels)
            progress.advance()
    result: dict[str, Any] = metrics.compute()
    return result


def load_run_data(run: Path, data_dir: Path | None = None) -> LongTailData:
    """The data with which the run was made, from where it was then or from `data_dir`; other data are refused.

    >>> load_run_data(getfixture("tmp_path") / "nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Name a run made by `srepr train`.
    """
    settings = runs.read_settings(run)
    stored = runs.read_json(run / "config.json").get("data_dir")
    place = data_dir or (Path(stored) if stored else None)
    options = {**settings["data"], "counts": settings["data"]["counts"] or None}
    data = load(settings["source"], data_dir=place, seed=settings["seed"], **options)
    if data.train.fingerprint() != settings["fingerprint"]:
        raise InputError(f"the data in {place or settings['source']} is not what {run} was trained on. Restore it.")
    return data


def evaluate_run(run: Path, *, data_dir: Path | None = None, workers: int = 0) -> dict[str, dict[str, Any]]:
    """Evaluate every network of a run on its test part, and keep the metrics in `results.json`.

    >>> evaluate_run(getfixture("tmp_path") / "nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Name a run made by `srepr train`.
    """
    data = load_run_data(run, data_dir)
    files = {name: run / file for name, file in STAGE_1.items() if (run / file).exists()}
    if "swa" not in files:
        raise InputError(f"{run} has no trained network yet. Finish it with the `srepr train` command that began it.")
    results = {}
    for name, file in files.items():
        network, about = load_model(file)
        results[name] = measure_parts(network, about, data, workers=workers)
    runs.write_json(run / "results.json", results)
    return results


def measure_parts(network: nn.Module, about: About, data: LongTailData, **options: Any) -> dict[str, Any]:
    """The metrics on the test part, and beside them, as `validation`, on what was held out for choices.

    >>> from srepr.models import resnet8
    >>> about = About(network="resnet8", options={}, class_names=(), counts=(9,) * 10, shape=(), mean=(), std=())
    >>> measure_parts(resnet8(10, channels=1), about, load("digits-lt"))["n"]
    597
    """
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    result = measure(network, data.test, about.counts, **options) if data.test is not None else {}
    if data.validation is not None:
        result["validation"] = measure(network, data.validation, about.counts, **options)
    return result


def evaluate_file(path: Path, arrays: Path) -> dict[str, Any]:
    """The metrics of a saved network on the arrays x and y (or x_test and y_test) of an .npz file.

    >>> evaluate_file(Path("model.safetensors"), Path("arrays.npz"))
    Traceback (most recent call last):
    srepr.errors.InputError: model.safetensors does not exist. Is the training finished?
    """
    network, about = load_model(path)
    inputs, labels = read_labelled(arrays, about.class_names)
    if inputs.shape[1:] != about.shape:
        raise InputError(f"{arrays} has inputs of shape {inputs.shape[1:]}, {path} takes {about.shape}.")
    return measure(network, ArrayExamples(inputs, labels, about.class_names, about.mean, about.std), about.counts)
