"""Stage 2 as the solution of a stated problem: the linear head that minimises the balanced loss with an L2 penalty.

    min over (W, b)   (1 - w) (L_CE(W, b) + (penalty / 2) |W|^2) + w L_KD(W, b)

The features are centred and divided by one number, their root mean square (`srepr.standardization`); L_CE and L_KD
are means over the examples, and the bias is free. So neither the scale, the origin, the order nor a repetition of the
features changes the predictions, and a penalty means the same on any data. Without distillation the problem is convex.
It is solved by L-BFGS in coordinates in which the curvature is nearly that of the identity:

    w_kj = v_kj / sqrt(q_k (1 - q_k) lambda_j + penalty)

along the principal axes of the features with variances lambda_j, for a share q_k of class k in the balanced loss. The
solution is folded back into a plain `nn.Linear` on the features as they came.

The teachers of the distillation move with the head. It is solved as a fixed point: hold the teachers, minimise, make
them anew, until the logits settle.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from srepr import dirichlet, heads
from srepr.balance import balancing
from srepr.calibration import Calibration
from srepr.data.loaders import as_labels
from srepr.data.longtail import Indices
from srepr.features import EpochFeatures
from srepr.objective import cross_entropy, distillation
from srepr.standardization import Standardized

TOLERANCE = 1e-5
"""Largest entry of the gradient at a solution, in the coordinates of nearly unit curvature."""
UNCHANGED = Calibration()
ITERATIONS = 1000
LARGEST_PRECISION = 20.0  # its logarithm: of teachers that agree, where the Dirichlet has become a point
REFRESHES = 30


@dataclass(frozen=True)
class Distillation:
    """Self-distillation in the problem: its weight w and the temperature of teachers and student."""

    weight: float = 0.5
    temperature: float = 20.0


@dataclass(frozen=True)
class Solution:
    """A head on standardised features: `weight` [K, L] and `bias` [K] in float64."""

    weight: Tensor
    bias: Tensor

    def centred(self) -> Solution:
        """The same probabilities from logits with mean 0 over the classes."""
        return Solution(self.weight - self.weight.mean(0), self.bias - self.bias.mean())


class Problem:
    """The data of the problem, standardised once; it is then solved for any penalty.

    >>> features = EpochFeatures(np.array([0, 0, 1]), [np.eye(3, 2, dtype=np.float32)], np.eye(3, 2, dtype=np.float32))
    >>> problem = Problem(features, [2, 1], "la")
    >>> problem.linear(problem.solve(penalty=0.1))
    Linear(in_features=2, out_features=2, bias=True)
    """

    def __init__(
        self,
        features: EpochFeatures,
        counts: Sequence[int],
        balance: str,
        *,
        rho: float = 1.0,
        rows: Indices | None = None,
    ) -> None:
        """`rows` are the examples to use, by default all; class-balanced sampling is solved as its class weights."""
        self.classes = len(counts)
        self.labels = as_labels(features.labels, classes=self.classes)
        if rows is not None:
            self.labels = self.labels[rows]
        self.data = Standardized(features, rows, classes=self.classes)
        self.balance = balancing(balance, counts, rho)
        self.sampled: Tensor | None = None
        if self.balance.sampling:  # in expectation, a weight of the class in both terms of the loss
            shares = torch.bincount(self.labels, minlength=self.classes) / len(self.labels)
            self.sampled = torch.where(shares > 0, 1 / shares / (shares > 0).sum(), 0.0)
            self.balance = self.balance._replace(weight=self.sampled)

    def parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Chunks of standardised representations [M, B, L] and mean features [B, L], and labels [B]."""
        begin = 0
        for stochastic, mean in self.data:
            yield stochastic, mean, self.labels[begin : begin + len(mean)]
            begin += len(mean)

    @cached_property
    def curvature(self) -> Tensor:
        """q_k (1 - q_k) [K], for the shares q_k of the classes in the balanced loss."""
        weight = torch.ones(self.classes) if self.balance.weight is None else self.balance.weight
        shares = weight.double() * torch.bincount(self.labels, minlength=self.classes)
        shares = (shares / shares.sum()).clamp(1e-6, 1 - 1e-6)
        return shares * (1 - shares)

    def solve(
        self,
        *,
        penalty: float,
        distillation: Distillation | None = None,
        start: Solution | None = None,
        tolerance: float = TOLERANCE,
    ) -> Solution:
        """The best head for a penalty; `start` is a solution of a similar problem, which saves iterations.

        `tolerance` is the largest entry of the gradient; for the distillation it is ten times as large, and its logits
        settle to within a thousand tolerances.
        """
        if distillation is None or not distillation.weight:
            return self._minimise(penalty, start, tolerance).centred()
        solution = self._minimise(penalty, None, 100 * tolerance).centred() if start is None else start
        for _ in range(REFRESHES):
            before, solution = solution, self._minimise(penalty, solution, 10 * tolerance, distillation)
            if self._change(before, solution) < 1e3 * tolerance:
                return solution
        warnings.warn(
            f"the teachers of the distillation still move after {REFRESHES} refreshes. Raise `penalty`.",
            stacklevel=2,
        )
        return solution

    def _change(self, before: Solution, after: Solution) -> float:
        """Root mean square of the change of the logits, up to a number for each example that no probability shows."""
        change = Solution(after.weight - before.weight, after.bias - before.bias).centred()
        along = self.data.along_axes(change.weight)
        return float(((along.square() * self.data.variances).sum(1) + change.bias.square()).mean().sqrt())

    def _minimise(
        self, penalty: float, start: Solution | None, tolerance: float, distil: Distillation | None = None
    ) -> Solution:
        """L-BFGS for teachers that are held; they are those of `start`."""
        share = 1.0 if distil is None else 1 - distil.weight
        steps = (share * (self.curvature[:, None] * self.data.variances + penalty)).rsqrt()
        free = (share * self.curvature).rsqrt()
        teachers = None
        if distil is not None and start is not None:
            teachers = self._teachers(start, distil)
            start = self._as_sure(start, teachers, distil)

        def unfold(numbers: Any) -> Solution:
            moved = torch.from_numpy(np.asarray(numbers, dtype=np.float64)).view(self.classes, -1)
            return Solution(self.data.from_axes(moved[:, :-1] * steps), moved[:, -1] * free)

        def loss(numbers: Any) -> tuple[float, Any]:
            value, weight, bias = self._loss(unfold(numbers), penalty, teachers, distil)
            slopes = torch.cat([self.data.along_axes(weight) * steps, (bias * free)[:, None]], 1)
            return value, slopes.flatten().numpy()

        begin = torch.zeros(self.classes, len(self.data.variances) + 1, dtype=torch.float64)
        if start is not None:
            begin = torch.cat([self.data.along_axes(start.weight) / steps, (start.bias / free)[:, None]], 1)
        found = minimize(
            loss,
            begin.flatten().numpy(),
            method="L-BFGS-B",
            jac=True,
            options={"maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS, "gtol": tolerance, "ftol": 1e-12, "maxcor": 10},
        )
        worst = float(np.abs(found.jac).max())
        if worst > 100 * tolerance:
            warnings.warn(
                f"the re-training stopped before it converged (gradient {worst:.2g} after {found.nit} iterations)."
                " Raise `penalty`.",
                stacklevel=2,
            )
        return unfold(found.x)

    def _loss(
        self, at: Solution, penalty: float, teachers: list[tuple[Tensor, Tensor]] | None, distil: Distillation | None
    ) -> tuple[float, Tensor, Tensor]:
        """The loss at a point, and its gradient in the weight and the bias, for teachers that are held."""
        share = 1.0 if distil is None else 1 - distil.weight
        value = share * penalty / 2 * float(at.weight.square().sum())
        weight, bias = (tensor.to(self.data.dtype, copy=True).requires_grad_() for tensor in (at.weight, at.bias))
        for number, (stochastic, mean, labels) in enumerate(self.parts()):
            with torch.enable_grad():
                logits = stochastic @ weight.T + bias
                part = share * cross_entropy(logits, labels, weight=self.balance.weight, offset=self.balance.offset)
                if distil is not None and teachers is not None:
                    student = mean @ weight.T + bias
                    weights = None if self.sampled is None else self.sampled[labels]
                    part = part + distil.weight * distillation(
                        student, *teachers[number], distil.temperature, weight=weights
                    )
                part = part * (len(labels) / len(self.labels))
            part.backward()  # type: ignore[no-untyped-call]
            value += part.item()
        assert weight.grad is not None
        assert bias.grad is not None
        return value, weight.grad.double() + share * penalty * at.weight, bias.grad.double()

    def _teachers(self, at: Solution, distil: Distillation) -> list[tuple[Tensor, Tensor]]:
        """Mean and precision of the teachers that a head makes of the representations."""
        found = []
        for stochastic, _, _ in self.parts():
            logits = stochastic @ at.weight.T.to(self.data.dtype) + at.bias.to(self.data.dtype)
            found.append(dirichlet.fit_unchecked((logits.double() / distil.temperature).log_softmax(-1)))
        return found

    def _as_sure(self, at: Solution, teachers: list[tuple[Tensor, Tensor]], distil: Distillation) -> Solution:
        """The same probabilities from logits whose Dirichlets are on average as precise as the teachers'.

        The cross-entropy does not see the mean of the logits over the classes, so it is free, and far from where
        L-BFGS would begin.
        """
        gap = 0.0
        for (_, mean, _), (_, precision) in zip(self.parts(), teachers, strict=True):
            logits = mean @ at.weight.T.to(self.data.dtype) + at.bias.to(self.data.dtype)
            sure = (logits.double() / distil.temperature).logsumexp(-1)
            gap += float((precision.double().log().clamp(max=LARGEST_PRECISION) - sure).sum()) / len(self.labels)
        return Solution(at.weight, at.bias + distil.temperature * gap)

    def linear(self, solution: Solution, calibration: Calibration = UNCHANGED) -> nn.Linear:
        """The head on the features as they came, with calibrated logits.

        What the biases of all classes have in common is left out: it is large after a distillation, no probability
        shows it, and a head in half precision has no digits for it.
        """
        weight = solution.weight / self.data.scale
        bias = solution.bias - weight @ self.data.centre
        bias = calibration.of(bias - bias.mean())
        head = heads.linear((weight / calibration.temperature).float(), bias.float())
        assert isinstance(head, nn.Linear)
        return head.requires_grad_(False)
