from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from srepr.data import epoch_batches
from srepr.errors import InputError

some_labels = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)


def sequence(labels, **options):
    options = {"batch_size": 16, "seed": 0, "epoch": 0, "drop_last": False, **options}
    return np.concatenate(epoch_batches(labels, **options))


@given(some_labels, st.integers(1, 50), st.integers(0, 9), st.integers(0, 9))
def test_an_epoch_sees_every_example_once(labels, batch_size, seed, epoch):
    seen = sequence(labels, batch_size=batch_size, seed=seed, epoch=epoch)
    assert sorted(seen) == list(range(len(labels)))


@given(some_labels, st.integers(4, 50), st.sampled_from([1, 2, 3, 4]), st.booleans(), st.booleans())
def test_the_ranks_part_every_batch_and_their_union_does_not_depend_on_their_number(
    labels, batch_size, world_size, balanced, drop_last
):
    options = {"batch_size": batch_size, "seed": 1, "epoch": 2, "balanced": balanced, "drop_last": drop_last}
    ranks = [epoch_batches(labels, rank=r, world_size=world_size, **options) for r in range(world_size)]
    together = [np.concatenate(parts) for parts in zip(*ranks, strict=True)]
    alone = epoch_batches(labels, **options)
    assert [batch.tolist() for batch in together] == [batch.tolist() for batch in alone]


@pytest.mark.parametrize(
    ("examples", "drop_last", "sizes"),
    [(10, True, [4, 4]), (10, False, [4, 4, 2]), (8, True, [4, 4]), (8, False, [4, 4]), (3, True, [3]), (0, True, [])],
)
def test_an_incomplete_last_batch_is_dropped_unless_it_is_the_only_one(examples, drop_last, sizes):
    labels = np.zeros(examples, dtype=np.int64)
    assert [len(b) for b in epoch_batches(labels, batch_size=4, seed=0, epoch=0, drop_last=drop_last)] == sizes


@pytest.mark.parametrize("balanced", [False, True])
def test_seed_and_epoch_decide_the_sequence(balanced):
    labels = np.repeat([0, 1], [60, 4])
    first = sequence(labels, balanced=balanced)
    assert (first == sequence(labels, balanced=balanced)).all()
    assert (first != sequence(labels, balanced=balanced, epoch=1)).any()
    assert (first != sequence(labels, balanced=balanced, seed=1)).any()


@given(some_labels, st.integers(0, 9))
def test_a_balanced_epoch_uses_up_a_class_before_it_repeats_an_example(labels, seed):
    seen = sequence(labels, balanced=True, seed=seed)
    assert len(seen) == len(labels)
    for k in np.unique(labels):
        of_class, size = seen[labels[seen] == k], np.sum(labels == k)
        for deck in np.split(of_class, range(size, len(of_class), size)):
            assert len(set(deck)) == len(deck)


def test_a_balanced_epoch_draws_every_class_as_often():
    """Multinomial with equal cells, class ids without examples left out."""
    labels = np.repeat([0, 2, 3, 7], [20_000, 300, 10, 1])
    drawn = np.bincount(labels[sequence(labels, balanced=True)])
    assert drawn[[1, 4, 5, 6]].sum() == 0
    assert stats.chisquare(drawn[[0, 2, 3, 7]]).pvalue > 0.01


def test_every_example_has_probability_one_over_classes_times_class_size():
    """The first draws of many epochs: P(x, y) = 1 / (K n_y)."""
    labels = np.repeat([0, 1], [8, 2])
    first = [sequence(labels, balanced=True, epoch=epoch)[0] for epoch in range(4000)]
    expected = np.repeat([1 / 16, 1 / 4], [8, 2]) * 4000
    assert stats.chisquare(np.bincount(first, minlength=10), expected).pvalue > 0.01


def test_consecutive_decks_of_a_class_are_shuffled_afresh():
    labels = np.repeat([0, 1], [2000, 12])
    seen = sequence(labels, balanced=True)
    tail = seen[labels[seen] == 1]
    decks = [tuple(deck) for deck in np.split(tail, range(12, len(tail), 12))]
    assert all(a != b for a, b in pairwise(decks))


def test_ten_thousand_classes_of_one_example():
    labels = np.arange(10_000)
    drawn = np.bincount(sequence(labels, balanced=True), minlength=10_000)
    poisson = stats.poisson(1).pmf(range(5)) * 10_000
    assert np.abs(np.bincount(drawn)[:5] - poisson).max() < 200


def test_a_batch_smaller_than_the_number_of_processes_is_refused():
    with pytest.raises(InputError, match="a batch of 2 is too small for 4 processes"):
        epoch_batches(np.zeros(8, dtype=np.int64), batch_size=2, seed=0, epoch=0, world_size=4)
