"""Probabilities that can be believed when every class counts the same, from the logits of held-out examples.

    softmax(z / T + r log pi)

The temperature T and the adjustment r minimise the class-balanced negative log-likelihood, in which every class counts
the same; pi are the class shares of the training data. T makes a head less sure or more. r corrects its balance: a
penalty shrinks the weights of rare classes more than those of frequent ones, so what `la` adds to their logits may be
too much or too little. The likelihood is convex in 1 / T and r. A bias for each class, in place of r, needs more
examples of rare classes than a validation set has: there it was no better than r (results/decisions.md).

Labels of N examples count as right with the probability 1 - 1 / (N + 2), the rule of succession: logits that make no
mistake on a few examples are not infinitely sure.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

HOTTEST = 20.0
"""Largest temperature; its inverse is the smallest."""
STRONGEST = 2.0
"""Largest adjustment, of either sign."""


class Calibration(NamedTuple):
    """How the logits of a head become probabilities.

    >>> Calibration(2.0, torch.tensor([0.5, 0.0])).of(torch.tensor([[3.0, 1.0]]))
    tensor([[2.0000, 0.5000]])
    """

    temperature: float = 1.0
    """By which the logits are divided."""
    shift: Tensor | None = None
    """Added to them afterwards [K]; None for nothing."""
    adjustment: float = 0.0
    """r, of which the shift is made."""

    def of(self, logits: Tensor) -> Tensor:
        """The calibrated logits [N, K]."""
        tempered = logits / self.temperature
        return tempered if self.shift is None else tempered + self.shift.to(logits.dtype)


def class_weights(labels: Tensor) -> Tensor:
    """Weights [N] that sum to 1, under which every class that occurs counts the same.

    >>> class_weights(torch.tensor([0, 0, 1]))
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    counts = torch.bincount(labels).double()
    return 1 / counts[labels] / (counts > 0).sum()


def losses(logits: Tensor, labels: Tensor, doubt: float) -> Tensor:
    """-log p(y) of each held-out example [N] whose label counts as right with the probability 1 - doubt.

    >>> losses(torch.tensor([[9.0, 0.0]]), torch.tensor([0]), doubt=0.1)
    tensor([0.4501])
    """
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=doubt)


def best_temperature(logits: Tensor, labels: Tensor, doubt: float = 0.0) -> float:
    """The temperature T at which the class-balanced NLL of softmax(z / T) is smallest, between 1/20 and 20.

    >>> confident = torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    >>> round(best_temperature(confident, torch.tensor([0, 0, 1, 1])), 2)
    8.19
    """
    weights = class_weights(labels)

    def nll(log_temperature: float) -> float:
        return float(weights @ losses(logits.double() * math.exp(-log_temperature), labels, doubt))

    limit = math.log(HOTTEST)
    found = minimize_scalar(nll, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-3})
    return math.exp(found.x)


def calibrate(logits: Tensor, labels: Tensor, counts: Tensor, doubt: float = 0.0) -> Calibration:
    """Temperature and adjustment for logits [N, K] of held-out examples, from the training counts [K].

    Classes without a held-out example have no say: their logits are left out, or the fit would learn never to predict
    them.

    >>> logits = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 2.0]])
    >>> round(calibrate(logits, torch.tensor([0, 0, 1, 1]), torch.tensor([9, 1]), doubt=0.1).adjustment, 2)
    -0.53
    """
    seen, inside = torch.unique(labels, return_inverse=True)
    weights = class_weights(inside)
    log_prior = (counts.clamp(min=1).double() / counts.sum()).log()
    z, offset = logits.double()[:, seen], log_prior[seen]
    if len(seen) < 2 or float(offset.max() - offset.min()) < 1e-9:  # nothing to tell the classes apart by
        return Calibration(best_temperature(z, inside, doubt))

    def nll(numbers: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        at = torch.from_numpy(numbers).requires_grad_()
        with torch.enable_grad():
            value = weights @ losses(at[0] * z + at[1] * offset, inside, doubt)
        (slopes,) = torch.autograd.grad(value, at)
        return value.item(), slopes.numpy()

    start = np.array([1 / best_temperature(z, inside, doubt), 0.0])
    bounds = [(1 / HOTTEST, HOTTEST), (-STRONGEST, STRONGEST)]
    sharpness, adjustment = minimize(nll, start, method="L-BFGS-B", jac=True, bounds=bounds).x.tolist()
    return Calibration(1 / sharpness, adjustment * (log_prior - log_prior.mean()), adjustment)
