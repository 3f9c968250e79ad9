"""What is exported answers like the run it came from: safetensors to the bit, torch and ONNX in their own runtimes."""

import io
import json
import re
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from srepr import data, heads
from srepr.data.about import About
from srepr.deploy.card import gather, model_card
from srepr.deploy.export import FromRaw, torch_program, trial_inputs
from srepr.errors import InputError
from srepr.integrations.onnx import onnx_graph
from srepr.models import replace_classifier
from srepr.run.checkpoints import build_network, ready, save_classifier
from srepr.run.load import load
from srepr.storage.files import read_json

HEADS = ["lws", "disalign", "ncm", "srepr"]
MIX = [float(k) for k in range(1, 11)]
TEST = data.load("digits-lt").test
FACTS = {"class_names": ["a", "b", "c"], "normalisation": {}, "inputs": "raw", "model_card": "# Three"}


@pytest.fixture
def run(retrained):
    """A run with heads of every kind; no test changes it."""
    return retrained


def raw_digits():
    """Pixels from 0 to 1."""
    return torch.from_numpy(TEST.inputs).float() / 255


NETWORKS = {
    "table": ("mlp", (4,), {"inputs": 4}),
    "small images": ("resnet8", (3, 8, 8), {}),
    "large images": (
        "resnet",  # a ResNet-50 with one narrow block for each stage
        (3, 64, 64),
        {"kernel": 7, "bottleneck": True, "depths": [1, 1, 1, 1], "widths": [8, 16, 32, 64]},
    ),
}


def small(kind, head="linear"):
    """An untrained network of three classes with such a head."""
    network, shape, options = NETWORKS[kind]
    about = About(
        network=network,
        options=options,
        class_names=("a", "b", "c"),
        counts=(200, 50, 3),
        shape=shape,
        mean=(0.4,) * shape[0],
        std=(0.2,) * shape[0],
    )
    model, scale = build_network(about), torch.tensor(30.0) if head == "cosine" else None
    kind = "linear" if head == "cosine" else head
    chosen = heads.build(kind, weight=model.fc.weight, bias=model.fc.bias, scale=scale)
    with torch.no_grad():
        for parameter in chosen.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return ready(replace_classifier(model, "fc", chosen), about)


def exported(srepr, run, out, form, *words):
    answer = srepr("export", run, "--format", form, "-o", out, *words)
    assert (answer.code, answer.err) == (0, ""), answer
    return answer.out.splitlines()


# safetensors


