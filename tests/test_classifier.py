"""The finished model: its probabilities, its uncertainty and its prior, against their formulas in float64."""

import copy
import pickle
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import nn

from srepr.classifier import Classifier
from srepr.data.about import About
from srepr.errors import InputError

LOGITS = torch.tensor([[30.0, -10.0, 0.0], [0.0, 0.0, 0.0], [-400.0, 400.0, 399.0], [5.0, 4.0, 3.0]])


class Answering(nn.Module):
    """A model that wraps its logits, the input itself, in some way."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, logits):
        return self.wrap(logits)


class Output(OrderedDict):
    """As of Hugging Face: a dict with attributes that are its items."""

    def __getattr__(self, name):
        return self[name] if name in self else super().__getattribute__(name)

    def __setattr__(self, name, value):
        self[name] = value


WRAPPINGS = {
    "bare": lambda z: z,
    "tuple": lambda z: (z, "hidden"),
    "dict": lambda z: {"logits": z},
    "object": lambda z: SimpleNamespace(logits=z),
    "model output": lambda z: Output(logits=z),
}


@pytest.mark.parametrize("temperature", [1.0, 20.0])
def test_a_prediction_is_its_formulas(temperature):
    found = Classifier(nn.Identity(), temperature=temperature).predict(LOGITS)
    z = LOGITS.double().numpy()
    alpha = np.exp(z / temperature)
    np.testing.assert_allclose(found.probabilities, special.softmax(z, axis=1), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-6)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(found.precision, alpha.sum(1).astype(np.float32), rtol=1e-6)
    assert found.label.tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(found.uncertainty, 1 - special.softmax(z, axis=1).max(1), atol=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(-1000, 1000, width=32), min_size=2, max_size=30), st.floats(0.5, 100))
@example(logits=[-373.0, -373.0], temperature=0.5)  # exp(-746) is 0
def test_the_uncertainty_is_the_chance_of_an_error(logits, temperature):
    z = torch.tensor([logits])
    found = Classifier(nn.Identity(), temperature=temperature).predict(z)
    assert 0 <= found.uncertainty.item() <= 1 - 1 / len(logits) + 1e-6
    assert found.uncertainty.item() == pytest.approx(1 - special.softmax(logits).max(), abs=1e-6)
    assert found.probabilities.sum().item() == pytest.approx(1, abs=1e-5)


def test_the_precision_counts_the_evidence():
    """The same probabilities from ten times the evidence."""
    weak, strong = (Classifier(nn.Identity()).predict(LOGITS[3:] + shift) for shift in (0.0, 20 * np.log(10)))
    torch.testing.assert_close(weak.probabilities, strong.probabilities)
    assert strong.precision.item() == pytest.approx(10 * weak.precision.item(), rel=1e-5)


def test_predict_is_in_eval_mode_without_gradients_and_leaves_the_flags():
    model = Classifier(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.9), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    model.train()
    model.model[1].eval()
    flags = [module.training for module in model.modules()]
    found = [model.predict(LOGITS) for _ in range(2)]
    assert torch.equal(found[0].probabilities, found[1].probabilities)
    assert not found[0].probabilities.requires_grad
    assert [module.training for module in model.modules()] == flags
    assert model.model[2].num_batches_tracked == 0


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_prior_moves_the_probabilities_by_bayes_whatever_the_model_answers_with(wrapping):
    prior = np.array([0.7, 0.2, 0.1])
    model = Classifier(Answering(WRAPPINGS[wrapping]))
    moved = model.with_prior(prior.tolist())
    expected = special.softmax(LOGITS.double().numpy(), axis=1) * prior
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(moved.predict(LOGITS).probabilities, expected, rtol=1e-4, atol=1e-30)
    assert type(moved(LOGITS)) is type(model(LOGITS))
    torch.testing.assert_close(model.predict(LOGITS).probabilities, LOGITS.softmax(1))


def test_a_prior_may_be_counts_may_be_replaced_and_may_rule_a_class_out():
    model = Classifier(nn.Identity(), temperature=7.0)
    counts, shares = model.with_prior([70, 20, 10]), model.with_prior(torch.tensor([0.7, 0.2, 0.1]))
    torch.testing.assert_close(counts(LOGITS), shares(LOGITS))
    assert counts.temperature == 7.0
    torch.testing.assert_close(counts.with_prior([1, 1, 1])(LOGITS), LOGITS)
    without = model.with_prior([1, 0, 1]).predict(LOGITS)
    assert not without.probabilities[:, 1].any()
    torch.testing.assert_close(without.probabilities.sum(1), torch.ones(4))
    assert without.uncertainty.isfinite().all()
    with pytest.raises(InputError, match="the target prior must be non-negative"):
        model.with_prior([0, 0, 0])


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3), st.lists(st.integers(1, 1000), min_size=3, max_size=3))
def test_the_law_of_a_prior(logits, counts):
    """softmax(z + log p - log(1 / K)) in float64, and a second prior takes the place of the first."""
    model = Classifier(nn.Identity()).with_prior([1, 2, 1000]).with_prior(counts)
    shares = np.array(counts) / sum(counts)
    expected = special.softmax(np.array(logits) + np.log(shares) - np.log(1 / 3))
    np.testing.assert_allclose(model.predict(torch.tensor([logits])).probabilities[0], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("trained_on", [None, [900, 90, 10]])
def test_a_prior_is_the_bayes_rule_of_a_problem_whose_posterior_is_known(trained_on):
    """Three normal distributions; the logits of the Bayes classifier for the shares of its training, even if None."""
    places, x = np.array([-1.0, 0.0, 2.0]), np.linspace(-4, 5, 50)
    density = stats.norm.pdf(x[:, None], places)
    logits = torch.from_numpy(np.log(density * (trained_on or [1, 1, 1]))).float()
    for prior in ([0.2, 0.3, 0.5], [1, 1, 1], [0.0, 0.9, 0.1]):
        posterior = density * prior / (density * prior).sum(1, keepdims=True)
        found = Classifier(nn.Identity(), expects=trained_on).with_prior(prior).predict(logits)
        np.testing.assert_allclose(found.probabilities, posterior, atol=1e-6)


@pytest.mark.parametrize("prior", [[1], [1] * 3, [1] * 5, [1] * 8])  # also as many as another layer has units
def test_a_prior_for_another_number_of_classes_is_refused_at_once_or_by_the_first_pass(prior):
    known = Classifier(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 4)), classes=4)
    for model in (known, known.with_prior([4, 3, 2, 1])):
        with pytest.raises(InputError, match=f"the prior has {len(prior)} shares, the model 4 classes: give one for"):
            model.with_prior(prior)
    unknown = Classifier(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 4))).with_prior(prior)
    with pytest.raises(InputError, match=f"the prior has {len(prior)} classes, the model 4: give one share for each."):
        unknown(LOGITS)


@pytest.mark.parametrize(
    ("prior", "complaint"),
    [
        ([0.5, float("nan"), 0.5], "the prior must be a finite share or count for each class"),
        ([0.5, float("inf"), 0.5], "the prior must be a finite share or count for each class"),
        ([[0.5, 0.5]], "priors must be a list of numbers, one for each class"),
        (["a", "b"], "priors must be a list of numbers, one for each class"),
        ([1, 10**400], "priors must be a list of numbers, one for each class"),
        ([0.5, -0.1, 0.6], "the target prior must be non-negative"),
        ([0, 0, 0], "the target prior must be non-negative"),
        ("estimate", "priors must be a list of numbers, one for each class"),
        (None, "priors must be a list of numbers, one for each class"),
    ],
)
def test_what_is_no_prior_is_refused_in_words(prior, complaint):
    with pytest.raises(InputError, match=complaint):
        Classifier(nn.Identity()).with_prior(prior)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_the_same_model(way):
    model = Classifier(nn.Linear(3, 3), temperature=5.0).with_prior([3, 2, 1])
    other = way(model)
    assert torch.equal(other(LOGITS), model(LOGITS))
    assert other.temperature == 5.0
    other.model.weight.data += 1
    assert not torch.equal(other(LOGITS), model(LOGITS))


def test_the_attributes_of_the_model_shine_through():
    inner = nn.Linear(3, 3)
    inner.class_names = ("cat", "dog", "emu")
    model = Classifier(inner)
    assert model.class_names == inner.class_names
    assert model.in_features == 3
    assert model.weight is inner.weight
    with pytest.raises(AttributeError, match="colour"):
        _ = model.colour
    assert not hasattr(model, "colour")


ABOUT = About(
    network="mlp", options={}, class_names=("cat", "dog", "emu"), counts=(9, 3, 1), shape=(3,), mean=(0.0,), std=(1.0,)
)


def test_a_description_gives_the_classes_their_names_and_their_number():
    model = Classifier(nn.Linear(3, 3), about=ABOUT)
    for known in (model, model.with_prior([3, 2, 1])):
        assert (known.class_names, known.classes) == (("cat", "dog", "emu"), 3)
        with pytest.raises(InputError, match="the prior has 2 shares, the model 3 classes"):
            known.with_prior([1, 1])


def test_rows_are_the_prediction_in_words(tmp_path):
    """The most probable labels first, six digits of what `predict` says of the same inputs."""
    np.save(tmp_path / "rows.npy", LOGITS.numpy())
    model = Classifier(nn.Linear(3, 3), about=ABOUT)
    said = model.predict(LOGITS)
    for way in (tmp_path / "rows.npy", str(tmp_path / "rows.npy"), [tmp_path / "rows.npy"]):
        rows = model.predict(way, top=3)
        assert len(rows) == 4
        for row, shares, uncertainty in zip(rows, said.probabilities, said.uncertainty, strict=True):
            order = shares.argsort(descending=True).tolist()
            assert [row["label"], row["label_2"], row["label_3"]] == [ABOUT.class_names[k] for k in order]
            assert row["probability"] == pytest.approx(shares.max().item(), rel=1e-5)
            assert row["uncertainty"] == pytest.approx(uncertainty.item(), rel=1e-5, abs=1e-12)
    with pytest.raises(InputError, match="`top` is 4: it must lie in"):
        model.predict(tmp_path / "rows.npy", top=4)


def test_without_a_description_files_cannot_be_read():
    model = Classifier(nn.Linear(3, 3))
    assert not hasattr(model, "class_names")
    with pytest.raises(InputError, match=r"does not know its classes and inputs: read one with srepr\.load"):
        model.predict("photo.jpg")


def test_the_state_holds_the_prior():
    model = Classifier(nn.Linear(3, 3))
    moved = model.with_prior([3, 2, 1])
    other = Classifier(nn.Linear(3, 3)).with_prior([1, 1, 1])
    other.load_state_dict(moved.state_dict())
    assert torch.equal(other(LOGITS), moved(LOGITS))
    assert "shift" not in model.state_dict()
