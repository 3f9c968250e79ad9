"""Every row of the table of checkpoints: written in its project's naming and container, imported, the same logits."""

import argparse
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.importing.networks import (
    SCALE,
    Backbone,
    Bcl,
    CifarBody,
    Fc,
    ImageNetBody,
    Ldam,
    LearnedNorm,
    RideCifar,
    RideImageNet,
    Torchvision,
    lived_in,
)
from torch import nn

from srepr.errors import InputError
from srepr.importing.checkpoint import fitted, read_checkpoint
from srepr.models import find_classifier
from srepr.run.checkpoints import build_network

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def optimizer_of(network):
    """The state of an optimiser that has made a step: tensors that are no weights."""
    sgd = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    sgd.step()
    network.load_state_dict(before)
    return sgd.state_dict()


@pytest.fixture
def project_config(monkeypatch):
    """An object of a class of the project, whose module is gone when the file is read."""
    module = types.ModuleType("parse_config")
    exec("class ConfigParser:\n    pass", vars(module))
    module.ConfigParser.__module__ = "parse_config"
    monkeypatch.setitem(sys.modules, "parse_config", module)
    config = module.ConfigParser()
    config.save_dir, config.args = Path("saved"), argparse.Namespace(lr=0.1, epochs=200)
    return config


def with_prefix(prefix, network):
    return {f"{prefix}{name}": tensor for name, tensor in network.state_dict().items()}


def check(path, network, *, layout, scale=1.0, experts=1):
    """Same logits, every tensor used, and the network tells its classifier."""
    found = read_checkpoint(path)
    assert found.layout == layout
    assert found.options["experts"] == experts
    with torch.no_grad():
        expected = scale * network(IMAGES)
        torch.testing.assert_close(found.network(IMAGES), expected, rtol=0, atol=1e-5 * max(1, expected.abs().max()))
    assert expected.std() > 0.1
    assert find_classifier(found.network) == "fc"
    assert not found.network.training
    return found


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("legacy", [False, True])
def test_ldam_drw_and_cmo(tmp_path, normed, legacy):
    network = lived_in(Ldam(7, normed))
    state = {"epoch": 200, "arch": "resnet32", "best_acc1": torch.tensor(42.0), "optimizer": optimizer_of(network)}
    state["state_dict"] = with_prefix("module.", network)
    torch.save(state, tmp_path / "ckpt.pth.tar", _use_new_zipfile_serialization=not legacy)
    found = check(tmp_path / "ckpt.pth.tar", network, layout="ldam", scale=SCALE if normed else 1.0)
    assert found.options.get("scale") == (SCALE if normed else None)
    assert found.options["shortcut"] == "A"


@pytest.mark.parametrize(
    ("experts", "normed", "widths", "early_exit", "legacy"),
    [
        (3, True, (24, 48), False, True),
        (4, True, (24, 48), True, False),
        (2, False, (24, 48), False, False),
        (2, True, (32, 64), False, False),
    ],
)
def test_ride_and_sade_on_cifar(tmp_path, project_config, monkeypatch, experts, normed, widths, early_exit, legacy):
    network = lived_in(Backbone(RideCifar(11, experts, normed, widths, early_exit)))
    state = {"arch": "ResNet32Model", "epoch": 200, "state_dict": network.state_dict(), "monitor_best": 0.48}
    state |= {"optimizer": optimizer_of(network), "config": project_config, "criterion": nn.CrossEntropyLoss()}
    torch.save(state, tmp_path / "model.pth", _use_new_zipfile_serialization=not legacy)
    monkeypatch.delitem(sys.modules, "parse_config")
    found = check(tmp_path / "model.pth", network, layout="ride", experts=experts)
    assert found.network.fc.weight.shape == (11, experts * widths[1])
    assert {"parse_config.ConfigParser", "argparse.Namespace"} <= set(found.foreign)
    assert "parse_config" not in sys.modules


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("options", [{}, {"groups": 4, "per_group": 32}], ids=["resnet", "resnext"])
def test_ride_and_sade_on_imagenet(tmp_path, share, options):
    network = lived_in(Backbone(RideImageNet(9, 3, share, **options)))
    torch.save({"state_dict": with_prefix("module.", network), "epoch": 100}, tmp_path / "model.pth")
    found = check(tmp_path / "model.pth", network, layout="ride", experts=3)
    assert found.options["private"] == (1 if share else 2)
    assert found.options["widths"] == (32, 64, 96, 192)


