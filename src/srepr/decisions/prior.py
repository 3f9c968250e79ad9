"""The class shares at the place of use, estimated from unlabelled inputs there.

Label shift: the classes come in other shares q, but look as they did. Then the inputs have the likelihood

    sum_i log sum_k q_k L_ik

em     L from the probabilities, calibrated on held-out examples as in `srepr.decisions.likelihood` (Saerens et al.,
       Adjusting the Outputs of a Classifier to New a Priori Probabilities, 2002).
bbse   L_ik = P(predicted label of x_i | truth k), the confusion matrix of the held-out examples. Where the solution of
       C q = mu, mu being the shares of the predicted labels, has no negative share, this has the largest likelihood
       (Lipton et al., Detecting and Correcting for Label Shift with Black Box Predictors, 2018).

With many classes, the inputs of one are few. What is expected before they are seen is a Dirichlet distribution,

    q ~ Dir(c m),      m_k ~ pi_k^a

around a power of the training shares pi: the training mix (a = 1), equal shares (0), the reverse (-1) or between. EM
in its variational form (Beal, Variational Algorithms for Approximate Bayesian Inference, 2003)

    g_k <- c m_k + sum_i r_ik,      r_ik = exp(psi(g_k)) L_ik / sum_j exp(psi(g_j)) L_ij

ends at the distribution Dir(g) of the shares and at a lower bound of how probable the inputs are under c and a,

    sum_i log sum_k exp(psi(g_k) - psi(sum_j g_j)) L_ik - KL(Dir(g) | Dir(c m))

The shares are the mean of Dir(g) over a grid of c and a, weighted by the exponential of the bound and by N(a; 0, 1/4).
So the inputs decide how closely the shares follow the training shares: for a mix of another kind, c is small. r counts
different inputs only: copies tell nothing new.

The 95 % intervals are quantiles of a Bayesian bootstrap (Newton and Raftery, Approximate Bayesian Inference with the
Weighted Likelihood Bootstrap, 1994): c and a are drawn from the grid, inputs and held-out examples get weights from
Exp(1), class k gets an input of its own, of a weight from Gamma(c m_k), and the largest likelihood is found again. If
the classes of the inputs are certain, these are the quantiles of Dir(g). The bound prefers a large c. So the grid is
drawn from with a sixteenth of it: the intervals are wide rather than narrow. Less than 1/20 of an input is nothing.

Whether label shift explains the inputs is tested by their probabilities after the adjustment: the largest one, and
those of the `JUDGED` classes with the largest shares. D is the largest difference between the distribution functions
of one of them on the inputs and on the held-out examples, re-weighted to the shares q (Kolmogorov and Smirnov); the
statistic is the sum of D^2. Its distribution under label shift alone comes from inputs and held-out examples that are
both drawn from the held-out examples, the inputs with the shares q, and estimated alike, with this c and a. At a
p-value of at most `LEVEL`, the note says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from srepr.decisions.likelihood import Likelihood, calibration, confusion
from srepr.decisions.numbers import as_labels, as_probabilities, as_shares
from srepr.errors import check, check_seed, unknown

METHODS = ("em", "bbse")
STRENGTHS = (1 / 32, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0)
"""The grid of c / K."""
POWERS, FINER = torch.arange(-3, 4) / 2, torch.arange(-5, 6) / 10
"""The grid of a, and around the most probable one."""
SPREAD = 0.5
"""The standard deviation of a before the inputs are seen."""
RESAMPLES, CALIBRATIONS = 200, 8
"""Draws for the intervals, and how often the held-out examples are drawn for them."""
TEMPERED, NOTHING = 1 / 16, 1 / 20
"""Of the bound, for the draws; of an input. The first was chosen where `CONFUSION` was, by the coverage."""
TINY = 1e-3
"""The smallest training share, as a multiple of the mean one."""
LEVEL, JUDGED = 0.01, 20
FEW = 30  # inputs or held-out examples, effectively: fewer are not tested
TOLERANCE, ROUGH, ITERATIONS = 1e-6, 1e-3, 1000  # of the sum of changes of the shares
CELLS = 1 << 22  # numbers held at once: inputs x draws
LARGEST, FEWEST = 1 << 22, 2000  # probabilities that are estimated from, and inputs in any case


@dataclass(frozen=True)
class PriorEstimate:
    """The class shares at the place of use. `Classifier.with_prior` takes it.

    The fields are plain numbers and words: `dataclasses.asdict` is JSON.
    """

    method: str
    shares: tuple[float, ...]
    """[K], they sum to 1."""
    low: tuple[float, ...]
    """[K], ends of the 95 % intervals."""
    high: tuple[float, ...]
    inputs: int
    """Number of inputs that it was estimated from."""
    p_value: float | None
    """How probable so large a misfit is if only the class shares have changed; None if it was not tested."""
    note: str
    """In words: whether something speaks against label shift, and what a user should know."""


def estimate_prior(
    probabilities: Any,
    *,
    expects: Any = None,
    held: tuple[Any, Any] | None = None,
    counts: Any = None,
    method: str = "em",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PriorEstimate:
    """The class shares among inputs with these probabilities [N, K].

    - expects: the class shares or counts [K] that the probabilities are for. None stands for equal shares.
    - held: probabilities [H, K] and labels [H] of held-out examples. They calibrate `em`; `bbse` needs them.
    - counts: the training counts [K]. None stands for those of the held-out examples, or else for `expects`.

    >>> p = torch.tensor([[0.98, 0.02], [0.01, 0.99], [0.97, 0.03], [0.99, 0.01]]).repeat(25, 1)
    >>> p += 1e-5 * torch.arange(100)[:, None] * torch.tensor([-1, 1])  # no two inputs are the same
    >>> [round(share, 2) for share in estimate_prior(p).shares]
    [0.74, 0.26]
    """
    p = as_probabilities(probabilities)
    classes = p.shape[1]
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    check(resamples >= 1, f"`resamples` is {resamples}: at least 1 is needed")
    check_seed(seed)
    e = as_shares([1.0] * classes if expects is None else expects, "expects", classes)
    check(bool((e > 0).all()), "`expects` has a class with the share 0: give every class a share above 0")
    check(method == "em" or held is not None, "the method bbse takes held-out examples: pass `held`, or use em")
    chance = np.random.default_rng(seed)
    likelihoods, reference, usual = [p / e], None, e
    if held is not None:
        known = as_probabilities(held[0])
        check(known.shape[1] == classes, f"`held` has {known.shape[1]} classes, `probabilities` {classes}")
        y = as_labels(held[1], len(known), classes)
        calibrated = calibration(known, y, e) if method == "em" else None
        first: Likelihood = confusion(known, y) if calibrated is None else calibrated.__call__
        likelihoods, reference = [first(p)], _Reference(known, y, first(known))
        for _ in range(min(CALIBRATIONS, resamples - 1)):
            w = torch.from_numpy(chance.exponential(size=len(y)))
            if calibrated is None:
                likelihoods.append(confusion(known, y, weights=w)(p))
            else:
                likelihoods.append(calibration(known, y, e, weights=w, start=calibrated)(p))
        usual = torch.bincount(y, minlength=classes).double()
    if counts is not None:
        usual = as_shares(counts, "counts", classes)
    direction = torch.from_numpy(np.random.default_rng(0).normal(size=classes))
    different = len(torch.unique((p * direction).sum(1)))
    mixes = expected_mixes(likelihoods[0], usual, different)
    q = mixes.shares
    drawn = _bootstrap(likelihoods[1:] or likelihoods, mixes, different, resamples, chance)
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    least = NOTHING / different
    low, high = torch.where(low < least, 0.0, low), torch.where(high > 1 - least, 1.0, high)
    p_value = None if reference is None else _misfit(p, reference, e, mixes, chance)
    return PriorEstimate(
        method,
        tuple(q.tolist()),
        tuple(torch.minimum(low, q).tolist()),
        tuple(torch.maximum(high, q).tolist()),
        len(p),
        p_value,
        _note(different, mixes, reference is None, p_value),
    )


class Mixes(NamedTuple):
    """The grid of c and a after the inputs were seen."""

    weights: Tensor
    """[G], they sum to 1."""
    wider: Tensor
    """[G], with `TEMPERED` of the bound."""
    strengths: Tensor
    """c [G]"""
    powers: Tensor
    """a [G]"""
    usual: Tensor
    """log pi [K]"""
    shares: Tensor
    """[K], the estimate."""

    def pseudo(self, rows: Tensor, jitter: Tensor | float = 0.0) -> Tensor:
        """The numbers c m_k [R, K] of these rows of the grid; the jitter is added to a."""
        powers = self.powers[rows] + jitter
        return self.strengths[rows, None] * (powers[:, None] * self.usual).softmax(1)


def expected_mixes(likelihood: Tensor, usual: Tensor, different: float) -> Mixes:
    """The grid for inputs with likelihoods [N, K], of which so many are different, and for these training counts [K].

    The classes of certain inputs are counted, and the more there are, the less the training counts matter:

    >>> likelihood, even = torch.eye(2, dtype=torch.float64)[[0] * 900 + [1] * 100], torch.tensor([1.0, 1.0])
    >>> expected_mixes(likelihood, even, 1000).shares
    tensor([0.8994, 0.1006], dtype=torch.float64)
    """
    classes = len(usual)
    logs = (usual.double() / usual.sum()).clamp(min=TINY / classes).log()
    strengths = classes * torch.tensor(STRENGTHS, dtype=torch.float64)
    around = torch.zeros((), dtype=torch.float64)
    for powers in (POWERS.double(), FINER.double()):
        c, a = (some.flatten() for some in torch.meshgrid(strengths, around + powers, indexing="ij"))
        grid = Mixes(c, c, c, a, logs, logs)
        parts = [
            variational(likelihood, grid.pseudo(rows), different)
            for rows in torch.split(torch.arange(len(c)), max(1, CELLS // len(likelihood)))
        ]
        means, bounds = (torch.cat(some) for some in zip(*parts, strict=True))
        logits = bounds - (a / SPREAD).square() / 2
        weights = logits.softmax(0)
        around = a[weights.argmax()]
    return grid._replace(weights=weights, wider=(TEMPERED * logits).softmax(0), shares=weights @ means)


def variational(likelihood: Tensor, pseudo: Tensor, different: float) -> tuple[Tensor, Tensor]:
    """Means [R, K] of the shares and bounds [R] of the module's formula, for c m_k [R, K] and likelihoods [N, K]."""
    each, total = different / len(likelihood), pseudo.sum(1, keepdim=True) + different
    g = pseudo / pseudo.sum(1, keepdim=True) * total
    for _ in range(ITERATIONS):
        weights = g.digamma().exp()
        new = pseudo + each * weights * ((1 / (weights @ likelihood.T).clamp(min=1e-300)) @ likelihood)
        new = new / new.sum(1, keepdim=True) * total  # of inputs that no class explains, none counts
        moved = float(((new - g) / total).abs().sum(1).max())
        g = new
        if moved < ROUGH:
            break
    logs = g.digamma() - total.digamma()
    fits = each * (logs.exp() @ likelihood.T).clamp(min=1e-300).log().sum(1)
    divergence = total[:, 0].lgamma() - g.lgamma().sum(1) - pseudo.sum(1).lgamma() + pseudo.lgamma().sum(1)
    return g / total, fits - divergence - ((g - pseudo) * logs).sum(1)


