"""The head that stage 2 trains, against optima known in closed form or found in float64."""

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special
from torch import nn

from srepr import heads, progress
from srepr.config import Retrain
from srepr.errors import InputError
from srepr.features import Given
from srepr.methods import METHODS, Method
from srepr.representation import Diverged
from srepr.retraining import train_head

COUNTS = [24, 10, 5, 1]
LABELS = np.repeat(np.arange(4), COUNTS)
CHANCE = np.random.default_rng(0)
STACK = CHANCE.normal(size=(3, 40, 5)).astype(np.float32)
WEIGHT = torch.from_numpy(CHANCE.normal(size=(4, 5)).astype(np.float32))
BIAS = torch.from_numpy(CHANCE.normal(size=4).astype(np.float32))


def sgd(**settings):
    """The paper's solver."""
    return Retrain(solver="sgd", **settings)


def layer(weight=WEIGHT, bias=BIAS):
    """The classifier of stage 1."""
    return heads.build("linear", weight=weight, bias=bias)


def bits(model):
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


# What a head is trained to


def one_hot_world(counts_per_cell):
    """Features that name one of the cells, with this many examples [cells, K] of each class in each."""
    cells, classes = counts_per_cell.shape
    cell = np.repeat(np.arange(cells), counts_per_cell.sum(1))
    labels = np.concatenate([np.repeat(np.arange(classes), row) for row in counts_per_cell])
    return Given(np.eye(cells, dtype=np.float32)[cell], labels)


@pytest.mark.parametrize(
    ("balance", "rho", "tolerance"),
    [("none", 1, 2e-3), ("la", 1, 2e-3), ("la", 0.5, 2e-3), ("grw", 1, 2e-3), ("grw", 0.5, 2e-3), ("cbs", 1, 0.03)],
)
def test_every_balance_finds_its_posterior(balance, rho, tolerance):
    """With a free logit for each cell and class the optimum is a count: n_jk, divided by n_k^rho where balanced."""
    table = np.array([[120, 20, 2], [60, 30, 4], [20, 10, 6]])
    weights = np.ones(3) if balance == "none" else 1.0 / table.sum(0) ** rho
    expected = table * weights
    expected /= expected.sum(1, keepdims=True)
    how = Method(head="linear", balance=balance)
    wanted = sgd(epochs=150, lr=3.0, weight_decay=0.0, batch_size=table.sum(), rho=rho)
    head = train_head(
        one_hot_world(table), layer(torch.zeros(3, 3), torch.zeros(3)), table.sum(0).tolist(), how, wanted
    )
    np.testing.assert_allclose(head(torch.eye(3)).softmax(1), expected, atol=tolerance)


@pytest.mark.parametrize("balance", ["none", "la", "grw"])
def test_a_linear_head_is_the_regularised_optimum_of_scipy(balance):
    """L_CE over three representations plus (decay / 2) |phi|^2, minimised by L-BFGS in float64."""
    decay, shares = 0.01, np.array(COUNTS) / sum(COUNTS)
    offset = np.log(shares) if balance == "la" else np.zeros(4)
    weight = 1 / shares if balance == "grw" else np.ones(4)
    weight = weight / (shares * weight).sum()

    def loss(phi):
        z = STACK.astype(np.float64) @ phi[:20].reshape(4, 5).T + phi[20:] + offset
        log_probs = z - special.logsumexp(z, axis=-1, keepdims=True)
        nll = -log_probs[:, np.arange(40), LABELS] * weight[LABELS]
        return nll.mean() + decay / 2 * (phi**2).sum()

    best = optimize.minimize(loss, np.zeros(24), method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}).x
    wanted = sgd(epochs=600, lr=0.5, batch_size=40, weight_decay=decay)
    how = Method(head="linear", balance=balance, representation="swag")
    head = train_head(Given(STACK, LABELS), layer(), COUNTS, how, wanted)
    np.testing.assert_allclose(np.append(head.weight, head.bias), best, atol=3e-3)


