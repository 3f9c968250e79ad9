"""The choice of the re-training on data that stage 1 has not seen: which method, which penalty, which temperature.

A candidate is solved on the training features, its logits on held-out features are calibrated (`srepr.calibration`),
and candidates are compared by their class-balanced negative log-likelihood, in which every class counts the same:

    score = (1 / K) sum_k mean over the held-out examples of class k of -log softmax(z / T + r log pi)[k]

Held out is a validation set or, for features of a network that has not been trained on them, each fold of a stratified
cross-validation in turn. The penalties of a method are tried from a middle one on, smaller or larger, until the score
gets worse. A method wins if no simpler one is better, or within one standard error of the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from srepr.calibration import Calibration, best_temperature, calibrate, class_weights, losses
from srepr.config import Retrain, default_penalty
from srepr.data.longtail import Indices, Labels
from srepr.features import Array, EpochFeatures
from srepr.methods import Method, title
from srepr.progress import Progress
from srepr.solver import Distillation, Problem, Solution

PENALTIES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
DISTILL_WEIGHTS = (0.5, 0.8)
FOLDS, MANY_FOLDS = 5, 10
ROUGH = 1e-3  # tolerance of a candidate; the winner is solved again to the solver's own
STRONG = 10.0  # times the default penalty: where the search begins; with a large penalty it is fast
FEW = 5000  # examples: up to so many, a tenth of them is noticed, and there are many folds
CHEAP = 2e7  # multiplications in one pass over the data, likewise
LARGE = 5e9  # beyond, one fold stands for all
PLENTY = 50_000  # examples, likewise: a fifth of them tells candidates apart


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A way to re-train: a method with its penalty and, for a method that distils, the weight of the distillation."""

    name: str
    method: Method
    penalty: float
    distillation: Distillation | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """A candidate on the held-out data."""

    candidate: Candidate
    calibration: Calibration = field(repr=False)
    """Of its logits."""
    logits: Tensor = field(repr=False)
    """Of the held-out examples [N, K], calibrated."""
    nll: Tensor = field(repr=False)
    """-log p(y) of each held-out example [N]."""
    labels: Tensor = field(repr=False)
    examples: Tensor = field(repr=False)
    """A number for each held-out example [N], the same for copies."""
    accuracy: float
    """Class-balanced."""

    @property
    def mean(self) -> float:
        """Class-balanced mean of the NLL."""
        return float((self.weights * self.nll).sum())

    @cached_property
    def weights(self) -> Tensor:
        """Weights [N] that sum to 1 and under which every class counts the same."""
        return class_weights(self.labels)

    def excess(self, other: Score) -> tuple[float, float]:
        """How much worse this is than another candidate, and the standard error of that.

        The differences are paired by example; copies of an example are not independent and count as one.
        """
        difference = self.nll - other.nll
        mean = float((self.weights * difference).sum())
        parts = torch.zeros(len(difference), dtype=torch.float64)
        parts.index_add_(0, self.examples, self.weights * (difference - mean))
        return mean, float(parts.square().sum().sqrt())

    def row(self) -> dict[str, Any]:
        """The candidate in the table of the choice."""
        distil = self.candidate.distillation
        return {
            "method": self.candidate.name,
            "title": title(self.candidate.name),
            "penalty": self.candidate.penalty,
            "distill_weight": None if distil is None else distil.weight,
            "temperature": round(self.calibration.temperature, 4),
            "adjustment": round(self.calibration.adjustment, 4),
            "balanced_acc": self.accuracy,
            "nll": self.mean,
        }


class Choice(NamedTuple):
    """The chosen candidate and how it was chosen."""

    score: Score
    table: list[dict[str, Any]]
    """The best candidate of each method, and by how much the others were worse; the chosen one is marked."""
    note: str
    """On what the candidates were compared, in words."""


@dataclass(frozen=True)
class Split:
    """Examples to solve on, and held-out features [N, L] with their labels."""

    train: EpochFeatures
    rows: Indices | None
    features: Array
    labels: Labels


def along_a_direction(features: Array, seed: int = 0) -> npt.NDArray[np.float64]:
    """Where the examples [N] lie along a random direction, on a scale of unit variance; copies lie together."""
    direction = np.random.default_rng(seed).normal(size=features.shape[1])
    along = np.asarray(features, np.float64) @ direction
    rounded: npt.NDArray[np.float64] = ((along - along.mean()) / (along.std() or 1.0)).round(6)
    return rounded


