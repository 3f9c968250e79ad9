"""The class shares at the place of use, estimated from unlabelled inputs there.

Label shift: the classes come in other shares q, but look as they did. Then the inputs have the likelihood

    sum_i log sum_k q_k L_ik

em     L_ik = p(k | x_i) / e_k, where e are the shares that the probabilities expect (Saerens et al., Adjusting the
       Outputs of a Classifier to New a Priori Probabilities, 2002). Held-out examples calibrate the probabilities
       first: softmax(z / T + b + log h), where h is their mix, fits their labels best under a penalty on b (Alexandari
       et al., Maximum Likelihood with Bias-Corrected Calibration is Hard-To-Beat at Label Shift Adaptation, 2020).
bbse   L_ik = P(predicted label of x_i | truth k), the confusion matrix of the held-out examples. Where the solution of
       C q = mu, mu being the shares of the predicted labels, has no negative share, this is it (Lipton et al.,
       Detecting and Correcting for Label Shift with Black Box Predictors, 2018); else it is the nearest in likelihood.

Both are maximised by EM, q_k <- (sum_i r_ik + c K e_k) / (n + c K) with r_ik = q_k L_ik / sum_j q_j L_ij: c K inputs
more than were seen, in the expected shares, so that a few inputs change little. n counts different inputs: copies tell
nothing new. The 95 % intervals are quantiles over inputs that are drawn again with replacement; they do not know about
errors of the probabilities.

Whether label shift explains the inputs is tested by their confidence max_k p_k after the adjustment. D is the largest
difference between its distribution function on the inputs and on the held-out examples, re-weighted to the shares q
(Kolmogorov and Smirnov). Its distribution under label shift alone comes from inputs and held-out examples that are
both drawn from the held-out examples, the inputs with the shares q, and estimated alike. At a p-value of at most
`LEVEL`, the note says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from srepr.decisions.numbers import as_labels, as_probabilities, as_shares
from srepr.errors import check, check_seed, unknown

METHODS = ("em", "bbse")
PSEUDO = 1.0
PENALTY = 5.0
"""Both chosen on images of CIFAR-100 that the CIFAR100-LT run had not seen."""
RESAMPLES = 200
LEVEL = 0.01
FEW = 30  # inputs or held-out examples, effectively: fewer are not tested
TOLERANCE, ITERATIONS = 1e-6, 1000  # of the sum of changes of the shares
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
    """In words: whether label shift explains the inputs, and what a user should know."""


def estimate_prior(
    probabilities: Any,
    *,
    expects: Any = None,
    held: tuple[Any, Any] | None = None,
    method: str = "em",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PriorEstimate:
    """The class shares among inputs with these probabilities [N, K].

    - expects: the class shares or counts [K] that the probabilities are for. None stands for equal shares.
    - held: probabilities [H, K] and labels [H] of held-out examples. They calibrate `em`; `bbse` needs them.

    >>> p = torch.tensor([[0.98, 0.02], [0.01, 0.99], [0.97, 0.03], [0.99, 0.01]]).repeat(25, 1)
    >>> p += 1e-5 * torch.arange(100)[:, None] * torch.tensor([-1, 1])  # no two inputs are the same
    >>> [round(share, 2) for share in estimate_prior(p).shares]
    [0.75, 0.25]
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
    likelihood = p / e
    reference: _Reference | None = None
    if held is not None:
        known = as_probabilities(held[0])
        check(known.shape[1] == classes, f"`held` has {known.shape[1]} classes, `probabilities` {classes}")
        y = as_labels(held[1], len(known), classes)
        calibrated = confusion(known, y) if method == "bbse" else calibration(known, y, e)
        likelihood, reference = calibrated(p), _Reference(known, y, calibrated(known))
    direction = torch.from_numpy(np.random.default_rng(0).normal(size=classes))
    different = len(torch.unique((p * direction).sum(1)))
    q = em(likelihood, torch.ones(1, len(p), dtype=torch.float64), e, different)[0]
    drawn = []
    for block in torch.split(torch.arange(resamples), max(1, CELLS // len(p))):
        counts = chance.multinomial(len(p), np.full(len(p), 1 / len(p)), size=len(block))
        drawn.append(em(likelihood, torch.from_numpy(counts).double(), e, different, start=q, tolerance=1e-3))
    low, high = torch.quantile(torch.cat(drawn), torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    p_value = None if reference is None else _misfit(p, reference, e, q, chance)
    return PriorEstimate(
        method,
        tuple(q.tolist()),
        tuple(torch.minimum(low, q).tolist()),
        tuple(torch.maximum(high, q).tolist()),
        len(p),
        p_value,
        _note(different, classes, reference is None, p_value),
    )


def em(
    likelihood: Tensor,
    weights: Tensor,
    expects: Tensor,
    different: float,
    *,
    start: Tensor | None = None,
    pseudo: float = PSEUDO,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """The shares [R, K] of the module's formula, for R rows of weights [R, N] of inputs with likelihoods [N, K].

    >>> likelihood, even = torch.eye(2, dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    >>> em(likelihood, torch.tensor([[3.0, 1.0]], dtype=torch.float64), even, different=4, pseudo=0.0)
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    added = pseudo * len(expects) / (different + pseudo * len(expects))
    weights = weights / weights.sum(1, keepdim=True)
    q = (expects if start is None else start).expand(len(weights), -1)
    for _ in range(ITERATIONS):
        density = (q @ likelihood.T).clamp(min=1e-300)
        new = (1 - added) * q * ((weights / density) @ likelihood) + added * expects
        new = new / new.sum(1, keepdim=True)  # of inputs that no class explains, none counts
        moved = float((new - q).abs().sum(1).max())
        q = new
        if moved < tolerance:
            break
    return q


def confusion(held: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """From probabilities [N, K] to P(predicted label | truth) [N, K], of held-out probabilities and labels.

    A class without held-out examples counts as always recognised. So does a label that was never predicted.
    """
    classes = held.shape[1]
    counts = torch.zeros(classes, classes, dtype=torch.float64)
    counts.index_put_((held.argmax(1), labels), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    blind = (counts.sum(0) == 0) | (counts.sum(1) == 0)
    counts += torch.diag(blind.double())
    table = counts / counts.sum(0)
    return lambda p: table[p.argmax(1)]


def calibration(held: Tensor, labels: Tensor, expects: Tensor) -> Callable[[Tensor], Tensor]:
    """From probabilities [N, K] to calibrated likelihoods [N, K], softmax(z / T + b) for z = log p - log e.

    T and b minimise -sum_i log softmax(z_i / T + b + log h)[y_i] + PENALTY / 2 (|b|^2 + log^2 T) on the held-out
    examples, of which a class has the share h. A class without any is not expected there.
    """
    shares = torch.bincount(labels, minlength=held.shape[1]).double() / len(labels)

    def logits(p: Tensor) -> Tensor:
        return p.clamp(min=1e-30).log() - expects.log()

    z, offset = logits(held), shares.log().clamp(min=-1e9)
    with torch.enable_grad():
        sharp = torch.zeros((), dtype=torch.float64, requires_grad=True)  # -log T
        bias = torch.zeros_like(expects, requires_grad=True)
        search = torch.optim.LBFGS([sharp, bias], max_iter=100, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            nll = F.cross_entropy(z * sharp.exp() + bias + offset, labels)
            total = nll + PENALTY / (2 * len(labels)) * (bias.square().sum() + sharp.square())
            total.backward()  # type: ignore[no-untyped-call]
            return total

        search.step(loss)  # type: ignore[no-untyped-call]
    scale, bias = sharp.detach().exp(), bias.detach()
    return lambda p: (logits(p) * scale + bias).softmax(1)


class _Reference(NamedTuple):
    """The held-out examples: their probabilities, labels and likelihoods."""

    probabilities: Tensor
    labels: Tensor
    likelihood: Tensor


def _confidence(p: Tensor, expects: Tensor, q: Tensor) -> Tensor:
    adjusted = p * (q / expects)
    return adjusted.amax(1) / adjusted.sum(1)


def _distance(inputs: Tensor, reference: Tensor, weights: Tensor) -> float:
    """The largest difference between the distribution functions of two samples, the second one weighted."""
    values, order = torch.cat([inputs, reference]).sort()
    steps = torch.cat([torch.full_like(inputs, 1 / len(inputs)), -weights / weights.sum()])[order].cumsum(0)
    last = torch.cat([values[1:] > values[:-1], torch.tensor([True])])  # equal values make one step
    return float(steps[last].abs().max())


def _misfit(p: Tensor, held: _Reference, e: Tensor, q: Tensor, chance: np.random.Generator) -> float | None:
    """The p-value of the module's test; None if there are too few examples for it."""
    y = held.labels
    numbers = torch.bincount(y, minlength=len(e)).double()
    weights = q / numbers.clamp(min=1)
    if len(p) < FEW or float(weights[y].sum() ** 2 / weights[y].square().sum()) < FEW:
        return None
    found = _distance(_confidence(p, e, q), _confidence(held.probabilities, e, q), weights[y])
    order, first, sizes = y.argsort().numpy(), (numbers.cumsum(0) - numbers).long().numpy(), numbers.long().numpy()
    present = np.where(sizes > 0, q.numpy(), 0.0)
    classes = np.repeat(np.arange(len(sizes)), sizes)

    def examples(labels: npt.NDArray[np.int64]) -> Tensor:
        """A held-out example of each of these classes, at random."""
        return torch.from_numpy(order[first[labels] + (chance.random(len(labels)) * sizes[labels]).astype(np.int64)])

    even, greater = torch.ones(1, len(p), dtype=torch.float64), 0
    for _ in range(times := round(1 / LEVEL)):
        counts = chance.multinomial(len(p), present / present.sum())
        rows, others = examples(np.repeat(np.arange(len(sizes)), counts)), examples(classes)
        shares = em(held.likelihood[rows], even, e, len(rows), start=q, tolerance=1e-3)[0]
        one, other = (_confidence(held.probabilities[some], e, shares) for some in (rows, others))
        greater += _distance(one, other, (shares / numbers.clamp(min=1))[y[others]]) >= found
    return (1 + greater) / (1 + times)


def _note(different: int, classes: int, blind: bool, p_value: float | None) -> str:
    lines = []
    if different < 10 * classes:
        kept = PSEUDO * classes / (different + PSEUDO * classes)
        lines.append(
            f"{different:,} different inputs are few for {classes:,} classes: "
            f"{kept:.0%} of the estimate is what the model expects."
        )
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
        lines.append(f"Label shift explains the inputs (p = {p_value:.2f}).")
    return " ".join(lines)
