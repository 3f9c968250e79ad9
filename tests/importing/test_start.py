"""`srepr train --from`: a posterior around a network that is trained already."""

import shutil

import numpy as np
import pytest

from srepr.cli import main
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
    assert "does not exist" in srepr("train", "digits-lt", "--from", tmp_path / "no.pth", "--out", run).complaint
    assert not run.exists()