def deal_folds(features: Array, labels: Labels, folds: int = FOLDS, *, seed: int = 0) -> Labels:
    """The fold in which each example is held out, -1 for a class whose examples are all the same.

    Each class is dealt out along a random direction of the features. So the folds depend neither on the order nor on
    the scale of the data, and copies of an example stay together.

    >>> deal_folds(np.array([[1.0], [3.0], [3.0], [2.0], [9.0]]), np.array([0, 0, 0, 0, 1]), folds=3).tolist()
    [0, 2, 2, 1, -1]
    """
    along = along_a_direction(features, seed)
    fold = np.full(len(labels), -1)
    for k in np.unique(labels):
        members = np.flatnonzero(labels == k)
        different, rank = np.unique(along[members], return_inverse=True)
        if len(different) > 1:
            fold[members] = (rank + k) % folds
    return fold


def cross_validation(features: EpochFeatures, classes: int, *, seed: int = 0) -> tuple[list[Split], str]:
    """The folds of a stratified cross-validation, and a note about them; none if no class has two examples."""
    mean = np.asarray(features.mean)
    work = len(features.stochastic) * mean.size * classes
    folds = MANY_FOLDS if len(mean) <= FEW and work < CHEAP else FOLDS
    fold = deal_folds(mean, features.labels, folds, seed=seed)
    splits = []
    for number in range(folds):
        held = fold == number
        if held.any():
            splits.append(Split(features, np.flatnonzero(~held), mean[held], features.labels[held]))
    never = len(np.unique(features.labels[fold < 0]))
    splits = splits[:1] if work > LARGE or len(mean) > PLENTY else splits
    how = "one fold of the data" if len(splits) == 1 else f"{len(splits)}-fold cross-validation"
    missing = f"; {never} of {classes} classes have too few examples to hold one out" if never else ""
    return splits, how + missing


def validation(train: EpochFeatures, held: EpochFeatures, classes: int) -> tuple[list[Split], str]:
    """The one split into training and validation set, and a note about it."""
    never = classes - len(np.unique(held.labels))
    missing = f"; {never} of {classes} classes have no example in it" if never else ""
    how = f"{len(held.labels):,} validation examples{missing}"
    return [Split(train, None, np.asarray(held.mean), held.labels)], how


def deterministic(features: EpochFeatures) -> EpochFeatures:
    """Only the features of the averaged network; several views of it stay."""
    return features if len(features.stochastic) == 1 else replace(features, stochastic=[features.mean])


def candidates(methods: Mapping[str, Method], settings: Retrain) -> Iterator[list[Candidate]]:
    """The candidates of each method, those with the largest penalty first.

    Among several methods, those that distil are tried with several weights of the distillation, a list for each.

    >>> from srepr.methods import METHODS
    >>> [len(path) for path in candidates(METHODS, Retrain(penalty=0.1))][:3]
    [1, 1, 1]
    """
    penalties = PENALTIES if settings.penalty is None else [settings.penalty]
    for name, method in methods.items():
        weights = DISTILL_WEIGHTS if len(methods) > 1 else [settings.distill_weight]
        for weight in weights if method.distill else [None]:
            distil = None if weight is None else Distillation(weight, settings.temperature)
            yield [Candidate(name=name, method=method, penalty=p, distillation=distil) for p in penalties]


