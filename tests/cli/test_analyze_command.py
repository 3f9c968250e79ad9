"""`srepr analyze` as it is typed, on the embedded digits."""

import csv
import json
import shutil

import numpy as np
import pytest
import scipy.stats

from srepr.cli import main
from srepr.data import load
from srepr.run.classifiers import open_run
from srepr.run.figures import FIGURES
from srepr.storage.files import read_json

NUMBERS = {"analysis.json", "instances.csv", "classes.csv", "ensemble.csv"}


@pytest.fixture(scope="module")
def run(retrained, tmp_path_factory):
    """A run with heads, never analyzed."""
    return shutil.copytree(retrained, tmp_path_factory.mktemp("analyze") / "run")


@pytest.fixture(scope="module")
def analyzed(run):
    assert main(["analyze", str(run), "--classifier", "swa", "--samples", "3", "--json"]) == 0
    return run / "analysis"


@pytest.fixture
def few_figures(monkeypatch):
    """One figure instead of all, where the numbers are the point."""
    drawn = {"ensemble": FIGURES["ensemble"]}
    monkeypatch.setattr("srepr.run.figures.FIGURES", drawn)
    return drawn


def table(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def test_numbers_and_figures_are_in_the_run_folder(analyzed):
    figures = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {file.name for file in analyzed.iterdir()} == NUMBERS | figures


def test_the_instances_are_those_of_the_test_part(analyzed, run):
    """Label, NLL, confidence and hit from the averaged network's own logits; the correlation from the columns."""
    rows, labels = table(analyzed / "instances.csv"), load("digits-lt").test.labels
    assert list(rows[0]) == [
        *("index", "label", "nll", "confidence", "correct", "feature_dispersion", "probability_dispersion")
    ]
    np.testing.assert_array_equal(column(rows, "index"), np.arange(597))
    np.testing.assert_array_equal(column(rows, "label"), labels)
    opened = open_run(run, quiet=True)
    frozen = opened.networks["swa"]
    logits = np.concatenate([part.double().numpy() for part, _ in frozen.outputs(frozen.layer, opened.part)])
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    np.testing.assert_allclose(column(rows, "nll"), -np.log(probs[np.arange(597), labels]), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(column(rows, "confidence"), probs.max(1), rtol=1e-9)
    np.testing.assert_array_equal(column(rows, "correct"), probs.argmax(1) == labels)
    kept = read_json(analyzed / "analysis.json")["dispersion"]
    for space in ("feature", "probability"):
        dispersion = column(rows, f"{space}_dispersion")
        assert (dispersion > 0).mean() > 0.9
        r = scipy.stats.pearsonr(dispersion, column(rows, "nll")).statistic
        assert kept[space]["pearson"] == pytest.approx(r, rel=1e-9)


def test_the_classes_are_rows_with_their_group(analyzed):
    rows, kept = table(analyzed / "classes.csv"), read_json(analyzed / "analysis.json")
    assert [row["group"] for row in rows] == ["many", *["medium"] * 4, *["few"] * 5]
    assert [int(row["count"]) for row in rows] == kept["counts"]
    assert [row["name"] for row in rows] == kept["classes"]
    instances = table(analyzed / "instances.csv")
    for k, row in enumerate(rows):
        assert int(row["class"]) == k
        own = [instance for instance in instances if int(instance["label"]) == k]
        assert float(row["accuracy_before"]) == pytest.approx(column(own, "correct").mean())
        assert float(row["probability_dispersion"]) == pytest.approx(column(own, "probability_dispersion").mean())
    for name, key in (("weight_norm", "weight_norms"), ("marginal", "marginal"), ("accuracy", "per_class")):
        for when in ("before", "after"):
            assert column(rows, f"{name}_{when}").tolist() == kept[key][when]


def test_the_curve_is_a_row_for_each_number_of_draws(analyzed):
    rows, kept = table(analyzed / "ensemble.csv"), read_json(analyzed / "analysis.json")
    assert [{name: float(value) for name, value in row.items()} for row in rows] == kept["ensemble"]
    assert [row["samples"] for row in rows] == ["1", "2", "3"]


def test_json_is_what_was_written(srepr, run, tmp_path, few_figures):
    answer = srepr("analyze", run, "--head", "la", "--samples", 2, "--out", tmp_path / "a" / "b", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == read_json(tmp_path / "a" / "b" / "analysis.json")
    assert json.loads(answer.out)["head"] == "la"
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == {*NUMBERS, "ensemble.png", "ensemble.svg"}


def test_people_get_the_findings_and_the_place(srepr, run, tmp_path, few_figures):
    out = tmp_path / "figures"
    answer = srepr("analyze", run, "--samples", 3, "--classifier", "la", "--out", out)
    kept = read_json(out / "analysis.json")
    assert answer.code == 0
    assert "3 draws with the classifier of LA, test set" in answer.out
    assert f"correlation with NLL {kept['dispersion']['feature']['pearson']:.3f}" in answer.out
    assert all(f"({group})" in answer.out for group in ("many", "medium", "few"))
    assert f"accuracy {100 * kept['ensemble'][-1]['acc']:.2f}" in answer.out
    assert "SRepr" in answer.out
    assert answer.out.splitlines()[-1] == f"Numbers and figures are in {out}"


def test_the_same_command_writes_the_same_bytes(srepr, run, analyzed, tmp_path, few_figures):
    assert srepr("analyze", run, "--classifier", "swa", "--samples", 3, "--out", tmp_path, "--json").code == 0
    for name in (*NUMBERS, "ensemble.png", "ensemble.svg"):
        assert (tmp_path / name).read_bytes() == (analyzed / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--head", "srpr"], "unknown head 'srpr'; did you mean srepr? Known: sgd, swa, crt, "),
        (["--samples", "0"], "--samples is 0: at least 1 is needed"),
        (["--out", "/dev/null/figures"], "/dev/null/figures cannot be written (Not a directory)."),
    ],
)
def test_what_cannot_work_is_one_line(srepr, run, words, complaint):
    assert complaint.format(run=run) in srepr("analyze", run, *words).complaint


def test_a_run_without_heads_says_how_to_make_one(srepr, trained, tmp_path):
    assert f"Make one with: srepr retrain {trained}" in srepr("analyze", trained, "--out", tmp_path).complaint


def test_a_folder_in_use_is_left_alone(srepr, written_to, run, tmp_path):
    with written_to(run):
        answer = srepr("analyze", run, "--out", tmp_path / "figures")
    assert f"another process is writing to {run}." in answer.complaint
    assert not (tmp_path / "figures").exists()