@pytest.mark.parametrize("head", [*HEADS, "swa", "sgd"])
def test_safetensors_come_back_with_the_same_bits_and_the_same_meaning(srepr, run, tmp_path, head):
    files = exported(srepr, run, tmp_path / "model", "safetensors", "--head", head)
    assert files == [str(tmp_path / f"model.{suffix}") for suffix in ("safetensors", "json", "md")]
    inputs = TEST.load(np.arange(20))
    first, second = load(run, head), load(tmp_path / "model.safetensors")
    assert first.about == second.about
    assert torch.equal(first(inputs), second(inputs))
    for one, other in zip(first.predict(inputs), second.predict(inputs), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(first.with_prior(MIX)(inputs), second.with_prior(MIX)(inputs))


def test_an_exported_prior_stays_and_can_be_replaced(srepr, run, tmp_path):
    exported(srepr, run, tmp_path / "model", "safetensors", "--head", "swa", "--prior", ",".join(map(str, MIX)))
    inputs = TEST.load(np.arange(20))
    first, second = load(run, "swa"), load(tmp_path / "model.safetensors")
    assert torch.equal(first.with_prior(MIX)(inputs), second(inputs))
    assert torch.equal(first.with_prior([1.0] * 10)(inputs), second.with_prior([1.0] * 10)(inputs))
    prior = read_json(tmp_path / "model.json")["prior"]
    np.testing.assert_allclose(prior, np.array(MIX) / sum(MIX), rtol=1e-5)


def test_the_note_beside_it_says_everything_that_its_use_needs(srepr, run, tmp_path):
    exported(srepr, run, tmp_path / "model", "safetensors")
    note = read_json(tmp_path / "model.json")
    about = load(run).about
    assert note["class_names"] == list("0123456789")
    assert note["counts"] == list(about.counts)
    assert note["shape"] == [1, 8, 8]
    assert note["normalisation"] == {"mean": list(about.mean), "std": list(about.std)}
    assert (note["head"], note["method"]["balance"], note["training"]["seed"]) == ("srepr", "la", 0)
    assert note["metrics"] == read_json(run / "results.json")["srepr"]
    assert note["versions"]["torch"] == torch.__version__
    assert note["model_card"] == (tmp_path / "model.md").read_text()


def test_predictions_of_the_file_are_those_of_the_run(srepr, run, tmp_path):
    exported(srepr, run, tmp_path / "model.safetensors", "safetensors", "--head", "disalign")
    np.save(tmp_path / "x.npy", TEST.inputs[:50])
    answers = [
        srepr("predict", *words, tmp_path / "x.npy", "--top", 3).out
        for words in ([run, "--head", "disalign"], [tmp_path / "model.safetensors"])
    ]
    assert answers[0] == answers[1]
    assert len(answers[0].splitlines()) == 51


@pytest.mark.parametrize("head", ["linear", "lws", "lws-per-class", "disalign", "cosine"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_head_on_every_kind_of_network_is_saved(tmp_path, kind, head):
    classifier = small(kind, head).with_prior([5, 3, 0])
    save_classifier(tmp_path / "model.safetensors", classifier, {})
    inputs = torch.rand(2, *classifier.about.shape)
    assert torch.equal(load(tmp_path / "model.safetensors")(inputs), classifier(inputs))


# torch.export


def test_a_torch_program_takes_raw_pixels_in_any_number(srepr, run, tmp_path):
    assert exported(srepr, run, tmp_path / "model", "torch")[0] == str(tmp_path / "model.pt2")
    extra = {"srepr.json": "", "model_card.md": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    expected = load(run).predict(TEST.load(np.arange(len(TEST)))).probabilities
    for size in (1, 5, len(TEST)):
        found = program(raw_digits()[:size])
        torch.testing.assert_close(found["probabilities"], expected[:size], atol=1e-5, rtol=0)
        torch.testing.assert_close(found["logits"].softmax(1), expected[:size], atol=1e-5, rtol=0)
    facts = json.loads(extra["srepr.json"])
    assert facts["inputs"] == "float32 [B, C, H, W], pixels from 0 to 1, not normalised"
    assert facts["class_names"] == list("0123456789")
    assert extra["model_card.md"] == (tmp_path / "model.md").read_text()


def test_a_torch_program_of_vectors_with_a_prior():
    classifier = small("table", "disalign").with_prior([5, 3, 0])
    content = torch_program(FromRaw(classifier, classifier.about), classifier.about, FACTS)
    program = torch.export.load(io.BytesIO(content)).module()
    inputs = torch.rand(7, 4)
    expected = classifier((inputs - 0.4) / 0.2)
    torch.testing.assert_close(program(inputs)["logits"], expected)
    assert not program(inputs)["probabilities"][:, 2].any()


# ONNX


def test_onnxruntime_says_what_torch_says(srepr, run, tmp_path):
    """On all real test digits, in batches of 1, 5 and all; the accuracy is that of the run."""
    exported(srepr, run, tmp_path / "model.onnx", "onnx", "--opset", 18)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [output.name for output in session.get_outputs()] == ["probabilities", "logits"]
    assert [(given.name, given.shape) for given in session.get_inputs()] == [("inputs", ["batch", 1, 8, 8])]
    classifier = load(run)
    about = classifier.about
    with torch.no_grad():
        logits = classifier(TEST.load(np.arange(len(TEST))))
    for size in (1, 5, len(TEST)):
        found = session.run(None, {"inputs": raw_digits()[:size].numpy()})
        np.testing.assert_allclose(found[0], logits[:size].softmax(1), atol=1e-4)
        np.testing.assert_allclose(found[1], logits[:size], atol=1e-4)
    assert np.mean(found[0].argmax(1) == TEST.labels) == read_json(run / "results.json")["srepr"]["acc"]
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["class_names"]) == list("0123456789")
    assert json.loads(told["normalisation"]) == {"mean": list(about.mean), "std": list(about.std)}
    assert told["model_card"] == (tmp_path / "model.md").read_text()
    assert "pixels from 0 to 1" in told["inputs"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.md", "model.onnx"]


@pytest.mark.parametrize(("kind", "head"), [("table", "cosine"), ("table", "lws"), ("large images", "disalign")])
def test_every_head_becomes_a_graph(tmp_path, kind, head):
    classifier = small(kind, head).with_prior([5, 3, 0])
    about = classifier.about
    raw = FromRaw(classifier, about)
    session = onnxruntime.InferenceSession(onnx_graph(raw, trial_inputs(tmp_path, raw, about), FACTS))
    inputs = torch.rand(3, *about.shape)
    found = session.run(["probabilities"], {"inputs": inputs.numpy()})[0]
    np.testing.assert_allclose(found, raw(inputs)["probabilities"], atol=1e-4)
    assert not found[:, 2].any()


class Drifting(nn.Module):
    """Says something else with every call, which no graph can follow."""

    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return {"probabilities": inputs.softmax(-1), "logits": inputs * self.calls}


def test_a_graph_that_disagrees_is_refused():
    with pytest.raises(InputError, match="the logits of onnxruntime differ from torch's by more than"):
        onnx_graph(Drifting(), [(torch.ones(1, 3),), (torch.ones(5, 3),)], FACTS)


def test_trials_are_random_and_where_there_are_data_real(run, tmp_path):
    classifier = load(run)
    about = classifier.about
    raw = FromRaw(classifier, about)
    trials = trial_inputs(run, raw, about)
    assert [tuple(batch.shape) for (batch,) in trials] == [(1, 1, 8, 8), (5, 1, 8, 8)] * 2
    pixels = data.load("digits-lt").train.inputs[:5] / 255
    np.testing.assert_allclose(trials[3][0], pixels, atol=1e-6)
    assert len(trial_inputs(tmp_path / "model.safetensors", raw, about)) == 2


def test_a_run_of_fewer_examples_than_trials_is_exported(srepr, tmp_path):
    np.savez(tmp_path / "two.npz", x=np.eye(2, dtype=np.float32), y=[0, 1])
    assert srepr("train", tmp_path / "two.npz", "--network", "linear", "--out", tmp_path / "run").code == 0
    assert srepr("export", tmp_path / "run", "--format", "onnx", "-o", tmp_path / "two").code == 0


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_it_says_how_to_get_it(srepr, run, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    complaint = srepr("export", run, "--format", "onnx", "-o", tmp_path / "model").complaint
    assert complaint == f"{missing} is not installed. Install it with: pip install 'srepr[onnx]'"
    assert not list(tmp_path.iterdir())


# The model card


def test_the_card_has_the_numbers_of_the_run(run):
    card = model_card(gather(run, None, load(run)))
    metrics = read_json(run / "results.json")["srepr"]
    row = next(line for line in card.splitlines() if line.startswith("| test "))
    numbers = [f"{100 * metrics[name]:.2f}" for name in ("many", "medium", "few", "acc", "balanced_acc")]
    numbers += [f"{metrics[name]:.3f}" for name in ("nll", "ece")]
    assert row == f"| test | 597 | {' | '.join(numbers)} |"
    assert re.findall(r"^#+ (.*)$", card, re.MULTILINE) == [
        "A classifier of 10 classes: resnet8 with the head SRepr",
        "Data",
        "Metrics",
        "Calibration",
        "Sets of labels",
        "Intended use and limits",
        "How it was made",
    ]
    filled = [bin_ for bin_ in metrics["bins"] if bin_["count"]]
    assert sum(line.startswith("| 0.") or line.startswith("| 1.") for line in card.splitlines()) == len(filled)
    assert "| few (fewer than 20) | 5 | 31 |" in card
    assert "Seed: 0" in card
    assert "- Command: `" in card


def test_the_card_has_both_views_and_marks_small_groups(run):
    facts = gather(run, None, load(run))
    tested = {"tested": {"many": 62, "medium": 243, "few": 12}}
    equal, natural = facts["metrics"] | tested | {"acc": 0.5, "ece": 0.25}, facts["metrics"] | tested | {"acc": 0.75}
    card = model_card(facts | {"metrics": facts["metrics"] | tested | {"views": {"equal": equal, "natural": natural}}})
    rows = [line.split(" | ") for line in card.splitlines() if line.startswith("| test")]
    assert [(row[0], row[5]) for row in rows] == [
        ("| test, every class counts the same", "50.00"),
        ("| test, as the classes come", "75.00"),
    ]
    assert all(row[4].endswith("\\*") for row in rows)
    assert "\\* Few has 12 test examples: too small to judge (test)." in card
    assert "Expected calibration error 0.250 on the test set, every class counts the same" in card


def test_the_card_tells_of_a_prior_and_survives_the_file(srepr, run, tmp_path):
    exported(srepr, run, tmp_path / "model", "safetensors", "--prior", "train")
    card = (tmp_path / "model.md").read_text()
    assert "from 0.00604 to 0.363" in card
    exported(srepr, tmp_path / "model.safetensors", tmp_path / "again", "safetensors")
    assert (tmp_path / "again.md").read_text() == card
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_a_network_without_a_history_has_a_card_too():
    classifier = small("table")
    about = classifier.about
    facts = {"network": "mlp", "class_names": about.class_names, "counts": about.counts, "shape": about.shape}
    card = model_card({**facts, "temperature": classifier.temperature, "prior": None})
    assert card.startswith("# A classifier of 3 classes: mlp\n")
    assert "Not measured" in card
    assert "Not recorded." in card


# Mistakes


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--format", "onnx", "-o", "no/where"], "no is not a folder. Make it, or choose another --out."),
        (["--format", "onnx", "-o", "m", "--opset", "3"], "--opset is 3: it must lie in 18 .. "),
        (["--format", "onnx", "-o", "m", "--opset", "999"], "--opset is 999: it must lie in 18 .. "),
        (["--format", "torch", "-o", "m", "--opset", "18"], "--opset is for the format onnx. Leave it out."),
        (["--format", "torch", "-o", "m", "--head", "grw"], "'grw'. Known: sgd, swa, crt, "),
        (["--format", "torch", "-o", "m", "--prior", "1,2"], "--prior has 2 numbers for 10 classes."),
        (["--format", "tflite", "-o", "m"], "invalid choice 'tflite' for argument '--format'."),
        (["--format", "onnx"], "Missing from srepr export: -o"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(srepr, run, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    assert complaint in srepr("export", run, *words).complaint
    assert not list(tmp_path.iterdir())


def test_a_model_does_not_become_itself(srepr, run, tmp_path):
    exported(srepr, run, tmp_path / "model", "safetensors")
    file = tmp_path / "model.safetensors"
    assert "is the model itself." in srepr("export", file, "--format", "safetensors", "-o", file).complaint
    assert (
        "does not exist." in srepr("export", tmp_path / "gone.safetensors", "--format", "torch", "-o", file).complaint
    )
