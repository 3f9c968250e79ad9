"""`srepr evaluate`: the metrics of every classifier of a run folder, or of one file on labelled arrays."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from srepr.balance import Shares
from srepr.data import LongTailData
from srepr.data.arrays import read_labelled
from srepr.data.examples import ArrayExamples, Examples
from srepr.data.texts import read_labelled_texts
from srepr.data.workers import batches
from srepr.decisions.held import Held
from srepr.errors import InputError, printable
from srepr.metrics import COLUMNS, LongTailMetrics, measure
from srepr.models.call import eval_mode
from srepr.progress import Progress
from srepr.run.checkpoints import load_classifier, load_head_and_held
from srepr.run.classifiers import Frozen, open_run
from srepr.run.folder import head_notes, is_writable, sole_writer
from srepr.run.schema import read_made, read_note, read_results, unusable
from srepr.storage.files import write_json
from srepr.views import judge, prior_weights

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
    expects: Shares | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a network on one part of a data set; with several processes, each takes its share of it.

    A part that is not balanced is measured in both views (`srepr.views`); `expects` are the class shares that a
    re-trained classifier expects. Another `prior` than "test" re-weights the examples as `prior_weights` says, and
    there are no views.
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
        metrics = LongTailMetrics(counts, across=True)
        if weights is not None:
            return measure(outputs(), metrics, weights[share]).metrics
        return judge(outputs(), metrics, examples.labels, share=share, expects=expects).metrics


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
    """Evaluate every network and head of a run folder; with the prior "test", results.json keeps the metrics.

    Other numbers than those in it are named. A folder that cannot be written to is left as it is.
    """
    run = open_run(path, data_dir=data_dir, workers=workers, quiet=quiet)
    results: dict[str, dict[str, Any]] = {}
    for name, frozen in run.networks.items():
        metrics = on_parts(
            run.data,
            lambda part, frozen=frozen: measure_network(  # type: ignore[misc]
                frozen.network, part, frozen.about.counts, workers=workers, prior=prior, quiet=quiet
            ),
        )
        results[name] = frozen.named(metrics)
    finished = (path / "results.json").exists()  # an unfinished training holds its folder, and has no heads yet
    with sole_writer(path, reading=True) if finished else contextlib.nullcontext():
        for note in head_notes(path):
            kept = read_note(note)["metrics"]
            if note.stem in run.classifiers:
                classifier = run.classifiers[note.stem]
                frozen = run.networks[classifier.stage1]
                expects = classifier.expects(frozen.about.counts)
                apart = held_apart(note) if classifier.note.get("joined") else None
                measured = measure_head(frozen, classifier.head, run.data, prior, expects=expects, apart=apart)
                kept = measured | {"seconds": kept["seconds"]}
            results[note.stem] = kept
        if prior == "test" and finished:
            store(path, results)
    return results


def store(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """Write results.json, if the folder can be written to, and say on stderr which numbers are others now."""
    try:
        changed = changes(read_results(path), results)
        said = f"{path / 'results.json'} had other numbers: {'; '.join(changed)}." if changed else ""
    except InputError as error:
        said = f"{error} Done: it is made again."
    if not is_writable(path):
        said += f" {path} cannot be written to: its results.json stays as it is."
    else:
        write_json(path / "results.json", results)
    if said:
        print(f"srepr: {printable(said.strip())}", file=sys.stderr)


def changes(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The numbers of the tables that differ by more than rounding, in words; only what both have measured counts.

    >>> changes({"la": {"acc": 0.5, "nll": 1.0}, "ncm": {}}, {"la": {"acc": 0.25, "nll": 1.0}})
    ['acc of la was 0.5, now 0.25']
    """

    def differ(was: float | None, now: float | None) -> bool:
        if was is None or now is None or was == now or (math.isnan(was) and math.isnan(now)):
            return False
        return not math.isclose(was, now, rel_tol=1e-5, abs_tol=1e-6)

    return [
        f"{metric} of {name} was {old[name][metric]:.6g}, now {new[name][metric]:.6g}"
        for name in new
        for metric in COLUMNS
        if differ(old.get(name, {}).get(metric), new[name].get(metric))
    ]


def measure_head(
    frozen: Frozen,
    head: nn.Module,
    data: LongTailData,
    prior: str = "test",
    *,
    expects: Shares | None = None,
    apart: Held | None = None,
) -> dict[str, Any]:
    """The metrics of a head on both parts, from cached features; it expects equal classes by default.

    A head that was trained on the validation set as well is measured there by what the head said before that: `apart`.
    """
    counts = frozen.about.counts
    expects = [1.0] * len(counts) if expects is None else expects

    def metrics(part: Examples) -> dict[str, Any]:
        outputs, labels = frozen.outputs(head, part), part.labels
        if apart is not None and part is data.validation:
            outputs, labels = iter([(apart.logits, apart.labels)]), apart.labels.numpy()
        weights = prior_weights(prior, counts, labels)
        if weights is not None:
            return measure(outputs, LongTailMetrics(counts), weights).metrics
        return judge(outputs, LongTailMetrics(counts), labels, expects=expects).metrics

    return on_parts(data, metrics)


def held_apart(note: Path) -> Held:
    """What is stored with the head of a note about the validation set; an InputError if nothing can be read."""
    path = note.with_suffix(".safetensors")
    try:
        _, held, _ = load_head_and_held(path)
    except InputError as error:
        raise unusable(note, str(error)) from None
    if held is None:
        raise unusable(note, f"{path} has no held-out examples.")
    return held


def evaluate_file(path: Path, data: Path) -> dict[str, Any]:
    """The metrics of a saved network or exported classifier on the arrays x, y (or x_test, y_test) of a file.

    A network that reads texts takes a .csv or .jsonl file of texts and labels. A classifier that was exported with a
    prior keeps it in both views.
    """
    classifier = load_classifier(path)
    about = classifier.description
    if about.tokenizer:
        part: Examples = read_labelled_texts(data, about)
    else:
        inputs, labels = read_labelled(data, about.class_names)
        try:
            part = ArrayExamples(inputs, labels, about.class_names).prepared(about)
        except InputError as error:
            raise InputError(f"{data}: {error}") from None
    moved = classifier.shift is None and "method" in read_made(path)
    return measure_network(classifier, part, about.counts, expects=classifier.expects if moved else None)
