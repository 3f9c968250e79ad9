"""Dispersion, correlation, boxes and means, against float64 numpy, scipy and matplotlib."""

import math

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matplotlib.cbook import boxplot_stats

from srepr import InputError
from srepr.analysis import class_means, feature_dispersion, jensen_shannon, pearson, quartile_boxes

CHANCE = np.random.default_rng(0)
SHAPES = arrays.array_shapes(min_dims=3, max_dims=3, max_side=5)
FEATURES = arrays.arrays(np.int64, SHAPES, elements=st.integers(-999, 999)).map(lambda whole: whole / 7)


def normalised(weights):
    """Whole numbers as probabilities; nothing but zeros as equal ones."""
    weights = np.where(weights.sum(-1, keepdims=True) == 0, 1, weights)
    return weights / weights.sum(-1, keepdims=True)


PROBS = arrays.arrays(np.int64, SHAPES, elements=st.integers(0, 9)).map(normalised)


# Dispersion in feature space


def test_feature_dispersion_is_the_mean_cosine_distance_to_the_centroid():
    features = CHANCE.normal(size=(5, 40, 7))
    centroids = features.mean(0)
    expected = [
        np.mean([scipy.spatial.distance.cosine(draw[b], centroids[b]) for draw in features]) for b in range(40)
    ]
    for given_ in (features, torch.from_numpy(features), features.tolist()):
        found = feature_dispersion(given_)
        assert (found.dtype, found.shape) == (torch.float64, (40,))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_small_dispersion_keeps_its_digits():
    """Directions 2e apart are e off their centroid: 1 - cos e = e^2 / 2, far below what 1 - cos resolves."""
    e = 1e-7
    found = feature_dispersion([[[math.cos(e), math.sin(e)]], [[math.cos(e), -math.sin(e)]]])
    assert found.item() == pytest.approx(e**2 / 2, rel=1e-6)


@settings(max_examples=60)
@given(FEATURES, st.integers(0, 4), st.sampled_from([1e-150, 1e-3, 7.0, 1e150]))
def test_feature_dispersion_is_bounded_and_forgets_order_and_length(features, shift, factor):
    found = feature_dispersion(features)
    assert ((found >= 0) & (found <= 2 + 1e-12)).all()
    near_zero = np.linalg.norm(features.mean(0), axis=-1) < 1e-6 * np.abs(features).max(initial=1)
    kept = ~near_zero  # the direction of a centroid that is 0 but for rounding means nothing
    np.testing.assert_allclose(feature_dispersion(np.roll(features, shift, 0))[kept], found[kept], atol=1e-9)
    np.testing.assert_allclose(feature_dispersion(factor * features)[kept], found[kept], atol=1e-9)


@settings(max_examples=60)
@given(FEATURES, st.integers(1, 12))
def test_draws_that_agree_have_no_feature_dispersion_at_all(features, samples):
    assert torch.equal(
        feature_dispersion(np.repeat(features[:1], samples, 0)), torch.zeros(features.shape[1]).double()
    )


def test_vectors_of_length_zero_have_no_direction():
    away, nothing = [3.0, 4.0], [0.0, 0.0]
    found = feature_dispersion([[nothing, nothing, away], [nothing, away, [-3.0, -4.0]]])
    assert found.tolist() == [0.0, 0.5, 1.0]  # agreement; one of two without a direction; a centroid without one


# Dispersion in probability space


def test_jensen_shannon_is_what_scipy_says():
    probs = CHANCE.dirichlet(np.full(6, 0.3), size=(4, 50))
    expected = scipy.stats.entropy(probs.mean(0), axis=-1) - scipy.stats.entropy(probs, axis=-1).mean(0)
    for given_ in (probs, torch.from_numpy(probs), probs.tolist()):
        np.testing.assert_allclose(jensen_shannon(given_), expected, rtol=1e-9, atol=1e-15)
    pairs = scipy.spatial.distance.jensenshannon(probs[0], probs[1], axis=1) ** 2
    np.testing.assert_allclose(jensen_shannon(probs[:2]), pairs, rtol=1e-9, atol=1e-15)


