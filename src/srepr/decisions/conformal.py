"""Sets of labels that contain the truth with a chosen probability: split conformal prediction.

n held-out examples with the labels y_i have the scores s_i = p(y_i | x_i) / e(y_i), where e are the class shares that
the probabilities expect. A label k gets the threshold t_k: the largest score t with

    sum_i w_k(y_i) [s_i >= t]  >=  coverage (sum_i w_k(y_i) + w_k(k)),

and 0 if there is none. With weights of 1 this is the ceil((n + 1) coverage)-th largest score. The rule is:

    a label is in the set if its probability is at least its `minimum`, t_k e_k, or if no label is more probable.

The most probable label is always in. So no set is empty, and the coverage can only rise. Examples at the threshold
are in, so ties can only make sets larger. The forms differ in the weights w_k(j) of examples of class j:

marginal      1, with the score p instead of p / e. P(y in set) >= coverage over all examples together (Sadinle et al.
              2019). Frequent classes are covered more often, rare ones less.
pas           1, prevalence-adjusted softmax. The same guarantee; of all such sets of one mean size, these have about
              the best mean of the coverage of the classes.
class         [j = k], one quantile for each class (Mondrian). P(y in set | y = k) >= coverage.
fuzzy         exp(-(f_j - f_k)^2 / (2 v_k)) with v_k = bandwidth / (n_k + 1), where f are the training counts as
              shares of the largest and n_k counts held-out examples: classes of similar frequency, the more so the
              fewer examples a class has. No guarantee for finite samples.
interpolated  none of its own: (1 - tau) times the threshold of pas plus tau times that of class.
              P(y in set) >= 1 - 2 (1 - coverage): it contains the labels that are in both other sets.

pas, fuzzy and interpolated are of Ding, Fermanian and Salmon, Conformal Prediction for Long-Tailed Classification,
2025. Guarantees are for new examples that are exchangeable with the held-out ones. For another mix of classes q
(label shift), the weights of marginal and pas are q_j / (n_j / n) (Podkopaev and Ramdas 2021).

A class with n_k < 1 / (1 - coverage) - 1 has no quantile of its own: alone, its label would be in every set.
In `interpolated` its class threshold is 0, so it keeps (1 - tau) times the threshold of pas. In `class` and `fuzzy` it
borrows this one, or takes the lowest score among the examples that count for it where that is lower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from srepr.decisions.numbers import as_labels, as_probabilities, as_shares, some
from srepr.errors import InputError, check, unknown

FORMS = ("marginal", "class", "pas", "fuzzy", "interpolated")
FORM = "interpolated"
"""Chosen on images of CIFAR-100 that the CIFAR100-LT run had not seen, as are `TAU` and `BANDWIDTH`."""
TAU = 0.5
BANDWIDTH = 0.003
ROUNDING = 1e-12  # of sums of weights, relative
CELLS = 1 << 22  # weights held at once: classes x examples


@dataclass(frozen=True)
class Thresholds:
    """How probable each label must be to be in a set.

    A label is in the set if its probability is at least its `minimum`, or if no label is more probable. The fields are
    plain numbers and words: `dataclasses.asdict` is JSON, and `Thresholds(**stored)` reads it.

    >>> thresholds = Thresholds("marginal", 0.9, [0.2, 0.2, 0.2])
    >>> thresholds.sets([[0.7, 0.2, 0.1], [0.9, 0.05, 0.05]])
    tensor([[ True,  True, False],
            [ True, False, False]])
    """

    form: str
    coverage: float
    minimum: tuple[float, ...]
    """The lowest probability [K] with which a label is in the set; with 0 it is in every set."""
    borrowed: tuple[int, ...] = ()
    """Classes that have too few held-out examples for a quantile of their own."""
    prior: tuple[float, ...] | None = None
    """The class shares [K] for which the coverage holds; None for those of the held-out examples."""
    note: str = ""
    """What a user should know, in words: which classes borrow and from what, which labels are in every set."""

    def __post_init__(self) -> None:
        for name in ("minimum", "borrowed", "prior"):  # JSON has lists
            values = getattr(self, name)
            object.__setattr__(self, name, values if values is None else tuple(values))

    def sets(self, probabilities: Any) -> Tensor:
        """Which labels are in the set of each input: booleans [N, K] for probabilities [N, K]."""
        p = as_probabilities(probabilities)
        if p.shape[1] != len(self.minimum):
            raise InputError(f"`probabilities` has {p.shape[1]} columns: the thresholds are for {len(self.minimum)}")
        return (p >= torch.tensor(self.minimum, dtype=torch.float64)) | (p == p.amax(1, keepdim=True))


def calibrate(
    probabilities: Any,
    labels: Any,
    coverage: float = 0.9,
    form: str = FORM,
    *,
    expects: Any = None,
    counts: Any = None,
    prior: Any = None,
    class_names: Sequence[str] | None = None,
    tau: float = TAU,
    bandwidth: float = BANDWIDTH,
) -> Thresholds:
    """The thresholds for sets of this coverage, from probabilities [H, K] and labels [H] of held-out examples.

    - expects: the class shares or counts [K] that the probabilities are for: the training counts for a plain softmax,
      the target of `adjust_to_prior`. None stands for equal shares, as after full balancing.
    - counts: the training counts [K], for `fuzzy`. None stands for those of the held-out examples.
    - prior: the class shares or counts [K] at the place of use, if they differ from those of the held-out examples.
      Adjust the probabilities to them too, here and in `Thresholds.sets`, and pass them as `expects`.
    - class_names: for the note; by default the classes have numbers.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    >>> calibrate(p, [0, 0, 0, 1], coverage=0.6, form="marginal").minimum
    (0.69999..., 0.69999...)
    >>> print(calibrate(p, [0, 0, 0, 1], coverage=0.6, form="class").note)
    Classes with fewer than 2 held-out examples borrow 0.5 times the threshold of all: 1 (1 of 2).
    """
    p = as_probabilities(probabilities)
    held, classes = p.shape
    y = as_labels(labels, held, classes)
    check(0 < coverage < 1, f"`coverage` is {coverage}: it must lie between 0 and 1, for example 0.9")
    check(0 <= tau <= 1, f"`tau` is {tau}: it must lie in 0 .. 1, from quantiles of all classes to those of each")
    check(0 < bandwidth < math.inf, f"`bandwidth` is {bandwidth}: it must be a finite number above 0")
    if form not in FORMS:
        raise unknown("form of sets", form, FORMS)
    shares = None if prior is None else as_shares(prior, "prior", classes)
    never = torch.zeros(classes, dtype=torch.bool) if shares is None else shares == 0
    e = torch.ones(classes, dtype=torch.float64)
    if expects is not None and form != "marginal":
        e = as_shares(expects, "expects", classes).where(~never, e)
        check(bool((e > 0).all()), "`expects` has a class with the share 0: give every class a share above 0")
    numbers = torch.bincount(y, minlength=classes).double()
    f = numbers if counts is None else as_shares(counts, "counts", classes)

    scores, order = (p.gather(1, y[:, None])[:, 0] / e[y]).sort(descending=True)
    y = y[order]
    weights = torch.ones_like(e)
    if shares is not None:
        weights = shares * held / numbers.clamp(min=1)  # a class without examples, as if it had one
        check(
            bool((weights * numbers).any()),
            "no held-out example is of a class that `prior` expects: pass examples of the classes at the place of use",
        )
    t = _quantiles(scores, weights[y][None], weights[None], coverage)[0].clamp(min=0)

    poor = torch.zeros_like(e, dtype=torch.bool)
    if form not in ("marginal", "pas"):
        poor = torch.ceil((numbers + 1) * coverage * (1 - ROUNDING)) > numbers
        kernel = (f / f.max(), bandwidth / (numbers + 1)) if form == "fuzzy" else None
        own, least = _quantiles_of_each(scores, y, classes, coverage, kernel)
        if form == "interpolated":
            t = (1 - tau) * t + tau * own.clamp(min=0)
        else:
            t = torch.where(own >= 0, own, torch.minimum((1 - tau) * t, least))

    minimum = t * e * (1 - 1e-15)  # a little lower: rounding must not leave out an example at the threshold
    minimum[never] = 1.0  # such a class has the probability 0
    borrowed, always = (mask.nonzero().flatten().tolist() for mask in (poor & ~never, minimum == 0))
    names = [str(k) for k in range(classes)] if class_names is None else list(class_names)
    source = "from classes of similar frequency" if form == "fuzzy" else f"{1 - tau:g} times the threshold of all"
    note = _note(coverage, held, source, [names[k] for k in borrowed], [names[k] for k in always], classes)
    if shares is not None and bool((shares[numbers == 0] > 0).any()):
        missing = float(shares[numbers == 0].sum())
        note += f" Classes without held-out examples are {missing:.1%} of the prior: the coverage is of the others."
    prior = None if shares is None else tuple(shares.tolist())
    return Thresholds(form, coverage, tuple(minimum.tolist()), tuple(borrowed), prior, note.strip())


def _quantiles(scores: Tensor, weights: Tensor, own: Tensor, coverage: float) -> Tensor:
    """The thresholds t [R, M] of the module's formula, from R rows of weights for descending scores, [R, H].

    `own` [R, M] are the weights w_k(k) of M labels for each row. Where no score is low enough, it is -1.
    """
    sums = weights.cumsum(1)
    first = torch.searchsorted(sums, coverage * (sums[:, -1:] + own) * (1 - ROUNDING))
    return torch.cat([scores, -scores.new_ones(1)])[first]


def _quantiles_of_each(
    scores: Tensor, y: Tensor, classes: int, coverage: float, kernel: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """For each label [K]: its threshold, and the lowest score that counts for it, infinite if none does.

    The kernel has the positions f and the variances v of the classes; without it, a class counts for itself only.
    """
    own, least = torch.empty(2, classes, dtype=torch.float64)
    for few in torch.split(torch.arange(classes), max(1, CELLS // max(len(y), classes))):
        if kernel is None:
            weights = (y == few[:, None]).double()
        else:
            f, v = kernel
            weights = torch.exp(-((f - f[few, None]) ** 2) / (2 * v[few, None]))[:, y]
        one = torch.ones(len(few), 1, dtype=torch.float64)
        own[few] = _quantiles(scores, weights, one, coverage)[:, 0]
        least[few] = _quantiles(scores, weights, 0 * one, 1.0)[:, 0].where(weights.any(1), torch.tensor(math.inf))
    return own, least


def _note(coverage: float, held: int, source: str, borrowed: list[str], always: list[str], classes: int) -> str:
    """What a user should know: which classes borrow their threshold, and which labels are in every set."""
    enough = math.ceil((1 - ROUNDING) / (1 - coverage)) - 1
    lines = []
    if borrowed:
        lines.append(f"Classes with fewer than {enough} held-out examples borrow {source}: {some(borrowed, classes)}.")
    if len(always) == classes:
        lines.append(
            f"Every set has all labels: {held} held-out examples are too few for a coverage of {coverage:g}, "
            f"which takes {enough}."
        )
    elif always:
        lines.append(f"Labels in every set, as no held-out example supports a threshold: {some(always, classes)}.")
    return " ".join(lines)
