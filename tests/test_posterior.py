"""The posterior against float64 numpy over all captured states, and its draws against the Gaussian they come from."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from srepr.errors import InputError
from srepr.posterior import Posterior


def network():
    """Features 0..2 (with BatchNorm buffers), classifier 3."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def fill(model, generator, centre=0.0, spread=1.0):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))


def captured(states=5, centre=0.0, spread=1.0, model=None):
    """A posterior over random states of a network, and those states stacked in float64."""
    generator, model = torch.Generator().manual_seed(0), network() if model is None else model
    posterior, seen = Posterior(model), []
    for _ in range(states):
        fill(model, generator, centre, spread)
        posterior.update(model)
        seen.append({name: p.detach().double().numpy().copy() for name, p in model.named_parameters()})
    return (
        posterior,
        {name: np.stack([state[name] for state in seen]) for name, _ in model.named_parameters() if seen},
        model,
    )


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("centre", "spread"), [(0.0, 1.0), (1.0, 1e-4), (100.0, 1e-3)])
def test_thirty_states_have_numpys_moments(centre, spread):
    posterior, states, _ = captured(30, centre, spread)
    assert posterior.count == 30
    for name, values in states.items():
        np.testing.assert_allclose(posterior.mean()[name], values.mean(0), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(posterior.variance()[name], values.var(0), rtol=1e-3)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.randoms())
@settings(max_examples=60)
def test_moments_of_any_sequence_in_any_order(values, random):
    layer = nn.Linear(1, 1)
    moments = []
    for _ in range(2):
        posterior = Posterior(layer)
        for value in values:
            nn.init.constant_(layer.weight, value)
            posterior.update(layer)
        moments.append((posterior.mean()["weight"].item(), posterior.variance()["weight"].item()))
        random.shuffle(values)
    scale = max(1.0, np.abs(values).max())
    for mean, variance in moments:
        assert mean == pytest.approx(np.mean(values, dtype=np.float64), rel=1e-6, abs=1e-6 * scale)
        assert variance == pytest.approx(np.var(values, dtype=np.float64), rel=1e-5, abs=1e-12 * scale**2)
        assert variance >= 0


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-30, 12345.678])
def test_a_weight_that_never_moved_has_variance_zero_and_draws_to_its_mean(value):
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.weight, value)
    posterior = Posterior(layer)
    for step in range(17):
        nn.init.constant_(layer.bias, float(step))
        posterior.update(layer)
    draw = posterior.draw(seeded())
    assert torch.equal(posterior.mean()["weight"], layer.weight)
    assert torch.equal(posterior.variance()["weight"], torch.zeros(3, 4))
    assert torch.equal(draw["weight"], layer.weight)
    assert not torch.equal(draw["bias"], posterior.mean()["bias"])


def test_draws_have_the_mean_and_variance_of_the_posterior():
    layer = nn.Linear(2, 1)
    moments = {"weight": torch.tensor([[3.0, -1.0]]), "bias": torch.tensor([0.5])}
    spread = {"weight": torch.tensor([[4.0, 0.01]]), "bias": torch.tensor([1.0])}
    posterior, generator, n = Posterior.from_moments(layer, moments, spread, count=10), seeded(), 4000
    draws = [posterior.draw(generator) for _ in range(n)]
    for name in moments:
        sample = torch.stack([draw[name] for draw in draws])
        assert ((sample.mean(0) - moments[name]).abs() < 4 * (spread[name] / n).sqrt()).all()
        assert ((sample.var(0) / spread[name] - 1).abs() < 4 * (2 / n) ** 0.5).all()
    flat = torch.stack([torch.cat([draw[name].flatten() for name in moments]) for draw in draws])
    assert (torch.corrcoef(flat.T) - torch.eye(3)).abs().max() < 4 / n**0.5


def test_a_draw_is_a_function_of_the_generator_alone():
    posterior, _, _ = captured()
    first = posterior.draw(seeded(7))
    torch.rand(3)  # the global generator plays no part
    again, other = posterior.draw(seeded(7)), posterior.draw(seeded(8))
    generator = seeded(7)
    posterior.draw(generator)
    following = posterior.draw(generator)
    for name in ("0.weight", "0.bias", "1.weight"):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
        assert not torch.equal(first[name], following[name])


def test_a_draw_is_the_mean_plus_the_spread_times_the_generators_noise():
    layer = nn.Linear(3, 2, bias=False)
    mean, variance = torch.arange(6.0).view(2, 3), torch.tensor([[4.0, 1.0, 0.25], [9.0, 0.0, 1e-6]])
    posterior = Posterior.from_moments(layer, {"weight": mean}, {"weight": variance}, count=7)
    noise = torch.randn(2, 3, generator=seeded(3))
    torch.testing.assert_close(posterior.draw(seeded(3))["weight"], mean + variance.sqrt() * noise)


def test_a_generator_elsewhere_than_on_the_cpu_is_named():
    posterior, _, _ = captured(2)
    with pytest.raises(InputError, match="the generator is on cuda:1"):
        posterior.draw(SimpleNamespace(device=torch.device("cuda", 1)))


