"""A frozen network: nothing is trained, the features are made once, the classifiers are solved."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import srepr as package
from srepr.cli import main
from srepr.config import FINE_TUNE, Retrain, collect_settings, default_penalty, settings_for
from srepr.importing.start import start_network
from srepr.models.efficientnet import MEAN, efficientnet_lite0, weights_file
from srepr.run.checkpoints import load_model
from srepr.run.classifiers import open_run
from srepr.run.description import suited
from srepr.run.devices import bf16_failure
from srepr.storage.files import read_json
from srepr.storage.tensors import load_tensors

needs_weights = pytest.mark.skipif(weights_file() is None, reason="the extra [pretrained] is not installed")
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Digits as vectors with class names, cut to a long tail."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(np.flatnonzero(y == k))[: 60 // (k + 1)] for k in range(10)])
    others = np.setdiff1d(np.arange(len(y)), rows)
    names = np.array([f"digit {k}" for k in range(10)])
    file = tmp_path_factory.mktemp("vectors") / "digits.npz"
    np.savez(file, x_train=X[rows], y_train=names[y[rows]], x_test=X[others], y_test=names[y[others]])
    return file


@pytest.fixture(scope="module")
def solved(vectors, tmp_path_factory):
    run = tmp_path_factory.mktemp("solved") / "run"
    assert main(["train", str(vectors), "--network", "linear", "--out", str(run)]) == 0
    assert main(["retrain", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Small pictures of three colours: 14, 7 and 4."""
    folder = tmp_path_factory.mktemp("pictures") / "colours"
    rng = np.random.default_rng(0)
    for (name, colour), count in zip(COLOURS.items(), (14, 7, 4), strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            noise = rng.integers(-30, 30, (40, 40, 3))
            Image.fromarray((np.array(colour) + noise).astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def photographed(pictures, tmp_path_factory):
    run = tmp_path_factory.mktemp("photographed") / "run"
    assert main(["train", str(pictures), "--out", str(run)]) == 0
    assert main(["retrain", str(run), "--samples", "2"]) == 0
    return run


def test_embeddings_need_no_stage_1(solved, vectors):
    """The head is the one that `srepr.retrain` solves on the same vectors, chosen by the same cross-validation."""
    arrays = np.load(vectors)
    names, y = np.unique(arrays["y_train"], return_inverse=True)
    X = torch.from_numpy(arrays["x_train"]).float()
    better = package.retrain(torch.nn.Linear(64, 10), (X, torch.from_numpy(y)))
    inputs = torch.from_numpy(arrays["x_test"]).float()
    theirs = package.load(solved)
    assert theirs.class_names == tuple(names)
    torch.testing.assert_close(theirs(inputs).softmax(1), better(inputs).softmax(1), rtol=0, atol=1e-4)
    assert read_json(solved / "heads/auto.json")["choice"]["on"].endswith("fold cross-validation")
    results = read_json(solved / "results.json")
    assert results["auto"]["balanced_acc"] > results["swa"]["balanced_acc"] > 0.6


def test_the_plain_classifier_is_the_solution_of_the_plain_problem(solved, vectors):
    arrays = np.load(vectors)
    y = np.unique(arrays["y_train"], return_inverse=True)[1]
    X = torch.from_numpy(arrays["x_train"]).float()
    plain = package.retrain(torch.nn.Linear(64, 10), (X, torch.from_numpy(y)), "la", balance="none")
    inputs = torch.from_numpy(arrays["x_test"]).float()
    ours = package.load(solved, "swa")
    torch.testing.assert_close(ours(inputs).softmax(1), plain(inputs).softmax(1), rtol=0, atol=1e-4)


def test_tables_call_the_network_frozen(srepr, solved):
    for words in (("evaluate", solved), ("retrain", solved, "--method", "la")):
        answer = srepr(*words)
        assert "Frozen" in answer.out
        assert "SWA" not in answer.out


def test_vectors_are_predicted_and_exported(srepr, solved, vectors, tmp_path):
    arrays = np.load(vectors)
    np.save(tmp_path / "x.npy", arrays["x_test"][:20])
    rows = srepr("predict", solved, tmp_path / "x.npy", "--format", "jsonl").out.splitlines()
    labels = [json.loads(row)["label"] for row in rows]
    assert np.mean(np.array(labels) == arrays["y_test"][:20]) > 0.6
    assert srepr("export", solved, "--format", "safetensors", "--out", tmp_path / "model").code == 0
    again = srepr("predict", tmp_path / "model.safetensors", tmp_path / "x.npy", "--format", "jsonl").out
    assert again.splitlines() == rows


@needs_weights
def test_a_folder_starts_from_imagenet_and_keeps_its_body(photographed):
    network, about = load_model(photographed / "representation.safetensors")
    assert (about.network, about.shape, about.given, about.mean) == (
        "efficientnet-lite0",
        (3, 160, 160),
        (3, 40, 40),
        MEAN,
    )
    given = efficientnet_lite0(3, weights="imagenet").state_dict()
    for name, tensor in network.state_dict().items():
        assert name.startswith("fc.") or torch.equal(tensor, given[name]), name
    assert read_json(photographed / "results.json")["auto"]["balanced_acc"] == 1.0


@needs_weights
def test_what_is_about_to_happen_is_said(srepr, pictures, tmp_path):
    answer = srepr("train", pictures, "--out", tmp_path / "run")
    line = answer.err.splitlines()[0]
    assert line.startswith("solving the classifier of efficientnet-lite0 (3.4 million parameters) on 20 images of 160")
    assert "in 3 classes of 3 to 11: about" in line


@needs_weights
def test_features_are_made_once(srepr, photographed, pictures, tmp_path):
    run = shutil.copytree(photographed, tmp_path / "run")
    before = {file.name for file in (run / "cache").iterdir()}
    for method in ("la", "crt", "srepr"):
        assert srepr("retrain", run, "--method", method, "--samples", 2).code == 0
    assert srepr("evaluate", run).code == 0
    assert {file.name for file in (run / "cache").iterdir()} == before


@needs_weights
@pytest.mark.skipif(bool(bf16_failure()), reason="bfloat16 does not work on this machine")
def test_features_to_train_on_have_the_precision_that_is_asked_for(srepr, photographed, pictures, tmp_path):
    assert srepr("train", pictures, "--precision", "bf16-mixed", "--out", tmp_path / "run").code == 0
    layers = [load_model(run / "representation.safetensors")[0].fc.weight for run in (photographed, tmp_path / "run")]
    assert not torch.equal(*layers)
    torch.testing.assert_close(*layers, rtol=0, atol=0.1 * float(layers[0].abs().max()))
    before = read_json(tmp_path / "run" / "results.json")
    shutil.rmtree(tmp_path / "run" / "cache")
    assert srepr("evaluate", tmp_path / "run").code == 0
    for name in ("acc", "nll", "ece"):  # features to measure on are in single precision, as the network is
        assert read_json(tmp_path / "run" / "results.json")["swa"][name] == pytest.approx(
            before["swa"][name], rel=1e-4
        )


@needs_weights
def test_srepr_draws_augmented_views_of_a_frozen_body(srepr, photographed, tmp_path):
    run = shutil.copytree(photographed, tmp_path / "run")
    assert srepr("retrain", run, "--method", "srepr", "--samples", 2).code == 0
    assert read_json(run / "heads/srepr.json")["method"]["representation"] == "augment"


@needs_weights
def test_photos_are_predicted_as_they_were_evaluated(srepr, photographed, pictures):
    answer = srepr("predict", photographed, pictures / "green", "--format", "jsonl")
    assert {json.loads(row)["label"] for row in answer.out.splitlines()} == {"green"}


@needs_weights
def test_a_report_needs_no_posterior(srepr, photographed, tmp_path):
    answer = srepr("report", photographed, "-o", tmp_path / "report.html")
    assert answer.code == 0, answer
    assert "Frozen" in (tmp_path / "report.html").read_text()


@needs_weights
def test_frozen_layers_keep_their_weights_and_statistics(srepr, pictures, tmp_path):
    run = tmp_path / "run"
    words = ("--freeze", "stem,blocks.0", "--epochs", 2, "--batch-size", 8, "--image-size", 64)
    assert srepr("train", pictures, *words, "--out", run).code == 0
    given = efficientnet_lite0(3, weights="imagenet").state_dict()
    tensors, _ = load_tensors(run / "representation.safetensors")
    frozen = [name for name in given if name.startswith(("stem.", "blocks.0."))]
    moved = [name for name in given if name.startswith("blocks.1.") and not torch.equal(tensors[name], given[name])]
    assert all(torch.equal(tensors[name], given[name]) for name in frozen)
    assert any("running_mean" in name for name in moved)
    assert any(name.endswith("weight") for name in moved)


@needs_weights
def test_a_fine_tuning_starts_from_a_solved_classifier_that_does_not_fit_everything(
    srepr, photographed, pictures, tmp_path
):
    """Without a step to speak of, it is the solution of the plain problem with ten times the usual penalty."""
    run = tmp_path / "run"
    words = ("--freeze", "none", "--protocol", "paper", "--epochs", 1, "--batch-size", 8)
    rates = ("--optim.lr", 1e-12, "--optim.swa-lr", 1e-12)
    assert srepr("train", pictures, *words, *rates, "--out", run).code == 0
    frozen = open_run(photographed, quiet=True)
    train = (
        frozen.networks["swa"].features(frozen.data.train, "deterministic", Retrain(samples=1), augment=True).epoch(0)
    )
    X, y = torch.tensor(train.mean), torch.from_numpy(train.labels)
    layer, penalty = torch.nn.Linear(X.shape[1], 3), 10 * default_penalty(3)
    wanted = package.retrain(layer, (X, y), "la", balance="none", penalty=penalty)
    network, _ = load_model(run / "representation.safetensors")
    ours, expected, usual = (head(X).log_softmax(1) for head in (network.fc, wanted, frozen.networks["swa"].layer))
    torch.testing.assert_close(ours, expected, rtol=0, atol=0.01)
    assert (usual - expected).abs().max() > 1


@needs_weights
def test_a_layer_that_is_not_there_is_named(srepr, pictures, tmp_path):
    words = ("--freeze", "layer1", "--epochs", 1, "--out", tmp_path / "run")
    assert "unknown layer in --freeze 'layer1'" in srepr("train", pictures, *words).complaint
    assert not (tmp_path / "run").exists()


def test_something_is_left_to_train(srepr, tmp_path):
    words = ("--freeze", "conv1,bn1,layer1,layer2,layer3,fc", "--out", tmp_path / "run")
    assert "--freeze names every layer" in srepr("train", "digits-lt", *words).complaint
    assert not (tmp_path / "run").exists()


def test_random_weights_are_not_frozen(srepr, tmp_path):
    answer = srepr("train", "digits-lt", "--freeze", "body", "--out", tmp_path / "run")
    assert "--freeze is body, and the network has random weights" in answer.complaint


def test_a_network_with_other_classes_gives_its_body(srepr, trained, tmp_path):
    X = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "two.npz", x=X, y=np.arange(60) % 2)
    runs = [tmp_path / name for name in ("one", "same")]
    for run in runs:
        words = ("--from", trained, "--freeze", "none", "--epochs", 2, "--optim.lr", 1e-9, "--optim.swa-lr", 1e-9)
        answer = srepr("train", tmp_path / "two.npz", *words, "--out", run)
        assert answer.code == 0, answer
        assert "has 10 classes, two has 2 classes: its body is kept, and a new classifier is started" in answer.err
    given, _ = load_tensors(trained / "representation.safetensors")
    first, second = (load_tensors(run / "representation.safetensors")[0] for run in runs)
    assert first["fc.weight"].shape[0] == 2
    torch.testing.assert_close(first["conv1.weight"], given["conv1.weight"])
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not (runs[0] / "sgd.safetensors").exists()


def test_a_new_classifier_is_solved_on_the_body_by_default(srepr, trained, tmp_path):
    X = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "two.npz", x=X, y=np.arange(60) % 2)
    answer = srepr("train", tmp_path / "two.npz", "--from", trained, "--out", tmp_path / "run")
    assert "solving the classifier of resnet8" in answer.err
    assert answer.err.count("a new classifier is started") == 1
    given, _ = load_tensors(trained / "representation.safetensors")
    tensors, _ = load_tensors(tmp_path / "run" / "representation.safetensors")
    assert all(torch.equal(tensors[name], given[name]) for name in given if not name.startswith("fc."))


def test_a_new_classifier_has_the_recipe_of_a_fine_tuning_as_far_as_nothing_is_set(trained):
    data = package.data.load("digits-lt")
    other = replace(data, train=replace(data.train, class_names=(*data.train.class_names, "ten")))
    fresh, known = start_network(trained, other), start_network(trained, data)
    collecting = collect_settings(replace(settings_for("digits-lt"), freeze="none"))
    assert suited(collecting, known) == collecting
    assert suited(collecting, fresh) == replace(
        collecting, epochs=FINE_TUNE.epochs, batch_size=FINE_TUNE.batch_size, optim=FINE_TUNE.optim
    )
    mine = replace(collecting, epochs=3, optim=replace(collecting.optim, lr=0.3))
    assert suited(mine, fresh).epochs == 3
    assert suited(mine, fresh).optim == replace(FINE_TUNE.optim, lr=0.3)
    assert suited(replace(collecting, freeze="auto"), fresh).freeze == "body"
    assert suited(replace(collecting, freeze="auto"), known).freeze == "none"
