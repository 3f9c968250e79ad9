"""The exact solution of stage 2: what it is, against scipy, and what must not matter for it."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special
from torch import nn

import srepr
from srepr.config import Retrain
from srepr.errors import InputError
from srepr.features import Given
from srepr.methods import METHODS, Method
from srepr.retraining import train_head
from srepr.solver import Distillation, Problem, Solution

COUNTS = [24, 10, 5, 1]
LABELS = np.repeat(np.arange(4), COUNTS)
STACK = np.random.default_rng(0).normal(size=(3, 40, 5)).astype(np.float32)
STACK[:] += np.random.default_rng(1).normal(size=(4, 5))[LABELS]
LINEAR = {
    "crt": METHODS["crt"],
    "la": METHODS["la"],
    "grw": METHODS["grw"],
    "none": Method(head="linear"),
    "cbs, stochastic": Method(head="linear", balance="cbs", representation="swag"),
    "la, stochastic": Method(head="linear", balance="la", representation="swag"),
    "srepr": METHODS["srepr"],
    "srepr, cbs": Method(head="linear", balance="cbs", representation="swag", distill=True),
}
TOLERANCES = {name: 1e-3 if how.distill else 1e-4 for name, how in LINEAR.items()}


def solved(stack, labels=LABELS, how=METHODS["la"], counts=None, **change):
    """The head as `srepr retrain` makes it."""
    classes = int(labels.max()) + 1
    counts = np.bincount(labels, minlength=classes).tolist() if counts is None else counts
    return train_head(Given(stack, labels), nn.Linear(stack.shape[-1], classes), counts, how, Retrain(**change))


def probabilities(head, features):
    return head(torch.from_numpy(features)).softmax(-1)


# What it solves


@pytest.mark.parametrize("balance", ["none", "la", "grw", "cbs"])
def test_the_head_is_the_optimum_of_scipy_on_standardised_features(balance):
    """The stated problem, written down again in numpy: L_CE + (penalty / 2) |W|^2, the bias free."""
    penalty, shares = 0.02, np.array(COUNTS) / sum(COUNTS)
    x = STACK.astype(np.float64)
    x = x - x.mean((0, 1))
    x /= np.sqrt((x**2).mean())
    offset = np.log(shares) if balance == "la" else np.zeros(4)
    weight = 1 / shares / 4 if balance in ("grw", "cbs") else np.ones(4)

    def loss(phi):
        log_probs = special.log_softmax(x @ phi[:20].reshape(4, 5).T + phi[20:] + offset, axis=-1)
        nll = -log_probs[:, np.arange(40), LABELS] * weight[LABELS]
        return nll.mean() + penalty / 2 * (phi[:20] ** 2).sum()

    best = optimize.minimize(loss, np.zeros(24), method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10}).x
    expected = special.softmax(x[0] @ best[:20].reshape(4, 5).T + best[20:], axis=-1)
    head = solved(STACK, how=Method(head="linear", balance=balance, representation="swag"), penalty=penalty)
    np.testing.assert_allclose(probabilities(head, STACK[0]), expected, atol=1e-4)


def test_srepr_ends_where_its_loss_is_level():
    """The whole loss of the paper in numpy and scipy, its slope by central differences: the teachers stand still."""
    penalty, tau, w = 0.05, 20.0, 0.5
    problem = Problem(Given(STACK, LABELS).epoch(0), COUNTS, "la")
    solution = problem.solve(penalty=penalty, distillation=Distillation(w, tau), tolerance=1e-6)
    found = np.append(solution.weight, solution.bias)
    x = (STACK.astype(np.float64) - problem.data.centre.numpy()) / problem.data.scale
    student_x, shares = x.mean(0), np.array(COUNTS) / sum(COUNTS)

    def logits(phi, features):
        return features @ phi[:20].reshape(4, 5).T + phi[20:]

    log_teachers = special.log_softmax(logits(found, x) / tau, axis=-1)
    mean = np.exp(log_teachers).mean(0)
    precision = 1.5 / (mean * (np.log(mean) - log_teachers.mean(0))).sum(-1)

    def loss(phi):
        log_probs = special.log_softmax(logits(phi, x) + np.log(shares), axis=-1)
        ce = -log_probs[:, np.arange(40), LABELS].mean()
        a = np.exp(logits(phi, student_x) / tau) + 1
        total = a.sum(-1, keepdims=True)
        gap = special.digamma(total) - special.digamma(a)
        kl = special.gammaln(total[:, 0]) - special.gammaln(a).sum(-1) - special.gammaln(4) - ((a - 1) * gap).sum(-1)
        kd = ((mean * gap).sum(-1) + kl / precision).mean()
        return (1 - w) * (ce + penalty / 2 * (phi[:20] ** 2).sum()) + w * kd

    slope = optimize.approx_fprime(found, loss, 1e-5)
    assert np.abs(slope).max() < 2e-5 < 1e-2 < np.abs(optimize.approx_fprime(0 * found, loss, 1e-5)).max()


def test_every_cell_of_a_one_hot_world_gets_its_share():
    """With a free logit for each cell and class and hardly a penalty, the optimum is a count: n_jk / n_k."""
    table = np.array([[120, 20, 2], [60, 30, 4], [20, 10, 6]])
    cell = np.repeat(np.arange(3), table.sum(1))
    labels = np.concatenate([np.repeat(np.arange(3), row) for row in table])
    expected = table / table.sum(0)
    expected /= expected.sum(1, keepdims=True)
    for name in ("la", "grw"):
        head = solved(np.eye(3, dtype=np.float32)[cell], labels, METHODS[name], penalty=1e-7)
        np.testing.assert_allclose(probabilities(head, np.eye(3, dtype=np.float32)), expected, atol=2e-3)


def test_class_balanced_sampling_and_re_weighting_are_the_same_problem():
    crt, grw = (solved(STACK[0], how=METHODS[name]) for name in ("crt", "grw"))
    torch.testing.assert_close(crt.weight, grw.weight)


# What must not matter


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_scale_and_origin_of_the_features_do_not_matter(name, scale):
    shift = np.random.default_rng(2).normal(size=5).astype(np.float32)
    moved = (scale * (STACK + shift)).astype(np.float32)
    one, other = solved(STACK, how=LINEAR[name]), solved(moved, how=LINEAR[name])
    difference = probabilities(one, STACK[0]) - probabilities(other, moved[0])
    assert difference.abs().max() < TOLERANCES[name]


@pytest.mark.parametrize("name", LINEAR)
def test_order_and_repetition_of_the_examples_do_not_matter(name):
    order = np.random.default_rng(3).permutation(np.tile(np.arange(40), 2))
    one, other = solved(STACK, how=LINEAR[name]), solved(STACK[:, order], LABELS[order], LINEAR[name])
    difference = probabilities(one, STACK[0]) - probabilities(other, STACK[0])
    assert difference.abs().max() < TOLERANCES[name]


@pytest.mark.parametrize("name", LINEAR)
def test_neither_do_learning_rate_epochs_batches_the_seed_or_the_stage_1_classifier(name):
    changed = Retrain(lr=3.0, epochs=1, batch_size=2, momentum=0.1, seed=7, weight_decay=1.0)
    one = solved(STACK, how=LINEAR[name])
    other = train_head(Given(STACK, LABELS), nn.Linear(5, 4), COUNTS, LINEAR[name], changed)
    torch.testing.assert_close(one.weight, other.weight)


@pytest.mark.parametrize("name", LINEAR)
def test_ten_times_the_work_does_not_show_in_the_held_out_loss(name):
    how, held = LINEAR[name], torch.from_numpy(STACK[0] + 0.3)
    features = Given(STACK if how.representation == "swag" else STACK[0], LABELS).epoch(0)
    problem, distil = Problem(features, COUNTS, how.balance), Distillation() if how.distill else None
    losses = [
        nn.functional.cross_entropy(
            problem.linear(problem.solve(penalty=0.01, distillation=distil, tolerance=tolerance))(held),
            torch.from_numpy(LABELS),
        ).item()
        for tolerance in (1e-5, 1e-6)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


@pytest.mark.parametrize("start", ["zero", "far"])
def test_where_the_solver_starts_does_not_matter(start):
    problem = Problem(Given(STACK[0], LABELS).epoch(0), COUNTS, "la")
    chance = torch.Generator().manual_seed(0)
    far = Solution(*(torch.randn(shape, generator=chance, dtype=torch.float64) for shape in ((4, 5), (4,))))
    best = problem.solve(penalty=0.01)
    found = problem.solve(penalty=0.01, start=far if start == "far" else None)
    torch.testing.assert_close(found.weight, best.weight, atol=5e-4, rtol=0)


def test_chunks_do_not_matter(monkeypatch):
    whole = solved(STACK, how=METHODS["srepr"])
    monkeypatch.setattr("srepr.standardization.CHUNK", 90)
    monkeypatch.setattr("srepr.standardization.KEPT", 0)
    torch.testing.assert_close(solved(STACK, how=METHODS["srepr"]).weight, whole.weight, atol=1e-5, rtol=1e-4)


def test_single_precision_finds_the_same(monkeypatch):
    double = solved(STACK, how=METHODS["la"])
    monkeypatch.setattr("srepr.standardization.SMALL", 0)
    torch.testing.assert_close(
        probabilities(solved(STACK), STACK[0]), probabilities(double, STACK[0]), atol=5e-4, rtol=0
    )


def test_gradients_may_be_off_where_it_is_called():
    layer = nn.Linear(5, 4)
    expected = srepr.retrain(layer, (STACK[0], LABELS), "la").model.weight
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(srepr.retrain(layer, (STACK[0], LABELS), "la").model.weight, expected)
            assert srepr.retrain(layer, (STACK[0], LABELS), "lws", epochs=1)(torch.zeros(1, 5)).shape == (1, 4)


# Any data


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


KINDS = {
    "normal": lambda x: x,
    "unit-norm": unit,
    "one-hot": lambda x: (x == x.max(1, keepdims=True)).astype(np.float32),
    "sparse": lambda x: np.maximum(x - 1, 0),
    "correlated": lambda x: (x[:, :1] + 1e-3 * x).astype(np.float32),
    "constant": lambda x: np.full_like(x, 3.7),
    "one column far larger": lambda x: x * np.where(np.arange(x.shape[1]) == 0, 1e4, 1).astype(np.float32),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "length", "classes"), [(10, 2, 2), (30, 400, 5), (400, 40, 150), (2000, 20, 3)])
def test_it_converges_on_features_of_every_kind(kind, rows, length, classes):
    chance = np.random.default_rng(0)
    labels = np.append(np.arange(classes), chance.integers(0, max(1, classes // 2), rows - classes))
    x = chance.normal(size=(rows, length)) + chance.normal(size=(classes, length))[labels]
    x = KINDS[kind](x.astype(np.float32)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for how in (METHODS["la"], METHODS["crt"]):
            head = solved(x, labels, how)
            assert head(torch.from_numpy(x)).isfinite().all()
            if kind == "constant":
                expected = torch.full((classes,), 1 / classes)
                torch.testing.assert_close(probabilities(head, x[0]), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("rows", "length", "classes"), [(10, 4096, 3), (100_000, 4, 3), (8142, 3, 8142), (60, 4096, 20)]
)
def test_it_converges_at_every_size(rows, length, classes):
    chance = np.random.default_rng(0)
    labels = np.append(np.arange(classes), chance.integers(0, classes, rows - classes))
    x = chance.normal(size=(rows, length)).astype(np.float32)
    x[:, :3] += chance.normal(size=(classes, 3)).astype(np.float32)[labels]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solved(x, labels).weight.isfinite().all()


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 0), st.floats(0.05, 0.9))
def test_the_solution_is_level_in_random_problems(seed, log_penalty, weight):
    chance = np.random.default_rng(seed)
    labels = np.append([0, 1, 2], chance.integers(0, 3, 30))
    stack = chance.normal(size=(3, 33, 4)).astype(np.float32)
    problem = Problem(Given(stack, labels).epoch(0), np.bincount(labels).tolist(), "la")
    solution = problem.solve(penalty=10**log_penalty, distillation=Distillation(weight))
    again = problem._minimise(10**log_penalty, solution, 1e-6, Distillation(weight))
    assert problem._change(solution, again) < 0.02


def test_teachers_that_still_move_are_a_warning_whose_advice_helps():
    problem, distil = Problem(Given(STACK, LABELS).epoch(0), COUNTS, "la"), Distillation(0.9, 2.0)
    with pytest.warns(UserWarning, match="the teachers of the distillation still move after 30 refreshes"):
        problem.solve(penalty=0.2, distillation=distil, tolerance=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem.solve(penalty=1.0, distillation=distil, tolerance=1e-6)


def test_what_cannot_be_solved_is_said():
    with pytest.raises(InputError, match="the features contain NaN or infinity"):
        solved(np.full((40, 5), np.inf, dtype=np.float32))
    with pytest.raises(InputError, match="there are no features"):
        Problem(Given(STACK, LABELS).epoch(0), COUNTS, "la", rows=np.arange(0))
    with pytest.raises(InputError, match="`penalty` is 0: it must be above 0"):
        Retrain(penalty=0)
    with pytest.raises(InputError, match="without labels there is no best head"):
        Retrain(distill_weight=1.0)


def test_a_solver_that_stops_early_says_so(monkeypatch):
    monkeypatch.setattr("srepr.solver.ITERATIONS", 2)
    with pytest.warns(UserWarning, match="stopped before it converged"):
        solved(STACK[0])


OWN = Path(os.environ.get("SREPR_OWN_DATA", Path(__file__).parents[2] / "shared/data/own")) / "debian-text.npz"


@pytest.mark.skipif(not OWN.exists(), reason="the texts of other people are not at hand")
@pytest.mark.parametrize("name", ["la", "crt"])
def test_the_laws_hold_on_real_embeddings(name):
    with np.load(OWN) as file:
        x, y = file["x_train"].astype(np.float32), file["y_train"]
    kept = np.isin(y, ["doc", "editors", "games", "math", "python", "sound"])
    x, y = x[kept], np.unique(y[kept], return_inverse=True)[1]
    expected = probabilities(solved(x, y, METHODS[name]), x)
    order = np.random.default_rng(0).permutation(len(y))
    for move in (lambda part: 1000 * part + 5, lambda part: part / 1000):
        found = probabilities(solved(move(x), y, METHODS[name]), move(x))
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    for rows in (order, np.repeat(order, 2)):
        found = probabilities(solved(x[rows], y[rows], METHODS[name]), x)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
