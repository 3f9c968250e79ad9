"""The runs under results/runs give their published numbers back, on the real test images."""

import json
import shutil
from pathlib import Path

import pytest

from srepr.metrics import COLUMNS
from srepr.storage.files import read_json

RUNS = sorted(path.parent for path in (Path(__file__).parents[2] / "results" / "runs").glob("*/config.json"))


@pytest.mark.parametrize("published", RUNS, ids=lambda run: run.name)
def test_evaluating_a_reference_run_gives_its_table_back(srepr, real_cifar, published, tmp_path):
    run = shutil.copytree(published, tmp_path / "run")
    answer = srepr("evaluate", run, "--data-dir", real_cifar, "--json")
    assert answer.code == 0, answer
    found, kept = json.loads(answer.out), read_json(published / "results.json")
    assert found.keys() == kept.keys()
    assert {"sgd", "swa", "srepr", "auto"} <= found.keys()
    for name, metrics in kept.items():
        for column in COLUMNS:
            if metrics.get(column) is not None:  # to the rounding of another processor: an image or two may flip
                assert found[name][column] == pytest.approx(metrics[column], abs=2e-3), (name, column)


@pytest.mark.parametrize("published", RUNS, ids=lambda run: run.name)
def test_a_reference_run_is_small_and_says_nothing_of_a_machine(published):
    files = [path for path in published.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 10_000_000
    for path in files:
        if path.suffix in (".json", ".jsonl"):
            assert "/tmp" not in path.read_text(), path
            assert "/home" not in path.read_text(), path
