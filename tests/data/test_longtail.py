import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from srepr.data import exponential_counts, groups, step_counts, stratified_holdout, subsample
from srepr.errors import InputError

class_sizes = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


def labels_of(sizes, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_the_benchmarks_have_the_published_sizes():
    assert sum(exponential_counts(500, 100)) == 10847
    assert sum(exponential_counts(5000, 10)) == 12406
    assert exponential_counts(5000, 10) == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert sum(exponential_counts(120, 10, 0.02)) == 331


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 1000))
def test_exponential_counts_fall_from_the_largest_to_the_exact_smallest(largest, classes, thousandths):
    counts = exponential_counts(largest, classes, thousandths / 1000)
    assert counts[0] == largest
    assert counts == sorted(counts, reverse=True)
    if classes > 1:
        assert counts[-1] == max(1, largest * thousandths // 1000)  # in exact arithmetic


def test_a_geometric_series_without_rounding():
    assert exponential_counts(1000, 4, 0.001) == [1000, 100, 10, 1]
    assert exponential_counts(100, 2, 0.29) == [100, 29]  # 100 * 0.29 = 28.999999999999996


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 1000))
def test_step_counts_have_two_levels(largest, classes, thousandths):
    counts = step_counts(largest, classes, thousandths / 1000)
    assert len(counts) == classes
    assert counts[: (classes + 1) // 2] == [largest] * ((classes + 1) // 2)
    assert set(counts[(classes + 1) // 2 :]) <= {max(1, largest * thousandths // 1000)}


@pytest.mark.parametrize("profile", [exponential_counts, step_counts])
@pytest.mark.parametrize("imbalance", [0, -0.1, 100, float("nan")])
def test_an_impossible_imbalance_is_explained(profile, imbalance):
    with pytest.raises(InputError, match=r"imbalance of .* smallest class over the largest"):
        profile(500, 10, imbalance)


@given(st.lists(st.integers(0, 300), min_size=1))
def test_every_class_is_in_exactly_one_group(counts):
    assert (sum(members.astype(int) for members in groups(counts).values()) == 1).all()


@given(class_sizes, st.integers(0, 2**32), st.data())
def test_a_subsample_has_the_asked_counts_and_grows_with_them(sizes, seed, data):
    labels = labels_of(sizes)
    more = [data.draw(st.integers(0, n)) for n in sizes]
    fewer = [data.draw(st.integers(0, n)) for n in more]
    large, small = subsample(labels, more, seed=seed), subsample(labels, fewer, seed=seed)
    assert np.bincount(labels[large], minlength=len(sizes)).tolist() == more
    assert (np.diff(large) > 0).all()
    assert set(small) <= set(large)


def test_every_example_is_as_likely_to_be_drawn():
    labels = labels_of([10, 30])
    drawn = np.concatenate([subsample(labels, [5, 3], seed=seed) for seed in range(2000)])
    for k, share in ((0, 5 / 10), (1, 3 / 30)):
        times = np.bincount(drawn, minlength=40)[labels == k]
        spread = (times - 2000 * share) / np.sqrt(2000 * share * (1 - share))
        assert np.abs(spread).max() < 4


def test_a_subsample_of_ten_thousand_single_examples_is_all_of_them():
    labels = labels_of([1] * 10_000)
    assert (subsample(labels, [1] * 10_000, seed=0) == np.arange(10_000)).all()


def test_a_subsample_names_the_class_that_is_too_small():
    with pytest.raises(InputError, match="class 1 has 2 examples, not 3"):
        subsample(np.array([0, 0, 0, 1, 1]), [3, 3], seed=0)
    with pytest.raises(InputError, match="1 class counts for 2 classes"):
        subsample(np.array([0, 1]), [1], seed=0)


@given(class_sizes, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_holdout_parts_the_data_and_leaves_no_class_empty(sizes, fraction, seed):
    labels = labels_of(sizes)
    kept, held = stratified_holdout(labels, fraction, seed=seed)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    kept_counts, held_counts = (np.bincount(labels[part], minlength=len(sizes)) for part in (kept, held))
    for n, k, h in zip(sizes, kept_counts, held_counts, strict=True):
        assert (k, h) == (n, 0) if n < 2 else (k >= 1 and h >= 1)
        assert n < 2 or abs(h - n * fraction) <= 1


@given(class_sizes, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_copies_stay_together_and_do_not_change_the_rest(sizes, fraction, seed):
    """Each example once gives the same holdout as without identities; more copies of some follow them."""
    alike = stratified_holdout(np.zeros(10, dtype=np.int64), fraction, seed=seed, identities=np.zeros(10, dtype=int))
    assert len(alike[0]) >= 1 <= len(alike[1])
    labels = labels_of(sizes)
    _, held = stratified_holdout(labels, fraction, seed=seed)
    _, same = stratified_holdout(labels, fraction, seed=seed, identities=np.arange(len(labels)) * 7)
    np.testing.assert_array_equal(held, same)
    several = np.flatnonzero(np.array(sizes)[labels] > 1)  # a class of nothing but copies is parted
    copied = np.random.default_rng(seed).permutation(several.repeat(2))[:20]
    every = np.concatenate([np.arange(len(labels)), copied])
    _, out = stratified_holdout(labels[every], fraction, seed=seed, identities=every)
    np.testing.assert_array_equal(out, np.flatnonzero(np.isin(every, held)))


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 10])
def test_a_holdout_of_nothing_or_everything_is_refused(fraction):
    with pytest.raises(InputError, match="between 0 and 1"):
        stratified_holdout(np.array([0, 1]), fraction, seed=0)


def test_holdout_and_subsample_of_one_seed_are_independent():
    """If they shared their order, the held-out half would be exactly the drawn half."""
    labels = np.zeros(400, dtype=np.int64)
    drawn = set(subsample(labels, [200], seed=0))
    held = set(stratified_holdout(labels, 0.5, seed=0)[1])
    assert 0.001 < stats.hypergeom(400, 200, 200).cdf(len(drawn & held)) < 0.999
