"""The estimated class shares: against the maximum itself and exactly calibrated data; the test of label shift."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import beta, dirichlet, dirichlet_multinomial

from srepr.decisions import prior
from srepr.decisions.likelihood import BIAS, CONFUSION, calibration, confusion
from srepr.decisions.prior import em, estimate_prior, expected_mixes, variational
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
    n, none = torch.ones(1, 300, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    found = em(torch.from_numpy(p), n, none)[0].numpy()

    def loss(z):
        q = np.exp(z) / np.exp(z).sum()
        return -np.log(p @ q).sum()

    z = minimize(loss, np.zeros(3), tol=1e-10).x
    np.testing.assert_allclose(found, np.exp(z) / np.exp(z).sum(), atol=1e-4)


def test_pseudo_counts_are_a_dirichlet_prior():
    """The fixed point maximises the likelihood plus sum_k g_k log q_k."""
    p, _ = drawn([0.7, 0.2, 0.1], 40)
    e = np.array([0.5, 0.3, 0.2])
    likelihood, n = torch.from_numpy(p / e), torch.ones(1, 40, dtype=torch.float64)
    found = em(likelihood, n, torch.from_numpy(6 * e)[None])[0].numpy()

    def loss(z):
        q = np.exp(z) / np.exp(z).sum()
        return -np.log((p / e) @ q).sum() - (6 * e * np.log(q)).sum()

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
    n, none = torch.ones(1, 3000, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    found = em(likelihood, n, none, tolerance=1e-9)[0].numpy()
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
    known, y = drawn([0.5, 0.3, 0.2], 20_000)
    tilt = np.array([1.0, 0.0, -1.0])
    wrong = adjusted(known**2, np.exp(tilt))  # too sharp, and biased
    weights = np.random.default_rng(1).exponential(size=len(y))
    data = torch.from_numpy(wrong), torch.from_numpy(y), torch.from_numpy(EVEN)
    np.testing.assert_allclose(calibration(*data)(data[0]).numpy(), known, atol=0.06)

    logs = np.log(wrong) - np.log(EVEN)
    away = logs - logs.mean(1, keepdims=True)
    away /= np.sqrt((away**2).mean())
    for w in (np.ones(len(y)), weights):

        def logits(values):
            return logs * np.exp(values[0]) + values[1:4] + away @ values[4:].reshape(3, 3).T

        def loss(values, w=w, logits=logits):
            z = logits(values) + np.log(np.bincount(y, weights=w) / w.sum())
            z -= z.max(1, keepdims=True)
            nll = w @ (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y])
            return nll + BIAS / 2 * (values[:4] ** 2).sum() + CONFUSION / 2 * (values[4:] ** 2).sum()

        z = logits(minimize(loss, np.zeros(13), tol=1e-9).x)[:5]
        expected = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        found = calibration(*data, weights=torch.from_numpy(w))
        np.testing.assert_allclose(found(data[0][:5]).numpy(), expected, atol=1e-3)


def test_the_matrix_undoes_a_confusion_that_a_bias_cannot(monkeypatch):
    """Logits to which half of another class's logit was added, class by class."""
    known, y = drawn(EVEN, 6000)
    mixed = adjusted(np.exp(np.log(known) @ (np.eye(3) + 0.5 * np.eye(3)[[1, 2, 0]])), EVEN)
    data = torch.from_numpy(mixed), torch.from_numpy(y), torch.from_numpy(EVEN)

    def nll():
        return torch.nn.functional.nll_loss(calibration(*data)(data[0]).log(), data[1]).item()

    full, exact = nll(), -np.log(known[np.arange(6000), y]).mean()
    monkeypatch.setattr("srepr.decisions.likelihood.LARGEST", 6000 * 9 - 1)
    assert calibration(*data).matrix is None
    assert full < exact + 0.25 * (nll() - exact)


