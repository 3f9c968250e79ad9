"""How far M stochastic representations of an example lie apart, and how that relates to its loss (paper, 3.2).

The dispersion of x over the draws F_1(x)..F_M(x), in feature space and in probability space:

    mean_m (1 - cos(F_m(x), mean F(x)))        JSD = H(mean p) - mean_m H(p_m),    p_m = softmax(W F_m(x) + b)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from srepr.data.longtail import Labels
from srepr.errors import InputError

Array = npt.NDArray[Any]


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
    try:
        draws = (values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))).detach().double()
    except (TypeError, ValueError):
        raise InputError(f"{what} are not numbers: pass {shape}, with one draw at least") from None
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


def pearson(x: Any, y: Any) -> float | None:
    """Pearson's correlation of two samples; None where one of them does not vary, or is not finite.

    >>> pearson([0.0, 1.0, 2.0], [1.0, 1.0, 4.0])
    0.866...
    >>> pearson([0.0, 0.0], [1.0, 2.0]) is None
    True
    """
    sides = [np.asarray(x, np.float64), np.asarray(y, np.float64)]
    if sides[0].ndim != 1 or sides[0].shape != sides[1].shape:
        raise InputError(f"two samples have shapes {sides[0].shape} and {sides[1].shape}: pass two of one length")
    samples = np.stack(sides)
    if not samples.size or not np.isfinite(samples).all() or not np.ptp(samples, axis=1).all():
        return None
    deviations = samples - samples.mean(1, keepdims=True)
    directions = deviations / np.linalg.norm(deviations, axis=1, keepdims=True)
    return float(np.clip(directions[0] @ directions[1], -1, 1))


def quartile_boxes(values: Any, by: Any) -> list[dict[str, float | None]]:
    """The boxes of the values in four groups of equal size in the order of `by`: Q1 has the lowest.

    `low` and `high` are the last values within 1.5 times the box's height from it.

    >>> quartile_boxes([1.0, 2.0, 3.0, 4.0, 10.0], by=[0, 0, 1, 2, 3])[0]
    {'low': 1.0, 'q1': 1.25, 'median': 1.5, 'q3': 1.75, 'high': 2.0}
    """
    values = np.asarray(values, np.float64)
    order = np.argsort(np.asarray(by), kind="stable")
    if values.ndim != 1 or values.shape != order.shape:
        raise InputError(f"values {values.shape} and by {order.shape} must have the same length")
    if not np.isfinite(values).all():
        raise InputError("the values contain NaN or infinity: leave those examples out")
    return [_box(values[group]) for group in np.array_split(order, 4)]


def class_means(values: Any, labels: Labels, classes: int) -> list[float | None]:
    """The mean of the values over the examples of each class; None for a class without examples.

    >>> class_means([1.0, 3.0, 5.0], np.array([0, 0, 2]), classes=3)
    [2.0, None, 5.0]
    """
    if len(labels) != len(values) or (len(labels) and not 0 <= min(labels) <= max(labels) < classes):
        raise InputError(f"{len(values)} values need as many labels of 0 to {classes - 1}")
    sums, counts = np.bincount(labels, values, classes), np.bincount(labels, minlength=classes)
    return [float(total / n) if n else None for total, n in zip(sums, counts, strict=True)]


def _box(values: Array) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("low", "q1", "median", "q3", "high"))
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    reach = 1.5 * (q3 - q1)
    low, high = min(q1, values[values >= q1 - reach].min()), max(q3, values[values <= q3 + reach].max())
    return {"low": float(low), "q1": float(q1), "median": float(median), "q3": float(q3), "high": float(high)}
