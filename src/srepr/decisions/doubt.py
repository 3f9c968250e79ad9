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
out. Known inputs keep the order of e but for one in 500.

A network that was trained on the data also says how far an input is from the classes. The directions of the training
examples have R principal components v, scaled to variance 1, and in them the class means mu_k. W is the covariance of
other known inputs around the mean of their class. The relative distance (Ren et al., A Simple Fix to Mahalanobis
Distance for Improving Near-OOD Detection, 2021)

    r(x) = min_k (v - mu_k)' W^-1 (v - mu_k) - v'v

is large between the classes, where 1 - max p may be small. It also grows with 1 - max p, so z is what a line in
logit(1 - max p) leaves of it, in standard deviations over known inputs, at most 3. Then e has other odds:

    e / (1 - e) = exp(0.3 z) (1 - max p) / max p

Eigenvalues of W are at most 0.7: else r would fall with the distance from all classes. The numbers were chosen on
images that CIFAR-LT networks had not seen (results/doubt.md).

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
WEIGHT = 0.3
"""Of the relative distance in the logit of the doubt."""
UNUSUAL = 3.0
"""Largest relative distance, in standard deviations."""
WITHIN = 0.7
"""Largest variance within the classes, as a share of the whole."""
SURE = 12.0
"""Largest logit of 1 - max p that the relative distance is compared with."""
TINY = 1e-6
"""Smallest variance, as a share of the mean one: directions without any are not trusted further."""


class Relative(NamedTuple):
    """How far features are from the nearest class, relative to their distance from all known inputs."""

    mean: Tensor
    """[L], of the directions of the training examples."""
    scaled: Tensor
    """[R, L], their components v as rows, along the eigenvectors of W."""
    within: Tensor
    """[R], the eigenvalues of W."""
    means: Tensor
    """[C, R], the components of the class means."""
    usual: Tensor
    """[3], what to expect of known inputs: r = usual[0] + usual[1] logit(1 - max p), within usual[2]."""

    def distance(self, features: Tensor) -> Tensor:
        """The relative distance r [N] of features [N, L]."""
        along = (_directions(features) - self.mean.double()) @ self.scaled.double().T
        weights, means = 1 / self.within.double(), self.means.double()
        # (v - mu)' W^-1 (v - mu), multiplied out: [N, C, R] numbers would be too many.
        own = along.square() @ (weights - 1)
        to_classes = means.square() @ weights - 2 * (along * weights) @ means.T
        nearest: Tensor = own + to_classes.amin(1)
        return nearest

    def unusual(self, distances: Tensor, probabilities: Tensor) -> Tensor:
        """The number z [N] of inputs at these distances r [N] with these probabilities [N, K]; 0 if r is NaN."""
        start, slope, spread = self.usual.double()
        z: Tensor = (distances.double() - start - slope * _logits(1 - probabilities.amax(-1))) / spread
        return z.nan_to_num(0.0, UNUSUAL, -UNUSUAL).clamp(-UNUSUAL, UNUSUAL)

    def fits(self, length: int) -> bool:
        """Whether it can be what `fit_relative` gives for features of this length."""
        if self.scaled.ndim != 2 or self.means.ndim != 2 or not len(self.scaled) or not len(self.means):
            return False
        rank = len(self.scaled)
        shapes = (self.mean.shape, self.scaled.shape[1:], self.within.shape, self.means.shape[1:], self.usual.shape)
        if shapes != ((length,), (length,), (rank,), (rank,), (3,)):
            return False
        finite = all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in self)
        return finite and bool((self.within > 0).all()) and bool(self.usual[2] > 0)


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
    relative: Relative | None = None
    """How far from the classes features are, if that is known."""

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

    def doubt(self, probabilities: Tensor, features: Tensor | None = None, distances: Tensor | None = None) -> Tensor:
        """The doubt [N] of predictions with these probabilities [N, K] and features [N, L].

        Without features, those of known inputs are assumed, at these relative distances [N] or at the usual ones.
        """
        excess, unusual = probabilities.new_zeros(len(probabilities)), None
        if features is not None:
            excess = self.excess(features)
        if self.relative is not None:
            unusual = torch.zeros_like(excess)
            if features is not None:
                distances = self.relative.distance(features)
            if distances is not None:
                unusual = self.relative.unusual(distances, probabilities)
        return doubt(probabilities, excess, unusual)

    def checked(self) -> Familiar:
        """The same, if it can be what `fit` gives; else an InputError."""
        size = self.mean.numel()
        shapes = (self.mean.shape, self.scaled.shape[1:], self.rest.shape, self.limit.shape)
        good = self.scaled.ndim == 2 and shapes == ((size,), (size,), (), ())
        own = (self.mean, self.scaled, self.rest, self.limit)
        finite = good and all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in own)
        finite = finite and (self.relative is None or self.relative.fits(size))
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
    mean, scaled, rest = _components(some)
    found = Familiar(mean, scaled, torch.tensor(1 / rest), torch.tensor(1.0))
    distances = found.distance(others).sort().values
    place = min(math.ceil((1 - BEYOND) * (len(distances) + 1)), len(distances)) - 1
    return Familiar(mean.float(), scaled.float(), found.rest.float(), distances[place].float())


