"""Turn index batches into input batches, optionally in worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from srepr.data.examples import ArrayExamples, Examples, View
from srepr.data.longtail import Indices
from srepr.data.tokens import TextExamples
from srepr.errors import InputError, check

MOST_WORKERS = max(16, 2 * (os.cpu_count() or 1))
"""More processes would only wait for each other."""


def batches(
    examples: Examples, batch_indices: Sequence[Indices], *, view: View | None = None, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor, Indices]]:
    """Yield inputs, labels and indices of every index batch, in order; the result does not depend on `workers`.

    Workers decode image files ahead of time. Data in memory is read without them, which is faster.

    >>> import numpy as np
    >>> part = ArrayExamples(np.eye(3, dtype=np.float32), np.array([0, 1, 1]), ("cat", "dog"))
    >>> for inputs, labels, indices in batches(part, [np.array([2, 0]), np.array([1])]):
    ...     print(inputs.tolist(), labels.tolist())
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]] [1, 0]
    [[0.0, 1.0, 0.0]] [1]
    """
    check(workers >= 0, f"`workers` is {workers}: it must not be negative")
    if workers == 0 or isinstance(examples, ArrayExamples | TextExamples):
        stream: Iterator[Tensor] = (examples.load(indices, view) for indices in batch_indices)
    else:
        stream = _in_workers(examples, batch_indices, view, workers)
    for inputs, indices in zip(stream, batch_indices, strict=True):
        yield inputs, torch.from_numpy(examples.labels[indices]), indices


def _in_workers(
    examples: Examples, batch_indices: Sequence[Indices], view: View | None, workers: int
) -> Iterator[Tensor]:
    useful = min(workers, len(batch_indices), MOST_WORKERS)
    loader = DataLoader(
        _InputBatches(examples, view), batch_size=None, sampler=batch_indices, num_workers=useful, prefetch_factor=4
    )
    try:
        for outcome in loader:
            if isinstance(outcome, InputError):
                raise outcome
            yield outcome
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise InputError(
            f"a process that reads the data died: {error} Use fewer of them (`workers`), or none for a clear message"
        ) from error


@dataclass(frozen=True)
class _InputBatches(Dataset[Tensor]):
    examples: Examples
    view: View | None

    def __getitem__(self, indices: Indices) -> Tensor | InputError:  # type: ignore[override]
        try:
            return self.examples.load(indices, self.view)
        except InputError as error:
            return error  # raising in a worker would wrap it in that worker's traceback