def test_one_expert_of_ride_is_a_plain_network_below_backbone(tmp_path):
    network = lived_in(Backbone(Ldam(7, normed=True)))
    torch.save({"state_dict": network.state_dict()}, tmp_path / "model.pth")
    check(tmp_path / "model.pth", network, layout="ride", scale=SCALE)


@pytest.mark.parametrize("body", ["resnet", "resnext", "cifar"])
def test_bcl(tmp_path, body):
    bodies = {"resnet": ImageNetBody(), "resnext": ImageNetBody(groups=4, per_group=32), "cifar": CifarBody()}
    network = lived_in(Bcl(bodies[body], 64 if body == "cifar" else 256, 12))
    state = {"epoch": 90, "arch": "resnet50", "best_acc1": 0.5, "optimizer": optimizer_of(network)}
    torch.save({**state, "state_dict": with_prefix("module.", network)}, tmp_path / "bcl_ckpt.best.pth.tar")
    assert check(tmp_path / "bcl_ckpt.best.pth.tar", network, layout="bcl").options["scale"] == SCALE


@pytest.mark.parametrize("second_stage", [False, True])
@pytest.mark.parametrize("body", ["cifar", "imagenet"])
def test_mislas(tmp_path, body, second_stage):
    features = CifarBody() if body == "cifar" else ImageNetBody()
    classifier, norm = Fc(64 if body == "cifar" else 256, 12), LearnedNorm(12)
    parts = [features, classifier, norm] if second_stage else [features, classifier]
    network = lived_in(nn.Sequential(*parts))
    names = ("state_dict_model", "state_dict_classifier", "state_dict_lws_model")
    state = {name: with_prefix("module.", part) for name, part in zip(names, parts, strict=False)}
    torch.save({"epoch": 10, **state, "best_acc1": torch.tensor(47.0), "its_ece": 4.8}, tmp_path / "model.pth.tar")
    check(tmp_path / "model.pth.tar", network, layout="mislas")


@pytest.mark.parametrize("scales", [False, True])
def test_classifier_balancing_and_oltr(tmp_path, scales):
    features, classifier = ImageNetBody(groups=4, per_group=32), Fc(256, 12, scales)
    network = lived_in(nn.Sequential(features, classifier))
    parts = {"feat_model": with_prefix("module.", features), "classifier": with_prefix("module.", classifier)}
    torch.save({"epoch": 90, "best_epoch": 80, "state_dict_best": parts, "best_acc": 0.5}, tmp_path / "final.pth")
    check(tmp_path / "final.pth", network, layout="classifier-balancing")


@pytest.mark.parametrize("expansion", [1, 4])
@pytest.mark.parametrize("container", ["plain", "model", "safetensors", "ema"])
def test_torchvision_and_timm(tmp_path, container, expansion):
    network = lived_in(Torchvision(12, name="head" if container == "ema" else "fc", expansion=expansion))
    path, state = tmp_path / "model.pth", network.state_dict()
    if container == "safetensors":
        save_file(state, path := tmp_path / "model.safetensors")
    else:
        compiled = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}
        torch.save({"plain": state, "model": {"model": state}, "ema": {"state_dict": compiled}}[container], path)
    found = check(path, network, layout="plain")
    assert found.options["depths"] == (1, 2, 1, 1)


