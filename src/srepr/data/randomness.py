"""Randomness without history: every number is a pure function of (seed, stream, epoch, index, column).

A run that is killed goes on to the same bits, a batch is the same whatever process computes it, and the order of the
calls does not matter, because there is no state to be in. Each number is a counter put through the finaliser of
SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64 bits in which every input bit flips half of the output bits.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

_WEYL = 0x9E3779B97F4A7C15
_64_BITS = (1 << 64) - 1


class Stream(IntEnum):
    """What random numbers are for: two uses of one seed must not see the same ones.

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
    """Uniform numbers [N, count] in [0, 1) for N indices; `stream` keeps different uses of one seed apart.

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
