"""Long-tailed class counts, and subsampling to match them.

The exponential profile of the CIFAR-LT benchmarks gives class k

    n_k = int(largest * imbalance^(k / (K - 1))),        imbalance = n_{K-1} / n_0;

the step profile reduces the second half of the classes to `largest * imbalance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from srepr.data.randomness import Stream, uniforms
from srepr.errors import InputError

Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]

MOST_CLASSES = 1 << 24
"""Classes are counted, so the largest label decides about memory."""


def exponential_counts(largest: int, classes: int, imbalance: float = 0.01) -> list[int]:
    """Class sizes that fall exponentially from `largest` to `largest * imbalance`, at least 1 each.

    >>> sum(exponential_counts(500, 100)), sum(exponential_counts(5000, 10))
    (10847, 12406)
    """
    _check_profile(largest, classes, imbalance)
    return [_whole(largest * imbalance ** (k / max(classes - 1, 1))) for k in range(classes)]


def step_counts(largest: int, classes: int, imbalance: float = 0.01) -> list[int]:
    """Class sizes of `largest` for the first half of the classes and `largest * imbalance` for the rest.

    >>> step_counts(500, 5, 0.1)
    [500, 500, 500, 50, 50]
    """
    _check_profile(largest, classes, imbalance)
    head = (classes + 1) // 2
    return [largest] * head + [_whole(largest * imbalance)] * (classes - head)


LIMITS = {"many": "more than 100", "medium": "20 to 100", "few": "fewer than 20"}
"""Class groups by number of training examples, in words."""


def groups(counts: Sequence[int] | Labels) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks of the "many" (more than 100 examples), "medium" (20 to 100) and "few" (fewer than 20) classes.

    >>> {name: members.tolist() for name, members in groups([101, 100, 20, 19]).items()}
    {'many': [True, False, False, False], 'medium': [False, True, True, False], 'few': [False, False, False, True]}
    """
    n = np.asarray(counts)
    return {"many": n > 100, "medium": (n >= 20) & (n <= 100), "few": n < 20}


def subsample(labels: Labels, counts: Sequence[int] | Labels, *, seed: int) -> Indices:
    """Sorted indices of `counts[k]` random examples of each class k.

    With the same seed, a smaller subsample is contained in a larger one, so imbalance ratios are compared on nested
    data.

    >>> subsample(np.array([0, 0, 0, 1, 1]), [2, 1], seed=0)
    array([0, 1, 3])
    """
    available = np.bincount(labels, minlength=len(counts))
    if len(available) != len(counts):
        raise InputError(f"{len(counts)} class counts for {len(available)} classes. Give one count for each class")
    short = np.flatnonzero(available < counts)
    if len(short):
        k = short[0]
        raise InputError(f"class {k} has {available[k]:,} examples, not {counts[k]:,}. Ask for fewer")
    return np.flatnonzero(_rank_within_class(labels, seed, Stream.SUBSAMPLE) < np.asarray(counts)[labels])


def stratified_holdout(
    labels: Labels, fraction: float, *, seed: int, identities: Labels | None = None
) -> tuple[Indices, Indices]:
    """Sorted indices of the kept and the held-out examples, with `fraction` of each class held out, rounded.

    A class with two or more examples holds out at least one and keeps at least one; a single example is kept. Examples
    of a class with equal `identities` are copies of each other: they count once and stay together, unless the class
    has nothing else.

    >>> kept, held = stratified_holdout(np.array([0] * 8 + [1, 1, 2]), 0.25, seed=0)
    >>> np.bincount(np.array([0] * 8 + [1, 1, 2])[held], minlength=3)
    array([2, 1, 0])
    >>> kept, held = stratified_holdout(np.zeros(4, dtype=int), 0.5, seed=0, identities=np.array([7, 7, 7, 9]))
    >>> kept, held
    (array([3]), array([0, 1, 2]))
    """
    if not 0 < fraction < 1:
        raise InputError(f"a held-out fraction of {fraction:g} must lie between 0 and 1, both excluded")
    if identities is not None:
        pairs = np.stack([labels, identities])
        alike = np.array([len(np.unique(identities[labels == k])) == 1 for k in range(labels.max(initial=-1) + 1)])
        pairs[1, alike[labels]] = np.arange(len(labels))[alike[labels]]
        _, first, inverse = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        different = np.sort(first)
        _, taken = stratified_holdout(labels[different], fraction, seed=seed)
        out = np.isin(first[inverse], different[taken])
        return np.flatnonzero(~out), np.flatnonzero(out)
    available = np.bincount(labels)
    take = np.clip(np.rint(available * fraction), 1, np.maximum(available - 1, 0))
    held = _rank_within_class(labels, seed, Stream.HOLDOUT) < take[labels]
    return np.flatnonzero(~held), np.flatnonzero(held)


def _check_profile(largest: int, classes: int, imbalance: float) -> None:
    if not (1 <= largest < 2**63 and 1 <= classes <= MOST_CLASSES):  # nor NaN
        raise InputError(
            f"{classes} classes of at most {largest} examples: both numbers must be at least 1, and at most"
            f" {MOST_CLASSES:,} classes are possible"
        )
    if not 0 < imbalance <= 1:
        raise InputError(
            f"an imbalance of {imbalance:g} must lie in (0, 1]: the smallest class over the largest, 0.01 for 1:100"
        )


def _whole(count: float) -> int:
    # 100 * 0.29 is 28.999999999999996: a rounding error must not cost an example.
    return max(1, math.floor(count * (1 + 1e-12)))


def _rank_within_class(labels: Labels, seed: int, stream: Stream) -> Indices:
    """Rank 0..n_k-1 of each example in a random order of its class."""
    order = np.lexsort((uniforms(seed, 0, np.arange(len(labels)), 1, stream=stream)[:, 0], labels))
    first = np.concatenate([[0], np.cumsum(np.bincount(labels))])[labels[order]]
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - first
    return rank
