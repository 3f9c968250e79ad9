"""`srepr train --from`: a posterior around a network that is trained already."""

import shutil

import numpy as np
import pytest
import torch

from srepr.cli import main
from srepr.errors import InputError
from srepr.models import resnet8
from srepr.run.checkpoints import load_model
from srepr.run.description import Start
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


def test_an_exported_file_gives_its_body_to_other_classes(srepr, trained, tmp_path):
    """It holds more than the network: what the class mix was, held-out logits and known features."""
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    np.savez(tmp_path / "two.npz", x=x, y=np.arange(60) % 2)
    run, file = tmp_path / "run", tmp_path / "model.safetensors"
    for source, words in (("digits-lt", ["--protocol", "holdout"]), (tmp_path / "two.npz", [])):
        start = file if file.exists() else trained
        answer = srepr("train", source, "--from", start, "--freeze", "none", "--epochs", 2, *words, "--out", run)
        assert answer.code == 0, answer
        if source == "digits-lt":
            assert srepr("retrain", run, "--method", "la", "disalign", "--solver", "sgd", "--epochs", 1).code == 0
            for head, out in (("la", file), ("disalign", tmp_path / "d")):
                assert srepr("export", run, "--head", head, "--format", "safetensors", "-o", out).code == 0
            run = tmp_path / "second"
    given, found = load_tensors(file)[0], load_tensors(run / "representation.safetensors")[0]
    assert found["fc.weight"].shape[0] == 2
    assert found["conv1.weight"].shape == given["conv1.weight"].shape
    words = ("train", "digits-lt", "--epochs", 2, "--out", tmp_path / "third", "--from")
    assert "a classifier that stage 2 has changed" in srepr(*words, tmp_path / "d.safetensors").complaint
    assert srepr(*words, file).code == 0


def test_a_folder_of_hugging_face_is_named(srepr, tmp_path):
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "preprocessor_config.json").write_text("{}")
    complaint = srepr("train", "digits-lt", "--from", tmp_path / "vit", "--out", tmp_path / "R").complaint
    assert complaint.endswith(f"is a folder of Hugging Face. Pass it as --network: hf:{tmp_path / 'vit'}")


def test_a_weight_that_is_not_finite_is_no_start(srepr, trained, tmp_path):
    network, about = load_model(trained / "representation.safetensors")
    network.conv1.weight.data[0] = torch.nan
    with pytest.raises(InputError, match=r"the weight conv1\.weight to start from is not finite"):
        Start(network, about, "")


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
