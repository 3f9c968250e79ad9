"""Class balancing of the loss: sampling, class weights and logit adjustment (paper, section A.1).

pi_k = n_k / sum(n) is the training prior of class k. Counts may be shares: any finite numbers above 0. A single class
has the weight 1 and the offset 0.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from srepr.errors import LARGEST_FLOAT32, InputError, unknown

Shares = Sequence[int] | Sequence[float] | npt.NDArray[Any] | Tensor


def grw_weights(counts: Shares, rho: float = 1.0) -> Tensor:
    """Generalised re-weighting of the loss: weights [K] that sum to 1, (1/pi_k)^rho / sum_j (1/pi_j)^rho.

    >>> grw_weights([80, 20])
    tensor([0.2000, 0.8000])
    >>> grw_weights([80, 20], rho=0)
    tensor([0.5000, 0.5000])
    """
    _check_rho(rho)
    return (-rho * _log_shares(counts)).softmax(0).float()


def mean_one(weights: Tensor, counts: Shares) -> Tensor:
    """Scale weights [K] to mean 1 over the training data, sum_k pi_k w_k = 1.

    Weights that sum to 1 over K classes shrink the loss, and with it every step, about K-fold. Rescaling keeps the
    effective learning rate.

    >>> mean_one(grw_weights([80, 20]), [80, 20])
    tensor([0.6250, 2.5000])
    """
    shares = _log_shares(counts).exp().to(weights)
    if weights.shape != shares.shape or not (weights >= 0).all() or not 0 < weights.sum() < math.inf:
        raise InputError(f"weights must be {len(shares)} finite numbers >= 0, one for each class, and not all 0.")
    return weights / (shares * weights).sum()


def logit_offset(counts: Shares, rho: float = 1.0) -> Tensor:
    """Logit adjustment [K], rho log pi_k; add it to the logits in the training loss only.

    >>> logit_offset([80, 20])
    tensor([-0.2231, -1.6094])
    """
    _check_rho(rho)
    offset = (rho * _log_shares(counts)).float()
    if not offset.isfinite().all():
        raise InputError(f"`rho` is {rho}: the offsets are too large for float32")
    return offset


class Balancing(NamedTuple):
    """Effect of a balancing method on the loss or the batches.

    >>> balancing("grw", [80, 20]).weight
    tensor([0.6250, 2.5000])
    """

    weight: Tensor | None = None
    """[K], multiplies the loss of each example."""
    offset: Tensor | None = None
    """[K], added to the logits in the training loss."""
    sampling: bool = False
    """Whether every class is drawn equally often, P(x, y) = 1 / (K n_y)."""
    strength: float = 0.0
    """How much of the training prior it removes: the head then expects the prior pi_k^(1 - strength)."""


BALANCES: dict[str, Callable[[Shares, float], Balancing]] = {
    "cbs": lambda counts, rho: Balancing(sampling=True, strength=1.0),
    "grw": lambda counts, rho: Balancing(weight=mean_one(grw_weights(counts, rho), counts), strength=rho),
    "la": lambda counts, rho: Balancing(offset=logit_offset(counts, rho), strength=rho),
    "none": lambda counts, rho: Balancing(),
}
"""Class-balanced sampling, generalised re-weighting, logit adjustment. To add one, write a function and add a row."""


def balancing(name: str, counts: Shares, rho: float = 1.0) -> Balancing:
    """The balancing method `name` for these class counts.

    >>> balancing("la", [80, 20]).offset
    tensor([-0.2231, -1.6094])
    """
    if name not in BALANCES:
        raise unknown("balance", name, BALANCES)
    _check_rho(rho)
    return BALANCES[name](counts, rho)


def adjust_to_prior(logits: Tensor, train_prior: Shares, target_prior: Shares) -> Tensor:
    """Adjust logits (or log-probabilities) [..., K] to a known class prior, z + log target - log train.

    Priors may be counts; they are normalised. `train_prior` is the prior that the classifier was trained for, uniform
    after full balancing. A class with target prior 0 gets the logit -inf.

    >>> adjust_to_prior(torch.zeros(2), [0.5, 0.5], [0.9, 0.1]).softmax(-1)
    tensor([0.9000, 0.1000])
    """
    train, target = as_shares(train_prior), as_shares(target_prior)
    if not logits.ndim or not len(train) == len(target) == logits.shape[-1]:
        raise InputError(
            f"the train prior has {len(train)} classes and the target prior {len(target)}; "
            f"give both one number for each class of the logits {list(logits.shape)}."
        )
    if (target < 0).any() or not 0 < target.sum() < math.inf:
        raise InputError("the target prior must be non-negative and not all zero, and finite.")
    shift = (target / target.sum()).log() - _log_shares(train_prior)
    return logits + shift.to(logits)


def _log_shares(counts: Shares) -> Tensor:
    """Log of pi [K], in float64."""
    n = as_shares(counts)
    for k in (n > 0).logical_not().nonzero().flatten().tolist():
        raise InputError(f"class {k} has {n[k]:g} training examples; give every class at least one, or drop it.")
    if not n.sum() < math.inf:
        raise InputError("the counts are infinite, or too large to be added: pass finite numbers.")
    return n.log() - n.sum().log()


def as_shares(values: Shares) -> Tensor:
    """Counts or shares of the classes [K], in float64.

    >>> as_shares([80, 20])
    tensor([80., 20.], dtype=torch.float64)
    """
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        numbers = torch.empty(())
    if numbers.ndim != 1 or not len(numbers):
        raise InputError("counts and priors must be a list of numbers, one for each class, as in [0.7, 0.2, 0.1].")
    return numbers


def _check_rho(rho: float) -> None:
    if not 0 <= rho <= LARGEST_FLOAT32:
        raise InputError(f"`rho` is {rho}: it must be a finite number >= 0")
