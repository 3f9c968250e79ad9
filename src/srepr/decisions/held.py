"""What a classifier said about labelled examples that it was not trained on: what its decisions are calibrated on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from srepr.errors import InputError

LARGEST = 1 << 24
"""Logits that are kept: beyond, some of the examples stand for all."""


class Held(NamedTuple):
    """Logits and labels of held-out examples, in the class mix of the training data.

    They come from a validation set, or from the folds of a cross-validation.

    >>> Held(torch.zeros(2, 3), torch.tensor([0, 2])).classes
    3
    """

    logits: Tensor
    """[H, K]"""
    labels: Tensor
    """[H]"""
    distances: Tensor | None = None
    """[H], of their features from the nearest class (`srepr.decisions.doubt.Relative`), where that is known."""

    @property
    def classes(self) -> int:
        """The number K of classes."""
        return self.logits.shape[1]

    def checked(self, classes: int | None) -> Held:
        """The same, if it is of so many classes, where that is known; else an InputError."""
        fits = self.logits.ndim == 2 and self.labels.shape == self.logits.shape[:1] and classes in (None, self.classes)
        if not fits or not self.logits.isfinite().all() or len(self.labels) == 0:
            of = "" if classes is None else f" of {classes} classes"
            raise InputError(f"the held-out examples are not finite logits{of} with their labels")
        last = self.classes - 1
        if self.labels.dtype != torch.int64 or not 0 <= int(self.labels.min()) <= int(self.labels.max()) <= last:
            raise InputError(f"the labels of the held-out examples do not lie in 0 .. {last}")
        if self.distances is not None and not (
            self.distances.shape == self.labels.shape
            and self.distances.is_floating_point()
            and self.distances.isfinite().all()
        ):
            raise InputError("the distances of the held-out examples are not finite, or not as many as the examples")
        return self

    def limited(self, numbers: int = LARGEST, *, seed: int = 0) -> Held:
        """At most so many logits, in single precision: of all examples, or of some that are drawn at random.

        >>> len(Held(torch.zeros(9, 2), torch.arange(9) % 2).limited(8).labels)
        4
        """
        count = max(1, numbers // self.classes)
        rows = torch.arange(len(self.labels))
        if count < len(rows):
            rows = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count].sort().values
        distances = None if self.distances is None else self.distances[rows].float()
        return Held(self.logits[rows].float(), self.labels[rows], distances)


def as_held(given: Any, classes: int | None) -> Held:
    """What a user calls held-out examples, as tensors on the CPU; an InputError if they cannot be that.

    >>> as_held(Held([[2.0, 0.0]], [1]), classes=2).labels
    tensor([1])
    """
    try:
        held = Held(*(None if part is None else torch.as_tensor(part).detach().cpu() for part in given))  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise InputError("`held` must be a Held(logits, labels) of arrays of numbers") from None
    whole = held.labels.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)
    return (held._replace(labels=held.labels.long()) if whole else held).checked(classes)
