"""The arrays that decisions are made from, checked: probabilities, labels, class shares."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from srepr.errors import InputError


def as_numbers(values: Any, name: str) -> Tensor:
    """Numbers in float64 on the CPU; those of a list are not rounded to single precision.

    >>> as_numbers([0.1, 2], "shares").tolist()
    [0.1, 2.0]
    """
    try:
        given = values.detach().cpu() if isinstance(values, Tensor) else values
        return torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"`{name}` is not an array of numbers: pass a tensor, an array or lists of one length"
        ) from None


def as_probabilities(values: Any) -> Tensor:
    """Probabilities [N, K] in float64.

    >>> as_probabilities([[0.5, 0.6]])
    Traceback (most recent call last):
    srepr.errors.InputError: `probabilities` must be >= 0 and sum to 1 for each example: pass logits through softmax
    """
    p = as_numbers(values, "probabilities")
    if p.ndim != 2 or not p.numel():
        raise InputError(f"`probabilities` has the shape {list(p.shape)}: pass [N, K], one row for each example")
    # NaN fails every comparison
    if not (bool(p.min() >= 0) and bool((p.sum(1) - 1).abs().max() <= 1e-3)):
        raise InputError("`probabilities` must be >= 0 and sum to 1 for each example: pass logits through softmax")
    return p


def as_labels(values: Any, examples: int, classes: int) -> Tensor:
    """Class numbers [N].

    >>> as_labels([0, 2], examples=2, classes=2)
    Traceback (most recent call last):
    srepr.errors.InputError: `labels` must lie in 0 .. 1, the columns of `probabilities`
    """
    try:
        y = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        y = torch.empty(0, 0)
    if y.shape != (examples,) or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"`labels` must be {examples} whole numbers, the class of each row of `probabilities`")
    if not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(f"`labels` must lie in 0 .. {classes - 1}, the columns of `probabilities`")
    return y.long().cpu()


def as_shares(values: Any, name: str, classes: int) -> Tensor:
    """Class shares [K] that sum to 1, of shares or counts.

    >>> as_shares([3, 1], "prior", classes=2)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    n = as_numbers(values, name)
    if n.shape != (classes,) or not bool(n.min() >= 0) or not 0 < float(n.sum()) < math.inf:
        raise InputError(f"`{name}` must be {classes} finite numbers >= 0, one for each class, and not all 0")
    return n / n.sum()


def some(names: list[str], of: int) -> str:
    """The first names of many, and their number.

    >>> some(["wren", "crow"], of=12)
    'wren, crow (2 of 12)'
    """
    dots = ", ..." if len(names) > 10 else ""
    return f"{', '.join(names[:10])}{dots} ({len(names)} of {of})"