def test_a_model_without_weights_yet_is_refused_and_accepted_after_a_batch():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(InputError, match="lazy layers without weights"):
        Posterior(model)
    model(torch.zeros(1, 3))
    assert Posterior(model).classifier == "2"


def test_only_theta_is_sampled():
    posterior, _, _ = captured()
    assert posterior.classifier == "3"
    draw, mean = posterior.draw(seeded()), posterior.mean()
    assert list(draw) == list(mean) == list(posterior.variance())
    assert [name for name in draw if torch.equal(draw[name], mean[name])] == ["3.weight", "3.bias"]


def test_a_named_classifier_is_the_one_that_is_held():
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "left": nn.Linear(4, 3), "right": nn.Linear(4, 3)})
    posterior = Posterior(model, classifier="left")
    for seed in range(3):
        fill(model, seeded(seed))
        posterior.update(model)
    draw, mean = posterior.draw(seeded()), posterior.mean()
    assert [name for name in draw if torch.equal(draw[name], mean[name])] == ["left.weight", "left.bias"]
    with pytest.raises(InputError, match="no module 'middle'"):
        Posterior(model, classifier="middle")


@pytest.mark.parametrize(
    "model",
    [
        nn.ModuleDict({"left": nn.Linear(4, 3), "right": nn.Linear(4, 3)}),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)),
    ],
)
def test_a_model_whose_classifier_is_unclear_is_averaged_but_not_sampled(model):
    posterior = Posterior(model)
    posterior.update(model)
    assert posterior.classifier is None
    assert posterior.mean().keys() == dict(model.named_parameters()).keys()
    with pytest.raises(InputError, match="classifier="):
        posterior.draw(seeded())


