"""Sets of labels: the thresholds against brute force in float64, the guarantees against many draws."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from srepr.decisions.conformal import BANDWIDTH, FORMS, TAU, Thresholds, calibrate
from srepr.errors import InputError


def drawn(shares, examples, seed=0, sharp=1.5):
    """Probabilities and labels of a classifier that is right about its own doubt, with these class shares."""
    chance = np.random.default_rng(seed)
    y = chance.choice(len(shares), size=examples, p=shares)
    centres = sharp * np.eye(len(shares))
    x = centres[y] + chance.normal(size=(examples, len(shares)))
    logs = x @ centres.T + np.log(shares)
    p = np.exp(logs - logs.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True), y


def brute_threshold(scores, weights, own, coverage):
    """The largest score with enough weight at or above it, tried one by one; None if there is none."""
    need = coverage * (weights.sum() + own)
    good = [t for t in scores if weights[scores >= t].sum() >= need - 1e-9]
    return max(good, default=None)


SHARES = np.array([0.6, 0.25, 0.1, 0.05])


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("form", ["marginal", "pas"])
def test_one_quantile_for_all_is_a_rank(form, coverage):
    """The ceil((n + 1) coverage)-th largest score p(y) / e(y)."""
    p, y = drawn(SHARES, 200)
    e = np.ones(4) if form == "marginal" else SHARES
    scores = np.sort(p[np.arange(200), y] / e[y])[::-1]
    rank = math.ceil(201 * coverage - 1e-9)
    found = calibrate(p, y, coverage, form, expects=SHARES)
    np.testing.assert_allclose(found.minimum, scores[rank - 1] * e, rtol=1e-12)
    assert (found.borrowed, found.note) == ((), "")


@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_class_fuzzy_and_interpolated_thresholds_are_brute_force(coverage):
    p, y = drawn(SHARES, 150, seed=1)
    n, counts = np.bincount(y, minlength=4), np.array([500.0, 200, 40, 8])
    scores = p[np.arange(150), y] / SHARES[y]
    everyone = brute_threshold(scores, np.ones(150), 1, coverage) or 0
    expected = {"class": [], "fuzzy": [], "interpolated": []}
    for k in range(4):
        own = (y == k).astype(float)
        t = brute_threshold(scores, own, 1, coverage)
        f = counts / counts.max()
        near = np.exp(-((f[y] - f[k]) ** 2) / (2 * BANDWIDTH / (n[k] + 1)))
        fuzzy = brute_threshold(scores, near, 1, coverage)
        borrowed = min((1 - TAU) * everyone, scores[y == k].min())
        expected["class"].append(borrowed if t is None else t)
        # Examples beyond all but a 10^-12 of the weight do not count: that is rounding.
        lowest = max(t for t in scores if near[scores >= t].sum() >= (1 - 1e-12) * near.sum())
        expected["fuzzy"].append(min((1 - TAU) * everyone, lowest) if fuzzy is None else fuzzy)
        expected["interpolated"].append((1 - TAU) * everyone + TAU * (t or 0))
    for form, t in expected.items():
        found = calibrate(p, y, coverage, form, expects=SHARES, counts=counts)
        np.testing.assert_allclose(found.minimum, np.array(t) * SHARES, rtol=1e-9)
        assert found.borrowed == tuple(np.flatnonzero(n < 1 / (1 - coverage) - 1 - 1e-9))


def test_thresholds_for_another_mix_are_brute_force():
    p, y = drawn(SHARES, 150, seed=2)
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    p = p / SHARES * prior
    p /= p.sum(1, keepdims=True)
    w = prior / (np.bincount(y) / 150)
    scores = p[np.arange(150), y]
    expected = [brute_threshold(scores, w[y], w[k], 0.8) or 0 for k in range(4)]
    found = calibrate(p, y, 0.8, "marginal", expects=prior, prior=prior)
    np.testing.assert_allclose(found.minimum, expected, rtol=1e-9)
    np.testing.assert_allclose(found.prior, prior)


def test_the_held_out_mix_as_a_prior_changes_nothing_but_the_weight_of_the_new_example():
    p, y = drawn(SHARES, 300, seed=3)
    plain, moved = (calibrate(p, y, 0.9, "marginal", prior=prior) for prior in (None, np.bincount(y)))
    np.testing.assert_allclose(plain.minimum, moved.minimum, rtol=1e-12)


def covered(thresholds, p, y):
    sets = thresholds.sets(p).numpy()
    return sets[np.arange(len(y)), y], sets.sum(1)


def test_the_marginal_coverage_over_many_draws_is_the_nominal_one():
    """Within four standard errors; ceil(31 * 0.9) / 31 is what 30 held-out examples give exactly."""
    rates = []
    for seed in range(300):
        p, y = drawn(SHARES, 1030, seed=seed)
        rates.append(covered(calibrate(p[:30], y[:30], 0.9, "marginal"), p[30:], y[30:])[0].mean())
    error = np.std(rates) / np.sqrt(len(rates))
    assert abs(np.mean(rates) - 28 / 31) < 4 * error
    assert error < 0.01


@pytest.mark.parametrize("form", ["marginal", "pas"])
def test_another_mix_is_covered_after_the_adjustment_and_not_before(form):
    shares, prior = np.array([0.8, 0.15, 0.05]), np.array([0.05, 0.15, 0.8])
    rates = {None: [], "adjusted": []}
    for seed in range(60):
        p, y = drawn(shares, 600, seed=seed, sharp=1.0)
        there, truth = drawn(prior, 2000, seed=1000 + seed, sharp=1.0)
        moved = p / shares * prior
        moved /= moved.sum(1, keepdims=True)
        right = calibrate(moved, y, 0.8, form, expects=prior, prior=prior)
        rates["adjusted"].append(covered(right, there, truth)[0].mean())
        back = there / prior * shares
        back /= back.sum(1, keepdims=True)
        rates[None].append(covered(calibrate(p, y, 0.8, form, expects=shares), back, truth)[0].mean())
    error = np.std(rates["adjusted"]) / np.sqrt(60)
    assert np.mean(rates["adjusted"]) > 0.8 - 3 * error
    if form == "marginal":
        assert np.mean(rates[None]) < 0.7


def test_each_class_is_covered_by_its_own_quantile_and_a_rare_one_not_by_the_common():
    rare = {"marginal": [], "class": []}
    for seed in range(40):
        p, y = drawn(SHARES, 3000, seed=seed)
        for form, rates in rare.items():
            inside, _ = covered(calibrate(p[:1000], y[:1000], 0.9, form, expects=SHARES), p[1000:], y[1000:])
            rates.append([inside[y[1000:] == k].mean() for k in range(4)])
    assert np.mean(rare["marginal"], axis=0)[3] < 0.75
    assert (np.mean(rare["class"], axis=0) > 0.89).all()


@given(st.integers(0, 1000), st.sampled_from(FORMS), st.floats(0.05, 0.95), st.floats(0, 0.04))
def test_more_coverage_never_takes_a_label_away_and_no_set_is_empty(seed, form, coverage, more):
    p, y = drawn(SHARES, 80, seed=seed)
    less, greater = (calibrate(p, y, c, form, expects=SHARES) for c in (coverage, coverage + more))
    small, large = less.sets(p), greater.sets(p)
    if form != "fuzzy" and not set(greater.borrowed) - set(less.borrowed):
        assert not (small & ~large).any()
    for sets in (small, large):
        assert sets.any(1).all()
        assert sets[torch.arange(80), torch.from_numpy(p).argmax(1)].all()


@given(st.integers(0, 1000), st.sampled_from(FORMS), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_classes_may_be_renamed(seed, form, chance):
    p, y = drawn(SHARES, 60, seed=seed)
    found = calibrate(p, y, 0.8, form, expects=SHARES)
    rows, classes = list(range(60)), list(range(4))
    chance.shuffle(rows)
    chance.shuffle(classes)
    place = np.argsort(classes)
    other = calibrate(p[rows][:, classes], place[y[rows]], 0.8, form, expects=SHARES[classes])
    np.testing.assert_allclose(np.array(found.minimum)[classes], other.minimum, rtol=1e-9)


def test_the_ends_of_tau_are_the_other_forms():
    p, y = drawn(SHARES, 400, seed=4)
    ends = {tau: calibrate(p, y, 0.8, "interpolated", expects=SHARES, tau=tau).minimum for tau in (0, 1)}
    np.testing.assert_allclose(ends[0], calibrate(p, y, 0.8, "pas", expects=SHARES).minimum, rtol=1e-12)
    np.testing.assert_allclose(ends[1], calibrate(p, y, 0.8, "class", expects=SHARES).minimum, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_class_without_enough_examples_borrows_and_the_note_says_so(form):
    """Of nine examples at 0.9 one may be missed; of fewer, none can be."""
    p, y = drawn(SHARES, 400, seed=5)
    rows = np.concatenate([np.flatnonzero(y == k)[:n] for k, n in enumerate([23, 9, 8])])
    found = calibrate(p[rows], y[rows], 0.9, form, expects=SHARES, class_names=["wren", "crow", "jay", "owl"])
    if form in ("marginal", "pas"):
        assert (found.borrowed, found.note) == ((), "")
        return
    assert found.borrowed == (2, 3)
    assert "fewer than 9 held-out examples borrow" in found.note
    assert "jay, owl (2 of 4)" in found.note
    assert found.minimum[3] > 0
    assert not found.sets(p)[:, 3].all()


def test_sets_of_all_labels_are_never_silent():
    p, y = drawn(SHARES, 4, seed=6)
    found = calibrate(p, y, 0.9, "marginal")
    assert found.minimum == (0, 0, 0, 0)
    assert (
        found.note == "Every set has all labels: 4 held-out examples are too few for a coverage of 0.9, which takes 9."
    )


def test_a_class_that_is_always_missed_has_the_threshold_0_and_borrows_nothing():
    """A quantile of 0 is a quantile: the label is in every set, since every example of the class needs that."""
    p = np.array([[1.0, 0.0]] * 40)
    y = np.repeat([0, 1], 20)
    found = calibrate(p, y, 0.9, "class")
    assert found.minimum == (pytest.approx(1), 0)
    assert found.borrowed == ()
    assert found.note == "Labels in every set, as no held-out example supports a threshold: 1 (1 of 2)."


def test_a_prior_of_unseen_classes_is_told():
    p, _ = drawn(SHARES, 100)
    y = np.arange(100) % 3
    assert "Classes without held-out examples are 25.0% of the prior" in calibrate(p, y, 0.8, prior=[1, 1, 1, 1]).note
    with pytest.raises(InputError, match="no held-out example is of a class that `prior` expects"):
        calibrate(p, y, 0.8, prior=[0, 0, 0, 1])


def test_thresholds_survive_json():
    p, y = drawn(SHARES, 100)
    found = calibrate(p, y, 0.9, "class", expects=SHARES, prior=SHARES)
    assert Thresholds(**json.loads(json.dumps(asdict(found)))) == found


GOOD = {"probabilities": [[0.5, 0.5]] * 3, "labels": [0, 1, 0]}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"probabilities": [[0.5, float("nan")]] * 3}, "must be >= 0 and sum to 1"),
        ({"probabilities": [[2.0, -1.0]] * 3}, "must be >= 0 and sum to 1"),
        ({"probabilities": [0.5, 0.5]}, r"has the shape \[2\]"),
        ({"probabilities": torch.empty(0, 2)}, r"has the shape \[0, 2\]"),
        ({"probabilities": [[0.5], [0.5, 0.5]]}, "is not an array of numbers"),
        ({"labels": [0, 1]}, "must be 3 whole numbers"),
        ({"labels": [0, 1, 2]}, r"must lie in 0 \.\. 1"),
        ({"labels": [0, -1, 1]}, r"must lie in 0 \.\. 1"),
        ({"labels": [0.0, 1.0, 1.0]}, "must be 3 whole numbers"),
        ({"coverage": 1.0}, "`coverage` is 1.0: it must lie between 0 and 1"),
        ({"coverage": float("nan")}, "`coverage` is nan"),
        ({"form": "fuzz"}, "unknown form of sets 'fuzz'; did you mean fuzzy"),
        ({"expects": [1, 0]}, "`expects` has a class with the share 0"),
        ({"expects": [1, 1, 1]}, "`expects` must be 2 finite numbers"),
        ({"prior": [float("inf"), 1]}, "`prior` must be 2 finite numbers"),
        ({"counts": [-1, 2]}, "`counts` must be 2 finite numbers"),
        ({"tau": 1.5}, "`tau` is 1.5"),
        ({"bandwidth": 0}, "`bandwidth` is 0"),
    ],
)
def test_bad_input_is_named(wrong, complaint):
    words = {**GOOD, "coverage": 0.9, "form": "class", **wrong}
    with pytest.raises(InputError, match=complaint):
        calibrate(words.pop("probabilities"), words.pop("labels"), words.pop("coverage"), words.pop("form"), **words)


def test_probabilities_of_other_classes_have_no_sets():
    with pytest.raises(InputError, match="has 3 columns: the thresholds are for 2"):
        calibrate(GOOD["probabilities"], GOOD["labels"], 0.5, "marginal").sets([[0.2, 0.3, 0.5]])
