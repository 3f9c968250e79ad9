"""Laws of the heads, against their formulas in numpy and the stage-1 classifier that they start from."""

import itertools

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

from srepr import heads
from srepr.errors import InputError

K, L = 5, 3
WEIGHT = torch.randn(K, L, generator=torch.Generator().manual_seed(0))
BIAS = torch.randn(K, generator=torch.Generator().manual_seed(1))
FEATURES = torch.randn(2, 4, L, generator=torch.Generator().manual_seed(2))
STAGE_1 = FEATURES @ WEIGHT.T + BIAS
SCALES = {"plain": None, "cosine": torch.tensor(16.0), "three experts": torch.tensor([16.0, 4.0, 1.0])}
of_every_kind = pytest.mark.parametrize(("kind", "scale"), [*itertools.product(heads.HEADS, SCALES.values())])


def shaken(head):
    """The head with every parameter moved away from its start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return head


@pytest.mark.parametrize("kind", heads.HEADS)
@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
def test_heads_start_as_the_stage_1_classifier(kind, bias):
    head = heads.build(kind, weight=WEIGHT, bias=bias)
    torch.testing.assert_close(head(FEATURES), STAGE_1 if bias is not None else STAGE_1 - BIAS)


@pytest.mark.parametrize("kind", heads.HEADS)
@pytest.mark.parametrize("scale", [SCALES["cosine"], SCALES["three experts"]], ids=["one", "three experts"])
def test_heads_start_as_the_cosine_classifier_of_stage_1(kind, scale):
    """The mean of s_e cos(x_e, w_ke) over the experts, in float64."""
    experts = scale.numel()
    x, w = (tensor.double().numpy().reshape(-1, experts, L // experts) for tensor in (FEATURES, WEIGHT))
    unit = [parts / np.linalg.norm(parts, axis=-1, keepdims=True) for parts in (x, w)]
    expected = np.einsum("nel,kel,e->nk", *unit, scale.double().numpy().reshape(-1)) / experts
    head = heads.build(kind, weight=WEIGHT, bias=None, scale=scale)
    np.testing.assert_allclose(head(FEATURES).detach().reshape(-1, K), expected, rtol=1e-4, atol=1e-5)


@of_every_kind
@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
def test_a_head_comes_back_from_its_tensors(kind, scale, bias):
    head = shaken(heads.build(kind, weight=WEIGHT, bias=bias, scale=scale))
    other = heads.from_tensors({name: tensor.clone() for name, tensor in head.state_dict().items()})
    assert type(other) is type(head)
    assert {name: tensor.tolist() for name, tensor in other.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in head.state_dict().items()
    }
    assert torch.equal(other(FEATURES), head(FEATURES))


@of_every_kind
def test_a_head_owns_its_weights_and_every_parameter_learns(kind, scale):
    weight, bias = WEIGHT.clone(), BIAS.clone()
    head = shaken(heads.build(kind, weight=weight, bias=bias, scale=scale))
    head(FEATURES).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in head.parameters())
    assert torch.equal(weight, WEIGHT)
    assert torch.equal(bias, BIAS)


def test_lws_is_its_formula():
    head = heads.LearnableWeightScaling(WEIGHT, BIAS)
    nn.init.constant_(head.tau, 0.7)
    w = WEIGHT.double().numpy()
    scaled = w / np.linalg.norm(w, axis=1, keepdims=True) ** 0.7
    np.testing.assert_allclose(
        head(FEATURES).detach(), FEATURES.double().numpy() @ scaled.T + BIAS.numpy(), rtol=1e-4, atol=1e-6
    )


def test_per_class_lws_scales_the_rows_and_keeps_the_bias():
    head = heads.LearnableWeightScaling(WEIGHT, BIAS, per_class=True)
    head.factor.data = torch.arange(K, dtype=torch.float32)
    torch.testing.assert_close(head(FEATURES), (STAGE_1 - BIAS) * torch.arange(K) + BIAS)


@pytest.mark.parametrize("tau", [-1.0, 0.0, 2.0])
def test_lws_with_an_empty_row_has_finite_values_and_gradients(tau):
    weight = WEIGHT.clone()
    weight[1] = 0
    head = heads.LearnableWeightScaling(weight, BIAS)
    nn.init.constant_(head.tau, tau)
    logits = head(FEATURES)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert torch.equal(logits[..., 1], BIAS[1].expand(2, 4))
    assert head.tau.grad.isfinite()


def test_disalign_is_its_formula():
    head = shaken(heads.DisAlign(WEIGHT, BIAS))
    alpha, beta, gamma, delta = (p.detach().double().numpy() for p in (head.alpha, head.beta, head.gamma, head.delta))
    z = STAGE_1.double().numpy()
    s = special.expit(z @ gamma + delta)[..., None]
    np.testing.assert_allclose(head(FEATURES).detach(), s * (alpha * z + beta) + (1 - s) * z, rtol=1e-4, atol=1e-6)


def test_cosine_ignores_the_lengths_of_features_and_weights():
    head = heads.Cosine(WEIGHT, scale=16.0)
    lengths = torch.arange(1.0, K + 1).unsqueeze(1)
    torch.testing.assert_close(heads.Cosine(lengths * WEIGHT, scale=16.0)(7 * FEATURES), head(FEATURES))
    torch.testing.assert_close(head(WEIGHT).diagonal(), torch.full((K,), 16.0))


def test_tau_norm_goes_from_stage_1_to_unit_rows():
    torch.testing.assert_close(heads.tau_norm(WEIGHT, 0.0)(FEATURES), STAGE_1 - BIAS)
    torch.testing.assert_close(heads.tau_norm(WEIGHT, 1.0).weight.norm(dim=1), torch.ones(K))


def test_nearest_class_mean_is_the_nearest_mean_whatever_the_chunks():
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(60, L, generator=generator)
    labels = torch.cat([torch.arange(K), torch.randint(K - 1, (60 - K,), generator=generator)])  # one of class K - 1
    head = heads.nearest_class_mean([(features, labels)], K)
    chunked = heads.nearest_class_mean(zip(features.split(7), labels.split(7), strict=True), K)
    torch.testing.assert_close(chunked(features), head(features))

    unit = features.double().numpy() / np.linalg.norm(features, axis=1, keepdims=True)
    means = np.stack([unit[labels.numpy() == k].mean(0) for k in range(K)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    distance = np.linalg.norm(unit[:, None] - means, axis=-1)
    assert head(features).argmax(-1).tolist() == distance.argmin(-1).tolist()
    np.testing.assert_allclose(head(features).detach(), 30 * (1 - distance**2 / 2), rtol=1e-4, atol=1e-4)


def test_nearest_class_mean_names_a_class_without_features():
    with pytest.raises(InputError, match="class 1 has no features"):
        heads.nearest_class_mean([(torch.ones(2, L), torch.tensor([0, 2]))], 3)
    with pytest.raises(InputError, match="at least one batch"):
        heads.nearest_class_mean([], 3)


@pytest.mark.parametrize("labels", [[0, 3], [-4, 0], [0, 1, 2]], ids=["too large", "negative", "too many"])
def test_nearest_class_mean_refuses_labels_that_are_no_classes(labels):
    batches = [(torch.eye(3, L), torch.arange(3)), (torch.ones(2, L), torch.tensor(labels))]
    with pytest.raises(InputError, match=r"need labels \[B\] of 0 to 2"):
        heads.nearest_class_mean(batches, 3)


def test_a_head_has_the_tensor_that_marks_its_type():
    for name, kind in heads.HEADS.items():
        own = {*heads.build(name, weight=WEIGHT, bias=BIAS).state_dict()}
        assert [other.mark for other in heads.HEADS.values() if other.mark in own] == [kind.mark] * (kind.mark != "")


@pytest.mark.parametrize("kind", ["linear", "lws", "lws-per-class"])
def test_linear_heads_fold_into_one_layer(kind):
    head = shaken(heads.build(kind, weight=WEIGHT, bias=BIAS))
    folded = heads.as_linear(head)
    assert type(folded) is nn.Linear
    torch.testing.assert_close(folded(FEATURES), head(FEATURES))


@pytest.mark.parametrize(("kind", "scale"), [("disalign", None), *((kind, 16.0) for kind in heads.HEADS)])
def test_other_heads_do_not_fold(kind, scale):
    assert heads.as_linear(heads.build(kind, weight=WEIGHT, bias=BIAS, scale=scale)) is None


@pytest.mark.parametrize("scale", [None, 16.0], ids=["plain", "cosine"])
def test_a_random_start_is_a_function_of_the_seed_alone(scale):
    def draw(seed):
        return heads.build("linear", weight=WEIGHT, bias=BIAS, start="random", seed=seed, scale=scale).weight

    state = torch.get_rng_state()
    first = draw(0)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(3)
    assert torch.equal(draw(0), first)
    assert not torch.equal(draw(1), first)
    assert first.abs().max() <= L**-0.5
    assert first.std() > 0.2


def test_a_random_start_is_uniform_in_weight_and_bias():
    """U(-b, b) with b = 1 / sqrt(L) has the standard deviation b / sqrt(3); the default seed is 0."""
    weight, bias, bound = torch.ones(20_000, 4), torch.ones(20_000), 0.5
    head = heads.build("linear", weight=weight, bias=bias, start="random", seed=0)
    for drawn in (head.weight.detach(), head.bias.detach()):
        assert drawn.abs().max() <= bound
        assert drawn.mean().abs() < 4 * bound / 3**0.5 / len(bias) ** 0.5
        assert drawn.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert torch.corrcoef(torch.stack([head.weight[:, 0], head.bias]))[0, 1].abs() < 4 / len(bias) ** 0.5
    assert torch.equal(heads.build("linear", weight=weight, bias=bias, start="random").bias, head.bias)
    assert heads.build("linear", weight=weight, bias=None, start="random").bias is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "mlp"}, "^unknown head 'mlp'. Known: lws, "),
        ({"kind": "lws", "start": "random"}, "rescales the stage-1 classifier. Set `start` to 'stage 1'"),
        ({"kind": "linear", "start": "zero"}, "^unknown start 'zero'. Known: stage 1, random$"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        heads.build(**arguments, weight=WEIGHT, bias=BIAS)
