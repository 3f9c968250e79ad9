"""Cosine classifiers of one network and of several experts, and the heads that stage 2 makes of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import srepr
from srepr import heads
from srepr.config import Retrain
from srepr.features import Given
from srepr.methods import METHODS
from srepr.models import Cosine
from srepr.retraining import train_head


def by_hand(features, weight, scales):
    """mean_e s_e cos(x_e, w_ke), one expert and one class after the other, in float64."""
    experts = len(scales)
    logits = np.zeros((len(features), len(weight)))
    for x, w, s in zip(np.split(features, experts, 1), np.split(weight, experts, 1), scales, strict=True):
        for b, k in np.ndindex(logits.shape):
            logits[b, k] += s * (x[b] @ w[k]) / np.linalg.norm(x[b]) / np.linalg.norm(w[k]) / experts
    return logits


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=40)
def test_the_logits_are_the_mean_of_the_experts_cosines(experts, length, classes, seed):
    chance = np.random.default_rng(seed)
    features, weight = chance.normal(size=(3, experts * length)), chance.normal(size=(classes, experts * length))
    scales = chance.uniform(1, 30, experts)
    head = Cosine(torch.from_numpy(weight), torch.from_numpy(scales))
    expected = by_hand(features, weight, scales)
    np.testing.assert_allclose(head(torch.from_numpy(features)).detach(), expected, atol=1e-12)
    stochastic = torch.from_numpy(features).expand(2, 3, -1)
    np.testing.assert_allclose(head(stochastic).detach(), [expected, expected], atol=1e-12)


@pytest.mark.parametrize("scale", [torch.tensor(30.0), torch.full((3,), 30.0)])
@pytest.mark.parametrize("kind", ["linear", "lws", "lws-per-class", "disalign"])
def test_every_head_starts_as_the_cosine_classifier(kind, scale):
    weight, features = torch.randn(5, 12), torch.randn(7, 12)
    head = heads.build(kind, weight=weight, bias=None, scale=scale)
    torch.testing.assert_close(head(features), Cosine(weight, scale)(features))
    torch.testing.assert_close(head(9 * features), head(features))
    assert heads.as_linear(head) is None


def world(experts=1):
    """Two classes that differ in direction, and nothing in length; the second is rare."""
    chance = np.random.default_rng(0)
    labels = np.repeat([0, 1], [80, 20])
    parts = [np.where(labels[:, None] == 0, [1, 0.3], [0.3, 1]) + 0.1 * chance.normal(size=(100, 2))] * experts
    lengths = chance.uniform(0.1, 10, (100, 1))
    return (lengths * np.concatenate(parts, 1)).astype(np.float32), labels


@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize("method", ["crt", "la", "grw", "disalign", "lws", "srepr", "ncm"])
def test_stage_2_keeps_a_cosine_classifier_cosine(experts, method):
    features, labels = world(experts)
    stack = np.stack([features, features]) if METHODS[method].distill else features
    scale = torch.full((experts,), 16.0) if experts > 1 else torch.tensor(16.0)
    weight = torch.randn(2, 2 * experts, generator=torch.Generator().manual_seed(1))
    settings = Retrain(epochs=20, batch_size=20)
    head = train_head(Given(stack, labels), Cosine(weight, scale), [80, 20], METHODS[method], settings)
    logits = head(torch.from_numpy(features))
    torch.testing.assert_close(head(torch.from_numpy(3 * features)), logits)
    if METHODS[method].head in ("linear", "ncm"):
        assert isinstance(head, Cosine)
        assert torch.equal(head.scale, scale)
        assert (logits.argmax(1).numpy() == labels).mean() > 0.95


def test_the_heads_of_all_experts_are_trained():
    features, labels = world(3)
    weight = torch.randn(2, 6)
    cosine = Cosine(weight, torch.full((3,), 16.0))
    head = train_head(Given(features, labels), cosine, [80, 20], METHODS["la"], Retrain(epochs=1))
    changed = (head.weight - weight).abs().reshape(2, 3, 2).amax((0, 2))
    assert (changed > 0).all()


def test_retrain_takes_networks_that_end_in_a_cosine_classifier():
    features, labels = world()
    network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), Cosine(torch.randn(2, 8), 16.0))
    better = srepr.retrain(network, (torch.from_numpy(features), labels), "la", epochs=3)
    assert isinstance(better.model[2], Cosine)
    assert not torch.equal(better.model[2].weight, network[2].weight)
    alone = srepr.retrain(Cosine(torch.randn(2, 2), 16.0), (features, labels), "crt", epochs=20, batch_size=20)
    assert (alone(torch.from_numpy(features)).argmax(1).numpy() == labels).mean() > 0.95