def test_certain_inputs_are_counted_and_the_bound_is_how_probable_they_are():
    """Dir(c m + n), and the Dirichlet-multinomial probability of the labels in their order."""
    n, pseudo = np.array([7, 2, 0]), np.array([[1.5, 1.0, 0.5], [30.0, 3.0, 1.0]])
    labels = np.repeat(np.arange(3), n)
    means, bounds = variational(torch.eye(3, dtype=torch.float64)[labels], torch.from_numpy(pseudo), 9)
    np.testing.assert_allclose(means.numpy(), (pseudo + n) / (pseudo + n).sum(1, keepdims=True), atol=1e-6)
    orders = np.log(36)  # 9! / (7! 2!)
    expected = [dirichlet_multinomial(row, 9).logpmf(n) - orders for row in pseudo]
    np.testing.assert_allclose(bounds.numpy(), expected, atol=1e-6)


def test_the_bound_is_below_the_probability_of_the_inputs_and_near_it():
    """Against the mean likelihood of 200,000 draws of the shares."""
    p, _ = drawn([0.7, 0.2, 0.1], 20)
    pseudo = np.array([2.0, 1.0, 1.0])
    means, bounds = variational(torch.from_numpy(p), torch.from_numpy(pseudo)[None], 20)
    q = dirichlet(pseudo).rvs(200_000, random_state=0)
    logs = np.log(p @ q.T).sum(0)
    exact = np.log(np.exp(logs - logs.max()).mean()) + logs.max()
    assert exact - 1 < bounds.item() < exact
    weights = np.exp(logs - logs.max())
    np.testing.assert_allclose(means[0].numpy(), weights @ q / weights.sum(), atol=0.05)


COUNTS = np.array([500 * 100 ** (-k / 29) for k in range(30)])


@pytest.mark.parametrize("power", [-0.8, 0.0, 0.8])
def test_a_power_of_the_training_shares_is_recognised(power):
    """150 certain inputs of 30 classes: the shares are nearer to the truth than the counts of the inputs are."""
    truth = COUNTS**power / (COUNTS**power).sum()
    powers, errors, counted = [], [], []
    for seed in range(4):
        y = np.random.default_rng(seed).choice(30, size=150, p=truth)
        found = expected_mixes(torch.eye(30, dtype=torch.float64)[y], torch.from_numpy(COUNTS), 150)
        powers.append(float(found.weights @ found.powers))
        errors.append(np.abs(found.shares.numpy() - truth).sum())
        counted.append(np.abs(np.bincount(y, minlength=30) / 150 - truth).sum())
    assert np.mean(powers) == pytest.approx(power, abs=0.1)
    assert np.mean(errors) < 0.5 * np.mean(counted)


def test_a_mix_of_another_kind_is_not_forced_into_that_family():
    """Three of 30 classes, the share of each at random in the order: c is small, and the inputs decide."""
    y = np.repeat([4, 11, 25], [90, 10, 50])
    found = expected_mixes(torch.eye(30, dtype=torch.float64)[y], torch.from_numpy(COUNTS), 150)
    assert float(found.weights @ found.strengths) < 10
    np.testing.assert_allclose(found.shares.numpy(), np.bincount(y, minlength=30) / 150, atol=0.02)


def test_the_training_counts_are_given_or_those_of_the_held_out_examples():
    p, _ = drawn([0.7, 0.2, 0.1], 20)
    known, y = drawn([0.6, 0.3, 0.1], 200, seed=1)
    found = shares_of(p, held=(known, y))
    np.testing.assert_allclose(shares_of(p, held=(known, y), counts=np.bincount(y)), found, atol=1e-9)
    assert np.abs(shares_of(p, held=(known, y), counts=[1, 1, 50]) - found).sum() > 0.01


def test_a_single_input_changes_little_and_the_note_says_so():
    found = estimate_prior([[0.99, 0.005, 0.005]], held=drawn(EVEN, 300))
    assert 1 / 3 < found.shares[0] < 0.55
    assert "1 different inputs are few for 3 classes: " in found.note
    assert "of the estimate are the training shares to the power" in found.note
    flat = estimate_prior([[0.99, 0.005, 0.005]], held=drawn(EVEN, 300), counts=[5, 5, 5])
    assert "of the estimate are equal shares." in flat.note
    assert found.p_value is None
    assert "too few examples to test" in found.note
    many = estimate_prior([[0.99, 0.005, 0.005]] * 500, held=drawn(EVEN, 300))
    np.testing.assert_allclose(many.shares, found.shares, atol=1e-5)


