"""Doubt: how likely it is that a prediction is wrong, from the same forward pass.

If the probabilities p are calibrated and the input is of the kind that the network knows, the prediction is wrong with
the probability 1 - max_k p_k. No other function of p orders the inputs better (Chow, On Optimum Recognition Error and
Reject Tradeoff, 1970). This is the doubt of a classifier that knows nothing else.

An input of another kind can have any p: some networks are surer of noise than of photos. Its features x [L] give it
away. Their direction u = x / |x| has a mean m and a covariance C over known inputs, and

    s(x) = sqrt((u - m)' C^-1 (u - m) / L)

is about 1 for inputs like these. With a limit t that one known input in 500 exceeds, the doubt becomes

    1 - (1 - e) min(1, t / s)^32,      e = (1 - max_k p_k + 0.2 H(p) / log K) / 1.2

(Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, 2018, with
one class and without lengths). The entropy H is larger, for the same largest probability, if nothing else is ruled
out. Known inputs keep the order of e but for one in 500. The numbers 500, 32 and 0.2 were chosen on images that
CIFAR-LT networks had not seen (results/doubt.md).

C has the R largest principal components of the directions, and the mean of the other variances for all others
(Tipping and Bishop, Probabilistic Principal Component Analysis, 1999).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from srepr.errors import InputError, check

COMPONENTS = 64
"""Principal components of the covariance, at most."""
EXAMPLES = 20
"""Examples for each component, at least."""
ENOUGH = 20_000
"""Examples that are enough for all of this, where there are more."""
BEYOND = 1 / 500
"""The share of known inputs that are beyond the limit."""
STEEPNESS = 32
ENTROPY = 0.2
"""Weight of the entropy, as a share of log K."""
TINY = 1e-6
"""Smallest variance, as a share of the mean one: directions without any are not trusted further."""


class Familiar(NamedTuple):
    """What the features of known inputs look like: their direction, without their length.

    >>> known = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)) + torch.tensor([9.0, 0.0, 0.0])
    >>> familiar = fit(known)
    >>> familiar.excess(torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])) > 1
    tensor([False,  True])
    """

    mean: Tensor
    """[L]"""
    scaled: Tensor
    """[R, L], principal components as rows, so scaled that the component of known inputs has variance 1."""
    rest: Tensor
    """1 / variance of any other component."""
    limit: Tensor
    """The distance s that one known input in 500 exceeds."""

    def distance(self, features: Tensor) -> Tensor:
        """The distance s [N] of features [N, L]; NaN for features that are not finite."""
        away = _directions(features) - self.mean.double()
        along = away @ self.scaled.double().T
        # What the components leave of |away|^2; scaled rows have the length 1 / standard deviation.
        variances = 1 / self.scaled.double().square().sum(1)
        left = (away.square().sum(1) - (along.square() * variances).sum(1)).clamp(min=0)
        squares: Tensor = along.square().sum(1) + left * self.rest.double()
        return (squares / away.shape[1]).sqrt()

    def excess(self, features: Tensor) -> Tensor:
        """The ratio s / t [N] of features [N, L]: above 1 for one known input in 500."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise InputError(f"`features` has shape {list(features.shape)}: pass [N, {len(self.mean)}]")
        return self.distance(features) / self.limit.double()

    def checked(self) -> Familiar:
        """The same, if it can be what `fit` gives; else an InputError."""
        size = self.mean.numel()
        shapes = (self.mean.shape, self.scaled.shape[1:], self.rest.shape, self.limit.shape)
        good = self.scaled.ndim == 2 and shapes == ((size,), (size,), (), ())
        finite = good and all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in self)
        if not finite or not self.limit > 0 or not self.rest >= 0 or not self.scaled.square().sum(1).gt(0).all():
            raise InputError("what is known about the features is damaged: not finite, or of another length")
        return self


def fit(features: Any, *, seed: int = 0) -> Familiar:
    """Mean, covariance and limit from features [N, L] of inputs that the network was not trained on.

    The limit is that of one half of them, drawn with the seed, for the mean and the covariance of the other half.

    >>> fit(torch.ones(1, 3))
    Traceback (most recent call last):
    srepr.errors.InputError: `features` has shape [1, 3]: pass [N, L] with at least 4 examples
    """
    x = torch.as_tensor(features)
    if x.ndim != 2 or len(x) < 4 or not x.shape[1]:
        raise InputError(f"`features` has shape {list(x.shape)}: pass [N, L] with at least 4 examples")
    check(bool(x.isfinite().all()), "`features` contains NaN or infinity: check the network that gave them")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    some, others = x[order[::2]], x[order[1::2]]
    away = _directions(some)
    mean = away.mean(0)
    away = away - mean
    length = x.shape[1]
    variances, columns = torch.linalg.eigh(away.T @ away / (len(away) - 1))
    variances, rows = variances.flip(0).clamp(min=0), columns.T.flip(0)
    total = float(variances.sum())
    check(total > 0, "`features` all have the same direction: check the network that gave them")
    kept = min(COMPONENTS, length, max(1, len(away) // EXAMPLES))
    floor = TINY * total / length
    rest = max(float(variances[kept:].sum()) / (length - kept), floor) if kept < length else math.inf
    scaled = rows[:kept] / variances[:kept].clamp(min=floor).sqrt().unsqueeze(1)
    found = Familiar(mean, scaled, torch.tensor(1 / rest), torch.tensor(1.0))
    distances = found.distance(others).sort().values
    place = min(math.ceil((1 - BEYOND) * (len(distances) + 1)), len(distances)) - 1
    return Familiar(*(tensor.float() for tensor in found._replace(limit=distances[place])))


def doubt(probabilities: Tensor, excess: Tensor | None = None) -> Tensor:
    """The doubt [N], 0 .. 1, of predictions with these probabilities [N, K].

    `excess` [N] is that of their features (`Familiar.excess`); without it, the doubt is 1 - max_k p_k.

    >>> p = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    >>> doubt(p)
    tensor([0.1000, 0.4000])
    >>> doubt(p, torch.tensor([0.9, 1.1]))
    tensor([0.1615, 0.9761])
    """
    wrong: Tensor = 1 - probabilities.amax(-1)
    if excess is None:
        return wrong
    entropy = torch.special.entr(probabilities).sum(-1) / math.log(max(probabilities.shape[-1], 2))
    mixed = (wrong + ENTROPY * entropy) / (1 + ENTROPY)
    known = excess.to(probabilities).clamp(min=1).nan_to_num(math.inf, math.inf) ** -STEEPNESS
    combined: Tensor = 1 - (1 - mixed) * known
    return combined.clamp(0, 1)


def _directions(features: Tensor) -> Tensor:
    """Features [N, L] at unit length, in float64; those of length 0 stay 0."""
    x = features.detach().double()
    x = x / x.abs().amax(1, keepdim=True).clamp(min=math.ulp(0.0))  # squares of any length stay finite
    lengths: Tensor = x.norm(dim=1, keepdim=True)
    return x / lengths.clamp(min=1e-300)
