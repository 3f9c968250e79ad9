"""Data sets: the benchmarks and your own, long-tailed, augmented and served in batches.

    data = srepr.data.load("cifar100-lt", data_dir="data")
    steps = srepr.data.epoch_batches(data.train.labels, batch_size=128, seed=0, epoch=0)
    for inputs, labels, indices in srepr.data.batches(data.train, steps, view=(0, 0)):
        ...

Names that need torch are imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from srepr.data.dataset import LongTailData
from srepr.data.longtail import exponential_counts, groups, step_counts, stratified_holdout, subsample
from srepr.data.randomness import Stream, uniforms
from srepr.data.sampling import epoch_batches
from srepr.data.sources import Entry, catalogue, load

if TYPE_CHECKING:
    from srepr.data.examples import ArrayExamples, Examples, FileExamples
    from srepr.data.workers import batches

__all__ = [
    "ArrayExamples",
    "Entry",
    "Examples",
    "FileExamples",
    "LongTailData",
    "Stream",
    "batches",
    "catalogue",
    "epoch_batches",
    "exponential_counts",
    "groups",
    "load",
    "step_counts",
    "stratified_holdout",
    "subsample",
    "uniforms",
]

_NEED_TORCH = {"ArrayExamples": "examples", "Examples": "examples", "FileExamples": "examples", "batches": "workers"}


def __getattr__(name: str) -> object:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'srepr.data' has no attribute {name!r}")
    return getattr(import_module(f"srepr.data.{_NEED_TORCH[name]}"), name)
