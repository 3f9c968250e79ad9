"""Stage 1 against independent sources: the schedule in closed form, SWAG's moments in numpy's float64, BatchNorm over
everything at once, the baseline as a plain training loop."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from srepr import representation
from srepr.config import Machine, Optim, Train, settings_for
from srepr.data import batches, epoch_batches, load, uniforms
from srepr.data.augment import mixup, mixup_weights
from srepr.data.randomness import Stream
from srepr.errors import InputError
from srepr.posterior import Posterior
from srepr.representation import Batch, Epoch, Learner, descend, is_finite, learning_rate, optimizer_for, plan
from srepr.run.checkpoints import build_network, load_model, load_posterior
from srepr.run.devices import open_fabric
from srepr.run.log import read_log
from srepr.run.train import train, train_representation
from srepr.storage.tensors import load_tensors

QUICK = replace(settings_for("digits-lt"), epochs=6, baseline=True)  # ten steps an epoch, two captures


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A finished quick run, and the weights that went into its posterior."""
    run, captured, update = tmp_path_factory.mktemp("quick") / "run", [], Posterior.update

    def spy(self, model):
        captured.append({name: p.detach().double().numpy().copy() for name, p in model.named_parameters()})
        update(self, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Posterior, "update", spy)
        train(QUICK, run)
    return run, captured


# The schedule


@given(
    lr=st.floats(1e-3, 10), warm=st.floats(0, 5), epochs=st.integers(1, 400), at=st.floats(0, 1), branch=st.booleans()
)
def test_the_rate_is_a_warmed_up_cosine(lr, warm, epochs, at, branch):
    """(1 + cos) / 2 is also cos^2 of half the angle."""
    progress, optim = at * epochs, Optim(lr=lr, warmup_epochs=warm)
    warmth = 1.0 if progress >= warm else progress / warm
    expected = lr * warmth * math.cos(0.5 * math.pi * at) ** 2
    found = learning_rate(optim, "sgd" if branch else "trunk", progress, epochs)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * lr)


def test_the_rate_is_constant_while_capturing_and_zero_at_the_end():
    optim = Optim(lr=0.5, swa_lr=0.1)
    assert {learning_rate(optim, "swa", t, 200) for t in (150.0, 175.5, 200.0)} == {0.1}
    assert learning_rate(optim, "sgd", 200.0, 200) == 0.0


@given(epochs=st.integers(1, 300), start=st.floats(0, 1, exclude_max=True), baseline=st.booleans())
def test_the_plan_runs_every_epoch_of_each_branch_once(epochs, start, baseline):
    settings = Train(source="digits-lt", epochs=epochs, optim=Optim(swa_start=start), baseline=baseline)
    steps = plan(epochs, settings.swa_start, baseline=baseline)
    by_branch = {name: [e.number for e in steps if e.branch == name] for name in ("trunk", "swa", "sgd")}
    assert by_branch["trunk"] + by_branch["swa"] == list(range(epochs))
    assert len(by_branch["swa"]) == settings.epochs - settings.swa_start
    assert by_branch["sgd"] == (by_branch["swa"] if baseline else [])
    order = [e.branch for e in steps]
    assert order == sorted(order, key=["trunk", "swa", "sgd"].index)


def test_the_log_has_a_line_for_each_epoch_with_the_rate_of_its_last_step(quick):
    run, _ = quick
    log = read_log(run)
    planned = plan(QUICK.epochs, QUICK.swa_start, baseline=True)
    assert [(line["branch"], line["epoch"]) for line in log] == [(e.branch, e.number) for e in planned]
    for line in log:
        expected = 0.02 if line["branch"] == "swa" else 0.1 * math.cos(0.5 * math.pi * (line["epoch"] + 1) / 6) ** 2
        assert line["lr"] == pytest.approx(expected, abs=1e-12)
        assert 0 < line["loss"] < 3
        assert line["images_per_second"] > 0
        assert line["peak_memory_mib"] > 10


# What comes out


def test_the_posterior_is_the_float64_statistics_of_the_weights_at_the_ends_of_the_epochs(quick):
    run, captured = quick
    network, _ = load_model(run / "representation.safetensors")
    posterior = load_posterior(run / "posterior.safetensors", network)
    assert posterior.count == len(captured) == QUICK.epochs - QUICK.swa_start == 2
    assert not np.array_equal(captured[0]["conv1.weight"], captured[1]["conv1.weight"])
    mean, variance = posterior.mean(), posterior.variance()
    for name, parameter in network.named_parameters():
        weights = np.stack([capture[name] for capture in captured])
        np.testing.assert_array_equal(mean[name].numpy(), weights.mean(0).astype(np.float32))
        np.testing.assert_allclose(variance[name].numpy(), weights.var(0), rtol=1e-6)
        np.testing.assert_array_equal(parameter.detach().numpy(), mean[name].numpy())


