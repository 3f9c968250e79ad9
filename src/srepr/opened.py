"""A trained run, opened to be looked at: every classifier in it by name, what it says of the test set, its metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from srepr import heads, runs
from srepr.checkpoints import load_model
from srepr.data import LongTailData
from srepr.data.examples import Examples
from srepr.data.longtail import Indices
from srepr.errors import InputError
from srepr.evaluation import STAGE_1, Stage1, load_run_data, measure_parts
from srepr.retraining import linear_classifier
from srepr.stage2 import Frozen, posterior_of


class TrainedClassifier(NamedTuple):
    """A classifier of a run, and the network whose features it reads."""

    stage1: Stage1
    head: nn.Module
    note: dict[str, Any]
    """What it was made of, and its metrics; empty for the classifiers of stage 1."""


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A trained run, opened: its data, its networks, and every classifier by name, those of stage 1 first.

    >>> from srepr.config import Train
    >>> from srepr.stage1 import train
    >>> run = getfixture("tmp_path") / "run"
    >>> _ = train(Train(source="digits-lt", network="resnet8", epochs=1), run)
    >>> opened = open_trained(run, quiet=True)
    >>> [(name, classifier.stage1) for name, classifier in opened.classifiers.items()]
    [('swa', 'swa')]
    >>> [logits.shape for _, logits in opened.outputs("swa")]
    [torch.Size([597, 10])]
    """

    run: Path
    data: LongTailData
    networks: dict[Stage1, Frozen]
    classifiers: dict[str, TrainedClassifier]

    @property
    def part(self) -> Examples:
        """What is measured on: the test part, or else what was held out."""
        part = self.data.test if self.data.test is not None else self.data.validation
        if part is None:
            raise InputError(f"{self.run} was trained without a test part: there is nothing to measure on. Add one.")
        return part

    @property
    def usual_head(self) -> str:
        """The head where none is named: `srepr`, or else the newest, on the averaged network if any is."""
        heads = [name for name in self.classifiers if name not in STAGE_1]
        averaged = [name for name in heads if self.classifiers[name].stage1 == "swa"]
        if not heads:
            raise InputError(f"{self.run} has no re-trained classifier. Make one with: srepr retrain {self.run}")
        return "srepr" if "srepr" in heads else (averaged or heads)[-1]

    def outputs(self, name: str) -> Iterator[tuple[Indices, Tensor]]:
        """The logits of a classifier on that part, chunk by chunk, as (indices, [B, K])."""
        if name not in self.classifiers:
            known = ", ".join(self.classifiers)
            raise InputError(f"{self.run} has no head {name!r}. Known: {known}; make it with `srepr retrain --name`.")
        classifier = self.classifiers[name]
        return self.networks[classifier.stage1].outputs(classifier.head, self.part)


def open_trained(run: Path, *, data_dir: Path | None = None, workers: int = 0, quiet: bool = False) -> OpenedRun:
    """Open a run folder to look at what is in it; heads that diverged are left out.

    >>> open_trained(getfixture("tmp_path") / "nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Name a run made by `srepr train`.
    """
    data = load_run_data(run, data_dir)
    if not (run / STAGE_1["swa"]).exists():
        raise InputError(f"{run} has no trained network yet. Finish it with the `srepr train` command that began it.")
    networks: dict[Stage1, Frozen] = {}
    classifiers: dict[str, TrainedClassifier] = {}
    for name in STAGE_1:
        if (run / STAGE_1[name]).exists():
            network, about = load_model(run / STAGE_1[name])
            posterior = posterior_of(run, name, network)
            networks[name] = Frozen(
                run=run, network=network, posterior=posterior, about=about, workers=workers, quiet=quiet
            )
            classifiers[name] = TrainedClassifier(name, linear_classifier(network, "fc"), {})
    for note in head_notes(run):
        made = runs.read_json(note)
        if "diverged" not in made["metrics"]:
            head = load_head(note.with_suffix(".safetensors"))
            classifiers[note.stem] = TrainedClassifier(made["stage1"], head, made)
    return OpenedRun(run=run, data=data, networks=networks, classifiers=classifiers)


def head_notes(run: Path) -> list[Path]:
    """The notes of a run's heads, the oldest first.

    >>> head_notes(getfixture("tmp_path"))
    []
    """
    return sorted((run / "heads").glob("*.json"), key=lambda note: note.stat().st_mtime_ns)


def load_head(file: Path) -> nn.Module:
    """A head from its file.

    >>> import torch
    >>> head = heads.DisAlign(torch.eye(2), torch.zeros(2))
    >>> file = getfixture("tmp_path") / "disalign.safetensors"
    >>> runs.save_tensors(file, head.state_dict(), {"kind": "disalign"})
    >>> type(load_head(file)).__name__
    'DisAlign'
    """
    tensors, metadata = runs.load_tensors(file)
    bias, scale = tensors.get("bias"), tensors.get("scale")
    head = heads.build(metadata["kind"], weight=tensors["weight"], bias=bias, scale=scale)
    head.load_state_dict(tensors)
    return head.requires_grad_(False)


def evaluate_run(
    run: Path, *, data_dir: Path | None = None, workers: int = 0, prior: str = "test", quiet: bool = False
) -> dict[str, dict[str, Any]]:
    """Evaluate everything in a run folder: its networks and every head; `results.json` keeps what the test set says.

    >>> evaluate_run(getfixture("tmp_path") / "nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Name a run made by `srepr train`.
    """
    opened = open_trained(run, data_dir=data_dir, workers=workers, quiet=quiet)
    results: dict[str, dict[str, Any]] = {
        name: measure_parts(frozen.network, frozen.about, opened.data, workers=workers, prior=prior, quiet=quiet)
        for name, frozen in opened.networks.items()
    }
    finished = (run / "results.json").exists()  # a training under way holds its folder, and has no heads yet
    with runs.sole_writer(run) if finished else contextlib.nullcontext():
        for note in head_notes(run):
            if note.stem not in opened.classifiers:
                results[note.stem] = runs.read_json(note)["metrics"]
                continue
            stage1, head, made = opened.classifiers[note.stem]
            seconds = {"seconds": made["metrics"]["seconds"]}
            results[note.stem] = opened.networks[stage1].measure_parts(head, opened.data, prior) | seconds
        if prior == "test" and finished:
            runs.write_json(run / "results.json", results)
    return results
