"""`srepr import` as it is typed, and what the run folder that it makes is good for."""

import hashlib
import json

import numpy as np
import pytest
import torch
from tests.importing.networks import SCALE, Backbone, Ldam, RideCifar, lived_in

from srepr.data import load
from srepr.models.cosine import Cosine
from srepr.models.split import replace_classifier
from srepr.run.checkpoints import load_head, load_model
from srepr.storage.files import read_json
from srepr.storage.tensors import load_tensors

METHODS = ["crt", "lws", "la", "disalign", "tau-norm", "ncm"]


def imported(srepr, folder, network, *words):
    torch.save({"state_dict": network.state_dict(), "epoch": 200}, folder / "theirs.pth")
    answer = srepr("import", folder / "theirs.pth", "--source", "digits-lt", "--out", folder / "run", "--json", *words)
    assert (answer.code, answer.err) == (0, "")
    return folder / "run", json.loads(answer.out)


def networks():
    torch.manual_seed(0)
    return {
        "linear": lived_in(Ldam(10, normed=False, channels=1)),
        "cosine": lived_in(Ldam(10, normed=True, channels=1)),
        "experts": lived_in(Backbone(RideCifar(10, 3, normed=True, channels=1))),
        "linear experts": lived_in(Backbone(RideCifar(10, 2, normed=False, channels=1))),
    }


@pytest.mark.parametrize("kind", networks())
def test_a_checkpoint_becomes_a_run_that_retrain_and_evaluate_accept(srepr, tmp_path, kind):
    """Accuracy and likelihood of the original network, and of the whole network with each head, in numpy."""
    network = networks()[kind]
    run, results = imported(srepr, tmp_path, network)
    test = load("digits-lt").test
    images = test.load(np.arange(len(test)))

    def likelihood(model, scale=1.0):
        with torch.no_grad():
            z = scale * model(images).double().numpy()
        log_p = z - z.max(1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
        return np.mean(z.argmax(1) == test.labels), -log_p[np.arange(len(z)), test.labels].mean()

    accuracy, nll = likelihood(network, SCALE if kind == "cosine" else 1.0)
    assert results["swa"]["acc"] == accuracy
    assert results["swa"]["nll"] == pytest.approx(nll, rel=1e-5)

    answer = srepr("retrain", run, "--method", *METHODS, "--epochs", 1, "--json")
    assert (answer.code, answer.err) == (0, "")
    retrained = json.loads(answer.out)
    assert list(retrained) == METHODS
    body, _ = load_model(run / "representation.safetensors")
    for name in METHODS:
        head = load_head(run / f"heads/{name}.safetensors")
        accuracy, nll = likelihood(replace_classifier(body, "fc", head))
        assert retrained[name]["acc"] == accuracy
        assert retrained[name]["nll"] == pytest.approx(nll, rel=1e-4)
        if name in ("crt", "la", "tau-norm"):
            assert isinstance(head, Cosine) == (kind in ("cosine", "experts"))
    assert json.loads(srepr("evaluate", run, "--json").out) == {**results, **retrained}


def test_it_has_no_posterior_to_draw_from_and_says_how_to_get_one(srepr, tmp_path):
    run, _ = imported(srepr, tmp_path, networks()["experts"])
    complaint = srepr("retrain", run, "--method", "srepr").complaint
    assert complaint == (
        "srepr draws from a posterior, and an imported network has none."
        f" Collect one: srepr train digits-lt --from {run} --out NEW"
    )
    new = tmp_path / "new"
    assert srepr("train", "digits-lt", "--from", run, "--epochs", 2, "--out", new).code == 0
    assert srepr("retrain", new, "--samples", 2, "--epochs", 1).code == 0
    assert isinstance(load_head(new / "heads/auto.safetensors"), Cosine)


def test_the_folder_says_where_it_is_from(srepr, tmp_path):
    run, _ = imported(srepr, tmp_path, networks()["cosine"], "--scale", 16)
    config = read_json(run / "config.json")
    digest = hashlib.sha256((tmp_path / "theirs.pth").read_bytes()).hexdigest()
    assert config["settings"]["imported"] == {"sha256": digest, "layout": "ldam", "scale": 16.0}
    assert config["checkpoint"]["file"] == "theirs.pth"
    assert load_tensors(run / "posterior.safetensors")[1]["count"] == "1"
    assert load_model(run / "representation.safetensors")[0].fc.scale == 16


def test_the_same_import_again_changes_nothing_and_another_is_refused(srepr, tmp_path):
    run, results = imported(srepr, tmp_path, networks()["linear"])
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert imported(srepr, tmp_path, networks()["linear"]) == (run, results)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    torch.save(networks()["cosine"].state_dict(), tmp_path / "theirs.pth")
    again = srepr("import", tmp_path / "theirs.pth", "--source", "digits-lt", "--out", run)
    assert "holds a run with other settings: `imported.sha256` was" in again.complaint


def test_another_scale_is_named_as_it_is_typed(srepr, tmp_path):
    run, _ = imported(srepr, tmp_path, networks()["cosine"])
    again = srepr("import", tmp_path / "theirs.pth", "--source", "digits-lt", "--out", run, "--scale", 16)
    assert again.complaint.startswith(f"{run} holds a run with other settings: --scale was 30.0, now 16.0.")


def test_people_get_a_table(srepr, tmp_path):
    torch.save(networks()["linear"].state_dict(), tmp_path / "theirs.pth")
    answer = srepr("import", tmp_path / "theirs.pth", "--source", "digits-lt", "--out", tmp_path / "run")
    assert answer.code == 0
    assert "theirs.pth, digits-lt" in answer.out
    assert "SWA" in answer.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--source", "digits-lt"], "has 7 classes, digits-lt has 10. Pass the data that it was trained on."),
        (["--source", "digits-lt", "--layout", "bcl"], "its layout is not bcl. Leave --layout out."),
        (["--source", "digits-lt", "--layout", "x"], "unknown layout 'x'. Known: auto, mislas"),
        (["--source", "no-such-data"], "no-such-data"),
        ([], "--source"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(srepr, tmp_path, words, complaint):
    torch.save(Ldam(7, normed=False, channels=1).state_dict(), tmp_path / "theirs.pth")
    assert complaint in srepr("import", tmp_path / "theirs.pth", *words, "--out", tmp_path / "run").complaint
    assert not (tmp_path / "run").exists()
