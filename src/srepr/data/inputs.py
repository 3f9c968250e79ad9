"""Whole, repeatable passes over the data for the frozen networks of stage 2, each under one augmentation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from srepr.data.examples import Examples
from srepr.data.loaders import split
from srepr.data.loading import batches
from srepr.data.sampling import epoch_batches
from srepr.errors import InputError

BATCH = 64  # small batches stay in the processor's cache
CALIBRATION_BATCH = 128  # statistics as in training
FIRST_VIEW = 1_000_000  # in the numbers of epochs, out of the way of stage 1
CALIBRATION_VIEW = FIRST_VIEW - 1


class Inputs(Protocol):
    """The data as stage 2 needs it: whole passes over it, in some order, under some augmentation."""

    def sweep(self, view: int) -> Iterator[tuple[Any, Tensor]]:
        """Every example once, as (inputs, labels); the same view gives the same batches in the same order."""

    def calibration(self, count: int) -> Iterator[Any]:
        """Inputs of about `count` examples in random order, the same each time."""

    def fingerprint(self) -> str | None:
        """What a sweep depends on; None where that cannot be known, and nothing can be kept for later."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class ExampleInputs:
    """The inputs of a part of a data set, augmented as in training or plain as in evaluation.

    >>> from srepr.data import load
    >>> sum(len(labels) for _, labels in ExampleInputs(load("digits-lt").train, seed=0).sweep(0))
    331
    """

    examples: Examples
    seed: int
    workers: int = 0
    augment: bool = True

    def sweep(self, view: int) -> Iterator[tuple[Any, Tensor]]:
        """The examples in their order."""
        order = np.array_split(np.arange(len(self)), -(-len(self) // BATCH))
        augmented = (self.seed, FIRST_VIEW + view) if self.augment else None
        for inputs, labels, _ in batches(self.examples, order, view=augmented, workers=self.workers):
            yield inputs, labels

    def calibration(self, count: int) -> Iterator[Any]:
        """A seeded random subset."""
        order = epoch_batches(
            self.examples.labels, batch_size=CALIBRATION_BATCH, seed=self.seed, epoch=CALIBRATION_VIEW
        )
        chosen = order[: max(1, round(count / CALIBRATION_BATCH))]
        for inputs, _, _ in batches(self.examples, chosen, view=(self.seed, CALIBRATION_VIEW), workers=self.workers):
            yield inputs

    def fingerprint(self) -> str:
        """The data, whether it is augmented, and the seed of that and of the calibration."""
        return f"{self._examples_fingerprint} {'augmented' if self.augment else 'plain'} {self.seed}"

    @cached_property
    def _examples_fingerprint(self) -> str:
        return self.examples.fingerprint()

    def __len__(self) -> int:
        return len(self.examples)


@dataclass(frozen=True)
class LoaderInputs:
    """The batches of a user's own loader; its shuffling and augmentation are repeatable (see `seeded`).

    >>> loader = torch.utils.data.DataLoader([(torch.zeros(2), 0), (torch.ones(2), 1)], batch_size=2)
    >>> [labels.tolist() for _, labels in LoaderInputs(loader, seed=0).sweep(0)]
    [[0, 1]]
    """

    loader: Any
    seed: int

    def sweep(self, view: int) -> Iterator[tuple[Any, Tensor]]:
        """The batches in the loader's order."""
        with seeded(self.loader, int(np.random.SeedSequence((self.seed, FIRST_VIEW + view)).generate_state(1)[0])):
            batch = None
            for batch in self.loader:
                yield split(batch)
            if batch is None:
                raise InputError("the data has no examples: check where it is read from")

    def calibration(self, count: int) -> Iterator[Any]:
        """The first batches."""
        for inputs, labels in self.sweep(-1):
            yield inputs
            count -= len(labels)
            if count <= 0:
                return

    def fingerprint(self) -> None:
        """A loader does not say what is in it."""

    def __len__(self) -> int:
        dataset: Any = getattr(self.loader, "dataset", None)
        if hasattr(dataset, "__len__"):
            return len(dataset)
        return sum(len(labels) for _, labels in self.sweep(0))


@contextmanager
def seeded(loader: Any, seed: int) -> Iterator[None]:
    """Inside, what torch, numpy or Python decide by their own generators follows from the seed; afterwards none of
    these has moved, nor those of the loader.

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
