"""Metrics of a network on a part of a data set, of a run or of arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

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
from srepr.recipes import RECIPES

BATCH = 250
Stage1 = Literal["swa", "sgd"]
STAGE_1: dict[Stage1, str] = {"sgd": "sgd.safetensors", "swa": "representation.safetensors"}


def measure(
    network: nn.Module,
    examples: Examples,
    counts: tuple[int, ...],
    *,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    prior: str = "test",
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a network on one part of a data set; with several processes, each takes its share of it.

    `prior` re-weights the part as `prior_weights` says.

    >>> from srepr.models import resnet8
    >>> sorted(measure(resnet8(10, channels=1), load("digits-lt").test, (100,) * 10))[:3]
    ['acc', 'balanced_acc', 'bins']
    """
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    metrics = LongTailMetrics(counts)
    device = next(network.parameters()).device
    metrics.to(device)
    weights = prior_weights(prior, counts, examples.labels)
    share = np.arange(len(examples))[rank::world_size]
    parts = [share[begin : begin + BATCH] for begin in range(0, len(share), BATCH)]
    with torch.inference_mode(), eval_mode(network), Progress("evaluate", total=len(parts), quiet=quiet) as progress:
        for inputs, labels, indices in batches(examples, parts, workers=workers):
            metrics.update(network(inputs.to(device)), labels, weights[indices])
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
    source, place = settings["source"], data_dir or (Path(stored) if stored else None)
    if source not in RECIPES and place is not None:
        within = place / Path(source).name
        source = within if within.exists() else place
    options = {**settings["data"], "counts": settings["data"]["counts"] or None}
    data = load(source, data_dir=place, seed=settings["seed"], **options)
    if data.fingerprint() != runs.read_fingerprint(run):
        raise InputError(f"the data in {place or source} is not what {run} was trained on. Restore it.")
    return data


def measure_parts(network: nn.Module, about: About, data: LongTailData, **options: Any) -> dict[str, Any]:
    """The metrics on the test part, and beside them, as `validation`, on what was held out for choices.

    >>> from srepr.models import resnet8
    >>> about = About(network="resnet8", options={}, class_names=(), counts=(9,) * 10, shape=(), mean=(), std=())
    >>> measure_parts(resnet8(10, channels=1), about, load("digits-lt"))["n"]
    597
    """
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


def prior_weights(prior: str, counts: Sequence[int], labels: npt.NDArray[np.int64]) -> Tensor:
    """Weights [N] that make a test set stand for another class prior.

    `test` leaves it as it is; `uniform` gives every class the same share; `forwardR` and `backwardR` are long tails
    with imbalance R, in the order of the training counts and against it: share_k ~ R^(-rank_k / (K - 1)).

    >>> prior_weights("forward4", [90, 10], np.array([0, 1, 1, 1]))
    tensor([3.2000, 0.2667, 0.2667, 0.2667], dtype=torch.float64)
    """
    shares = np.bincount(labels, minlength=len(counts)) / len(labels)
    if prior == "test":
        return torch.ones(len(labels), dtype=torch.float64)
    target = np.full(len(counts), 1 / len(counts))
    if prior != "uniform":
        match = re.fullmatch(r"(forward|backward)(\d+)", prior)
        if not match or int(match[2]) < 1:
            raise InputError(f"no test prior is called {prior!r}. Known: test, uniform, forwardR, backwardR (R = 50).")
        rank = np.empty(len(counts))
        rank[np.argsort(-np.asarray(counts), kind="stable")] = np.linspace(0, 1, len(counts))
        target = float(match[2]) ** (-rank if match[1] == "forward" else rank - 1)
    target = np.where(shares > 0, target, 0)
    target = target / target.sum()
    return torch.from_numpy((target / np.where(shares > 0, shares, 1))[labels])
