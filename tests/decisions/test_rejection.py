"""Rejection and risk-coverage: brute force over orders and splits, closed forms, and what must not change them."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srepr.decisions.rejection import Rejection, calibrate, most_doubtful, risk_coverage
from srepr.errors import InputError

inputs = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(inputs)
def test_the_curve_is_the_mean_over_all_orders_of_equal_doubts(rows):
    """Expected numbers of members and errors among the i first, by brute force over the permutations."""
    doubt, wrong, group = (np.array(column) for column in zip(*rows, strict=True))
    group[0] = True
    curve = risk_coverage(doubt, wrong, group)
    orders = [np.array(order) for order in permutations(range(len(rows))) if (np.diff(doubt[list(order)]) >= 0).all()]
    members = np.mean([group[order].cumsum() for order in orders], axis=0)
    errors = np.mean([(group & wrong)[order].cumsum() for order in orders], axis=0)
    np.testing.assert_allclose(curve.coverage, np.arange(1, len(rows) + 1) / len(rows))
    np.testing.assert_allclose(curve.kept, members / group.sum(), atol=1e-12)
    np.testing.assert_allclose(curve.risk, np.divide(errors, members, where=members > 0, out=np.zeros(len(rows))))


def test_the_area_of_a_perfect_a_useless_and_a_perverse_doubt():
    """e errors among n: closed forms of the best and the worst order, and the error rate if all doubts are equal."""
    n, e = 50, 12
    wrong = np.arange(n) >= n - e
    best = sum((i - (n - e)) / i for i in range(n - e + 1, n + 1)) / n
    worst = sum(min(i, e) / i for i in range(1, n + 1)) / n
    assert risk_coverage(np.arange(n), wrong).area == pytest.approx(best)
    assert risk_coverage(-np.arange(n), wrong).area == pytest.approx(worst)
    assert risk_coverage(np.zeros(n), wrong).area == pytest.approx(e / n)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=30), st.integers(0, 2**32 - 1))
def test_only_the_order_of_the_doubt_counts(doubt, seed):
    chance = np.random.default_rng(seed)
    wrong, order = chance.random(len(doubt)) < 0.4, chance.permutation(len(doubt))
    doubt = np.array(doubt)
    area = risk_coverage(doubt, wrong).area
    assert risk_coverage(np.exp(doubt), wrong).area == pytest.approx(area)
    assert risk_coverage(doubt[order], wrong[order]).area == pytest.approx(area)


def test_the_curves_of_groups_add_up_to_that_of_all():
    chance = np.random.default_rng(0)
    doubt, wrong, group = chance.random(200).round(1), chance.random(200) < 0.3, chance.integers(0, 3, 200)
    whole, parts = risk_coverage(doubt, wrong), [risk_coverage(doubt, wrong, group == g) for g in range(3)]
    sizes = np.bincount(group)
    kept = sum(size * part.kept for size, part in zip(sizes, parts, strict=True))
    errors = sum(size * part.kept * part.risk for size, part in zip(sizes, parts, strict=True))
    torch.testing.assert_close(kept, 200 * whole.coverage)
    torch.testing.assert_close(errors, 200 * whole.coverage * whole.risk)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_the_chance_of_a_rejection_is_its_closed_form(share):
    """Of h + 1 exchangeable examples each is the new one once: (floor(r h) + 1) / (h + 1) of them are rejected."""
    doubt = np.random.default_rng(1).random(41)
    rejected = [
        calibrate(np.delete(doubt, i), np.zeros(40), share, 1).rejects(doubt[i : i + 1], [0]).item() for i in range(41)
    ]
    assert sum(rejected) == math.floor(share * 40) + 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=40),
    st.floats(0.01, 0.99),
)
def test_weights_are_copies_and_no_more_than_the_share_is_rejected(rows, share):
    doubt, label, weights = (np.array(column) for column in zip(*rows, strict=True))
    for by_class in (False, True):
        rule = calibrate(doubt, label, share, 3, weights=weights, by_class=by_class)
        if not by_class:  # copies would give a rare class enough examples
            assert rule == calibrate(np.repeat(doubt, weights), np.repeat(label, weights), share, 3)
        rejected = rule.rejects(doubt, label).numpy()
        for k in set(label) - set(rule.borrowed) if by_class else ():
            own = label == k
            assert weights[own] @ rejected[own] <= share * weights[own].sum() + 1e-9
    everything = calibrate(doubt, label, share, 3, weights=weights)
    lower = Rejection(share, (max([d for d in doubt if d < everything.thresholds[0]], default=-1.0),) * 3)
    assert weights @ everything.rejects(doubt, label).numpy() <= share * weights.sum() + 1e-9
    assert lower.thresholds[0] < 0 or weights @ lower.rejects(doubt, label).numpy() > share * weights.sum()


def test_by_class_every_predicted_class_is_rejected_as_often():
    chance = np.random.default_rng(2)
    label = np.repeat([0, 1, 2], [800, 150, 50])
    doubt = chance.random(1000) + label  # rare classes are more doubtful
    plain, fair = (calibrate(doubt, label, 0.1, 3, by_class=way).rejects(doubt, label) for way in (False, True))
    assert [plain[label == k].float().mean().item() for k in range(3)] == pytest.approx([0, 0.05 / 0.15, 1], abs=1e-6)
    assert [fair[label == k].float().mean().item() for k in range(3)] == pytest.approx([0.1] * 3)
    assert plain.sum() == fair.sum() == 100


def test_a_class_that_is_seldom_predicted_borrows_the_threshold_of_all():
    doubt, label = np.linspace(0, 1, 30), np.repeat([0, 1], [25, 5])
    rule = calibrate(doubt, label, 0.1, 3, by_class=True)
    assert rule.borrowed == (1, 2)
    assert rule.thresholds[1] == rule.thresholds[2] == calibrate(doubt, label, 0.1, 3).thresholds[0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=30), st.floats(0.01, 0.99))
def test_without_held_out_examples_the_most_doubtful_of_the_given_ones_are_rejected(rows, share):
    doubt, label = (np.array([row[i] for row in rows], float) for i in range(2))
    rejected = most_doubtful(doubt, label, share).numpy()
    assert rejected.sum() == math.floor(share * len(rows) * (1 + 1e-12))
    if 0 < rejected.sum() < len(rows):
        assert doubt[rejected].min() >= doubt[~rejected].max()
    fair = most_doubtful(doubt, label, share, by_class=True).numpy()
    assert fair.sum() == rejected.sum()
    for k in set(label):
        own = label == k
        assert abs(fair[own].sum() - share * own.sum()) <= 2
        if 0 < fair[own].sum() < own.sum():
            assert doubt[own & fair].min() >= doubt[own & ~fair].max()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: calibrate([0.1], [0], 0.0, 1), "`reject` is 0.0: it must lie between 0 and 1"),
        (lambda: calibrate([0.1], [0], math.nan, 1), "`reject` is nan"),
        (lambda: most_doubtful([0.1], [0], 1.5), "`reject` is 1.5"),
        (lambda: calibrate([math.nan], [0], 0.1, 1), "`doubt` must be finite numbers"),
        (lambda: calibrate([[0.1]], [0], 0.1, 1), "`doubt` must be finite numbers"),
        (lambda: calibrate(["a"], [0], 0.1, 1), "`doubt` is not an array of numbers"),
        (lambda: calibrate([0.1], [1], 0.1, 1), "`label` must be the predicted class"),
        (lambda: calibrate([0.1], [0.5], 0.1, 1), "`label` must be the predicted class"),
        (lambda: calibrate([0.1], [0], 0.1, 1, weights=[-1.0]), "`weights` must be numbers >= 0"),
        (lambda: calibrate([], [], 0.1, 1), "`weights` must be numbers >= 0"),
        (lambda: Rejection(0.1, (0.5,)).rejects([0.1], [3]), "`label` must be the predicted class"),
        (lambda: risk_coverage([0.1], [0, 1]), "must have one number for each input"),
        (lambda: risk_coverage([], []), "must have one number for each input"),
        (lambda: risk_coverage([0.1], [0], [0]), "true for one at least"),
        (lambda: risk_coverage([0.1], [0], [2]), "`group` must be true or false"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(call, complaint):
    with pytest.raises(InputError, match=complaint):
        call()