def test_batchnorm_of_the_average_has_the_statistics_of_the_whole_training_set(quick):
    """Every value that a layer sees, batches of the training size normalised by their own statistics, in float64."""
    run, _ = quick
    network, _ = load_model(run / "representation.safetensors")
    layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    stored = {name: (layer.running_mean.clone(), layer.running_var.clone()) for name, layer in layers.items()}
    seen = {name: [] for name in layers}
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda module, args, name=name: seen[name].append(args[0].double()))
    data = load("digits-lt").train
    order = epoch_batches(
        data.labels, batch_size=QUICK.batch_size, seed=QUICK.seed, epoch=QUICK.epochs, drop_last=False
    )
    assert sum(map(len, order)) == 331
    network.train()
    with torch.no_grad():
        for inputs, _, _ in batches(data, order, view=(QUICK.seed, QUICK.epochs)):
            network(inputs)
    assert len(layers) == 7
    for name, (mean, variance) in stored.items():
        values = torch.cat([part.transpose(0, 1).flatten(1) for part in seen[name]], dim=1)
        torch.testing.assert_close(mean.double(), values.mean(1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(variance.double(), values.var(1, correction=1), rtol=1e-4, atol=1e-6)


def test_the_baseline_is_a_plain_training_on_one_cosine(quick):
    """A loop as people write it, through all epochs without a fork, reaches the same weights."""
    run, _ = quick
    found, about = load_model(run / "sgd.safetensors")
    torch.manual_seed(QUICK.seed)
    network = build_network(about).to(memory_format=torch.channels_last).train()
    sgd = torch.optim.SGD(network.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4, nesterov=True)
    data = load("digits-lt").train
    for epoch in range(QUICK.epochs):
        order = epoch_batches(data.labels, batch_size=32, seed=0, epoch=epoch)
        for step, (inputs, labels, _) in enumerate(batches(data, order, view=(0, epoch)), start=1):
            done = epoch + step / len(order)
            sgd.param_groups[0]["lr"] = 0.1 * min(1.0, done) * 0.5 * (1 + math.cos(math.pi * done / QUICK.epochs))
            sgd.zero_grad()
            F.cross_entropy(network(inputs), labels).backward()
            sgd.step()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=0, atol=0, msg=name)


def test_the_baseline_does_not_change_the_average(quick, tmp_path):
    train(replace(QUICK, baseline=False), tmp_path / "run")
    for name in ("representation.safetensors", "posterior.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (quick[0] / name).read_bytes()
    assert not (tmp_path / "run" / "sgd.safetensors").exists()


def test_another_seed_gives_another_network(quick, tmp_path):
    train(replace(QUICK, baseline=False, seed=1), tmp_path / "run")
    name = "representation.safetensors"
    assert (tmp_path / "run" / name).read_bytes() != (quick[0] / name).read_bytes()


@pytest.mark.parametrize(
    "optim", [Optim(), Optim(body=0.1), Optim(name="adamw", lr=1e-2, body=0.1)], ids=["sgd", "slow body", "adamw"]
)
def test_a_learner_goes_on_from_its_state_to_the_same_bits(optim):
    def learner():
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
        return Learner(network, optimizer_for(network, optim, "3"), Posterior(network, classifier="3"))

    def step(one, seed):
        generator = torch.Generator().manual_seed(seed)
        loss = one.network(torch.randn(5, 1, 8, 8, generator=generator)).logsumexp(1).sum()
        one.optimizer.zero_grad()
        loss.backward()
        one.optimizer.step()
        one.posterior.update(one.network)

    first, second = learner(), learner()
    step(first, 0)
    second.load({name: tensor.clone() for name, tensor in first.state().items()})
    step(first, 1)
    step(second, 1)
    assert first.state().keys() == second.state().keys()
    remembered = "exp_avg_sq." if optim.name == "adamw" else "momentum."
    assert any(name.startswith(remembered) for name in first.state())
    for name, tensor in first.state().items():
        assert torch.equal(second.state()[name], tensor), name


# A training that explodes


def finite_states(run):
    states = list((run / "state").glob("*.safetensors"))
    assert all(tensor.isfinite().all() for file in states for tensor in load_tensors(file)[0].values())
    return sorted(file.name for file in states)


@pytest.mark.parametrize("lr", [1e9, 100.0])
def test_a_loss_that_explodes_ends_the_run_with_the_last_good_state_kept(tmp_path, monkeypatch, lr):
    """Two epochs go well before it happens."""
    monkeypatch.setattr(
        representation, "learning_rate", lambda optim, branch, progress, epochs: lr if progress > 2 else 0.01
    )
    with pytest.raises(InputError, match=r"the loss became \S+ in epoch 2, .*last good state is in .*state"):
        train(replace(QUICK, batch_size=8), tmp_path / "run", machine=Machine(checkpoint_minutes=0))
    assert finite_states(tmp_path / "run") == ["000001-0000025.safetensors", "000002-0000000.safetensors"]
    assert len(read_log(tmp_path / "run")) == 2
    assert not (tmp_path / "run" / "representation.safetensors").exists()


def test_weights_that_overflow_in_the_step_after_a_good_loss_are_never_kept(tmp_path, monkeypatch):
    """The loss of step 25 is fine; its update is not, and a state is due right then."""
    monkeypatch.setattr(
        representation,
        "learning_rate",
        lambda optim, branch, progress, epochs: math.inf if progress == 25 / 41 else 0.01,
    )
    with pytest.raises(InputError, match="the loss became nan in epoch 0, step 25"):
        train(replace(QUICK, batch_size=8), tmp_path / "run", machine=Machine(checkpoint_minutes=0))
    assert finite_states(tmp_path / "run") == []


def test_statistics_count_as_well_as_weights():
    layer = nn.BatchNorm1d(2)
    assert is_finite(layer)
    layer.running_var[1] = torch.inf
    assert not is_finite(layer)


# Mixup


def test_mixup_is_the_same_for_one_and_two_processes():
    data = load("digits-lt").train
    whole = epoch_batches(data.labels, batch_size=32, seed=0, epoch=3)[1]
    shares = [epoch_batches(data.labels, batch_size=32, seed=0, epoch=3, rank=r, world_size=2)[1] for r in (0, 1)]

    def mixed(indices):
        one_hot = F.one_hot(torch.from_numpy(data.labels[indices]), 10).float()
        draws = uniforms(0, 3, indices, 1, stream=Stream.MIXUP)[:, 0]
        return mixup(data.load(indices, view=(0, 3)), one_hot, mixup_weights(0.2, draws))

    parts = [mixed(share) for share in shares]
    for alone, together in zip(mixed(whole), zip(*parts, strict=True), strict=True):
        assert torch.equal(alone, torch.cat(together))


def test_mixup_trains_on_mixed_labels(tmp_path, quick):
    settings = replace(QUICK, baseline=False, mixup=0.2)
    fabric = open_fabric(Machine())
    torch.manual_seed(0)
    network = build_network(load_model(quick[0] / "sgd.safetensors")[1])
    targets, cross_entropy = [], F.cross_entropy

    def spy(logits, target, **options):
        targets.append(target)
        return cross_entropy(logits, target, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "cross_entropy", spy)
        list(train_representation(network, load("digits-lt").train, settings, Machine(), fabric, tmp_path))
    every = torch.cat(targets)
    torch.testing.assert_close(every.sum(1), torch.ones(len(every)))
    assert 0.1 < (every.amax(1) < 0.999).float().mean() < 0.9


def test_the_body_learns_at_its_share_of_the_rate():
    """One step of plain SGD: with a body at a tenth, its weights move a tenth as far, the classifier's as far."""
    moves = {}
    for body in (1.0, 0.1):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        learner = Learner(network, optimizer_for(network, Optim(body=body), "1"), Posterior(network))
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
        batch = Batch(inputs, torch.arange(8) % 3, torch.arange(8) % 3)
        epochs = [Epoch("swa", 0)]
        list(descend(learner, epochs, lambda *_, batch=batch: [batch], optim=Optim(), loss=F.cross_entropy, steps=1))
        moves[body] = {name: tensor - before[name] for name, tensor in network.state_dict().items()}
    for name in moves[1.0]:
        share = 0.1 if name.startswith("0.") else 1.0
        torch.testing.assert_close(moves[0.1][name], share * moves[1.0][name], rtol=1e-3, atol=1e-7)


def test_a_long_gradient_is_clipped():
    """One step moves the weights by no more than rate (1 + momentum) clip, whatever the loss."""
    network = nn.Linear(4, 3)
    optim = Optim(lr=0.1, swa_lr=0.1, weight_decay=0.0, clip=0.5)
    learner = Learner(network, optimizer_for(network, optim), Posterior(network))
    before = network.weight.clone()
    batch = Batch(1e6 * torch.randn(8, 4), torch.arange(8) % 3, torch.arange(8) % 3)
    list(descend(learner, [Epoch("swa", 0)], lambda *_: [batch], optim=optim, loss=F.cross_entropy, steps=1))
    assert 0 < (network.weight - before).norm() <= 0.1 * 1.9 * 0.5 * 1.001
