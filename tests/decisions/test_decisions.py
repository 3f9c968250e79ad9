"""Decisions as users make them: by `srepr predict` and `Classifier`, of a run folder and of an exported file."""

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from srepr import data
from srepr.classifier import Classifier
from srepr.cli import main
from srepr.decisions.conformal import FORMS, Thresholds, calibrate
from srepr.decisions.costs import decide
from srepr.decisions.held import Held
from srepr.errors import InputError
from srepr.prediction import columns
from srepr.run.load import load

NAMES = ("0", "1", "2")
CENTRES = 2.0 * np.eye(3, 4)


def drawn(counts, seed):
    chance = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), counts)
    return (CENTRES[y] + chance.normal(size=(len(y), 4))).astype(np.float32), y


@pytest.fixture(scope="module")
def place(made_once):
    """A run on vectors, its head as an exported file, and inputs of another class mix."""

    def make(folder):
        folder.mkdir()
        x, y = drawn([200, 100, 40], 0)
        np.savez(folder / "data.npz", x=x, y=y)
        run = str(folder / "run")
        assert main(["train", str(folder / "data.npz"), "--network", "linear", "--out", run]) == 0
        assert main(["retrain", run, "--method", "la"]) == 0
        assert main(["export", run, "--format", "safetensors", "-o", str(folder / "model")]) == 0
        x, y = drawn([20, 30, 250], 1)
        np.savez(folder / "new.npz", x=x)
        np.save(folder / "truth.npy", y)
        (folder / "costs.csv").write_text("truth,0,1,2,person\n0,0,1,1,0.3\n1,1,0,1,0.3\n2,4,4,0,0.3\n")

    return made_once("decisions", make)


def rows_of(answer):
    assert answer.code == 0, answer.err
    return list(csv.DictReader(io.StringIO(answer.out)))


@pytest.mark.parametrize("model", ["run", "model.safetensors"])
@pytest.mark.parametrize("form", FORMS)
def test_sets_are_the_thresholds_on_the_probabilities(srepr, place, model, form):
    rows = rows_of(srepr("predict", place / model, place / "new.npz", "--coverage", 0.9, "--sets", form, "--top", 3))
    classifier = load(place / model)
    p = classifier._probabilities(classifier.held.logits)
    expected = calibrate(
        p, classifier.held.labels, 0.9, form, expects=classifier.expects, counts=classifier.about.counts
    )
    for row in rows:
        shares = {row[f"label{rank}"]: float(row[f"probability{rank}"]) for rank in ("", "_2", "_3")}
        inside = [
            name for name, p in shares.items() if p >= expected.minimum[NAMES.index(name)] or name == row["label"]
        ]
        assert row["set"].split("|") == inside


def test_python_and_json_lines_say_the_same(srepr, place):
    rows = rows_of(srepr("predict", place / "run", place / "new.npz", "--coverage", 0.8))
    lines = srepr("predict", place / "run", place / "new.npz", "--coverage", 0.8, "--format", "jsonl").out
    listed = [json.loads(line)["set"] for line in lines.splitlines()]
    assert [row["set"].split("|") for row in rows] == listed
    classifier = load(place / "run")
    found = classifier.predict_set(place / "new.npz", 0.8)
    assert [row["set"] for row in found] == listed
    assert list(found[0]) == columns(sets=True)
    with np.load(place / "new.npz") as file:
        examples = data.ArrayExamples(file["x"], np.zeros(300, dtype=np.int64), NAMES).prepared(classifier.about)
    inside = classifier.predict_set(examples.load(np.arange(300)), 0.8)
    assert [{NAMES[k] for k in np.flatnonzero(one)} for one in inside] == [set(one) for one in listed]


def test_the_mix_is_estimated_told_stored_and_used(srepr, place, tmp_path):
    out = tmp_path / "rows.csv"
    answer = srepr("predict", place / "run", place / "new.npz", "--prior", "estimate", "--coverage", 0.9, "-o", out)
    assert answer.code == 0
    assert "srepr: class prior estimated from 300 inputs: 2 " in answer.err
    stored = json.loads((tmp_path / "rows.decisions.json").read_text())
    shares = stored["prior"]["shares"]
    truth = np.bincount(np.load(place / "truth.npy")) / 300
    assert list(shares) == list(NAMES)
    np.testing.assert_allclose(list(shares.values()), truth, atol=0.08)
    assert all(stored["prior"]["low"][k] <= shares[k] <= stored["prior"]["high"][k] for k in NAMES)
    np.testing.assert_allclose(list(stored["sets"]["prior"].values()), list(shares.values()), rtol=1e-5)
    again = rows_of(srepr("predict", place / "run", place / "new.npz", "--prior", out.with_suffix(".decisions.json")))
    with out.open() as file:
        assert [row["probability"] for row in csv.DictReader(file)] == [row["probability"] for row in again]


def test_the_same_estimate_in_python_whatever_prior_was_set_before(place):
    classifier = load(place / "run")
    found = classifier.estimate_prior(place / "new.npz")
    moved = classifier.with_prior([5, 1, 1]).estimate_prior(place / "new.npz")
    np.testing.assert_allclose(found.shares, moved.shares, atol=1e-4)
    np.testing.assert_allclose(classifier.with_prior(found).prior, found.shares, rtol=1e-5)
    truth = np.load(place / "truth.npy")
    plain, adjusted = (
        np.mean([int(row["label"]) for row in model.predict(place / "new.npz")] == truth)
        for model in (classifier, classifier.with_prior(found))
    )
    assert adjusted > plain