def fit_relative(
    trained: Tensor, trained_labels: Tensor, features: Tensor, labels: Tensor, probabilities: Tensor, *, seed: int = 0
) -> Relative | None:
    """The relative distance, from training examples and from others that the network was not trained on.

    Class means and components are those of the features `trained` [M, L]. One half of the others, `features` [N, L],
    gives the covariance within the classes. The other half, with these probabilities [N, K], shows what is usual.
    None if there are too few.
    """
    there, trained_labels = torch.unique(trained_labels, return_inverse=True)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    order = order[torch.isin(labels[order], there)]
    some, others = order[::2], order[1::2]
    if len(trained) < 4 or len(others) < EXAMPLES:
        return None
    mean, scaled, _ = _components(trained)
    rank = len(scaled)
    along = (_directions(trained) - mean) @ scaled.T
    means = along.new_zeros(len(there), rank).index_add_(0, trained_labels, along)
    means /= torch.bincount(trained_labels).unsqueeze(1)
    around = (_directions(features[some]) - mean) @ scaled.T - means[torch.searchsorted(there, labels[some])]
    within = around.T @ around / len(around)
    # As if R more examples were spread alike in all directions.
    share = rank / (rank + len(around))
    alike = torch.eye(rank, dtype=within.dtype) * within.trace() / rank
    values, axes = torch.linalg.eigh((1 - share) * within + share * alike)
    found = Relative(mean, axes.T @ scaled, values.clamp(1e-3, WITHIN), means @ axes, torch.zeros(3))
    distances = found.distance(features[others])
    sure = _logits(1 - probabilities[others].amax(-1))
    slope = torch.cov(torch.stack([sure, distances]))[0, 1] / sure.var().clamp(min=TINY)
    start = distances.mean() - slope * sure.mean()
    spread = (distances - start - slope * sure).std()
    if not spread > 0 or not spread.isfinite():
        return None
    return Relative(*(tensor.float() for tensor in found._replace(usual=torch.stack([start, slope, spread]))))


def doubt(probabilities: Tensor, excess: Tensor | None = None, unusual: Tensor | None = None) -> Tensor:
    """The doubt [N], 0 .. 1, of predictions with these probabilities [N, K].

    `excess` [N] is that of their features (`Familiar.excess`); without it, the doubt is 1 - max_k p_k. `unusual` [N]
    is z, if there is a relative distance (`Relative.unusual`).

    >>> p = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    >>> doubt(p)
    tensor([0.1000, 0.4000])
    >>> doubt(p, torch.tensor([0.9, 1.1]))
    tensor([0.1615, 0.9761])
    >>> doubt(p, torch.tensor([0.9, 0.9]), torch.tensor([0.0, 3.0]))
    tensor([0.1000, 0.6212])
    """
    wrong: Tensor = 1 - probabilities.amax(-1)
    if excess is None:
        return wrong
    if unusual is None:
        entropy = torch.special.entr(probabilities).sum(-1) / math.log(max(probabilities.shape[-1], 2))
        mixed = (wrong + ENTROPY * entropy) / (1 + ENTROPY)
    else:
        odds = wrong * (WEIGHT * unusual.to(probabilities)).exp()
        mixed = odds / (odds + 1 - wrong)
    known = excess.to(probabilities).clamp(min=1).nan_to_num(math.inf, math.inf) ** -STEEPNESS
    combined: Tensor = 1 - (1 - mixed) * known
    return combined.clamp(0, 1)


def _components(features: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean [L], scaled principal components [R, L] and the variance of the others, of the directions of [N, L]."""
    away = _directions(features)
    mean = away.mean(0)
    away = away - mean
    length = away.shape[1]
    variances, columns = torch.linalg.eigh(away.T @ away / (len(away) - 1))
    variances, rows = variances.flip(0).clamp(min=0), columns.T.flip(0)
    total = float(variances.sum())
    check(total > 0, "`features` all have the same direction: check the network that gave them")
    kept = min(COMPONENTS, length, max(1, len(away) // EXAMPLES))
    floor = TINY * total / length
    rest = max(float(variances[kept:].sum()) / (length - kept), floor) if kept < length else math.inf
    return mean, rows[:kept] / variances[:kept].clamp(min=floor).sqrt().unsqueeze(1), rest


def _logits(shares: Tensor) -> Tensor:
    return shares.detach().cpu().double().logit().clamp(-SURE, SURE)


def _directions(features: Tensor) -> Tensor:
    """Features [N, L] at unit length, in float64; those of length 0 stay 0."""
    x = features.detach().double()
    x = x / x.abs().amax(1, keepdim=True).clamp(min=math.ulp(0.0))  # squares of any length stay finite
    lengths: Tensor = x.norm(dim=1, keepdim=True)
    return x / lengths.clamp(min=1e-300)
