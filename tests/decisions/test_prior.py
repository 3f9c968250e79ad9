"""The estimated class shares: against the maximum itself and exactly calibrated data; the test of label shift."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from srepr.decisions.prior import PENALTY, calibration, confusion, em, estimate_prior
from srepr.errors import InputError

CENTRES = 1.5 * np.eye(3)
EVEN = np.ones(3) / 3


def drawn(shares, examples, seed=0):
    """Inputs of classes with these shares, and the exact probabilities under equal shares."""
    chance = np.random.default_rng(seed)
    y = chance.choice(3, size=examples, p=shares)
    x = CENTRES[y] + chance.normal(size=(examples, 3))
    p = np.exp(x @ CENTRES.T)
    return p / p.sum(1, keepdims=True), y


def adjusted(p, prior):
    p = p * prior
    return p / p.sum(1, keepdims=True)


def shares_of(p, **options):
    return np.array(estimate_prior(p, resamples=1, **options).shares)


def test_em_maximises_the_likelihood():
    """Against a general optimiser on the log-odds, without pseudo-counts."""
    p, _ = drawn([0.7, 0.2, 0.1], 300)
    n, even = torch.ones(1, 300, dtype=torch.float64), torch.from_numpy(EVEN)
    found = em(torch.from_numpy(p), n, even, 300, pseudo=0.0)[0].numpy()

    def loss(z):
        q = np.exp(z) / np.exp(z).sum()
        return -np.log(p @ q).sum()

    z = minimize(loss, np.zeros(3), tol=1e-10).x
    np.testing.assert_allclose(found, np.exp(z) / np.exp(z).sum(), atol=1e-4)


def test_pseudo_counts_are_a_dirichlet_prior():
    """The fixed point maximises the likelihood plus c K sum_k e_k log q_k."""
    p, _ = drawn([0.7, 0.2, 0.1], 40)
    e = np.array([0.5, 0.3, 0.2])
    likelihood, n = torch.from_numpy(p / e), torch.ones(1, 40, dtype=torch.float64)
    found = em(likelihood, n, torch.from_numpy(e), 40, pseudo=2.0)[0].numpy()

    def loss(z):
        q = np.exp(z) / np.exp(z).sum()
        return -np.log((p / e) @ q).sum() - 2.0 * 3 * (e * np.log(q)).sum()

    z = minimize(loss, np.zeros(3), tol=1e-10).x
    np.testing.assert_allclose(found, np.exp(z) / np.exp(z).sum(), atol=1e-4)


@pytest.mark.parametrize("method", ["em", "bbse"])
@pytest.mark.parametrize("truth", [[0.8, 0.15, 0.05], [0.05, 0.05, 0.9], [1 / 3] * 3])
@pytest.mark.parametrize("expects", [[1, 1, 1], [0.6, 0.3, 0.1]])
def test_on_exactly_calibrated_data_it_finds_the_true_mix(method, truth, expects):
    p, y = drawn(truth, 5000, seed=1)
    known, labels = drawn([0.5, 0.3, 0.2], 5000, seed=2)
    held = (adjusted(known, expects), labels)
    found = shares_of(adjusted(p, expects), expects=expects, held=held, method=method)
    np.testing.assert_allclose(found, np.bincount(y) / len(y), atol=0.03)


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_order_and_duplication_do_not_matter_and_shares_sum_to_1(method):
    p, _ = drawn([0.7, 0.2, 0.1], 200)
    held = drawn(EVEN, 300, seed=1)
    found = shares_of(p, held=held, method=method)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found > 0).all()
    np.testing.assert_allclose(shares_of(p[::-1].copy(), held=held, method=method), found, atol=1e-6)
    np.testing.assert_allclose(shares_of(np.repeat(p, 3, axis=0), held=held, method=method), found, atol=1e-6)


def test_classes_may_be_renamed():
    p, _ = drawn([0.7, 0.2, 0.1], 200)
    known, y = drawn(EVEN, 300, seed=1)
    found = shares_of(p, held=(known, y))
    order = [2, 0, 1]
    other = shares_of(p[:, order], held=(known[:, order], np.argsort(order)[y]))
    np.testing.assert_allclose(other, found[order], atol=1e-4)


def test_bbse_solves_the_equations_of_the_confusion_matrix():
    """C q = mu, where its solution is a mix; without pseudo-counts."""
    known, y = drawn([0.5, 0.3, 0.2], 3000, seed=3)
    p, _ = drawn([0.2, 0.5, 0.3], 3000, seed=4)
    likelihood = confusion(torch.from_numpy(known), torch.from_numpy(y))(torch.from_numpy(p))
    n, even = torch.ones(1, 3000, dtype=torch.float64), torch.from_numpy(EVEN)
    found = em(likelihood, n, even, 3000, pseudo=0.0, tolerance=1e-9)[0].numpy()
    matrix = np.array([[np.mean(known[y == k].argmax(1) == j) for k in range(3)] for j in range(3)])
    expected = np.linalg.solve(matrix, np.bincount(p.argmax(1)) / 3000)
    assert (expected > 0).all()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_class_that_is_not_among_the_held_out_examples_can_be_found():
    known, y = drawn([0.5, 0.5, 0.0], 1000)
    p, _ = drawn([0.1, 0.1, 0.8], 1000, seed=1)
    for method in ("em", "bbse"):
        assert shares_of(p, held=(known, y), method=method)[2] > 0.5


def test_the_calibration_is_the_penalised_maximum_and_undoes_a_bias():
    known, y = drawn([0.5, 0.3, 0.2], 5000)
    tilt = np.array([1.0, 0.0, -1.0])
    wrong = adjusted(known**2, np.exp(tilt))  # too sharp, and biased
    fitted = calibration(torch.from_numpy(wrong), torch.from_numpy(y), torch.from_numpy(EVEN))
    np.testing.assert_allclose(fitted(torch.from_numpy(wrong)).numpy(), known, atol=0.06)

    h = np.bincount(y) / len(y)
    logs = np.log(wrong) - np.log(EVEN)

    def loss(values):
        z = logs * np.exp(values[0]) + values[1:] + np.log(h)
        z -= z.max(1, keepdims=True)
        nll = (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).sum()
        return nll + PENALTY / 2 * (values**2).sum()

    best = minimize(loss, np.zeros(4), tol=1e-9).x
    z = logs[:5] * np.exp(best[0]) + best[1:]
    expected = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(fitted(torch.from_numpy(wrong[:5])).numpy(), expected, atol=1e-3)


def test_a_single_input_changes_little_and_the_note_says_so():
    found = estimate_prior([[0.99, 0.005, 0.005]], held=drawn(EVEN, 300))
    assert 1 / 3 < found.shares[0] < 0.55
    assert "1 different inputs are few for 3 classes: 75% of the estimate is what the model expects" in found.note
    assert found.p_value is None
    assert "too few examples to test" in found.note
    many = estimate_prior([[0.99, 0.005, 0.005]] * 500, held=drawn(EVEN, 300))
    np.testing.assert_allclose(many.shares, found.shares, atol=1e-5)


def test_the_intervals_contain_the_truth_about_as_often_as_they_say():
    """40 estimates of 3 shares with 95 % intervals, correlated within one: at least 85 % of them."""
    truth, inside = np.array([0.7, 0.2, 0.1]), []
    for seed in range(40):
        found = estimate_prior(drawn(truth, 200, seed=seed)[0], resamples=100)
        inside.append((np.array(found.low) <= truth) & (truth <= np.array(found.high)))
        assert all(low <= share <= high for low, share, high in zip(found.low, found.shares, found.high, strict=True))
    assert 0.85 <= np.mean(inside) <= 1


def test_label_shift_is_told_from_another_shift():
    """Under label shift a p-value at most 0.05 is rare. Noise in the inputs is not explained by any class shares."""
    held = drawn([0.6, 0.3, 0.1], 300, seed=100)
    values = [
        estimate_prior(drawn([0.1, 0.2, 0.7], 100, seed=s)[0], held=held, resamples=1).p_value for s in range(20)
    ]
    assert np.mean(np.array(values) <= 0.05) <= 0.2
    blurred = adjusted(drawn([0.1, 0.2, 0.7], 200, seed=1)[0] ** 0.2, EVEN)
    found = estimate_prior(blurred, held=held, resamples=1)
    assert found.p_value <= 0.01
    assert found.note.startswith("Label shift does not explain the inputs (p = 0.010)")


def test_an_estimate_is_json():
    found = estimate_prior(drawn(EVEN, 50)[0], held=drawn(EVEN, 100))
    assert json.loads(json.dumps(asdict(found)))["inputs"] == 50


GOOD = [[0.5, 0.5]] * 3


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"probabilities": []}, r"has the shape \[0\]"),
        ({"probabilities": [[float("nan"), 1.0]]}, "must be >= 0 and sum to 1"),
        ({"method": "acc"}, "unknown method 'acc'"),
        ({"method": "bbse"}, "the method bbse takes held-out examples"),
        ({"expects": [1, 0]}, "`expects` has a class with the share 0"),
        ({"expects": [1]}, "`expects` must be 2 finite numbers"),
        ({"held": ([[0.2, 0.3, 0.5]], [0])}, "`held` has 3 classes, `probabilities` 2"),
        ({"held": (GOOD, [0, 1, 2])}, r"`labels` must lie in 0 \.\. 1"),
        ({"seed": -1}, "`seed` is -1"),
        ({"resamples": 0}, "`resamples` is 0"),
    ],
)
def test_bad_input_is_named(wrong, complaint):
    words = {"probabilities": GOOD, **wrong}
    with pytest.raises(InputError, match=complaint):
        estimate_prior(words.pop("probabilities"), **words)
