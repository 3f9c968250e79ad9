"""The best model of a table, from candidates that are judged on rows they have not seen.

    line       the solved head on the standardized columns
    pieces     the same on the columns and their pieces: a broken line in each column
    network    members, each trained without one fold (`srepr.integrations.ensemble`)

The prediction combines their logits,

    z(x) = sum over the candidates c of a_c z_c(x),      a_c >= 0

with the weights that minimise the class-balanced negative log-likelihood of the held-out logits. This convex problem
chooses among the candidates, mixes them and finds the temperature at the same time. Up to the noise in three numbers,
the result cannot be worse than the line.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from srepr.calibration import class_weights
from srepr.config import default_penalty
from srepr.data.inputs import seeded
from srepr.data.longtail import Labels
from srepr.decisions.held import Held
from srepr.features import EpochFeatures
from srepr.integrations.ensemble import Training, balanced_nll, train
from srepr.models.members import Members, Pieces, cut
from srepr.selection import ROUGH, deal_folds
from srepr.solver import Problem, Solution

PIECES = 8  # of a column
MOST_PIECES = 1024  # of all columns: beyond, as for embeddings, columns are not cut
PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5)
FOLDS = 5
LARGE = 5e6  # multiplications in one pass over the rows: beyond, one fold stands for all
LEAST = 0.01  # weight of the line: the classes keep an order, even if nothing predicts them
NEGLIGIBLE = 1e-3  # weight below which a candidate is left out


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model of the standardized rows, and its logits [N, K] for those training rows that it can be judged on."""

    name: str
    model: nn.Module
    logits: Tensor
    judged: Tensor
    """[N], whether the logits of a row come from a model that has not seen it."""
    about: Mapping[str, Any]


class Solved(nn.Module):
    """A linear head on the columns [B, D] and, if there are any, their pieces."""

    def __init__(self, pieces: Pieces | None, head: nn.Linear) -> None:
        super().__init__()
        self.pieces, self.head = pieces, head

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        logits: Tensor = self.head(x if self.pieces is None else torch.cat([x, self.pieces(x)], 1))
        return logits


class Stack(nn.Module):
    """The weighted sum of the logits of several models."""

    weights: Tensor

    def __init__(self, models: Sequence[nn.Module], weights: Tensor) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.register_buffer("weights", weights)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        return torch.stack([weight * model(x) for weight, model in zip(self.weights, self.models, strict=True)]).sum(0)


class Stacked(NamedTuple):
    """The best model of a table."""

    network: Stack
    choice: list[dict[str, Any]] | None = None
    """The table of the candidates, if there was a choice."""
    held: Held | None = None
    """What the candidates together said about rows that they had not seen."""


def stack(x: Tensor, labels: Labels, settings: Training, *, seed: int) -> Stacked:
    """The best model of standardized rows [N, D] in float64."""
    counts, settings = np.bincount(labels), settings.suited(len(labels))
    fold = deal_folds(x.numpy(), labels, settings.members, seed=seed)
    if (fold < 0).all():  # no class has two different rows
        return Stacked(Stack([line(x, labels, fold, None).model], torch.ones(1, dtype=torch.float64)))
    count = PIECES if PIECES * x.shape[1] <= MOST_PIECES else 1
    pieces = cut(x.numpy(), 1 / counts[labels], count)
    candidates = [line(x, labels, fold, None)]
    if len(pieces.columns):
        candidates.append(line(x, labels, fold, pieces))
    with seeded((), seed):  # of the first weights, the batches and the dropout; global generators are restored
        network = Members(
            len(counts),
            inputs=x.shape[1],
            pieces=copy.deepcopy(pieces).float(),
            members=settings.members,
            width=settings.width,
            depth=settings.depth,
            dropout=settings.dropout,
        )
        members = torch.from_numpy(fold)
        trained = train(network, x.float(), torch.from_numpy(labels), members, settings)
    candidates.append(
        Candidate(
            name="network",
            model=trained.network,
            logits=trained.held_out,
            judged=members >= 0,
            about={"epochs": trained.epoch},
        )
    )
    return combine(candidates, torch.from_numpy(labels))


