"""One default head everywhere: srepr, or else the newest on the averaged network, or else the newest."""

import json
import shutil

import numpy as np
import pytest
import torch

import srepr as package
from srepr.cli import main
from srepr.data import load
from srepr.run.figures import FIGURES
from srepr.run.load import choose_head
from srepr.storage.files import read_json

STAGE_1 = {"sgd": "sgd", "swa": "swa"}


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """A run with `la` on the averaged network, and then `sgd-la` on the baseline."""
    run = shutil.copytree(trained, tmp_path_factory.mktemp("default") / "run")
    for stage1 in ("swa", "sgd"):
        assert main(["retrain", str(run), "--method", "la", "--stage1", stage1, "--epochs", "1", "--json"]) == 0
    assert read_json(run / "results.json").keys() == {"sgd", "swa", "la", "sgd-la"}
    return run


@pytest.mark.parametrize(
    ("heads", "chosen"),
    [
        ({}, "swa"),
        ({"la": "swa", "sgd-la": "sgd"}, "la"),
        ({"sgd-la": "sgd", "crt": "swa", "la": "swa"}, "la"),
        ({"srepr": "swa", "la": "swa"}, "srepr"),
        ({"sgd-crt": "sgd", "sgd-la": "sgd"}, "sgd-la"),
    ],
)
def test_the_rule(tmp_path, heads, chosen):
    assert choose_head(tmp_path, STAGE_1 | heads, None) == chosen
    if heads:
        assert choose_head(tmp_path, STAGE_1 | heads, None, retrained=True) == chosen


def test_load_takes_it(run):
    inputs = load("digits-lt").test.load(np.arange(20))
    found, expected, newest = (package.load(run, head)(inputs) for head in (None, "la", "sgd-la"))
    assert torch.equal(found, expected)
    assert not torch.equal(found, newest)


def test_predict_takes_it(srepr, run, tmp_path):
    np.save(tmp_path / "x.npy", load("digits-lt").test.inputs[:20])
    found, expected, newest = (
        srepr("predict", run, tmp_path / "x.npy", *words).out for words in ([], ["--head", "la"], ["--head", "sgd-la"])
    )
    assert len(found.splitlines()) == 21
    assert found == expected != newest


def test_export_takes_it(srepr, run, tmp_path):
    assert srepr("export", run, "--format", "safetensors", "-o", tmp_path / "model").code == 0
    assert read_json(tmp_path / "model.json")["head"] == "la"
    inputs = load("digits-lt").test.load(np.arange(20))
    assert torch.equal(package.load(tmp_path / "model.safetensors")(inputs), package.load(run, "la")(inputs))


def test_analyze_takes_it(srepr, run, tmp_path, monkeypatch):
    monkeypatch.setattr("srepr.run.figures.FIGURES", {"ensemble": FIGURES["ensemble"]})
    analysis = json.loads(srepr("analyze", run, "--samples", 1, "--out", tmp_path, "--json").out)
    assert (analysis["before"], analysis["head"], analysis["classifier"]) == ("swa", "la", "la")


def test_report_takes_it(srepr, run, tmp_path):
    answer = srepr("report", run, "--no-dispersion", "-o", tmp_path / "report.html")
    assert answer.out.startswith("LA ")
