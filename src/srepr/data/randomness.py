"""Stateless random numbers: each is a pure function of (seed, stream, epoch, index, column).

A resumed run gives the same bits, and a batch depends neither on the process that computes it nor on the order of
calls. Each number is a counter passed through the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64
bits in which every input bit flips half of the output bits.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

_WEYL = 0x9E3779B97F4A7C15
_64_BITS = (1 << 64) - 1


class Stream(IntEnum):
    """Purpose of random numbers. Different streams of one seed give different numbers.

    >>> bool(uniforms(0, 0, [0], 1, stream=Stream.AUGMENT) == uniforms(0, 0, [0], 1, stream=Stream.MIXUP))
    False
    """

    AUGMENT = 1
    MIXUP = 5
    SUBSAMPLE = 10
    HOLDOUT = 11
    PERMUTATION = 20
    CLASS = 21
    EXAMPLE = 22


def uniforms(seed: int, epoch: int, indices: npt.ArrayLike, count: int, *, stream: int = 0) -> npt.NDArray[np.float64]:
    """Uniform numbers [N, count] in [0, 1) for N indices; `stream` separates different uses of one seed.

    >>> draws = uniforms(0, 5, [7, 8, 9], 2)
    >>> draws.shape
    (3, 2)
    >>> bool((uniforms(0, 5, [9], 2) == draws[2]).all())
    True
    """
    state = np.zeros((1, 1), dtype=np.uint64)
    for word in (seed, stream, epoch):
        state = _mix(state, np.array([[word & _64_BITS]], dtype=np.uint64))
    state = _mix(state, np.asarray(indices).astype(np.uint64)[:, None])
    state = _mix(state, np.arange(count, dtype=np.uint64)[None, :])
    return np.asarray(state >> np.uint64(11), dtype=np.float64) * 2.0**-53


def _mix(state: npt.NDArray[np.uint64], word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = state + (word + np.uint64(1)) * np.uint64(_WEYL)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
