"""A saved network says itself what it is, and comes back as it was."""

import json
from dataclasses import replace

import pytest
import torch

from srepr.data.about import About
from srepr.errors import InputError
from srepr.posterior import Posterior
from srepr.run.checkpoints import build_network, load_model, load_posterior, save_model, save_posterior
from srepr.storage.tensors import save_tensors

ABOUT = About(
    network="resnet8",
    options={"channels": 1, "shortcut": "B"},
    class_names=("crow", "wren", "owl"),
    counts=(90, 12, 1),
    shape=(1, 8, 8),
    mean=(0.3,),
    std=(0.4,),
)


def test_a_network_comes_back_with_its_description(tmp_path):
    network = build_network(ABOUT)
    save_model(tmp_path / "m.safetensors", network, ABOUT)
    loaded, about = load_model(tmp_path / "m.safetensors")
    assert about == ABOUT
    assert not loaded.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_foreign_file_is_refused(tmp_path):
    save_tensors(tmp_path / "m.safetensors", {"w": torch.ones(2)})
    with pytest.raises(InputError, match=r"m\.safetensors does not say which network it holds"):
        load_model(tmp_path / "m.safetensors")


def test_weights_of_another_network_are_refused(tmp_path):
    save_model(tmp_path / "m.safetensors", build_network(ABOUT), replace(ABOUT, class_names=("crow", "wren")))
    with pytest.raises(InputError, match=r"does not hold the resnet8 that it describes: .*fc\.bias"):
        load_model(tmp_path / "m.safetensors")


def test_an_unknown_network_is_named(tmp_path):
    save_model(tmp_path / "m.safetensors", build_network(ABOUT), replace(ABOUT, network="resnet9"))
    with pytest.raises(InputError, match="unknown network 'resnet9'"):
        load_model(tmp_path / "m.safetensors")


def test_a_posterior_draws_the_same_after_a_round_trip(tmp_path):
    network = build_network(ABOUT)
    posterior = Posterior(network, classifier="fc")
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        posterior.update(network)
    save_posterior(tmp_path / "p.safetensors", posterior)
    loaded = load_posterior(tmp_path / "p.safetensors", network)
    assert (loaded.count, loaded.classifier) == (3, "fc")
    before, after = (q.draw(torch.Generator().manual_seed(7)) for q in (posterior, loaded))
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-5, atol=1e-7)


def test_the_weights_are_plain_safetensors_with_the_names_of_the_network(trained):
    """What any other program finds: mean.NAME and variance.NAME beside each other, NAME alone in the models."""
    from safetensors import safe_open

    with safe_open(trained / "representation.safetensors", "pt") as model:
        names = set(model.keys())
        about = json.loads(json.loads(model.metadata()["srepr"])["about"])
    with safe_open(trained / "posterior.safetensors", "pt") as posterior:
        moments = set(posterior.keys())
    parameters = {name for name, _ in build_network(About(**about)).named_parameters()}
    assert moments == {f"{moment}.{name}" for moment in ("mean", "variance") for name in parameters}
    assert parameters < names