def test_costs_decide_on_the_adjusted_probabilities(srepr, place):
    words = ("--costs", place / "costs.csv", "--prior", "1,2,3", "--top", 3)
    rows = rows_of(srepr("predict", place / "run", place / "new.npz", *words))
    costs = np.array([[0, 1, 1, 0.3], [1, 0, 1, 0.3], [4, 4, 0, 0.3]])
    for row in rows:
        shares = {row[f"label{rank}"]: float(row[f"probability{rank}"]) for rank in ("", "_2", "_3")}
        p = np.array([shares[name] for name in NAMES])
        expected = p @ costs
        assert float(row["expected_cost"]) == pytest.approx(expected.min(), abs=1e-4)
        assert row["decision"] in np.array([*NAMES, "person"])[expected <= expected.min() + 1e-4]
    assert {row["decision"] for row in rows} >= {"2", "person"}


def test_a_set_follows_the_prior():
    """With the mix [9, 1] the weights and the probabilities are those of that mix."""
    held = Held(torch.randn(400, 2, generator=torch.manual_seed(0)) * 2, torch.arange(400) % 2)
    model = Classifier(nn.Identity(), classes=2, held=held)
    p = (held.logits + torch.tensor([9.0, 1.0]).log()).softmax(1)
    expected = calibrate(p, held.labels, 0.8, "pas", expects=[9, 1], prior=[9, 1])
    np.testing.assert_allclose(model.with_prior([9, 1]).thresholds(0.8, "pas").minimum, expected.minimum, rtol=1e-4)
    never = model.with_prior([1, 0]).thresholds(0.8, "class")
    assert never.minimum[1] == 1
    assert not never.sets([[1.0, 0.0]])[0, 1]


def test_borrowing_is_told(srepr, place):
    answer = srepr("predict", place / "run", place / "new.npz", "--coverage", 0.99, "--sets", "class")
    assert answer.code == 0
    assert (
        "srepr: Classes with fewer than 99 held-out examples borrow 0.5 times the threshold of all: 1, 2 (2 of 3)."
        in (answer.err.splitlines())
    )


def test_one_input_is_enough_and_it_is_said(srepr, place, tmp_path):
    np.savez(tmp_path / "one.npz", x=CENTRES[[2]])
    answer = srepr("predict", place / "run", tmp_path / "one.npz", "--prior", "estimate")
    assert answer.code == 0
    assert re.search(
        r"1 different inputs are few for 3 classes: \d+% of the estimate are the training shares", answer.err
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--coverage", "1.5"], "--coverage is 1.5: it must lie between 0 and 1"),
        (["--coverage", "nan"], "--coverage is nan"),
        (["--sets", "class"], "--sets is the form of sets of labels. Set their --coverage too"),
        (["--coverage", "0.9", "--sets", "clas"], "unknown form of sets 'clas'; did you mean class?"),
        (["--prior", "estimate", "--batch-size", "0"], "--batch-size is 0: at least 1 is needed."),
        (["--costs", "nothing.csv"], "nothing.csv does not exist"),
        (
            ["--head", "swa", "--coverage", "0.9"],
            "this classifier has no held-out examples, which sets are calibrated",
        ),
    ],
)
def test_mistakes_are_one_line(srepr, place, words, complaint):
    answer = srepr("predict", place / "run", place / "new.npz", *words)
    assert complaint in answer.complaint
    assert answer.out == ""


def test_an_estimate_without_held_out_examples_says_that_nothing_was_tested(place):
    found = load(place / "run", "swa").estimate_prior(place / "new.npz")
    assert found.p_value is None
    assert found.note == "There are no held-out examples to test whether label shift explains the inputs."
    with pytest.raises(InputError, match="the method bbse takes held-out examples"):
        load(place / "run", "swa").estimate_prior(place / "new.npz", method="bbse")


def test_an_exported_graph_carries_what_sets_need(srepr, place, tmp_path):
    """With onnxruntime alone: probabilities, and the minimum of each label."""
    onnxruntime = pytest.importorskip("onnxruntime")
    answer = srepr("export", place / "run", "--format", "onnx", "--prior", "1,1,8", "-o", tmp_path / "model.onnx")
    assert answer.code == 0, answer.err
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    facts = {
        name: json.loads(session.get_modelmeta().custom_metadata_map[name])
        for name in ("sets", "prior", "temperature")
    }
    np.testing.assert_allclose(facts["prior"], [0.1, 0.1, 0.8], rtol=1e-5)
    assert facts["temperature"] == load(place / "run").temperature
    with np.load(place / "new.npz") as file:
        (p,) = session.run(["probabilities"], {"inputs": file["x"]})
    classifier = load(place / "run").with_prior([1, 1, 8])
    for level in facts["sets"]:
        assert Thresholds(**level).minimum == pytest.approx(classifier.thresholds(level["coverage"]).minimum, rel=1e-4)
        sets = (p >= np.array(level["minimum"])) | (p == p.max(1, keepdims=True))
        rows = classifier.predict_set(place / "new.npz", level["coverage"])
        assert (
            np.mean(
                [
                    {NAMES[k] for k in np.flatnonzero(one)} == set(row["set"])
                    for one, row in zip(sets, rows, strict=True)
                ]
            )
            > 0.99
        )
    card = (tmp_path / "model.md").read_text()
    assert "## Sets of labels" in card
    assert "0.9" in card


def test_a_python_classifier_decides_by_costs():
    model = Classifier(nn.Identity(), classes=2)
    p = model.predict(torch.tensor([[0.0, 0.1], [3.0, 0.0]])).probabilities
    assert decide(p, [[0.0, 1.0, 0.2], [1.0, 0.0, 0.2]])[0].tolist() == [2, 0]
