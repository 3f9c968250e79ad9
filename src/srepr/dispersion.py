"""How far M stochastic representations of one example lie apart (paper, section 3.2).

The dispersion of x over the draws F_1(x)..F_M(x), in feature space and in probability space:

    mean_m (1 - cos(F_m(x), mean F(x)))        JSD = H(mean p) - mean_m H(p_m),    p_m = softmax(W F_m(x) + b)
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srepr.errors import InputError


def feature_dispersion(features: Any) -> Tensor:
    """The mean cosine distance [B] of M representations [M, B, L] to their centroid, in float64, 0 .. 2.

    Draws that agree have exactly 0. The cosine to a vector of length 0 counts as 0, of two such vectors as 1.

    >>> feature_dispersion([[[1.0, 0.0], [3.0, 4.0]], [[0.0, 1.0], [3.0, 4.0]]])
    tensor([0.2929, 0.0000], dtype=torch.float64)
    """
    draws = _as_draws(features, "features", "[M, B, L]")
    draws = draws / _or_one(draws.abs().amax((0, 2))).unsqueeze(1)  # squares of any length stay finite
    centroid = _mean_of_draws(draws)
    lengths, length = draws.norm(dim=-1), centroid.norm(dim=-1)
    apart = draws / _or_one(lengths).unsqueeze(-1) - centroid / _or_one(length).unsqueeze(-1)
    distances = apart.square().sum(-1) / 2  # 1 - cos without its cancellation
    return torch.where((lengths > 0) == (length > 0), distances, 1.0).mean(0)


def jensen_shannon(probs: Any) -> Tensor:
    """The Jensen-Shannon divergence [B] of M predictions [M, B, K] in nats, in float64, 0 .. ln min(M, K).

    It is computed as mean_m KL(p_m || mean p), the same number: draws that agree have exactly 0.

    >>> jensen_shannon([[[1.0, 0.0], [0.3, 0.7]], [[0.0, 1.0], [0.3, 0.7]]])
    tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    draws = _as_draws(probs, "probabilities", "[M, B, K]")
    if (draws < 0).any() or (draws.sum(-1) - 1).abs().gt(1e-3).any():
        raise InputError("probabilities must be >= 0 and sum to 1 over the classes: pass logits through softmax first")
    mean = _mean_of_draws(draws).clamp(min=math.ulp(0.0))  # that of the smallest numbers may round to 0
    divergences: Tensor = torch.special.xlogy(draws, draws) - torch.special.xlogy(draws, mean)
    return divergences.sum(-1).mean(0).clamp(min=0)


def _as_draws(values: Any, what: str, shape: str) -> Tensor:
    draws = (values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))).detach().double()
    if draws.dim() != 3 or 0 in (len(draws), draws.shape[2]):
        raise InputError(f"{what} have shape {list(draws.shape)}: pass {shape}, with one draw at least")
    if not draws.isfinite().all():
        raise InputError(f"the {what} contain NaN or infinity: check the network that gave them")
    return draws


def _mean_of_draws(draws: Tensor) -> Tensor:
    """The mean over M; where all draws are the same it is that, to the last bit."""
    return draws[0] + (draws - draws[0]).mean(0)


def _or_one(lengths: Tensor) -> Tensor:
    return torch.where(lengths > 0, lengths, 1.0)
