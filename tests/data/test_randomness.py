import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from srepr.data.randomness import Stream, uniforms

N = 20_000


def reference(seed: int, stream: int, epoch: int, index: int, column: int) -> float:
    """The same chain of SplitMix64 finalisers in unbounded Python integers."""
    bits, state = (1 << 64) - 1, 0
    for word in (seed, stream, epoch, index, column):
        state = (state + (word + 1) * 0x9E3779B97F4A7C15) & bits
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & bits
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & bits
        state ^= state >> 31
    return (state >> 11) / 2**53


@given(st.integers(-(2**63), 2**64), st.integers(0, 50), st.integers(0, 10**6), st.integers(0, 2**62))
def test_every_number_is_the_chain_of_finalisers_in_exact_arithmetic(seed, stream, epoch, index):
    drawn = uniforms(seed, epoch, [index, index + 1], 2, stream=stream)
    expected = [[reference(seed, stream, epoch, i, c) for c in (0, 1)] for i in (index, index + 1)]
    assert drawn.tolist() == expected


def test_the_numbers_are_uniform():
    drawn = uniforms(3, 1, np.arange(N), 4)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 0.01


@pytest.mark.parametrize(
    "neighbour",
    [
        uniforms(0, 0, np.arange(N) + 1, 1),
        uniforms(0, 1, np.arange(N), 1),
        uniforms(1, 0, np.arange(N), 1),
        uniforms(0, 0, np.arange(N), 2)[:, 1:],
        uniforms(0, 0, np.arange(N), 1, stream=1),
    ],
    ids=["index", "epoch", "seed", "column", "stream"],
)
def test_neighbours_are_independent(neighbour):
    """A chi-squared test of the 8 x 8 table that two independent uniforms fill evenly."""
    pairs, _, _ = np.histogram2d(uniforms(0, 0, np.arange(N), 1)[:, 0], neighbour[:, 0], bins=8, range=[[0, 1]] * 2)
    assert stats.chisquare(pairs.ravel()).pvalue > 0.01


@given(st.permutations(list(range(20))))
def test_the_order_of_the_indices_does_not_matter(order):
    assert (uniforms(0, 2, order, 3) == uniforms(0, 2, np.arange(20), 3)[order]).all()


def test_no_indices_give_no_numbers():
    assert uniforms(0, 0, np.arange(0), 3).shape == (0, 3)


def test_every_stream_has_a_number_of_its_own():
    """Two names with one number would be one stream: mixup weights sorted like the epoch, for one."""
    assert len(Stream.__members__) == len({stream.value for stream in Stream}) == len(list(Stream))
