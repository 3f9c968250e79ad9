"""A Dirichlet fitted to a handful of categorical predictions, and the divergences that the distillation needs.

The M teachers' probabilities p_1..p_M for one input are taken as draws from Dir(precision * mean). Minka's
approximation gives the precision in closed form (paper, section 4.2); it is large where the teachers agree.

Everything is computed in float64 and returned in the type of the input: the terms of these sums cancel almost
completely, and float32 would keep none of the difference.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# From here on Stirling's series is more accurate in float64 than differences of lgamma, psi and psi'.
_LARGE = 1e3


def fit(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [B, K] and precision [B] of the Dirichlet through M teachers' log-probabilities [M, B, K].

        precision = ((K - 1) / 2) / sum_j mean[j] (log mean[j] - (1/M) sum_m log p_m[j])

    (the paper's beta, section 4.2, is precision * mean). Identical teachers have an infinite precision; it is
    returned as the largest finite number, so that `1 / precision` is 0 and nothing downstream turns NaN. A
    probability of exactly 0, whose logarithm would make the precision 0, counts as the smallest normal number.

    >>> mean, precision = fit(torch.tensor([[[0.7, 0.3]], [[0.6, 0.4]]]).log())
    >>> mean
    tensor([[0.6500, 0.3500]])
    >>> precision
    tensor([90.8319])
    """
    limits = torch.finfo(log_probs.dtype)
    log_p = log_probs.double().nan_to_num(nan=math.nan, neginf=math.log(limits.tiny))
    # Relative to the largest teacher no exponential overflows, and the differences of close teachers are exact.
    top = log_p.amax(0)
    below = log_p.sub_(top)  # in place, twice: at [M, B, K] in float64 fresh memory costs more than the arithmetic
    mean_log = below.mean(0)
    log_mean = below.expm1_().mean(0).log1p()
    mean = (top + log_mean).exp()
    disagreement = (mean * (log_mean - mean_log)).sum(-1).clamp(min=0)
    precision = ((log_probs.shape[-1] - 1) / 2 / disagreement).clamp(max=limits.max)
    return mean.to(log_probs.dtype), precision.to(log_probs.dtype)


class _Gamma(torch.autograd.Function):
    """psi(a) and the entropy of Gamma(a, 1), h(a) = lgamma(a) - (a - 1) psi(a) + a, of a float64 tensor.

    h grows like log(a) / 2 where lgamma(a) and a psi(a) grow like a log(a): a divergence written with h has no
    large terms left to cancel. The derivatives, psi'(a) and 1 - (a - 1) psi'(a), need the same care.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a)
        psi = a.digamma()
        series = (a.log() + math.log(2 * math.pi) + 1) / 2 - (1 / 3 + 1 / 12 / a) / a
        return psi, torch.where(a < _LARGE, a.lgamma() - (a - 1) * psi + a, series)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_psi: Tensor, grad_entropy: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        r = 1 / a
        trigamma = torch.where(a < _LARGE, a.polygamma(1), r * (1 + r * (1 / 2 + r / 6)))
        slope = torch.where(a < _LARGE, 1 - (a - 1) * trigamma, r * (1 / 2 + r * (1 / 3 + r / 6)))
        return grad_psi * trigamma + grad_entropy * slope


def _psi_and_kl(alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """psi(a_k) [B, K], psi(a_0) [B] and KL[Dir(a) || Dir(1)] [B] for a = alpha, in float64.

    With a_0 = sum_k a_k and the entropy h of `_Gamma` (h(1) = 1), the textbook formula becomes

        KL = h(a_0) - h(K) + (K - 1) (psi(a_0) - psi(K)) - sum_k (h(a_k) - h(1))
    """
    a = alpha.double()
    classes = a.shape[-1]
    psi, h = _Gamma.apply(a)  # type: ignore[no-untyped-call]
    psi_0, h_0 = _Gamma.apply(a.sum(-1))  # type: ignore[no-untyped-call]
    psi_flat, h_flat = _Gamma.apply(a.new_tensor(classes))  # type: ignore[no-untyped-call]
    return psi, psi_0, h_0 - h_flat + (classes - 1) * (psi_0 - psi_flat) - (h - 1).sum(-1)


def kl_to_uniform(alpha: Tensor) -> Tensor:
    """KL[Dir(alpha) || Dir(1)] [B] of Dirichlet parameters [B, K], differentiable once.

        lgamma(a_0) - sum_k lgamma(a_k) - lgamma(K) + sum_k (a_k - 1) (psi(a_k) - psi(a_0)),    a_0 = sum_k a_k

    >>> kl_to_uniform(torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.5, 4.0], [1e30, 1e30, 1e30]]))
    tensor([ 0.0000,  1.8056, 66.1955])
    """
    return _psi_and_kl(alpha)[2].to(alpha.dtype)


def reverse_kl(alpha: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """KL[Dir(alpha) || Dir(precision * mean + 1)] / precision [B], up to a constant that alpha does not move.

        sum_k mean[k] (psi(a_0) - psi(a_k)) + (1 / precision) KL[Dir(alpha) || Dir(1)]

    The first term is the cross-entropy expected under Dir(alpha), the second keeps Dir(alpha) as wide as the
    teachers are in disagreement (paper, section 4.2).

    >>> mean, precision = fit(torch.tensor([[[0.7, 0.3]], [[0.6, 0.4]]]).log())
    >>> reverse_kl(torch.tensor([[7.0, 4.0]]), mean, precision)
    tensor([0.7093])
    """
    psi, psi_0, kl = _psi_and_kl(alpha)
    cross_entropy = (mean * (psi_0.unsqueeze(-1) - psi)).sum(-1)
    return (cross_entropy + kl / precision).to(alpha.dtype)


def entropy_of_mean(alpha: Tensor) -> Tensor:
    """The total uncertainty [B] of Dir(alpha) [B, K]: the entropy of its mean, in nats.

    >>> entropy_of_mean(torch.tensor([[1.0, 1.0], [100.0, 100.0], [100.0, 0.1]]))
    tensor([0.6931, 0.6931, 0.0079])
    """
    a = alpha.double()
    return torch.special.entr(a / a.sum(-1, keepdim=True)).sum(-1).to(alpha.dtype)


def expected_entropy(alpha: Tensor) -> Tensor:
    """The uncertainty [B] of the data alone: the mean entropy of the categoricals that Dir(alpha) draws, in nats.

        E[H(p)] = psi(a_0 + 1) - sum_k (a_k / a_0) psi(a_k + 1)

    >>> expected_entropy(torch.tensor([[1.0, 1.0], [100.0, 100.0], [100.0, 0.1]]))
    tensor([0.5000, 0.6906, 0.0015])
    """
    a = alpha.double()
    total = a.sum(-1, keepdim=True)
    return (a / total * ((total + 1).digamma() - (a + 1).digamma())).sum(-1).to(alpha.dtype)


def mutual_information(alpha: Tensor) -> Tensor:
    """The uncertainty [B] of the model, total minus data, >= 0: large where Dir(alpha) is wide.

    >>> mutual_information(torch.tensor([[1.0, 1.0], [100.0, 100.0], [100.0, 0.1]]))
    tensor([0.1931, 0.0025, 0.0063])
    """
    a = alpha.double()
    return (entropy_of_mean(a) - expected_entropy(a)).clamp(min=0).to(alpha.dtype)
