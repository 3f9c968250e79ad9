"""How probable an input is under each class, from its probabilities and from held-out examples.

Label shift changes the class shares alone. So the likelihoods L_ik of an input under the classes, up to a factor for
each input, are all that an estimate of the shares needs. The classifier gives p(k | x_i) / e_k, where e are the shares
that its probabilities expect. With z its logarithm, the held-out examples improve it to

    L_i = softmax(z_i / T + M v_i + b),      v_i = (z_i - mean of z_i) / r

with a temperature T and a bias b for each class (Alexandari et al., Maximum Likelihood with Bias-Corrected Calibration
is Hard-To-Beat at Label Shift Adaptation, 2020), and a matrix M for classes that the classifier confuses (Kull et al.,
Beyond temperature scaling, 2019); r is the root mean square of z - mean over the held-out examples. They minimise

    -sum_i w_i log softmax(z_i / T + M v_i + b + log h)[y_i] + B / 2 (|b|^2 + log^2 T) + C / 2 |M|^2

where h are the class shares of the held-out examples, w = 1, and B and C are `BIAS` and `CONFUSION`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BIAS = 5.0
CONFUSION = 50.0
"""Penalties, chosen on images of both CIFARs that the reference runs had not seen (results/decisions.md)."""
LARGEST = 1 << 28
"""Held-out examples x classes^2: beyond, M is 0."""
LONG, SHORT = 100, 10  # steps of the search

Likelihood = Callable[[Tensor], Tensor]
"""From probabilities [N, K] to likelihoods [N, K]."""


class Calibrated(NamedTuple):
    """From probabilities [N, K] to likelihoods [N, K], the module's formula.

    >>> fitted = Calibrated(torch.tensor([0.5, 0.5]), sharpness=torch.tensor(2.0), bias=torch.zeros(2))
    >>> fitted(torch.tensor([[0.75, 0.25]]))
    tensor([[0.9000, 0.1000]])
    """

    expects: Tensor
    """[K]"""
    sharpness: Tensor
    """1 / T"""
    bias: Tensor
    """[K]"""
    matrix: Tensor | None = None
    """[K, K], M / r; None for 0."""

    def __call__(self, probabilities: Tensor) -> Tensor:
        """The likelihoods; they sum to 1 for each input."""
        return self.logits(probabilities).softmax(1)

    def logits(self, probabilities: Tensor) -> Tensor:
        """Logarithms of the likelihoods, up to a number for each input."""
        z = probabilities.clamp(min=1e-30).log() - self.expects.log()
        found = z * self.sharpness + self.bias
        return found if self.matrix is None else found + (z - z.mean(1, keepdim=True)) @ self.matrix.T


def calibration(
    held: Tensor, labels: Tensor, expects: Tensor, *, weights: Tensor | None = None, start: Calibrated | None = None
) -> Calibrated:
    """T, M and b for the held-out probabilities [H, K] and labels [H], which have these weights [H], 1 by default.

    A class without held-out examples is not expected among them. With a `start`, the search begins there and is short.
    """
    w = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
    examples, classes = held.shape
    shares = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, w) / w.sum()
    offset = shares.log().clamp(min=-1e9)
    plain = Calibrated(expects, torch.tensor(1.0, dtype=torch.float64), torch.zeros_like(expects))
    z = plain.logits(held)
    v = z - z.mean(1, keepdim=True)
    size = v.square().mean().sqrt().clamp(min=1e-9)
    v = v / size
    with torch.enable_grad():
        sharp = torch.zeros((), dtype=torch.float64, requires_grad=True)  # -log T
        bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
        matrix = torch.zeros(classes, classes, dtype=torch.float64, requires_grad=True)
        confused = examples * classes**2 <= LARGEST
        numbers = [sharp, bias, matrix] if confused else [sharp, bias]
        if start is not None:
            sharp.data.copy_(start.sharpness.log())
            bias.data.copy_(start.bias)
            if start.matrix is not None:
                matrix.data.copy_(start.matrix * size)
        steps = LONG if start is None else SHORT
        search = torch.optim.LBFGS(numbers, max_iter=steps, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            logits = z * sharp.exp() + bias + offset
            if confused:
                logits = logits + v @ matrix.T
            penalty = BIAS * (bias.square().sum() + sharp.square()) + CONFUSION * matrix.square().sum()
            total = (w @ F.cross_entropy(logits, labels, reduction="none") + penalty / 2) / len(labels)
            total.backward()  # type: ignore[no-untyped-call]
            return total

        search.step(loss)  # type: ignore[no-untyped-call]
    return Calibrated(expects, sharp.detach().exp(), bias.detach(), matrix.detach() / size if confused else None)


def confusion(held: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Likelihood:
    """From probabilities [N, K] to P(predicted label | truth) [N, K], of held-out probabilities and labels.

    A class without held-out examples counts as always recognised. So does a label that was never predicted.
    """
    classes = held.shape[1]
    w = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
    counts = torch.zeros(classes, classes, dtype=torch.float64)
    counts.index_put_((held.argmax(1), labels), w, accumulate=True)
    blind = (counts.sum(0) == 0) | (counts.sum(1) == 0)
    counts += torch.diag(blind.double())
    table = counts / counts.sum(0)
    return lambda p: table[p.argmax(1)]
