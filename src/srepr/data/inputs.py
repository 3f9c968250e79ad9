"""Repeatable passes over the data for the frozen networks of stage 2, each with one augmentation."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from srepr.config import BATCH_SIZE
from srepr.data.examples import Examples
from srepr.data.loaders import split
from srepr.data.longtail import Indices, Labels
from srepr.data.sampling import chunks, epoch_batches
from srepr.data.workers import batches
from srepr.errors import InputError

BATCH, SMALLEST = 64, 8  # examples; small batches fit in the CPU cache
PIXELS = 1 << 18  # of the images of a batch, likewise: 10 images of 160 x 160
CALIBRATION_BATCH = BATCH_SIZE  # BatchNorm statistics as in training
FIRST_VIEW = 1_000_000  # an epoch number that stage 1 never reaches
CALIBRATION_VIEW = FIRST_VIEW - 1


def batch_size(shape: tuple[int, ...]) -> int:
    """Examples of this shape that go through a frozen network at once; fewer of large images.

    >>> batch_size((3, 32, 32)), batch_size((3, 160, 160)), batch_size((384,))
    (64, 10, 64)
    """
    return max(SMALLEST, min(BATCH, PIXELS // math.prod(shape[1:])))


class Inputs(Protocol):
    """Interface of the data for stage 2: full passes, in any order, with any augmentation."""

    def sweep(self, view: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield every example once, as (inputs, labels). The same view gives the same batches in the same order."""

    def calibration(self, count: int) -> Iterator[Any]:
        """Yield inputs of about `count` random examples, the same on every call."""

    def fingerprint(self) -> str | None:
        """Identifies everything a sweep depends on; None if unknown, which disables caching."""

    @property
    def labels(self) -> Labels | None:
        """The labels in the order of a sweep; None if they are known only after one."""

    @property
    def rows(self) -> range:
        """The examples, of all of them, that a sweep of this process yields."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class ExampleInputs:
    """Inputs of one set, augmented as in training or plain as in evaluation."""

    examples: Examples
    seed: int
    workers: int = 0
    augment: bool = True
    first_plain: bool = False
    """Whether the first view is not augmented: a pretrained network sees it as it does new inputs."""
    rank: int = 0
    world_size: int = 1
    """Of `world_size` processes, each sweeps over its part: whole batches, so that every feature has the same bits."""

    def sweep(self, view: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield the examples in order."""
        order = self._order
        plain = not self.augment or (self.first_plain and view == 0)
        augmented = None if plain else (self.seed, FIRST_VIEW + view)
        for inputs, labels, _ in batches(self.examples, order, view=augmented, workers=self.workers):
            yield inputs, labels

    def calibration(self, count: int) -> Iterator[Any]:
        """Yield a seeded random subset."""
        order = epoch_batches(
            self.examples.labels, batch_size=CALIBRATION_BATCH, seed=self.seed, epoch=CALIBRATION_VIEW
        )
        chosen = order[: max(1, round(count / CALIBRATION_BATCH))]
        for inputs, _, _ in batches(self.examples, chosen, view=(self.seed, CALIBRATION_VIEW), workers=self.workers):
            yield inputs

    def fingerprint(self) -> str:
        """Identifies the data, the augmentation and the seed."""
        how = "first plain" if self.first_plain else "augmented" if self.augment else "plain"
        return f"{self._examples_fingerprint} {how} {self.seed}"

    @property
    def labels(self) -> Labels:
        """The labels of the set."""
        return self.examples.labels

    @property
    def rows(self) -> range:
        """The part of this process; empty if there are fewer batches than processes."""
        return range(self._order[0][0], self._order[-1][-1] + 1) if self._order else range(0)

    @property
    def _order(self) -> list[Indices]:
        every = chunks(len(self), batch_size(self.examples.shape))
        begin, end = (len(every) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return every[begin:end]

    @cached_property
    def _examples_fingerprint(self) -> str:
        return self.examples.fingerprint()

    def __len__(self) -> int:
        return len(self.examples)


@dataclass(frozen=True)
class LoaderInputs:
    """Batches of a user's loader, with repeatable shuffling and augmentation (see `seeded`)."""

    loader: Any
    seed: int
    labels: None = None

    def sweep(self, view: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batches in the loader's order."""
        with seeded(self.loader, int(np.random.SeedSequence((self.seed, FIRST_VIEW + view)).generate_state(1)[0])):
            batch = None
            for batch in self.loader:
                yield split(batch)
            if batch is None:
                raise InputError("the data is empty: check its path or Dataset")

    def calibration(self, count: int) -> Iterator[Any]:
        """Yield the first batches."""
        for inputs, labels in self.sweep(-1):
            yield inputs
            count -= len(labels)
            if count <= 0:
                return

    def fingerprint(self) -> None:
        """None: the content of a loader is unknown."""

    @property
    def rows(self) -> range:
        """All of them."""
        return range(len(self))

    def __len__(self) -> int:
        dataset: Any = getattr(self.loader, "dataset", None)
        if hasattr(dataset, "__len__"):
            return len(dataset)
        return sum(len(labels) for _, labels in self.sweep(0))


@contextmanager
def seeded(loader: Any, seed: int) -> Iterator[None]:
    """Seed torch, numpy, Python and the loader's generators inside the block; restore their states afterwards.

    >>> loader = torch.utils.data.DataLoader(range(9), shuffle=True, generator=torch.Generator())
    >>> orders = []
    >>> for _ in range(2):
    ...     with seeded(loader, 3):
    ...         orders.append([int(number) for number in loader])
    >>> orders[0] == orders[1]
    True
    """
    own = (getattr(part, "generator", None) for part in (loader, getattr(loader, "sampler", None)))
    generators = [torch.default_generator, *torch.cuda.default_generators, *filter(None, own)]
    before = [generator.get_state() for generator in generators]
    numpys, pythons = np.random.get_state(), random.getstate()
    for generator in generators:
        generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        np.random.set_state(numpys)
        random.setstate(pythons)