def test_srepr_ends_where_its_loss_is_level():
    """The whole loss from the paper in numpy and scipy, its slope by central differences: the teachers stand still."""
    wanted = sgd(epochs=800, lr=0.5, batch_size=40, weight_decay=0.01, temperature=2.0)
    head = train_head(Given(STACK, LABELS), layer(), COUNTS, METHODS["srepr"], wanted)
    found = np.append(head.weight.double(), head.bias.double())
    stack, shares = STACK.astype(np.float64), np.array(COUNTS) / sum(COUNTS)

    def logits(phi, features):
        return features @ phi[:20].reshape(4, 5).T + phi[20:]

    log_teachers = special.log_softmax(logits(found, stack) / 2.0, axis=-1)
    mean = np.exp(log_teachers).mean(0)
    precision = 1.5 / (mean * (np.log(mean) - log_teachers.mean(0))).sum(-1)

    def loss(phi):
        log_probs = special.log_softmax(logits(phi, stack) + np.log(shares), axis=-1)
        ce = -log_probs[:, np.arange(40), LABELS].mean()
        a = np.exp(logits(phi, stack.mean(0)) / 2.0) + 1
        total = a.sum(-1, keepdims=True)
        gap = special.digamma(total) - special.digamma(a)
        kl = special.gammaln(total[:, 0]) - special.gammaln(a).sum(-1) - special.gammaln(4) - ((a - 1) * gap).sum(-1)
        kd = ((mean * gap).sum(-1) + kl / precision).mean()
        return 0.5 * ce + 0.5 * kd + 0.005 * (phi**2).sum()

    slope = optimize.approx_fprime(found, loss, 1e-6)
    start = np.append(WEIGHT.double(), BIAS.double())
    assert np.abs(slope).max() < 1e-3 < 0.05 < np.abs(optimize.approx_fprime(start, loss, 1e-6)).max()


TRAINED = ["linear", "lws", "lws-per-class", "disalign"]
KINDS = [("deterministic", False), ("swag", False), ("swag", True), ("augment", False), ("augment", True)]


@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
@pytest.mark.parametrize("head", [*TRAINED, "tau-norm", "ncm"])
def test_the_choices_combine_freely(head, bias):
    for balance, (representation, distill) in itertools.product(["cbs", "grw", "la", "none"], KINDS):
        how = Method(head=head, balance=balance, representation=representation, distill=distill)
        features = STACK[0] if representation == "deterministic" else STACK
        new = train_head(Given(features, LABELS), layer(bias=bias), COUNTS, how, sgd(epochs=1, batch_size=16))
        logits = new(torch.from_numpy(STACK[0]))
        assert logits.shape == (40, 4)
        assert logits.isfinite().all()
        assert not any(parameter.requires_grad for parameter in new.parameters())


@pytest.mark.parametrize("head", TRAINED)
def test_training_lowers_the_loss_that_it_is_given(head):
    """Every head starts as stage 1 and ends with a lower cross-entropy than that, under the balance `none`."""
    features, labels = torch.from_numpy(STACK[0]), torch.from_numpy(LABELS)
    how = Method(head=head, balance="none")
    new = train_head(Given(STACK[0], LABELS), layer(), COUNTS, how, sgd(epochs=20, batch_size=40))
    before = nn.functional.cross_entropy(features @ WEIGHT.T + BIAS, labels)
    assert nn.functional.cross_entropy(new(features), labels) < before - 0.01


@pytest.mark.parametrize("name", ["lws", "la", "grw", "disalign", "srepr"])
def test_a_head_starts_as_the_stage_1_classifier(name):
    """With no step to speak of it ends there, too."""
    new = train_head(Given(STACK, LABELS), layer(), COUNTS, METHODS[name], sgd(epochs=1, lr=1e-12))
    features = torch.from_numpy(STACK[0])
    torch.testing.assert_close(new(features), features @ WEIGHT.T + BIAS)