class Tied(nn.Module):
    """A language model in small: the classifier's weight is the embedding's."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, 5)
        self.classifier.weight = self.embed.weight

    def forward(self, ids):
        return self.classifier(self.body(self.embed(ids)))


def test_tied_parameters_are_one_parameter_and_stay_tied():
    posterior, states, model = captured(4, model=Tied())
    assert [name for name in posterior.mean() if "embed" in name or name == "classifier.weight"] == ["embed.weight"]
    posterior.apply_mean(model)
    assert model.classifier.weight is model.embed.weight
    np.testing.assert_allclose(model.classifier.weight.detach(), states["embed.weight"].mean(0), rtol=1e-6, atol=1e-7)
    draw = posterior.draw(seeded())
    assert torch.equal(draw["embed.weight"], posterior.mean()["embed.weight"])  # it is the classifier's, too
    assert not torch.equal(draw["body.weight"], posterior.mean()["body.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_moments_keep_the_dtype_and_the_accuracy(dtype):
    posterior, states, _ = captured(30, 1.0, 0.05, model=network().to(dtype))
    mean, variance, draw = posterior.mean(), posterior.variance(), posterior.draw(seeded())
    for name, values in states.items():
        assert mean[name].dtype == draw[name].dtype == dtype
        assert variance[name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        np.testing.assert_allclose(mean[name].double(), values.mean(0), rtol=4 * torch.finfo(dtype).eps)
        np.testing.assert_allclose(variance[name], values.var(0), rtol=1e-6)


def test_wrappers_are_looked_through():
    posterior, _, model = captured(2)
    wrapped = nn.DataParallel(model)
    posterior.update(wrapped)
    assert list(Posterior(wrapped)._mean) == list(posterior.mean())
    posterior.apply_mean(wrapped)
    assert torch.equal(model[0].weight, posterior.mean()["0.weight"])


def test_apply_mean_changes_parameters_in_place_and_nothing_else():
    posterior, _, model = captured()
    model[1].running_mean.fill_(3.0)
    parameters = dict(model.named_parameters())
    posterior.apply_mean(model)
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert parameter.requires_grad
        assert torch.equal(parameter, posterior.mean()[name])
    assert model[1].running_mean.eq(3.0).all()


def test_the_skeleton_is_a_copy_with_the_newest_buffers():
    model = network()
    model(torch.randn(5, 3))
    posterior = Posterior(model)
    assert posterior.model is not model
    model(torch.randn(5, 3))
    assert posterior.model[1].num_batches_tracked == 1
    posterior.update(model)
    assert posterior.model[1].num_batches_tracked == 2
    assert torch.equal(posterior.model[1].running_mean, model[1].running_mean)
    model[1].running_mean.zero_()
    assert not torch.equal(posterior.model[1].running_mean, model[1].running_mean)


def test_what_mean_and_draw_return_is_the_callers_own():
    posterior, _, _ = captured(3, model=network().double())
    before = copy.deepcopy(posterior.mean())
    for values in (posterior.mean(), posterior.variance(), posterior.draw(seeded()), posterior.state_dict()):
        for tensor in values.values():
            tensor.fill_(9)
    assert all(torch.equal(tensor, before[name]) for name, tensor in posterior.mean().items())


class WithIntegers(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.codes = nn.Parameter(torch.tensor([1, 2, 3]), requires_grad=False)


def test_integer_parameters_pass_through():
    model = WithIntegers()
    posterior = Posterior(model)
    model.codes.data.add_(10)
    posterior.update(model)
    for moments in (posterior.mean(), posterior.draw(seeded())):
        assert torch.equal(moments["codes"], torch.tensor([11, 12, 13]))
    assert torch.equal(posterior.variance()["codes"], torch.zeros(3))
    rebuilt = Posterior.from_moments(WithIntegers(), posterior.mean(), posterior.variance(), 1)
    assert torch.equal(rebuilt.mean()["codes"], torch.tensor([11, 12, 13]))


@pytest.mark.parametrize("states", [0, 1, 7])
def test_state_goes_through_safetensors_to_the_same_bits(states):
    posterior, _, model = captured(states)
    restored = Posterior(network())
    restored.load_state_dict(load(save(posterior.state_dict())))
    for seed in range(2):
        fill(model, seeded(seed), 1.0, 1e-4)
        model(torch.randn(4, 3, generator=seeded(seed)))
        posterior.update(model)
        restored.update(model)
    assert restored.count == states + 2
    assert restored.state_dict().keys() == posterior.state_dict().keys()
    for name, tensor in posterior.state_dict().items():
        assert torch.equal(tensor, restored.state_dict()[name]), name
    for name, tensor in posterior.draw(seeded()).items():
        assert torch.equal(tensor, restored.draw(seeded())[name])


def test_moments_of_a_channels_last_network_can_be_saved():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 2)).to(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()
    posterior, _, _ = captured(2, model=model)
    for tensors in (posterior.mean(), posterior.variance(), posterior.state_dict()):
        assert torch.equal(load(save(tensors))[next(iter(tensors))], next(iter(tensors.values())))


def test_the_state_brings_the_buffers_back():
    posterior, _, model = captured(1)
    model(torch.randn(4, 3))
    posterior.update(model)
    restored = Posterior(network())
    restored.load_state_dict(posterior.state_dict())
    assert torch.equal(restored.model[1].running_var, model[1].running_var)


@given(count=st.integers(1, 1000), variance=st.floats(0, 1e6, width=32), mean=st.floats(-1e6, 1e6, width=32))
@settings(max_examples=60)
def test_from_moments_gives_the_same_moments_back(count, variance, mean):
    layer = nn.Linear(1, 1, bias=False)
    means, variances = {"weight": torch.tensor([[mean]])}, {"weight": torch.tensor([[variance]])}
    posterior = Posterior.from_moments(layer, means, variances, count)
    assert posterior.count == count
    assert torch.equal(posterior.mean()["weight"], means["weight"])
    assert torch.equal(posterior.variance()["weight"], variances["weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count"),
        ({"variance": {"weight": torch.tensor([[-1.0]])}}, "variances >= 0"),
        ({"variance": {"weight": torch.tensor([[float("nan")]])}}, "finite"),
        ({"mean": {"weight": torch.tensor([[float("inf")]])}}, "finite"),
        ({"mean": {}}, "'weight' is absent"),
        ({"variance": {"weight": torch.zeros(2, 1)}}, r"'weight' is \[2, 1\], not \[1, 1\]"),
    ],
)
def test_bad_moments_are_named(change, message):
    good = {"mean": {"weight": torch.zeros(1, 1)}, "variance": {"weight": torch.zeros(1, 1)}, "count": 3}
    with pytest.raises(InputError, match=message):
        Posterior.from_moments(nn.Linear(1, 1, bias=False), **{**good, **change})


def test_another_network_is_named_and_leaves_no_trace():
    posterior, _, model = captured(2)
    before = posterior.state_dict()
    wider, longer = network(), nn.Sequential(*network(), nn.Linear(2, 2))
    wider[3] = nn.Linear(4, 9)
    not_finite = copy.deepcopy(model)
    not_finite[3].bias.data[1] = float("nan")
    with pytest.raises(InputError, match=r"'3.weight' is \[9, 4\], not \[2, 4\]"):
        posterior.update(wider)
    with pytest.raises(InputError, match=r"'4.weight' is \[2, 2\], not absent"):
        posterior.update(longer)
    with pytest.raises(InputError, match=r"'3.bias' is not finite"):
        posterior.update(not_finite)
    with pytest.raises(InputError, match="does not fit"):
        posterior.apply_mean(wider)
    with pytest.raises(InputError, match="does not fit"):
        posterior.load_state_dict(Posterior(wider).state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in posterior.state_dict().items())


def test_nothing_can_be_asked_before_the_first_update():
    posterior = Posterior(network())
    for question in (
        posterior.mean,
        posterior.variance,
        lambda: posterior.draw(seeded()),
        lambda: posterior.apply_mean(network()),
    ):
        with pytest.raises(InputError, match="the posterior is empty"):
            question()
