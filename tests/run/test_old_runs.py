"""What version 0.1.0 wrote is read, measured, used and continued by this one."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import srepr as package
from srepr.data import load
from srepr.run.checkpoints import load_head, load_model, load_posterior
from srepr.run.folder import read_settings
from srepr.run.log import read_log
from srepr.run.schema import read_made
from srepr.storage.files import read_json

DATA = Path(__file__).parents[1] / "data"
OLD, EXPORTED = DATA / "run-0.1.0", DATA / "exported-0.1.0.safetensors"
HEADS = sorted(file.stem for file in (OLD / "heads").glob("*.safetensors"))
TEST = load("digits-lt").test
EXACT = {"acc", "many", "medium", "few", "balanced_acc", "per_class", "n", "seconds"}


@pytest.fixture
def run(tmp_path):
    return shutil.copytree(OLD, tmp_path / "run")


def plainly(file):
    """The tensors of a file as any program reads them."""
    with safe_open(file, "pt") as content:
        return {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118


def same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def same_numbers(found, expected, name=""):
    """All numbers to 1e-6, and accuracies exactly; what 0.1.0 did not measure is left out."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys()
        for key, value in expected.items():
            same_numbers(found[key], value, name if name in EXACT else key)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same_numbers(one, other, name)
    elif isinstance(expected, float) and name not in EXACT:
        # Processors with other instructions round otherwise, by up to 5e-6 here.
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-6), name
    else:
        assert found == expected, name


def test_there_is_a_head_of_each_kind():
    assert HEADS == ["crt", "disalign", "la", "lws", "ncm", "sgd-la", "srepr", "tau-norm"]
    assert read_json(OLD / "config.json")["versions"]["srepr"] == "0.1.0"


@pytest.mark.parametrize("name", ["representation", "sgd"])
def test_the_networks_are_read_to_the_bit(name):
    file = OLD / f"{name}.safetensors"
    same_bits(load_model(file)[0].state_dict(), plainly(file))


def test_the_posterior_is_read_to_the_bit():
    posterior = load_posterior(OLD / "posterior.safetensors", load_model(OLD / "representation.safetensors")[0])
    moments = {"mean": posterior.mean(), "variance": posterior.variance()}
    found = {f"{moment}.{name}": tensor for moment, tensors in moments.items() for name, tensor in tensors.items()}
    same_bits(found, plainly(OLD / "posterior.safetensors"))
    captures = [line for line in read_log(OLD) if line["branch"] == "swa"]
    assert posterior.count == len(captures) > 1


@pytest.mark.parametrize("name", HEADS)
def test_the_heads_are_read_to_the_bit(name):
    file = OLD / "heads" / f"{name}.safetensors"
    same_bits(load_head(file).state_dict(), plainly(file))


def test_the_exported_file_is_read_to_the_bit():
    classifier, expected = package.load(EXPORTED), plainly(EXPORTED)
    assert torch.equal(classifier.shift, expected.pop("shift"))
    same_bits(classifier.model.state_dict(), expected)


def test_evaluating_gives_back_its_results(srepr, run):
    answer = srepr("evaluate", run, "--json")
    assert answer.code == 0, answer
    same_numbers(json.loads(answer.out), read_json(OLD / "results.json"))
    same_numbers(read_json(run / "results.json"), read_json(OLD / "results.json"))


def test_a_report_is_written_about_it(srepr, run):
    answer = srepr("report", run, "--no-dispersion")
    assert answer.code == 0, answer
    assert answer.out.startswith("SRepr ")


@pytest.mark.parametrize("head", [None, "sgd", "swa", *HEADS])
def test_every_head_predicts_with_its_accuracy(head):
    labels = package.load(OLD, head).predict(TEST.load(np.arange(len(TEST)))).label.numpy()
    assert np.mean(labels == TEST.labels) == read_json(OLD / "results.json")[head or "srepr"]["acc"]


def test_predict_takes_the_run_and_the_exported_file(srepr, tmp_path):
    np.save(tmp_path / "x.npy", TEST.inputs[:9])
    for model in (OLD, EXPORTED):
        answer = srepr("predict", model, tmp_path / "x.npy", "--format", "jsonl")
        rows = [json.loads(line) for line in answer.out.splitlines()]
        assert rows == package.load(model).predict(tmp_path / "x.npy")
        assert len(rows) == 9


def test_the_exported_file_has_its_prior():
    """That of its facts, by Bayes' rule on the head that it was made of."""
    facts, inputs = read_made(EXPORTED), TEST.load(np.arange(50))
    assert facts["prior"] is not None
    classifier = package.load(EXPORTED)
    expected = package.load(OLD, facts["head"]).with_prior(facts["prior"])(inputs)
    torch.testing.assert_close(classifier(inputs).softmax(1), expected.softmax(1), rtol=1e-4, atol=1e-6)
    assert not torch.equal(classifier(inputs), package.load(OLD, facts["head"])(inputs))


AS_THEN = ("--solver", "sgd", "--weight-decay", 0.01 / 10**0.5, "--epochs", 2, "--samples", 2, "--json")
"""The settings of stage 2 that 0.1.0 had by default."""


@pytest.mark.parametrize("name", ["srepr", "la", "disalign", "ncm"])
def test_the_same_settings_leave_a_head_as_it_is(srepr, run, name):
    files = [run / "heads" / f"{name}.{suffix}" for suffix in ("json", "safetensors")]
    before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in files]
    answer = srepr("retrain", run, "--method", name, *AS_THEN)
    assert answer.code == 0, answer
    assert json.loads(answer.out)[name] == read_json(OLD / "results.json")[name]
    assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in files] == before


def test_a_head_can_be_added(srepr, run):
    assert srepr("retrain", run, "--method", "grw", "--epochs", 2, "--samples", 2, "--json").code == 0
    results = read_json(run / "results.json")
    assert results.keys() == {*read_json(OLD / "results.json"), "grw"}
    assert results["grw"]["acc"] > 0.5


def test_a_head_made_anew_has_the_same_weights(srepr, run):
    """The draws and the training of stage 2 are still those of 0.1.0."""
    assert srepr("retrain", run, "--method", "srepr", "--name", "again", *AS_THEN).code == 0
    for name, tensor in plainly(OLD / "heads" / "srepr.safetensors").items():
        torch.testing.assert_close(plainly(run / "heads" / "again.safetensors")[name], tensor, rtol=1e-4, atol=1e-6)


def test_the_finished_training_is_entered_with_its_settings(srepr, run):
    assert read_settings(run)["epochs"] == 8
    words = ["train", "digits-lt", "--baseline", "--epochs", 8, "--out", run, "--json"]
    assert json.loads(srepr(*words).out) == read_json(OLD / "results.json")
