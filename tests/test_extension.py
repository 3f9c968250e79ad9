"""A newcomer's five changes, exactly as docs/architecture.md shows them, through the command line."""

import json
import re
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import srepr as library
from srepr import balance, heads, metrics, models
from srepr.data import ArrayExamples, LongTailData, sources

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def code(heading):
    """The blocks of code below a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {heading}\n")[1].split("\n### ")[0]
    return re.findall(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def run_code(heading, module, **names):
    """Run the blocks as if they stood in the module; the names that they have then."""
    space = {**vars(module), "np": np, "nn": nn, "torch": torch, **names}
    for block in code(heading):
        exec(compile(block, PAGE.name, "exec"), space)
    return space


@pytest.fixture
def command(srepr):
    """`srepr WORDS`, beside the library of that name."""
    return srepr


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_a_head_is_a_module_and_a_row(run, monkeypatch, command):
    monkeypatch.setattr(heads, "HEADS", run_code("A head", heads)["HEADS"])
    answer = command("retrain", run, "--method", "la", "--head", "bias-only", "--name", "mine", "--epochs", "2")
    assert answer.code == 0, answer.err
    classifier = library.load(run, "mine")
    assert type(classifier.fc).__name__ == "BiasOnly"
    assert classifier.fc.correction.abs().max() > 0
    before = json.loads((run / "results.json").read_text())["mine"]
    assert json.loads(command("evaluate", run, "--json").out)["mine"]["nll"] == pytest.approx(before["nll"])
    assert command("export", run, "--head", "mine", "--format", "safetensors", "-o", run / "mine").code == 0
    assert torch.equal(library.load(run / "mine.safetensors").fc.correction, classifier.fc.correction)


def test_a_balance_is_a_function_and_a_row(run, monkeypatch, command):
    monkeypatch.setattr(balance, "BALANCES", dict(balance.BALANCES))
    run_code("A balance", balance)
    words = ("retrain", run, "--method", "la", "--balance", "sqrt", "--name", "sqrt", "--epochs", "2")
    assert command(*words).code == 0
    counts = np.array(library.data.load("digits-lt").counts, dtype=float)
    assert library.load(run, "sqrt").expects == pytest.approx(counts**0.5)


def test_a_network_is_a_function_and_a_row(tmp_path, monkeypatch, command):
    monkeypatch.setitem(models.NETWORKS, "two-layers", None)
    run_code("A network", models)
    words = ("train", "digits-lt", "--network", "two-layers", "--epochs", "1", "--out", tmp_path / "run")
    assert command(*words).code == 0
    assert library.load(tmp_path / "run").fc.in_features == 16


def test_a_data_set_is_a_reader_and_a_row(tmp_path, monkeypatch, command):
    monkeypatch.setitem(sources.NAMED, "blobs", None)
    names = run_code("A data set", sources, LongTailData=LongTailData, ArrayExamples=ArrayExamples)
    reader = types.ModuleType("srepr.data.blobs")
    reader.read = names["read"]
    monkeypatch.setitem(sys.modules, "srepr.data.blobs", reader)
    assert "two Gaussian classes" in command("data", "list").out
    assert command("train", "blobs", "--epochs", "2", "--out", tmp_path / "run").code == 0
    assert library.load(tmp_path / "run").class_names == ("left", "right")


def test_a_metric_is_a_number_and_a_row(run, monkeypatch, command):
    monkeypatch.setitem(metrics.COLUMNS, "worst", None)
    names = run_code("A metric", metrics, without_worst=metrics.LongTailMetrics.compute)
    monkeypatch.setattr(metrics.LongTailMetrics, "compute", names["compute"])
    answer = command("retrain", run, "--method", "la", "--epochs", "2")
    assert "Worst" in answer.out
    assert command("evaluate", run).code == 0
    assert command("report", run, "--no-dispersion").code == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    content = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page)[1])
    assert content["columns"]["worst"]["title"] == "Worst"
    assert all("worst" in row for row in content["runs"][0]["views"][0]["results"])
    assert command("export", run, "--format", "safetensors", "-o", run / "model").code == 0
    assert "| Worst |" in (run / "model.md").read_text(encoding="utf-8")
