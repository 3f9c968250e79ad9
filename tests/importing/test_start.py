"""`srepr train --from`: a posterior around a network that is trained already."""

import shutil

import numpy as np
import pytest
import torch

from srepr.cli import main
from srepr.models import resnet8
from srepr.run.log import read_log
from srepr.storage.files import read_json
from srepr.storage.tensors import load_tensors


@pytest.fixture(scope="module")
def collected(trained, tmp_path_factory):
    """Three epochs from the SWA network of the finished training; no test changes it."""
    run = tmp_path_factory.mktemp("collected") / "run"
    assert main(["train", "digits-lt", "--from", str(trained), "--epochs", "3", "--out", str(run)]) == 0
    return run


def test_every_epoch_is_captured_at_the_constant_rate(collected):
    log = read_log(collected)
    assert [(line["branch"], line["lr"]) for line in log] == [("swa", 0.02)] * 3
    assert int(load_tensors(collected / "posterior.safetensors")[1]["count"]) == 3


def test_the_network_as_given_is_the_baseline(collected, trained):
    given, _ = load_tensors(trained / "representation.safetensors")
    baseline, _ = load_tensors(collected / "sgd.safetensors")
    assert all(given[name].equal(tensor) for name, tensor in baseline.items())
    before, results = (read_json(run / "results.json") for run in (trained, collected))
    assert results["sgd"] == before["swa"]
    assert results["swa"] != before["swa"]


def test_stage_2_draws_from_what_was_collected(srepr, collected, tmp_path):
    run = shutil.copytree(collected, tmp_path / "run")
    assert srepr("retrain", run, "--method", "srepr", "--samples", 3).code == 0
    assert srepr("retrain", run, "--method", "la", "--stage1", "sgd").code == 0
    assert set(read_json(run / "results.json")) == {"sgd", "swa", "srepr", "sgd-la"}


def test_a_model_file_serves_as_well_as_its_run(srepr, collected, trained, tmp_path):
    file = shutil.copy(trained / "representation.safetensors", tmp_path / "model.safetensors")
    assert srepr("train", "digits-lt", "--from", file, "--epochs", 3, "--out", tmp_path / "same").code == 0
    for name in ("representation.safetensors", "posterior.safetensors"):
        assert (tmp_path / "same" / name).read_bytes() == (collected / name).read_bytes()


def test_another_start_is_other_settings(srepr, collected, trained):
    again = srepr("train", "digits-lt", "--from", collected, "--epochs", 3, "--out", collected)
    assert "--from was" in again.complaint
    without = srepr("train", "digits-lt", "--epochs", 3, "--out", collected)
    assert "other settings" in without.complaint


def test_what_does_not_fit_is_refused(srepr, trained, tmp_path):
    run = tmp_path / "run"
    np.savez(tmp_path / "two.npz", x=np.zeros((20, 9)), y=np.arange(20) % 2)
    words = ["--from", trained, "--out", run]
    assert "takes inputs (1, 8, 8)" in srepr("train", tmp_path / "two.npz", *words).complaint
    assert "--baseline" in srepr("train", "digits-lt", "--baseline", *words).complaint
    assert "Leave --network out" in srepr("train", "digits-lt", "--network", "resnet20", *words).complaint
    assert "does not exist" in srepr("train", "digits-lt", "--from", tmp_path / "no.pth", "--out", run).complaint
    assert not run.exists()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda body: (
            {"state_dict": {f"module.encoder_q.{name}": tensor for name, tensor in body.items()}}
            | {"epoch": 200, "arch": "resnet8"}
        ),
        lambda body: {f"backbone.{name}": tensor for name, tensor in body.items()},
        lambda body: {name: tensor for name, tensor in body.items() if not name.startswith("fc.")},
    ],
    ids=["moco", "simclr", "torchvision without fc"],
)
def test_a_body_without_a_classifier_gets_a_new_one(srepr, tmp_path, wrap):
    """A contrastive projector `fc` of 128 outputs, a momentum encoder and a queue are no classifier."""
    torch.manual_seed(0)
    body = resnet8(128, channels=1).state_dict()
    content = wrap(body)
    if "state_dict" in content:
        content["state_dict"]["module.queue"] = torch.zeros(128, 16)
        content["state_dict"] |= {f"module.encoder_k.{name}": 0 * tensor for name, tensor in body.items()}
    torch.save(content, tmp_path / "body.pth")
    words = ("--freeze", "none", "--epochs", 1, "--optim.lr", 1e-9, "--optim.swa-lr", 1e-9)
    answer = srepr("train", "digits-lt", "--from", tmp_path / "body.pth", *words, "--out", tmp_path / "run")
    assert answer.code == 0, answer
    assert "body.pth has no classifier, digits-lt has 10 classes: its body is kept" in answer.err
    tensors, _ = load_tensors(tmp_path / "run" / "representation.safetensors")
    torch.testing.assert_close(tensors["layer2.0.conv1.weight"], body["layer2.0.conv1.weight"])
    assert tensors["fc.weight"].shape == (10, 64)
    imported = srepr("import", tmp_path / "body.pth", "--source", "digits-lt", "--out", tmp_path / "imported")
    assert "body.pth has no classifier. Train one on its body: srepr train digits-lt --from" in imported.complaint
