"""A Dirichlet fitted to a handful of categorical predictions, and the divergences that the distillation needs.

The M teachers' probabilities p_1..p_M for one input are taken as draws from Dir(precision * mean). Minka's
approximation gives the precision in closed form (paper, section 4.2); it is large where the teachers agree.

Everything is computed in float64 and returned in the dtype of the input: the terms of these sums cancel almost
completely, and float32 would lose the difference.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from srepr.errors import InputError

# Above this, Stirling's series is more accurate in float64 than differences of lgamma, psi and psi'.
_LARGE = 1e5


def fit(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [B, K] and precision [B] of the Dirichlet fitted to M teachers' log-probabilities [M, B, K].

        precision = ((K - 1) / 2) / sum_j mean[j] (log mean[j] - (1/M) sum_m log p_m[j])

    (the paper's beta, section 4.2, is precision * mean). Identical teachers have infinite precision; it is returned as
    the largest finite number, which makes `1 / precision` 0 and avoids NaN. If only some teachers give a class
    probability 0, the precision would be 0; there the mean log-ratio to the largest teacher is set to the log of the
    smallest normal number. NaN, a single class, no teachers and logits that are not log-probabilities raise an
    InputError; an empty batch has an empty result.

    >>> mean, precision = fit(torch.tensor([[[0.7, 0.3]], [[0.6, 0.4]]]).log())
    >>> mean
    tensor([[0.6500, 0.3500]])
    >>> precision
    tensor([90.2989])
    """
    if log_probs.ndim != 3 or not log_probs.is_floating_point() or not len(log_probs) or log_probs.shape[-1] < 2:
        raise InputError(
            f"log_probs is {list(log_probs.shape)} of {log_probs.dtype}: pass floating-point numbers [M, B, K] of"
            " M >= 1 teachers and K >= 2 classes."
        )
    if not (log_probs.double().logsumexp(-1).abs() < 0.05).all():
        raise InputError("log_probs must be logs of probabilities that sum to 1: pass logits through log_softmax(-1).")
    return fit_unchecked(log_probs)


def fit_unchecked(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `fit` for a loop that makes log_probs itself; NaN gives NaN.

    >>> fit_unchecked(torch.tensor([[[0.7, 0.3]], [[0.6, 0.4]]]).log())[1]
    tensor([90.2989])
    """
    limits = torch.finfo(log_probs.dtype)
    # Relative to the largest teacher no exponential overflows, and the differences of close teachers are exact.
    top = log_probs.amax(0).double().clamp(min=torch.finfo(torch.float64).min)
    mean_log, excess = torch.zeros_like(top), torch.zeros_like(top)
    for log_p in log_probs:  # one by one: allocating [M, B, K] in float64 costs more than the loop
        below = log_p.double() - top
        mean_log += below
        excess += below.expm1_()
    mean_log = (mean_log / len(log_probs)).nan_to_num(nan=math.nan, neginf=math.log(limits.tiny))
    log_mean = (excess / len(log_probs)).log1p()
    mean = (top + log_mean).exp()
    disagreement = torch.where(mean == 0, 0, mean * (log_mean - mean_log)).sum(-1).clamp(min=0)
    precision = ((log_probs.shape[-1] - 1) / 2 / disagreement).clamp(max=limits.max)
    return mean.to(log_probs.dtype), precision.to(log_probs.dtype)


def kl_to_uniform(alpha: Tensor) -> Tensor:
    """KL[Dir(alpha) || Dir(1)] [B] of Dirichlet parameters [B, K], differentiable once; 0 for a single class.

        lgamma(a_0) - sum_k lgamma(a_k) - lgamma(K) + sum_k (a_k - 1) (psi(a_k) - psi(a_0)),    a_0 = sum_k a_k

    >>> kl_to_uniform(torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.5, 4.0], [1e30, 1e30, 1e30]]))
    tensor([ 0.0000,  1.5030, 68.2931])
    """
    a = _checked(alpha)
    kl: Tensor = _Divergence.apply(a, torch.zeros_like(a), a.new_ones(a.shape[:-1]))  # type: ignore[no-untyped-call]
    return kl.to(alpha.dtype)


def reverse_kl(alpha: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """KL[Dir(alpha) || Dir(precision * mean + 1)] / precision [B], up to a constant independent of alpha.

        sum_k mean[k] (psi(a_0) - psi(a_k)) + (1 / precision) KL[Dir(alpha) || Dir(1)],    a_0 = sum_k a_k

    The first term is the expected cross-entropy under Dir(alpha). The second makes Dir(alpha) as wide as the teachers
    disagree (paper, section 4.2). Differentiable once, in alpha [B, K] only.

    >>> mean, precision = fit(torch.tensor([[[0.7, 0.3]], [[0.6, 0.4]]]).log())
    >>> reverse_kl(torch.tensor([[7.0, 4.0]]), mean, precision)
    tensor([0.7011])
    """
    kl: Tensor = _Divergence.apply(alpha.double(), mean.double(), 1 / precision.double())  # type: ignore[no-untyped-call]
    return kl.to(alpha.dtype)


class _Divergence(torch.autograd.Function):
    """sum_k mean[k] (psi(a_0) - psi(a_k)) + weight * KL[Dir(a) || Dir(1)], in float64, with its gradient in a.

    With h(a) = lgamma(a) - (a - 1) psi(a) + a, the entropy of Gamma(a, 1), the divergence is

        KL = h(a_0) - h(K) + (K - 1) (psi(a_0) - psi(K)) - sum_k (h(a_k) - h(1)),    h(1) = 1

    h grows like log(a) / 2, while lgamma(a) and a psi(a) grow like a log(a): no large terms cancel.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(a, mean, weight)
        classes = a.shape[-1]
        psi, h = _psi_and_entropy(a)
        psi_0, h_0 = _psi_and_entropy(a.sum(-1))
        psi_flat, h_flat = _psi_and_entropy(a.new_tensor(classes))
        kl = h_0 - h_flat + (classes - 1) * (psi_0 - psi_flat) - (h - 1).sum(-1)
        return (mean * (psi_0.unsqueeze(-1) - psi)).sum(-1) + weight * kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        a, mean, weight = ctx.saved_tensors
        psi_slope, h_slope = _slopes(a)
        psi_slope_0, h_slope_0 = _slopes(a.sum(-1))
        shared = mean.sum(-1) * psi_slope_0 + weight * (h_slope_0 + (a.shape[-1] - 1) * psi_slope_0)
        own = mean * psi_slope + weight.unsqueeze(-1) * h_slope
        return grad.unsqueeze(-1) * (shared.unsqueeze(-1) - own), None, None