def test_the_intervals_of_certain_inputs_are_those_of_the_dirichlet_distribution(monkeypatch):
    """One c and one a: Dir(g) has beta distributions for its shares."""
    monkeypatch.setattr(prior, "STRENGTHS", (1.0,))
    monkeypatch.setattr(prior, "POWERS", torch.zeros(1))
    monkeypatch.setattr(prior, "FINER", torch.zeros(2))
    y = np.repeat([0, 1, 2], [30, 8, 2])
    p = np.eye(3)[y] * (1 - 3e-6) + 1e-6
    p[:, 0] += 1e-9 * np.arange(40)  # no two are the same
    found = estimate_prior(p / p.sum(1, keepdims=True), resamples=4000)
    g = np.array([31.0, 9.0, 3.0])
    for ends, level in ((found.low, 0.025), (found.high, 0.975)):
        np.testing.assert_allclose(ends, beta(g, 43 - g).ppf(level), atol=0.015)


def test_the_intervals_contain_the_truth_about_as_often_as_they_say():
    """40 estimates of 3 shares with 95 % intervals, correlated within one: at least 85 % of them."""
    truth, inside = np.array([0.7, 0.2, 0.1]), []
    for seed in range(40):
        found = estimate_prior(drawn(truth, 200, seed=seed)[0], resamples=100)
        inside.append((np.array(found.low) <= truth) & (truth <= np.array(found.high)))
        assert all(low <= share <= high for low, share, high in zip(found.low, found.shares, found.high, strict=True))
    assert 0.85 <= np.mean(inside) <= 1


@pytest.mark.parametrize("kind", ["forward", "backward", "equal", "Dirichlet"])
def test_the_intervals_do_so_with_many_classes_and_few_inputs(kind):
    """12 estimates of 30 shares from 150 inputs, half of which are recognised: at least 90 % of them."""
    inside, centres = [], 2 * np.eye(30)
    power = {"forward": 0.8, "backward": -0.8}.get(kind, 0.0)
    for seed in range(12):
        chance = np.random.default_rng(seed)
        truth = chance.dirichlet(np.ones(30)) if kind == "Dirichlet" else COUNTS**power / (COUNTS**power).sum()
        x = centres[chance.choice(30, size=150, p=truth)] + chance.normal(size=(150, 30))
        p = np.exp(x @ centres.T)
        found = estimate_prior(p / p.sum(1, keepdims=True), counts=COUNTS)
        inside.append((np.array(found.low) <= truth) & (truth <= np.array(found.high)))
    assert np.mean(inside) >= 0.9


def test_inputs_of_one_class_are_found_to_be_that():
    """81 inputs of one class of 12, all recognised: nearly all of the mix, and an interval up to 1."""
    chance = np.random.default_rng(0)
    p = np.full((81, 12), 0.002) + 1e-4 * chance.random((81, 12))
    p[:, 3] += 1 - p.sum(1)
    found = estimate_prior(p)
    assert found.shares[3] > 0.97
    assert found.high[3] == 1
    assert all(low == 0 for k, low in enumerate(found.low) if k != 3)


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


def test_wider_classes_are_found_though_the_largest_probability_hardly_changes():
    """The distribution of the largest probability alone had p = 0.35 here."""
    chance = np.random.default_rng(4)
    centres = 0.7 * chance.normal(size=(5, 8))

    def inputs(shares, examples, width=1.0):
        y = chance.choice(5, size=examples, p=shares)
        x = centres[y] + width * chance.normal(size=(examples, 8))
        p = np.exp(1.5 * (x @ centres.T - (centres**2).sum(1) / 2))
        return p / p.sum(1, keepdims=True), y

    held = inputs([0.5, 0.2, 0.1, 0.1, 0.1], 800)
    alike, wider = inputs([0.2] * 5, 600)[0], inputs([0.2] * 5, 600, 1.5)[0]
    found = estimate_prior(alike, held=held, resamples=1)
    assert found.p_value > 0.05
    assert found.note == f"Nothing speaks against label shift (p = {found.p_value:.2f})."
    assert estimate_prior(wider, held=held, resamples=1).p_value <= 0.01


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
        ({"counts": [1]}, "`counts` must be 2 finite numbers"),
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
