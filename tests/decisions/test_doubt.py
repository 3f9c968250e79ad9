"""Doubt: against matrix inverses, exchangeability, and what must not change it."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from srepr import heads
from srepr.classifier import Classifier
from srepr.data.about import About
from srepr.decisions.doubt import ENTROPY, STEEPNESS, Familiar, doubt, fit
from srepr.decisions.held import Held
from srepr.errors import InputError
from srepr.run.checkpoints import build_network, load_classifier, load_head_and_held, save_classifier, save_head


def photos(examples, length=6, seed=0):
    """Features of known inputs: of any length, around one direction, with a spread of their own along each axis."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.05, 0.4, length, dtype=torch.float64)
    x = torch.randn(examples, length, generator=generator, dtype=torch.float64) * spread + 1
    return x * torch.rand(examples, 1, generator=generator, dtype=torch.float64) * 9


@pytest.mark.parametrize("length", [6, 90])
def test_the_distance_is_that_of_the_inverse_of_the_covariance(length):
    """Up to 64 directions of their own variance, and the mean of the other variances for all others."""
    x = photos(4000, length)
    familiar = fit(x)
    rows = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[::2]
    unit = nn.functional.normalize(x[rows]).numpy()
    variances, axes = np.linalg.eigh(np.cov(unit.T))
    if length > 64:
        variances[: length - 64] = variances[: length - 64].mean()
    inverse = axes / variances @ axes.T
    new = photos(50, length, seed=1)
    away = nn.functional.normalize(new).numpy() - unit.mean(0)
    expected = np.sqrt(np.einsum("ni,ij,nj->n", away, inverse, away) / length)
    np.testing.assert_allclose(familiar.distance(new), expected, rtol=1e-3)
    assert len(familiar.scaled) == min(length, 64)


def test_one_known_input_in_500_is_beyond_the_limit():
    familiar = fit(photos(20_000))
    beyond = (familiar.excess(photos(50_000, seed=2)) > 1).double().mean().item()
    assert beyond == pytest.approx(1 / 500, rel=0.5)


def test_few_known_inputs_are_enough_for_a_limit():
    """With 20 of them, 19 of 20 new ones are still within it on average."""
    beyond = [(fit(photos(20, seed=s)).excess(photos(200, seed=s + 99)) > 1).double().mean().item() for s in range(40)]
    assert np.mean(beyond) < 0.15


def test_the_length_of_the_features_does_not_matter():
    familiar, new = fit(photos(500)), photos(20, seed=1)
    torch.testing.assert_close(familiar.excess(new * 1e-30), familiar.excess(new * 1e30))
    torch.testing.assert_close(fit(photos(500) * 1e-20).excess(new), familiar.excess(new), rtol=1e-4, atol=0)


def test_without_features_doubt_is_one_minus_the_largest_probability():
    p = torch.rand(100, 7, dtype=torch.float64).softmax(1)
    assert torch.equal(doubt(p), 1 - p.max(1).values)


def test_within_the_limit_doubt_is_the_formula_and_beyond_it_grows_to_one():
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    entropy = -sum(q * math.log(q) for q in (0.7, 0.2, 0.1)) / math.log(3)
    inside = (0.3 + ENTROPY * entropy) / (1 + ENTROPY)
    for excess in (0.0, 0.5, 1.0):
        assert doubt(p, torch.tensor([excess])).item() == pytest.approx(inside)
    beyond = [doubt(p, torch.tensor([excess])).item() for excess in (1.01, 1.1, 2.0, 1e6, math.inf, math.nan)]
    assert beyond[1] == pytest.approx(1 - (1 - inside) / 1.1**STEEPNESS, rel=1e-5)
    assert inside < beyond[0] < beyond[1] < beyond[2] <= beyond[3] == beyond[4] == beyond[5] == 1


@pytest.mark.parametrize("classes", [1, 2, 1000])
def test_doubt_lies_between_0_and_1(classes):
    p = torch.cat([torch.rand(50, classes).mul(30).softmax(1), torch.full((1, classes), 1 / classes)])
    for excess in (None, torch.rand(51) * 3):
        found = doubt(p, excess)
        assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        (torch.ones(3, 2), "pass \\[N, L\\] with at least 4 examples"),
        (torch.ones(9), "pass \\[N, L\\]"),
        (torch.full((9, 2), math.nan), "NaN or infinity"),
        (torch.ones(9, 2), "all have the same direction"),
    ],
)
def test_features_that_say_nothing_are_refused(features, complaint):
    with pytest.raises(InputError, match=complaint):
        fit(features)
    with pytest.raises(InputError, match="pass \\[N, 6\\]"):
        fit(photos(50)).excess(torch.ones(3, 5))


ABOUT = About(
    network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,), mean=(0.0,), std=(1.0,)
)


@pytest.fixture
def watched():
    """A network that knows what its features look like, and inputs of this kind."""
    torch.manual_seed(0)
    network = build_network(ABOUT).eval()
    known = torch.randn(400, 4) + 3
    return Classifier(network, about=ABOUT, layer="fc", familiar=fit(network.features(known).detach())), known


def test_a_classifier_doubts_inputs_unlike_those_that_it_knows(watched):
    model, known = watched
    plain = Classifier(model.model, about=ABOUT)
    strange = -10 * known
    excess = model.familiar.excess(model.model.features(strange).detach())
    assert (excess > 1).double().mean() > 0.5
    for x in (known, strange):
        p = plain.predict(x).probabilities
        expected = doubt(p, model.familiar.excess(model.model.features(x).detach()))
        torch.testing.assert_close(model.predict(x).uncertainty, expected)
        assert torch.equal(model.predict(x).probabilities, p)
    assert model.with_prior([9, 1]).predict(strange).uncertainty.mean() > 0.9
    assert (model.predict(strange).uncertainty > plain.predict(strange).uncertainty).float().mean() > 0.5


def test_what_is_known_about_the_features_is_written_and_read(watched, tmp_path):
    model, known = watched
    save_classifier(tmp_path / "model.safetensors", model, {})
    again = load_classifier(tmp_path / "model.safetensors")
    assert torch.equal(again.predict(-known).uncertainty, model.predict(-known).uncertainty)
    head = heads.linear(torch.eye(2), torch.zeros(2))
    held = Held(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    save_head(tmp_path / "head.safetensors", head, {}, held, model.familiar)
    _, held_again, familiar = load_head_and_held(tmp_path / "head.safetensors")
    assert all(torch.equal(a, b) for a, b in zip((*held, *model.familiar), (*held_again, *familiar), strict=True))


@pytest.mark.parametrize("field", Familiar._fields)
def test_damaged_knowledge_is_refused_in_words(watched, tmp_path, field):
    model, _ = watched
    for damage in (torch.tensor(math.nan), torch.zeros(3, 1), torch.tensor(-1.0)):
        model.familiar = fit(photos(50))._replace(**{field: damage})
        save_classifier(tmp_path / "model.safetensors", model, {})
        with pytest.raises(InputError, match=r"model\.safetensors: what is known about the features is damaged"):
            load_classifier(tmp_path / "model.safetensors")