@settings(max_examples=60)
@given(PROBS, st.integers(0, 4))
def test_jensen_shannon_is_bounded_and_forgets_the_order(probs, shift):
    found = jensen_shannon(probs)
    samples, _, classes = probs.shape
    assert ((found >= 0) & (found <= math.log(min(samples, classes)) + 1e-12)).all()
    np.testing.assert_allclose(jensen_shannon(np.roll(probs, shift, 0)), found, atol=1e-12)


@settings(max_examples=60)
@given(PROBS, st.integers(1, 12))
def test_draws_that_agree_have_no_divergence_at_all(probs, samples):
    assert torch.equal(jensen_shannon(np.repeat(probs[:1], samples, 0)), torch.zeros(probs.shape[1]).double())


@pytest.mark.parametrize("samples", [2, 3, 10])
def test_certain_draws_that_all_disagree_reach_the_bound(samples):
    assert jensen_shannon(np.eye(samples)[:, None]).item() == pytest.approx(math.log(samples), rel=1e-12)


def test_the_smallest_probabilities_do_not_make_it_infinite():
    smallest = math.ulp(0.0)
    assert jensen_shannon([[[1.0, smallest]], *[[[1.0, 0.0]]] * 9]).item() == pytest.approx(0, abs=1e-300)


@pytest.mark.parametrize(
    ("measure", "values", "complaint"),
    [
        (feature_dispersion, np.zeros((2, 3)), r"features have shape \[2, 3\]: pass \[M, B, L\]"),
        (feature_dispersion, np.zeros((0, 2, 3)), "with one draw at least"),
        (feature_dispersion, [[[np.nan]]], "the features contain NaN or infinity"),
        (jensen_shannon, np.zeros((2, 3)), r"probabilities have shape \[2, 3\]: pass \[M, B, K\]"),
        (jensen_shannon, [[[2.0, -1.0]]], "pass logits through softmax first"),
        (jensen_shannon, [[[0.5, 0.4]]], "sum to 1 over the classes"),
    ],
)
def test_what_is_not_a_set_of_draws_is_refused(measure, values, complaint):
    with pytest.raises(InputError, match=complaint):
        measure(values)


@pytest.mark.parametrize("measure", [feature_dispersion, jensen_shannon])
def test_no_examples_have_no_dispersion(measure):
    assert measure(np.zeros((2, 0, 3))).shape == (0,)


# Correlation, boxes, means


def test_pearson_is_what_scipy_says():
    x = CHANCE.normal(size=100)
    for y in (x + CHANCE.normal(size=100), -x, 1e6 + 1e-3 * x**2):
        assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, rel=1e-9)
    assert pearson(x, -3 * x + 1) == pytest.approx(-1)


@pytest.mark.parametrize("x", [[], [1.0], [0.1, 0.1, 0.1]])
def test_what_does_not_vary_has_no_correlation(x):
    y = np.arange(float(len(x)))
    assert pearson(x, y) is None
    assert pearson(y, x) is None


@pytest.mark.parametrize("n", [4, 5, 7, 101, 400])
def test_the_boxes_are_those_of_matplotlib_over_the_quartiles(n):
    values, by = CHANCE.lognormal(size=n), CHANCE.permutation(n)
    sizes = [len(part) for part in np.array_split(np.arange(n), 4)]
    groups = np.split(values[np.argsort(by)], np.cumsum(sizes)[:-1])
    for box, group in zip(quartile_boxes(values, by), groups, strict=True):
        (truth,) = boxplot_stats(group)
        names = {"low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "high": "whishi"}
        assert box == pytest.approx({name: truth[theirs] for name, theirs in names.items()})


def test_fewer_than_four_examples_leave_quartiles_empty():
    boxes = quartile_boxes([5.0, 6.0], by=[2, 1])
    assert [box["median"] for box in boxes] == [6.0, 5.0, None, None]


def test_class_means_are_those_of_a_loop():
    labels, values = CHANCE.integers(0, 4, 60), CHANCE.normal(size=60)
    found = class_means(values, labels, classes=6)
    assert found == [pytest.approx(values[labels == k].mean()) for k in range(4)] + [None, None]
