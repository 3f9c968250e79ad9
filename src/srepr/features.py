"""Stochastic representations: M feature extractors drawn from the posterior, run over the data (paper, section 3.2).

    F_m(x),  theta_m ~ q(theta) = N(mean, diag(variance)),  m = 1..M

The network is frozen, so the draws can be kept: each is run over the data once, and every epoch of every head reads
the features from files. A file is named by a fingerprint of all that made it (weights, draw, data, augmentation, seed)
and appears only when it is whole, so what is there can be trusted and what has changed is made again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from srepr.batches import call, to_device
from srepr.data.longtail import Indices, Labels
from srepr.devices import compile_failure
from srepr.models.batchnorm import update_batchnorm
from srepr.models.fold import fold_batchnorm
from srepr.models.split import feature_extractor
from srepr.posterior import Posterior
from srepr.progress import Progress

Array = npt.NDArray[Any]

LARGE_BYTES = 1 << 30  # of features: beyond it they are kept as float16, and their pages are given back to the system
WORTH_COMPILING = 1_000_000  # forward passes


class Pass(Protocol):
    """One pass over the inputs, with labels, in an order of its own; a `view` is an augmentation of every input."""

    def __call__(self, view: int) -> Iterator[tuple[Any, Tensor]]:
        """Batches of (inputs, labels); the same view gives the same batches."""


@dataclass(frozen=True)
class EpochFeatures:
    """What stage 2 sees in one epoch: the labels, and for any of the examples their representations.

    >>> features = EpochFeatures(np.array([0, 1]), [np.eye(2, dtype=np.float32)], np.eye(2, dtype=np.float32))
    >>> stochastic, mean = features.batch(np.array([1]))
    >>> stochastic.shape, mean.shape
    (torch.Size([1, 1, 2]), torch.Size([1, 2]))
    """

    labels: Labels
    stochastic: Sequence[Array]
    """M arrays [N, L]."""
    mean: Array
    """[N, L], by the averaged weights."""

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The representations [M, B, L] and the features of the averaged network [B, L]."""
        stochastic = np.stack([array[indices] for array in self.stochastic])
        result = torch.from_numpy(stochastic).float(), torch.from_numpy(self.mean[indices]).float()
        give_back([*self.stochastic, self.mean])
        return result


def give_back(arrays: Sequence[Array]) -> None:
    """Let the system take back the pages of memory-mapped arrays where they are many: they are read once an epoch.

    >>> give_back([np.zeros(3)])
    """
    if sum(array.nbytes for array in arrays) > LARGE_BYTES:
        for array in arrays:
            if isinstance(array, np.memmap):
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


class FeatureSource(Protocol):
    """Where stage 2 gets its features from: a cache, the networks themselves, or a user's own arrays."""

    def epoch(self, number: int) -> EpochFeatures:
        """The features for that epoch."""


@dataclass(frozen=True)
class Given:
    """Features that a user hands in: [N, L], or [M, N, L] whose mean over M stands for the averaged network.

    >>> Given.from_arrays(np.zeros((3, 5, 2), dtype=np.float32), np.zeros(5, dtype=np.int64)).epoch(0).mean.shape
    (5, 2)
    """

    features: EpochFeatures

    @classmethod
    def from_arrays(cls, features: Array, labels: Labels) -> Given:
        """From an array [N, L] or [M, N, L]."""
        if features.ndim == 2:
            return cls(EpochFeatures(labels, [features], features))
        return cls(EpochFeatures(labels, list(features), features.mean(0, dtype=np.float32)))

    def epoch(self, number: int) -> EpochFeatures:
        """The same in every epoch."""
        return self.features


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How representations are made.

    >>> Sampling(representation="swag", samples=10).names(0)[:3]
    ['mean-view0', 'draw0-view0', 'draw1-view0']
    """

    representation: str = "swag"
    """deterministic (the averaged network alone), swag (draws of the weights), or augment (views of the input)."""
    samples: int = 10
    """M."""
    views: int = 1
    """Augmented views of the data that the epochs take in turn."""
    batchnorm: str = "recalibrate"
    """recalibrate (each draw's own BatchNorm statistics) or reuse (those of the averaged network)."""
    calibration: int = 4000
    """Training examples for a draw's own statistics, about."""
    seed: int = 0

    def names(self, view: int) -> list[str]:
        """The feature arrays of a view, that of the averaged network first."""
        mean = [f"mean-view{view}"]
        if self.representation == "swag":
            return mean + [f"draw{m}-view{view}" for m in range(self.samples)]
        if self.representation == "augment":
            return [f"mean-view{self.views * self.samples + view}"] + [
                f"mean-view{view * self.samples + m}" for m in range(self.samples)
            ]
        return mean


def draw_extractor(posterior: Posterior, pass_over: Pass, sampling: Sampling, number: int, epoch: int = 0) -> nn.Module:
    """The m-th feature extractor drawn from the posterior, with BatchNorm statistics of its own where asked for.

    Randomness is a function of (seed, epoch, m), so that a draw can be made again by anybody at any time.
    """
    seeds = np.random.SeedSequence((sampling.seed, epoch, number)).generate_state(1, np.uint64)
    weights = posterior.draw(torch.Generator().manual_seed(int(seeds[0] >> 1)))
    assert posterior.classifier is not None
    extractor = feature_extractor(posterior.model, posterior.classifier)
    own = dict(extractor.named_parameters())
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    if sampling.batchnorm == "recalibrate":
        update_batchnorm(extractor, first_examples(pass_over, sampling.calibration))
    return extractor


def first_examples(pass_over: Pass, count: int) -> Iterator[Any]:
    """The inputs of the first batches of a calibration pass, until `count` examples are reached."""
    seen = 0
    for inputs, labels in pass_over(-1):
        yield inputs
        seen += len(labels)
        if seen >= count:
            return