def test_crt_starts_at_random_by_its_seed_and_forgets_stage_1():
    def start(seed, weight=WEIGHT):
        wanted = sgd(epochs=1, lr=1e-12, seed=seed)
        return train_head(Given(STACK[0], LABELS), layer(weight), COUNTS, METHODS["crt"], wanted).weight

    assert torch.equal(start(0), start(0, weight=WEIGHT * 100))
    assert (start(0) - start(1)).abs().max() > 0.1
    assert start(0).abs().max() <= 1 / np.sqrt(5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_layer_of_any_precision_is_re_trained_in_float32_and_left_as_it_is(name, dtype):
    weight, bias = WEIGHT.to(dtype), BIAS.to(dtype)
    rounded = layer(weight, bias)
    source, wanted = Given(STACK, LABELS), sgd(epochs=1)
    new = train_head(source, rounded, COUNTS, METHODS[name], wanted)
    assert {tensor.dtype for tensor in new.state_dict().values()} == {torch.float32}
    assert bits(new) == bits(train_head(source, layer(weight.float(), bias.float()), COUNTS, METHODS[name], wanted))
    assert torch.equal(rounded.weight, weight)
    assert rounded.weight.requires_grad


def test_weight_decay_pulls_on_a_linear_head_only():
    for head in TRAINED:
        how = Method(head=head, balance="none")
        some, none = (
            train_head(Given(STACK[0], LABELS), layer(), COUNTS, how, sgd(epochs=3, weight_decay=decay))
            for decay in (0.3, 0.0)
        )
        assert (bits(some) != bits(none)) == (head == "linear")


def test_the_distillation_weight_goes_from_cross_entropy_to_distillation():
    """w = 0 is the method without distillation, to the bit; w = 1 never looks at the labels."""

    def trained(labels=LABELS, distill=True, **change):
        how = Method(head="linear", balance="none", representation="swag", distill=distill)
        return bits(train_head(Given(STACK, labels), layer(), COUNTS, how, sgd(epochs=2, **change)))

    assert trained(distill_weight=0.0) == trained(distill=False)
    shifted = np.roll(LABELS, 7)
    assert trained(distill_weight=1.0) == trained(shifted, distill_weight=1.0)
    assert trained() != trained(shifted)


def test_cbs_lets_the_distillation_see_the_balanced_examples():
    how = Method(head="linear", balance="cbs", representation="swag", distill=True)
    wanted = sgd(epochs=1, batch_size=40, distill_weight=1.0)
    plain = Method(head="linear", balance="none", representation="swag", distill=True)
    balanced, unbalanced = (
        train_head(Given(STACK, LABELS), layer(), COUNTS, method, wanted) for method in (how, plain)
    )
    assert bits(balanced) != bits(unbalanced)


def test_identical_teachers_are_nothing_special():
    same = np.repeat(STACK[:1], 3, axis=0)
    new = train_head(Given(same, LABELS), layer(), COUNTS, METHODS["srepr"], sgd(epochs=3))
    assert all(parameter.isfinite().all() for parameter in new.parameters())


@pytest.mark.parametrize("classes", [2, 10_000])
@pytest.mark.parametrize("name", METHODS)
def test_two_classes_and_ten_thousand_of_one_example_each(classes, name):
    labels = np.arange(classes)
    features = np.random.default_rng(0).normal(size=(2, classes, 4)).astype(np.float32)
    weight = torch.from_numpy(features[0])
    wanted = sgd(epochs=1, batch_size=max(2, classes // 2), lr=0.01)
    some = np.arange(0, classes, max(1, classes // 20))
    source = Given(features, labels) if name == "ncm" else Given(features[:, some], labels[some])
    new = train_head(source, layer(weight, None), [1] * classes, METHODS[name], wanted)
    assert new(torch.zeros(1, 4)).shape == (1, classes)
    assert all(tensor.isfinite().all() for tensor in new.state_dict().values())


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(METHODS)))
def test_a_head_is_a_function_of_its_seed(seed, name):
    wanted = sgd(epochs=1, batch_size=16, seed=seed)
    first, again = (bits(train_head(Given(STACK, LABELS), layer(), COUNTS, METHODS[name], wanted)) for _ in range(2))
    assert first == again


def test_ncm_and_tau_norm_are_what_they_are_by_hand():
    unit = STACK[0].astype(np.float64) / np.linalg.norm(STACK[0], axis=1, keepdims=True)
    means = np.stack([unit[k == LABELS].mean(0) for k in range(4)])
    cosine = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    ncm = train_head(Given(STACK[0], LABELS), layer(), COUNTS, METHODS["ncm"], Retrain())
    np.testing.assert_array_equal(ncm(torch.from_numpy(STACK[0])).argmax(1), cosine.argmax(1))
    norm = train_head(Given(STACK[0], LABELS), layer(), COUNTS, METHODS["tau-norm"], Retrain(tau=0.5))
    w = WEIGHT.double().numpy()
    np.testing.assert_allclose(norm.weight, w / np.linalg.norm(w, axis=1, keepdims=True) ** 0.5, rtol=1e-6)


# When it goes wrong


@pytest.mark.parametrize("change", [{"temperature": 1e-3}, {"temperature": 1e-6}, {"lr": 1e6}, {"lr": 1e30}])
def test_a_divergence_names_the_temperature(change):
    temperature = change.get("temperature", 20.0)
    remedy = (
        rf"diverged in epoch \d+, step \d+.* at temperature {temperature:g}\. Raise `temperature`, or lower `lr`\.$"
    )
    with pytest.raises(Diverged, match=remedy):
        train_head(Given(STACK, LABELS), layer(), COUNTS, METHODS["srepr"], sgd(batch_size=8, **change))


def test_a_divergence_without_distillation_does_not_speak_of_temperature():
    with pytest.raises(Diverged, match=r"the loss became [^ ]+\d\. Lower `lr`\.$"):
        train_head(Given(STACK, LABELS), layer(), COUNTS, METHODS["la"], sgd(batch_size=8, lr=1e9))


def test_features_without_numbers_are_refused_or_diverge_at_once():
    with pytest.raises(Diverged, match="epoch 0, step 0: the loss became nan"):
        train_head(Given(STACK * np.nan, LABELS), layer(), COUNTS, METHODS["la"], sgd())
    with pytest.raises(InputError, match="the features contain NaN or infinity"):
        train_head(Given(STACK * np.nan, LABELS), layer(), COUNTS, METHODS["la"], Retrain())


def test_a_large_class_weight_is_not_a_divergence():
    """One of 5000 is weighted 2500-fold: its loss is large by right."""
    labels = np.repeat([0, 1], [5000, 1])
    features = np.random.default_rng(0).normal(size=(5001, 2)).astype(np.float32)
    away = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    bias = torch.tensor([6.0, 0.0])
    new = train_head(Given(features, labels), layer(away, bias), [5000, 1], METHODS["grw"], sgd(epochs=1, lr=1e-4))
    assert new(torch.zeros(1, 2)).isfinite().all()


def test_numbers_of_classes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="there are 3 class counts for a classifier of 4 classes"):
        train_head(Given(STACK, LABELS), layer(), [1, 2, 3], METHODS["la"], Retrain())
    with pytest.raises(InputError, match="label 3 is out of range: with 3 classes the last is 2"):
        train_head(Given(STACK, LABELS), layer(WEIGHT[:3], BIAS[:3]), [1, 2, 3], METHODS["la"], Retrain())


@pytest.mark.parametrize("views", [1, 3])
def test_the_features_are_made_before_the_epochs_are_timed(views, monkeypatch, capsys):
    """They take a minute each, an epoch a second: the time left is that of epochs."""
    now, made = [0.0], set()

    class Slow(Given):
        def epoch(self, number):
            now[0] += 1 if number % views in made else 60
            made.add(number % views)
            return super().epoch(number)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    wanted = sgd(epochs=10, views=views)
    train_head(Slow(STACK, LABELS), layer(), COUNTS, METHODS["lws"], wanted, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "re-train: 1 of 10"
    assert lines[1:] == [f"re-train: {done} of 10, about {10 - done} s left" for done in range(2, 10)]