def em(
    likelihood: Tensor,
    weights: Tensor,
    pseudo: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """The shares [R, K] that maximise sum_i w_i log sum_k q_k L_ik + sum_k g_k log q_k.

    There are R rows of weights w [R, N] and of pseudo-counts g [R, K] for the likelihoods [N, K].

    >>> likelihood, none = torch.eye(2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    >>> em(likelihood, torch.tensor([[3.0, 1.0]], dtype=torch.float64), none)
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    q = torch.full_like(pseudo, 1 / pseudo.shape[1]) if start is None else start.expand_as(pseudo)
    for _ in range(ITERATIONS):
        new = q * ((weights / (q @ likelihood.T).clamp(min=1e-300)) @ likelihood) + pseudo
        new = new / new.sum(1, keepdim=True)
        moved = float((new - q).abs().sum(1).max())
        q = new
        if moved < tolerance:
            break
    return q


def _bootstrap(
    likelihoods: list[Tensor], mixes: Mixes, different: float, resamples: int, chance: np.random.Generator
) -> Tensor:
    """Shares [R, K] of the module's Bayesian bootstrap, each calibration with as many draws."""
    inputs, drawn = len(likelihoods[0]), []
    rows = torch.from_numpy(chance.choice(len(mixes.wider), size=resamples, p=mixes.wider.numpy()))
    step = float(FINER[1] - FINER[0])
    for place, likelihood in enumerate(likelihoods):
        for few in torch.split(rows[place :: len(likelihoods)], max(1, CELLS // inputs)):
            jitter = torch.from_numpy(chance.uniform(-step / 2, step / 2, size=len(few)))
            pseudo = torch.from_numpy(chance.gamma(mixes.pseudo(few, jitter).numpy())).clamp(min=1e-300)
            weights = torch.from_numpy(chance.exponential(different / inputs, size=(len(few), inputs)))
            drawn.append(em(likelihood, weights, pseudo, start=mixes.shares, tolerance=ROUGH))
    return torch.cat(drawn)


class _Reference(NamedTuple):
    """The held-out examples: their probabilities, labels and likelihoods."""

    probabilities: Tensor
    labels: Tensor
    likelihood: Tensor


def _judged(p: Tensor, expects: Tensor, q: Tensor, classes: Tensor) -> Tensor:
    """The largest adjusted probability and those of some classes [1 + C, N], from probabilities [N, K]."""
    adjusted = p * (q / expects)
    return torch.cat([adjusted.amax(1, keepdim=True), adjusted[:, classes]], 1).T / adjusted.sum(1)


def _distance(inputs: Tensor, reference: Tensor, weights: Tensor) -> float:
    """The sum of D^2 over C variables, of inputs [C, N] and reference examples [C, H] with weights [H]."""
    values, order = torch.cat([inputs, reference], 1).sort(1)
    each = weights.new_full((inputs.shape[1],), 1 / inputs.shape[1])
    steps = torch.cat([each, -weights / weights.sum()])[order].cumsum(1)
    within = torch.zeros_like(values, dtype=torch.bool)  # equal values make one step
    within[:, :-1] = values[:, 1:] == values[:, :-1]
    return float(steps.masked_fill(within, 0.0).abs().amax(1).square().sum())


def _misfit(p: Tensor, held: _Reference, e: Tensor, mixes: Mixes, chance: np.random.Generator) -> float | None:
    """The p-value of the module's test; None if there are too few examples for it."""
    y, q = held.labels, mixes.shares
    numbers = torch.bincount(y, minlength=len(e)).double()
    weights = q / numbers.clamp(min=1)
    if len(p) < FEW or float(weights[y].sum() ** 2 / weights[y].square().sum()) < FEW:
        return None
    judged = q.topk(min(JUDGED, len(q))).indices
    found = _distance(_judged(p, e, q, judged), _judged(held.probabilities, e, q, judged), weights[y])
    order, first, sizes = y.argsort().numpy(), (numbers.cumsum(0) - numbers).long().numpy(), numbers.long().numpy()
    present = np.where(sizes > 0, q.numpy(), 0.0)
    classes = np.repeat(np.arange(len(sizes)), sizes)

    def examples(labels: npt.NDArray[np.int64]) -> Tensor:
        """A held-out example of each of these classes, at random."""
        return torch.from_numpy(order[first[labels] + (chance.random(len(labels)) * sizes[labels]).astype(np.int64)])

    even, greater = torch.ones(1, len(p), dtype=torch.float64), 0
    pseudo = mixes.pseudo(mixes.weights.argmax()[None])
    for _ in range(times := round(1 / LEVEL)):
        counts = chance.multinomial(len(p), present / present.sum())
        rows, others = examples(np.repeat(np.arange(len(sizes)), counts)), examples(classes)
        shares = em(held.likelihood[rows], even, pseudo, start=q, tolerance=ROUGH)[0]
        one, other = (_judged(held.probabilities[some], e, shares, judged) for some in (rows, others))
        greater += _distance(one, other, (shares / numbers.clamp(min=1))[y[others]]) >= found
    return (1 + greater) / (1 + times)


def _note(different: int, mixes: Mixes, blind: bool, p_value: float | None) -> str:
    lines, classes = [], len(mixes.shares)
    if different < 10 * classes:
        kept = float(mixes.weights @ (mixes.strengths / (mixes.strengths + different)))
        power = round(float(mixes.weights @ mixes.powers), 2) + 0.0  # never -0.00
        flat = float(mixes.usual.max() - mixes.usual.min()) < 1e-9
        expected = "equal shares" if flat else f"the training shares to the power {power:.2f}"
        few = f"{different:,} different inputs are few for {classes:,} classes"
        lines.append(f"{few}: {kept:.0%} of the estimate are {expected}.")
    if blind:
        lines.append("There are no held-out examples to test whether label shift explains the inputs.")
    elif p_value is None:
        lines.append("There are too few examples to test whether label shift explains the inputs.")
    elif p_value <= LEVEL:
        lines.append(
            f"Label shift does not explain the inputs (p = {p_value:.3f}): they differ from the training data in more"
            " than the class shares. Do not rely on the estimate."
        )
    else:
        lines.append(f"Nothing speaks against label shift (p = {p_value:.2f}).")
    return " ".join(lines)