def line(x: Tensor, labels: Labels, fold: Labels, pieces: Pieces | None) -> Candidate:
    """The head on the columns, and on their pieces, with the penalty that is best on held-out rows."""
    inputs = x if pieces is None else torch.cat([x, pieces(x)], 1)
    array = inputs.float().numpy()
    features, counts = EpochFeatures(labels, [array], array), np.bincount(labels)
    group = np.where(fold < 0, -1, fold % FOLDS)
    groups = [number for number in range(FOLDS) if (group == number).any()]
    groups = groups[:1] if array.size * len(counts) > LARGE else groups
    judged = torch.from_numpy(np.isin(group, groups))
    parts = [np.flatnonzero(group != number) for number in groups]
    problems = [
        Problem(features, np.bincount(labels[rows], minlength=len(counts)).tolist(), "la", rows=rows) for rows in parts
    ]
    solutions: list[Solution | None] = [None] * len(groups)
    best, penalty, found = math.inf, default_penalty(len(counts)), torch.zeros(len(x), len(counts))
    for smaller in PENALTIES if groups else ():
        logits = torch.zeros_like(found)
        for place, (number, problem) in enumerate(zip(groups, problems, strict=True)):
            solution = problem.solve(penalty=smaller, start=solutions[place], tolerance=ROUGH)
            logits[group == number] = problem.linear(solution)(torch.from_numpy(array[group == number]))
            solutions[place] = solution
        score = float(smoothed_nll(logits[judged].double(), torch.from_numpy(labels)[judged]))
        if score >= best:
            break
        best, penalty, found = score, smaller, logits
    problem = Problem(features, counts.tolist(), "la")
    model = Solved(pieces, problem.linear(problem.solve(penalty=penalty)))
    name = "line" if pieces is None else "pieces"
    return Candidate(name=name, model=model, logits=found, judged=judged, about={"penalty": penalty})


def combine(candidates: Sequence[Candidate], labels: Tensor) -> Stacked:
    """The weighted candidates, the line first, and the table of the choice; a warning if none beats chance."""
    judged = torch.stack([candidate.judged for candidate in candidates]).all(0)
    labels = labels[judged]
    logits = torch.stack([candidate.logits[judged].double() for candidate in candidates])
    rows = class_weights(labels)

    def loss(numbers: Any) -> tuple[float, Any]:
        weights = torch.tensor(numbers, requires_grad=True)
        with torch.enable_grad():
            mixed = torch.einsum("c,cnk->nk", weights, logits)
            value = smoothed_nll(mixed, labels)
        return value.item(), torch.autograd.grad(value, weights)[0].numpy()

    bounds = [(LEAST, None), *[(0.0, None)] * (len(candidates) - 1)]
    start = np.full(len(candidates), 1 / len(candidates))
    weights = torch.from_numpy(minimize(loss, start, method="L-BFGS-B", jac=True, bounds=bounds).x)
    mixed = torch.einsum("c,cnk->nk", weights, logits)
    warn_of_chance(math.log(mixed.shape[1]) - F.cross_entropy(mixed, labels, reduction="none"), rows)
    table = [
        {
            "candidate": candidate.name,
            **candidate.about,
            "weight": float(weight),
            "balanced_acc": float(rows @ (outputs.argmax(1) == labels).double()),
            "nll": balanced_nll(outputs, labels),
        }
        for candidate, weight, outputs in zip(candidates, weights, logits, strict=True)
    ]
    used = weights > NEGLIGIBLE
    models = [candidate.model for candidate, use in zip(candidates, used, strict=True) if use]
    return Stacked(Stack(models, weights[used]), table, Held(mixed, labels).limited())


def smoothed_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Class-balanced NLL; a share of the labels is random, as much as one row is of the effective number of rows.

    So no logits are too large to be wrong once, and all rows right is no reason for probabilities of 1.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> [round(float(smoothed_nll(scale * torch.eye(2)[labels], labels)), 2) for scale in (1.0, 2.0, 9.0)]
    [0.44, 0.38, 1.13]
    """
    weights = class_weights(labels).to(logits)
    share = float(weights.square().sum())
    return weights @ F.cross_entropy(logits, labels, reduction="none", label_smoothing=share)


def warn_of_chance(gain: Tensor, weights: Tensor) -> None:
    """A warning if the log-likelihood that the rows gain over a uniform guess is within two standard errors of 0.

    >>> import pytest
    >>> with pytest.warns(UserWarning, match="better than chance"):
    ...     warn_of_chance(torch.tensor([0.1, -0.1]), torch.tensor([0.5, 0.5]))
    """
    mean = weights @ gain
    if mean <= 2 * (weights * (gain - mean)).square().sum().sqrt():
        warnings.warn(
            "on held-out rows no model is clearly better than chance: the columns may not tell the classes apart, or"
            " there are too few rows.",
            stacklevel=3,
        )
