"""`srepr reproduce combine`: the paper's recipe on a checkpoint of somebody else's."""

import json
import shlex

import pytest
import torch

from srepr.cli import main
from srepr.models import resnet8
from srepr.reproduction.paper import tables
from srepr.run.checkpoints import load_model
from srepr.storage.files import read_json


@pytest.fixture(scope="module")
def checkpoint(trained, tmp_path_factory):
    """The network of the finished training as another project would keep it."""
    network, _ = load_model(trained / "representation.safetensors")
    path = tmp_path_factory.mktemp("theirs") / "sade_digits.pth"
    weights = {f"module.{name}": tensor for name, tensor in network.state_dict().items()}
    torch.save({"arch": "resnet8", "epoch": 8, "state_dict": weights}, path)
    return path


@pytest.fixture(scope="module")
def combined(checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("combined")
    words = ["combine", checkpoint, "--source", "digits-lt", "--epochs", 3, "--seeds", 2, "--out", out]
    assert main([str(word) for word in ["reproduce", *words]]) == 0
    return out


def test_before_is_the_checkpoint_and_after_is_retrained(combined, trained):
    rows = read_json(combined / "combine-digits-lt.json")
    assert [(row["name"], row["seed"]) for row in rows] == [
        (name, seed) for seed in (0, 1) for name in ("sade_digits", "sade_digits+srepr")
    ]
    before = read_json(trained / "results.json")["swa"]
    assert {row["acc"] for row in rows if row["stage1"] == "sgd"} == {before["acc"]}
    after = [row for row in rows if row["stage1"] == "swa"]
    assert all(row["distill"] and row["representation"] == "swag" and row["seconds"] > 0 for row in after)


def test_the_command_of_a_row_is_what_was_done(srepr, combined, tmp_path):
    row = read_json(combined / "combine-digits-lt.json")[3]
    run = combined / "combine" / "sade_digits-seed1"
    for command in row["command"].split(" && "):
        words = [word.replace(str(run), str(tmp_path / "run")) for word in shlex.split(command)[1:]]
        assert srepr(*words).code == 0
    again = read_json(tmp_path / "run" / "results.json")["srepr"]
    assert [again[key] for key in ("acc", "nll", "ece")] == [row[key] for key in ("acc", "nll", "ece")]


def test_the_table_stands_beside_the_papers_sade(srepr, combined, checkpoint):
    files = {path: path.stat().st_mtime_ns for path in (combined / "combine").rglob("*.safetensors")}
    words = ["--source", "digits-lt", "--epochs", 3, "--seeds", 2, "--out", combined, "--json"]
    answer = srepr("reproduce", "combine", checkpoint, *words)
    assert {path: path.stat().st_mtime_ns for path in (combined / "combine").rglob("*.safetensors")} == files
    table = json.loads(answer.out)[0]
    assert (
        "digits-lt, 3 epochs of collection, seeds 0 to 1, test set; paper: ImageNet-LT, about 10" in table["caption"]
    )
    assert "only the direction of the changes compares" in table["notes"][0]
    theirs = tables()["combine"]["imagenet-lt"]
    assert [row["paper"]["ece"] for row in table["rows"]] == [theirs["sade"]["ece"], theirs["sade+srepr"]["ece"]]
    mean, spread = table["rows"][1]["ours"]["acc"]
    rows = read_json(combined / "combine-digits-lt.json")
    ours = torch.tensor([100 * row["acc"] for row in rows if row["stage1"] == "swa"], dtype=torch.float64)
    assert (mean, spread) == (pytest.approx(ours.mean().item()), pytest.approx(ours.std().item()))


def test_a_dry_run_says_what_is_left(srepr, combined, checkpoint, tmp_path):
    words = ["reproduce", "combine", checkpoint, "--source", "digits-lt", "--epochs", 3, "--dry-run"]
    *lines, last = srepr(*words, "--seeds", 3, "--out", combined).out.splitlines()
    assert [line.split()[0] for line in lines] == ["done"] * 4 + ["about"] * 2
    assert lines[4].endswith("collect around sade_digits.pth on digits-lt, 3 epochs, seed 2")
    assert lines[5].endswith("re-train srepr on digits-lt, 3 epochs, seed 2")
    assert last.startswith("2 of 6 to do, about ")
    assert {piece["seconds"] for piece in json.loads(srepr(*words, "--out", tmp_path, "--json").out)} == {None}
    assert not list(tmp_path.iterdir())


def test_mistakes_are_named(srepr, checkpoint, tmp_path):
    combine = ["reproduce", "combine", "--out", tmp_path]
    assert "needs checkpoints" in srepr(*combine).complaint
    words = ["--out", tmp_path, "--source", "digits-lt"]
    assert "does not exist" in srepr("reproduce", "combine", tmp_path / "no.pth", *words).complaint
    same = tmp_path / checkpoint.name
    same.write_bytes(checkpoint.read_bytes())
    assert "two checkpoints" in srepr("reproduce", "combine", checkpoint, same, *words).complaint
    seven = tmp_path / "seven.pth"
    torch.save(resnet8(7, channels=1).state_dict(), seven)
    assert "7 classes; no data set of the paper has. Name it with --source" in srepr(*combine, seven).complaint
    assert "cifar10-lt needs --data-dir" in srepr(*combine, checkpoint).complaint  # the data set with ten classes
    assert "one data set" in srepr("reproduce", "main", "digits-lt", "cifar10-lt").complaint
