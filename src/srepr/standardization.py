"""Features on a scale of their own: centred, divided by their root mean square, with their principal axes.

    x -> (x - mean) / rms,      rms^2 = mean over examples and coordinates of (x - mean)^2

One number scales all coordinates, so their relation to each other stays as the network made it. Constant features
become 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from srepr.data.longtail import Indices
from srepr.data.sampling import chunks
from srepr.errors import InputError
from srepr.features import EpochFeatures

CHUNK = 1 << 22  # numbers in a chunk of features or logits
KEPT = 1 << 28  # numbers: standardised features up to this many are kept, more are made anew in every pass
SMALL = 2e9  # multiplications in one pass: below, float64 costs nothing
LARGEST_BASIS = 4096  # features: beyond, the principal axes cost more than they save
SMALLEST = 1e-30  # spread of features: the weights grow as it shrinks
ROUNDING = 1e-6  # of the largest coordinate: a smaller spread is rounding in float32


class Standardized:
    """The features of some examples, in chunks of representations [M, B, L] and mean features [B, L].

    `classes` is the number of logits that are made of them, which decides about chunks and precision.

    >>> features = EpochFeatures(np.array([0, 1]), [np.array([[1.0], [3.0]])], np.array([[1.0], [3.0]]))
    >>> data = Standardized(features, None, classes=2)
    >>> next(iter(data))[1].flatten(), data.scale
    (tensor([-1.,  1.], dtype=torch.float64), 1.0)
    """

    def __init__(self, features: EpochFeatures, rows: Indices | None, *, classes: int) -> None:
        self.features, self.classes = features, classes
        self.rows = np.arange(len(features.labels)) if rows is None else rows
        if len(self.rows) == 0:
            raise InputError("there are no features: the re-training needs at least one example.")
        self.samples, self.length = len(features.stochastic), features.mean.shape[1]
        self.seen = self.samples * len(self.rows)
        size = self.seen * self.length
        self.dtype = torch.float64 if size * classes < SMALL else torch.float32
        self.centre = sum((x.sum((0, 1)) for x, _ in self._chunks()), torch.zeros(())) / self.seen
        if not self.centre.isfinite().all():
            raise InputError("the features contain NaN or infinity: check the network or the arrays.")
        squares = sum(float((x - self.centre).square().sum()) for x, _ in self._chunks())
        self.scale = math.sqrt(squares / size)
        self.constant = self.scale <= ROUNDING * float(self.centre.abs().max())
        if self.constant:
            self.scale = 1.0
        if self.scale < SMALLEST:
            raise InputError(
                f"the features vary by {self.scale:.0e}, too little for weights of float32: scale them up."
            )
        self._parts = list(self._read()) if size < KEPT else None
        self.axes, self.variances = self._principal_axes()

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The features as they came, in float64."""
        size = max(1, CHUNK // (self.samples * max(self.length, self.classes)))
        for part in chunks(len(self.rows), size):
            stochastic, mean = self.features.batch(self.rows[part])
            yield stochastic.double(), mean.double()

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        for chunk in self._chunks():
            stochastic, mean = (
                (part - self.centre).div_(self.scale).mul_(not self.constant).to(self.dtype) for part in chunk
            )
            yield stochastic, mean

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._read() if self._parts is None else iter(self._parts)

    def _principal_axes(self) -> tuple[Tensor | None, Tensor]:
        """The axes [L, R] along which the features vary and the variances [R] along them.

        For very long features the axes are the coordinates themselves, and None stands for them.
        """
        if self.seen < self.length:
            rows = torch.cat([x.flatten(0, 1) for x, _ in self]).double()
            _, lengths, axes = torch.linalg.svd(rows, full_matrices=False)
            variances, axes = lengths.square() / self.seen, axes.T
        elif self.length <= LARGEST_BASIS:
            covariance = torch.zeros(self.length, self.length, dtype=torch.float64)
            for x, _ in self:
                flat = x.flatten(0, 1)
                covariance += (flat.T @ flat).double() / self.seen
            variances, axes = torch.linalg.eigh(covariance)
        else:
            squares = torch.zeros(self.length, dtype=torch.float64)
            for x, _ in self:
                squares += x.double().square().sum((0, 1))
            return None, squares / self.seen
        varies = variances > 1e-12 * variances.max()  # the solution has no part along the other axes
        return axes[:, varies].contiguous(), variances[varies]

    def along_axes(self, weight: Tensor) -> Tensor:
        """The weight [K, L] in coordinates along the axes [K, R]."""
        return weight if self.axes is None else weight @ self.axes

    def from_axes(self, weight: Tensor) -> Tensor:
        """The weight [K, L] with these coordinates along the axes [K, R]."""
        return weight if self.axes is None else weight @ self.axes.T