def choose(
    splits: Sequence[Split],
    note: str,
    methods: Mapping[str, Method],
    classes: int,
    settings: Retrain,
    *,
    quiet: bool = True,
) -> Choice:
    """Try the candidates of these methods, the simplest method first, and choose one."""
    paths = list(candidates(methods, settings))
    best: dict[str, Score] = {}
    problems, made_for = list[Problem](), None
    # A path is cut short where it gets worse, and several representations cost several times as much as one.
    with Progress("choose", total=len(paths), alike=False, quiet=quiet) as progress:
        for path in paths:
            name, method = path[0].name, path[0].method
            reads = method.balance, method.representation
            if reads != made_for:
                problems, made_for = [pose(split, method, classes, settings.rho) for split in splits], reads
            simpler = [score.candidate.penalty for score in best.values()]
            begin = simpler[0] if simpler else STRONG * default_penalty(classes)
            score = best_on_path(path, begin, problems, splits, settings.rho)
            if name not in best or score.mean < best[name].mean:
                best[name] = score
            progress.advance()
    winner = min(best.values(), key=lambda score: score.mean)
    differences = {name: score.excess(winner) for name, score in best.items()}
    # A method that a simpler one beats is out, however noisy its difference to the best.
    least = np.minimum.accumulate([excess for excess, _ in differences.values()])
    pairs = zip(differences.items(), least, strict=True)
    chosen = next(name for (name, (excess, error)), lowest in pairs if excess <= min(error, lowest))
    table = [
        {**best[name].row(), "excess": excess, "standard_error": error, "chosen": name == chosen}
        for name, (excess, error) in differences.items()
    ]
    return Choice(best[chosen], table, note)


def pose(split: Split, method: Method, classes: int, rho: float) -> Problem:
    """What a method solves on the training examples of a split."""
    data = deterministic(split.train) if method.representation == "deterministic" else split.train
    rows = np.arange(len(data.labels)) if split.rows is None else split.rows
    counts = np.bincount(data.labels[rows], minlength=classes)
    return Problem(data, counts.tolist(), method.balance, rho=rho, rows=rows)


def best_on_path(
    path: Sequence[Candidate],
    begin: float,
    problems: Sequence[Problem],
    splits: Sequence[Split],
    rho: float = 1.0,
) -> Score:
    """The best candidate of a list with falling penalties.

    The first one has about the penalty `begin`. The next ones have smaller penalties or, if the first of these is
    worse, larger ones, until the score gets worse.
    """
    tolerance = ROUGH if path[0].distillation is None else ROUGH / 10  # or the teachers would settle at once

    def attempt(candidate: Candidate, starts: Sequence[Solution | None]) -> tuple[Score, list[Solution]]:
        solved = [
            problem.solve(
                penalty=candidate.penalty, distillation=candidate.distillation, start=start, tolerance=tolerance
            )
            for problem, start in zip(problems, starts, strict=True)
        ]
        heads = [problem.linear(solution) for problem, solution in zip(problems, solved, strict=True)]
        return measure(candidate, heads, splits, rho), solved

    place = int(np.argmin([abs(math.log(candidate.penalty / begin)) for candidate in path]))
    first, beside = attempt(path[place], [None] * len(problems))
    for direction in (path[place + 1 :], path[:place][::-1]):
        best, starts = first, beside
        for candidate in direction:
            score, solved = attempt(candidate, starts)
            if score.mean > best.mean:
                break
            best, starts = score, solved
        if best is not first:
            break
    return best


def measure(candidate: Candidate, heads: Sequence[nn.Module], splits: Sequence[Split], rho: float = 1.0) -> Score:
    """The score of the heads that a candidate gives on each split.

    What a balance of less than full strength leaves of the training prior is wanted: then there is no adjustment.
    """
    with torch.no_grad():
        pairs = zip(heads, splits, strict=True)
        logits = torch.cat([head(torch.tensor(split.features, dtype=torch.float32)) for head, split in pairs]).double()
    labels = torch.from_numpy(np.concatenate([split.labels for split in splits]))
    examples = [np.unique(along_a_direction(split.features), return_inverse=True)[1] for split in splits]
    before = np.cumsum([0, *(inside.max() + 1 for inside in examples)])
    doubt = 1 / (int(before[-1]) + 2)
    counts = torch.from_numpy(np.bincount(splits[0].train.labels, minlength=logits.shape[1]))
    balanced = len(set(candidate.method.expected_prior(counts.tolist(), rho))) == 1
    found = (
        calibrate(logits, labels, counts, doubt) if balanced else Calibration(best_temperature(logits, labels, doubt))
    )
    logits = found.of(logits)
    nll = losses(logits, labels, doubt)
    right = (logits.argmax(1) == labels).double()
    return Score(
        candidate=candidate,
        calibration=found,
        logits=logits,
        nll=nll,
        labels=labels,
        examples=torch.from_numpy(np.concatenate([a + b for a, b in zip(examples, before[:-1], strict=True)])),
        accuracy=float(class_weights(labels) @ right),
    )
