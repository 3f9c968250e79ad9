"""Held-out logits: kept beside a head and in an exported file, refused where they do not fit."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import srepr
from srepr.classifier import Classifier
from srepr.data.about import About
from srepr.decisions.held import Held
from srepr.errors import InputError
from srepr.models import mlp
from srepr.run.checkpoints import load_classifier, load_head_and_held, save_classifier, save_head

HELD = Held(torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]]), torch.tensor([0, 2]))
ABOUT = About(
    network="mlp",
    options={"inputs": 4},
    class_names=("a", "b", "c"),
    counts=(9, 3, 1),
    shape=(4,),
    mean=(0.0,),
    std=(1.0,),
)


def test_they_come_back_with_a_head(tmp_path):
    save_head(tmp_path / "la.safetensors", nn.Linear(4, 3), {}, HELD)
    _, found, _ = load_head_and_held(tmp_path / "la.safetensors")
    assert torch.equal(found.logits, HELD.logits)
    assert torch.equal(found.labels, HELD.labels)
    assert found.distances is None
    save_head(tmp_path / "old.safetensors", nn.Linear(4, 3), {})
    assert load_head_and_held(tmp_path / "old.safetensors")[1] is None


def test_arrays_and_small_integers_are_taken_for_tensors():
    logits, labels = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 3
    model, same = Classifier(nn.Identity(), classes=3), Classifier(nn.Identity())
    model.held, same.held = Held(logits, labels.astype(np.int32)), Held(torch.from_numpy(logits), torch.tensor(labels))
    assert model.thresholds(0.5) == same.thresholds(0.5)
    assert model.rejection(0.2) == same.rejection(0.2)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (Held(np.zeros((3, 4)), np.zeros(3, dtype=int)), "are not finite logits of 3 classes"),
        (Held(np.zeros((2, 3)), np.array([0, 5])), r"do not lie in 0 \.\. 2"),
        (Held(np.zeros((0, 3)), np.zeros(0, dtype=int)), "are not finite logits of 3 classes"),
        (Held("wren", [0]), "must be a Held"),
        (7, "must be a Held"),
    ],
)
def test_what_cannot_be_held_out_is_refused_when_it_is_set(wrong, complaint):
    model = Classifier(nn.Identity(), classes=3)
    with pytest.raises(InputError, match=complaint):
        model.held = wrong


def test_they_come_back_with_a_classifier_and_its_prior(tmp_path):
    model = Classifier(mlp(3, inputs=4), about=ABOUT, held=HELD).with_prior([1, 2, 3])
    save_classifier(tmp_path / "model.safetensors", model, {})
    found = load_classifier(tmp_path / "model.safetensors")
    assert torch.equal(found.held.logits, HELD.logits)
    np.testing.assert_allclose(found.prior, [1 / 6, 2 / 6, 3 / 6], rtol=1e-6)
    assert found.thresholds(0.5) == model.thresholds(0.5)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"held.logits": torch.zeros(2, 4)}, "are not finite logits of 3 classes"),
        ({"held.logits": torch.full((2, 3), float("nan"))}, "are not finite logits of 3 classes"),
        ({"held.logits": torch.zeros(2)}, "are not finite logits of 3 classes"),
        ({"held.labels": torch.tensor([0, 3])}, r"do not lie in 0 \.\. 2"),
        ({"held.labels": torch.tensor([0.0, 1.0])}, r"do not lie in 0 \.\. 2"),
        ({"held.labels": torch.tensor([0])}, "are not finite logits of 3 classes"),
        ({"held.labels": None}, "has half of its held-out examples"),
    ],
)
def test_a_file_with_others_is_refused(tmp_path, wrong, complaint):
    path = tmp_path / "la.safetensors"
    save_head(path, nn.Linear(4, 3), {}, HELD)
    tensors = {key: value for key, value in {**load_file(path), **wrong}.items() if value is not None}
    save_file(tensors, path, {"kind": "linear", "made of": "{}"})
    with pytest.raises(InputError, match=complaint) as raised:
        load_head_and_held(path)
    assert "la.safetensors" in str(raised.value)


def test_of_very_many_some_stand_for_all():
    held = Held(torch.randn(100, 4), torch.arange(100) % 4)
    few = held.limited(80)
    assert len(few.labels) == 20
    kept = {tuple(row) for row in held.logits.tolist()}
    assert all(tuple(row) in kept for row in few.logits.tolist())
    assert torch.equal(few.labels, held.limited(80).labels)


def test_a_cross_validation_holds_every_example_out_once():
    """The logits are of heads that have not seen the example, divided by the temperature that was chosen."""
    chance = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 30, 10])
    x = (chance.normal(size=(100, 5)) + 2 * np.eye(5)[y]).astype(np.float32)
    model = srepr.retrain(nn.Linear(5, 3), (x, y))
    assert sorted(model.held.labels.tolist()) == y.tolist()
    assert model.held.logits.shape == (100, 3)
    again = model(torch.from_numpy(x)).detach()
    assert not torch.allclose(model.held.logits.float().sort(0).values, again.sort(0).values, atol=1e-3)


def test_a_validation_set_is_what_the_finished_model_says_about_it():
    chance = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 30, 10])
    x = (chance.normal(size=(100, 5)) + 2 * np.eye(5)[y]).astype(np.float32)
    others = (x[::4] + 0.1).astype(np.float32)
    model = srepr.retrain(nn.Linear(5, 3), (x, y), validation=(others, y[::4]))
    np.testing.assert_allclose(model.held.logits, model(torch.from_numpy(others)).detach(), rtol=1e-4, atol=1e-4)
    assert model.held.labels.tolist() == y[::4].tolist()