def _psi_and_entropy(a: Tensor) -> tuple[Tensor, Tensor]:
    """psi(a) and h(a)."""
    psi = a.digamma()
    series = (a.log() + math.log(2 * math.pi) + 1) / 2 - 1 / (3 * a)
    return psi, torch.where(a < _LARGE, a.lgamma() - (a - 1) * psi + a, series)


def _slopes(a: Tensor) -> tuple[Tensor, Tensor]:
    """psi'(a) and h'(a) = 1 - (a - 1) psi'(a)."""
    r = 1 / a
    psi_slope = a.polygamma(1)
    return psi_slope, torch.where(a < _LARGE, 1 - (a - 1) * psi_slope, r * (1 / 2 + r / 3))


def entropy_of_mean(alpha: Tensor) -> Tensor:
    """Total uncertainty [B] of Dir(alpha) [B, K]: the entropy of its mean, in nats.

    >>> entropy_of_mean(torch.tensor([[1.0, 1.0], [100.0, 100.0], [100.0, 0.1]]))
    tensor([0.6931, 0.6931, 0.0079])
    """
    a = _checked(alpha)
    p = a / a.sum(-1, keepdim=True)
    return -torch.xlogy(p, p).sum(-1).to(alpha.dtype)


def expected_entropy(alpha: Tensor) -> Tensor:
    """Aleatoric (data) uncertainty [B]: the expected entropy of a categorical drawn from Dir(alpha), in nats.

        E[H(p)] = psi(a_0 + 1) - sum_k (a_k / a_0) psi(a_k + 1)

    >>> expected_entropy(torch.tensor([[1.0, 1.0], [100.0, 100.0], [100.0, 0.1]]))
    tensor([0.5000, 0.6907, 0.0060])
    """
    a = _checked(alpha)
    total = a.sum(-1, keepdim=True)
    return (a / total * ((total + 1).digamma() - (a + 1).digamma())).sum(-1).to(alpha.dtype)


def mutual_information(alpha: Tensor) -> Tensor:
    """Epistemic (model) uncertainty [B], total minus data, >= 0; large if Dir(alpha) is wide.

    >>> mutual_information(torch.tensor([[1.0, 1.0], [100.0, 100.0], [100.0, 0.1]]))
    tensor([0.1931, 0.0025, 0.0019])
    """
    a = _checked(alpha)
    return (entropy_of_mean(a) - expected_entropy(a)).clamp(min=0).to(alpha.dtype)


def _checked(alpha: Tensor) -> Tensor:
    """Parameters of Dirichlets [..., K] in float64."""
    if not alpha.ndim or not alpha.shape[-1] or not alpha.is_floating_point():
        raise InputError(f"alpha is {list(alpha.shape)} of {alpha.dtype}: pass floating-point numbers [B, K].")
    if not ((alpha > 0) & alpha.isfinite()).all():
        raise InputError("alpha must be finite and above 0: these are no parameters of a Dirichlet.")
    return alpha.double()
