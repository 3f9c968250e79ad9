"""The classifiers of a run folder by name, and their predictions on the test set.

swa, sgd     the networks of stage 1, with their own classifiers
NAME         heads/NAME, a re-trained classifier on one of them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from srepr.balance import Shares
from srepr.config import Precision, Retrain, Stage1
from srepr.data import LongTailData
from srepr.data.about import About
from srepr.data.examples import Examples
from srepr.data.inputs import ExampleInputs
from srepr.data.sampling import chunks
from srepr.errors import InputError, tell
from srepr.features import NetworkFeatures
from srepr.methods import Representation
from srepr.metrics import LongTailMetrics, Measured
from srepr.models.cosine import Cosine
from srepr.posterior import Posterior
from srepr.representation import freeze
from srepr.run import checkpoints
from srepr.run.folder import STAGE_1, is_writable, load_run_data, read_settings, require_network
from srepr.run.load import choose_head, expected_prior, read_notes
from srepr.run.schema import unusable
from srepr.run.team import Team, TeamFeatures
from srepr.storage.arrays import ArrayFolder
from srepr.views import Judged, judge


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A network of a run folder that does not change any more, and its features."""

    run: Path
    network: nn.Module
    posterior: Posterior
    about: About
    pretrained: bool = False
    """Whether the body is as it came: not trained on these data."""
    precision: Precision = "32-true"
    """Of the features to train on; those that are measured are in single precision, as in deployment."""
    cache: Path | None = None
    """Where features are cached, if not in the run."""
    workers: int = 0
    compiled: bool = False
    quiet: bool = False
    team: Team = field(default_factory=Team)
    """The processes that make the features."""

    @cached_property
    def store(self) -> ArrayFolder:
        """Where features are kept; those of a run that cannot be written to are kept for this process."""
        folder = self.cache or self.run / "cache"
        return self.team.folder(folder) if self.cache or is_writable(self.run) else ArrayFolder(beside=folder)

    @property
    def layer(self) -> nn.Linear | Cosine:
        """The classifier of stage 1."""
        layer = self.network.get_submodule(self.about.classifier)
        if not isinstance(layer, nn.Linear | Cosine):
            raise InputError(f"{self.run}: the classifier {self.about.classifier!r} is no linear layer. Train again.")
        return layer

    def features(
        self,
        examples: Examples,
        representation: Representation,
        settings: Retrain,
        *,
        augment: bool,
        calibration: Examples | None = None,
    ) -> NetworkFeatures:
        """The features of a part of the data; draws are calibrated on it, or on another part."""
        seed = settings.seed
        share = {"rank": self.team.rank, "world_size": self.team.world_size}
        return TeamFeatures(
            self.team,
            examples,
            augment,
            calibration,
            self.network,
            self.posterior,
            ExampleInputs(examples, seed, self.workers, augment, augment and self.pretrained, **share),
            self.team.folder() if settings.on_the_fly else self.store,
            representation,
            settings,
            calibration=None if calibration is None else ExampleInputs(calibration, seed, self.workers),
            precision=self.precision if augment else "32-true",
            compiled=self.compiled,
            quiet=self.quiet,
        )

    def seen(self, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
        """(features [B, L], labels [B]) of plain inputs, cached, chunk by chunk in order."""
        features = self.features(examples, "deterministic", Retrain(samples=1), augment=False).epoch(0)
        for part in chunks(len(examples)):
            with torch.inference_mode():
                yield features.batch(part)[1], torch.from_numpy(examples.labels[part])

    def outputs(self, head: nn.Module, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
        """(logits [B, K], labels [B]) of a head, chunk by chunk in order, from cached features of plain inputs."""
        for features, labels in self.seen(examples):
            with torch.inference_mode():
                yield head(features), labels

    def named(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The metrics of this network, with what the tables call one that was not averaged."""
        return {**metrics, "called": "frozen"} if self.pretrained else metrics

    def judge(self, head: nn.Module, examples: Examples, expects: Shares | None = None) -> Judged:
        """A head on a part of the data, in both views if that is not balanced."""
        metrics = LongTailMetrics(self.about.counts)
        return judge(self.outputs(head, examples), metrics, examples.labels, expects=expects)


def open_network(run: Path, stage1: Stage1, **options: Any) -> Frozen:
    """A network of a run, with its posterior; around the SGD baseline that is one without spread.

    >>> open_network(getfixture("tmp_path"), "swa")
    Traceback (most recent call last):
    srepr.errors.InputError: .../representation.safetensors does not exist. Is the training finished?
    """
    network, about = checkpoints.load_model(run / STAGE_1[stage1])
    if stage1 == "swa":
        posterior = checkpoints.load_posterior(run / "posterior.safetensors", network)
    else:
        posterior = Posterior(network, classifier=about.classifier)
        posterior.update(network)
    settings = read_settings(run)
    frozen = settings.get("freeze", "none")
    if frozen == "body":
        options |= {"pretrained": True, "precision": settings.get("precision", "32-true")}
    else:
        freeze(network, frozen)  # the draws keep the statistics of these layers
    return Frozen(run=run, network=network, posterior=posterior, about=about, **options)


class Unreadable(nn.Module):
    """In the place of a head whose files are damaged: whoever uses it is told so."""

    def __init__(self, error: InputError) -> None:
        super().__init__()
        self.error = error

    def forward(self, _features: Tensor) -> Tensor:
        """Raise the error."""
        raise self.error


class TrainedClassifier(NamedTuple):
    """A classifier of a run, and the network whose features it reads."""

    stage1: Stage1
    head: nn.Module
    note: dict[str, Any]
    """Its settings and metrics; empty for the classifiers of stage 1."""

    def expects(self, counts: Sequence[int]) -> list[float] | None:
        """The class shares that a re-trained head expects; None for stage 1, which no view moves."""
        return expected_prior(self.note, counts) if self.note else None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained run: its data, its networks, and its classifiers by name, those of stage 1 first."""

    path: Path
    data: LongTailData
    networks: dict[Stage1, Frozen]
    classifiers: dict[str, TrainedClassifier]
    _judged: dict[str, Judged] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def part(self) -> Examples:
        """The data that the classifiers are measured on: the test set, or else the validation set."""
        part = self.data.test if self.data.test is not None else self.data.validation
        if part is None:
            raise InputError(f"{self.path} was trained without a test set: there is nothing to measure on. Add one.")
        return part

    def choose(self, head: str | None = None, *, retrained: bool = False) -> str:
        """The name of the head to use, by the rule of `choose_head`; an InputError if that one is damaged."""
        names = {name: classifier.stage1 for name, classifier in self.classifiers.items()}
        name = choose_head(self.path, names, head, retrained=retrained)
        found = self.classifiers[name].head
        if isinstance(found, Unreadable):
            raise found.error
        return name

    def judge(self, name: str) -> Judged:
        """A classifier on `part`, in both views if that is not balanced, measured once.

        The first time, what is to be used is chosen, and the heads that cannot be are named on stderr.
        """
        for classifier in () if self._judged else self.classifiers.values():
            if isinstance(classifier.head, Unreadable):
                tell(str(classifier.head.error))
        if name not in self._judged:
            classifier = self.classifiers[name]
            frozen = self.networks[classifier.stage1]
            self._judged[name] = frozen.judge(classifier.head, self.part, classifier.expects(frozen.about.counts))
        return self._judged[name]

    def measure(self, name: str) -> Measured:
        """A classifier on `part` as it is, measured once."""
        return self.judge(name).plain


def open_run(path: Path, *, data_dir: Path | None = None, workers: int = 0, quiet: bool = False) -> Run:
    """Open a trained run folder; heads that diverged are left out, and damaged ones are refused when they are used.

    >>> open_run(getfixture("tmp_path") / "nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Pass a run folder made by `srepr train`.
    """
    data = load_run_data(path, data_dir)
    require_network(path)
    there: list[Stage1] = [name for name, file in STAGE_1.items() if (path / file).exists()]
    networks = {name: open_network(path, name, workers=workers, quiet=quiet) for name in there}
    classifiers: dict[str, TrainedClassifier] = {}
    for stage1, frozen in networks.items():
        classifiers[stage1] = TrainedClassifier(stage1, frozen.layer, {})
    for name, note in read_notes(path).items():
        classifiers[name] = open_head(path, name, note, networks)
    return Run(path=path, data=data, networks=networks, classifiers=classifiers)


def open_head(
    path: Path, name: str, note: dict[str, Any] | InputError, networks: Mapping[Stage1, Frozen]
) -> TrainedClassifier:
    """The head of a note on one of the networks, or one that says what is wrong with it."""
    if isinstance(note, InputError):  # it may be of the averaged network
        return TrainedClassifier("swa", Unreadable(note), {})
    stage1: Stage1 = note["stage1"]
    file = path / "heads" / f"{name}.json"
    try:
        if stage1 not in networks:
            raise InputError(f"it is of the network {stage1}, which {path} does not have. Restore it.")
        return TrainedClassifier(
            stage1, checkpoints.load_head(file.with_suffix(".safetensors"), networks[stage1].layer), note
        )
    except InputError as error:
        return TrainedClassifier(stage1, Unreadable(unusable(file, str(error))), note)