@pytest.mark.parametrize("layer_type", ["basic", "bottleneck"])
def test_hugging_face(tmp_path, layer_type):
    """The network is transformers' own."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[1, 2, 1, 1], layer_type=layer_type, num_labels=7
    )
    model = lived_in(transformers.ResNetForImageClassification(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    check(tmp_path / "model.safetensors", lambda images: model(images).logits, layout="huggingface")


def test_half_precision_and_counters_from_before_their_time(tmp_path):
    network = lived_in(Ldam(7, normed=False))
    network.load_state_dict({name: tensor.half().float() for name, tensor in network.state_dict().items()})
    state = {name: t.half() for name, t in network.state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "old.pth")
    found = check(tmp_path / "old.pth", network, layout="ldam")
    assert {p.dtype for p in found.network.parameters()} == {torch.float32}


def test_a_weight_that_is_a_strided_view_of_a_shared_storage(tmp_path):
    network = lived_in(Ldam(7, normed=False))
    state = network.state_dict()
    shared = torch.randn(64, 9)
    state["linear.weight"], state["linear.bias"] = shared.T[1:8], shared[0, :7]
    network.load_state_dict(state)
    torch.save(state, tmp_path / "views.pth")
    check(tmp_path / "views.pth", network, layout="ldam")


def refused(tmp_path, state, **options):
    torch.save(state, tmp_path / "model.pth")
    with pytest.raises(InputError) as refusal:
        read_checkpoint(tmp_path / "model.pth", **options)
    assert "\n" not in str(refusal.value)
    return str(refusal.value).removeprefix(f"{tmp_path / 'model.pth'}: ")


def test_what_does_not_fit_is_named(tmp_path):
    state = Ldam(7, normed=False).state_dict()
    more = {**state, "extra.weight": torch.zeros(2)}
    assert refused(tmp_path, more).startswith("1 of its tensors are unexpected: extra.weight.")
    less = {name: tensor for name, tensor in state.items() if name != "layer2.0.bn1.weight"}
    assert refused(tmp_path, less).startswith("1 tensors are missing: layer2.0.bn1.weight.")
    wrong = {**state, "layer2.0.bn1.weight": torch.zeros(5)}
    assert refused(tmp_path, wrong).startswith("1 tensors have the wrong shape: layer2.0.bn1.weight.")
    head = {**state, "linear.weight": torch.zeros(7, 63)}
    assert refused(tmp_path, head).startswith("its classifier is [7, 63], its features are 64.")
    expert = RideCifar(7, 2, normed=True).state_dict()
    expert = {f"backbone.{name}": tensor for name, tensor in expert.items() if name != "linears.1.weight"}
    assert refused(tmp_path, expert).startswith("it has 2 experts and 1 classifiers.")


@pytest.mark.parametrize("state", [{"epoch": 3}, [torch.zeros(2)], {"fc.weight": torch.zeros(2, 2)}, nn.Linear(2, 2)])
def test_an_unknown_layout_lists_the_known(tmp_path, state):
    known = "mislas, classifier-balancing, ride, bcl, huggingface, ldam, plain"
    assert refused(tmp_path, state).startswith(f"its layout is unknown. Known: {known}")


def test_a_layout_can_be_named(tmp_path):
    state = Ldam(7, normed=False).state_dict()
    assert refused(tmp_path, state, layout="ldma").startswith(
        "unknown layout 'ldma'; did you mean ldam? Known: auto, mislas"
    )
    assert refused(tmp_path, state, layout="bcl") == "its layout is not bcl. Leave `layout` out."
    assert read_checkpoint(tmp_path / "model.pth", layout="ldam").classes == 7


@pytest.mark.parametrize(
    "change",
    [
        {"layer2.1000000000.conv1.weight": torch.zeros(1)},
        {"layer1.0.conv2.weight": torch.zeros(10**9, 0, 3, 3)},
        {"conv1.weight": torch.zeros(0)},
        {"conv1.weight": torch.zeros(16, 10**9, 0, 3)},
        {"layer1.0.conv3.weight": torch.zeros(0, 0, 1, 1)},
        {"linear.weight": torch.zeros(10**9, 0)},
        {"layer99999999999.0.conv2.weight": torch.zeros(2)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_shapes_that_lie_cost_nothing(tmp_path, change):
    """Nothing is allocated or built for a name or a size that the file does not back with bytes."""
    assert refused(tmp_path, {**Ldam(7, normed=False).state_dict(), **change})


def test_the_data_must_have_the_classes_and_the_channels(tmp_path):
    from srepr.data import load

    digits = load("digits-lt")
    torch.save(Ldam(10, normed=False).state_dict(), tmp_path / "colour.pth")
    with pytest.raises(InputError, match=r"colour\.pth has 3 channels, digits-lt has 1\. Pass the data"):
        fitted(tmp_path / "colour.pth", read_checkpoint(tmp_path / "colour.pth"), digits)
    torch.save(Ldam(10, normed=True, channels=1).state_dict(), tmp_path / "grey.pth")
    found = read_checkpoint(tmp_path / "grey.pth", scale=16.0)
    network, about = fitted(tmp_path / "grey.pth", found, digits)
    assert about.counts == tuple(digits.counts)
    rebuilt = build_network(about)
    rebuilt.load_state_dict(network.state_dict())
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(rebuilt.eval()(images), network(images))
    assert rebuilt.fc.scale == 16
