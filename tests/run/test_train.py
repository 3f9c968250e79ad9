"""`srepr train` from the outside: what a run folder is allowed to become."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.kill import TRAIN

from srepr.config import Data, Machine, Train, settings_for
from srepr.data import load
from srepr.errors import InputError
from srepr.run.description import describe
from srepr.run.folder import load_run_data, read_settings
from srepr.run.log import read_log
from srepr.run.train import train
from srepr.storage.files import create_folder, read_json

DIGITS = replace(settings_for("digits-lt"), epochs=1)


@pytest.fixture
def table(tmp_path):
    """Four numbers an example; 30, 9 and 1 examples of three classes."""
    y = np.repeat([0, 1, 2], [30, 9, 1])
    x = np.random.default_rng(0).normal(size=(40, 4)) + 3 * y[:, None]
    np.savez(tmp_path / "table.npz", x=x, y=y)
    return tmp_path / "table.npz"


def snapshot(run):
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in run.glob("[!.]*.*")}


def test_a_run_folder_holds_what_the_design_says(trained):
    names = {file.name for file in trained.iterdir() if not file.name.startswith(".")}
    assert names - {"tensorboard"} == {
        "config.json",
        "log.jsonl",
        "posterior.safetensors",
        "representation.safetensors",
        "results.json",
        "sgd.safetensors",
    }
    config = read_json(trained / "config.json")
    assert (config["format"], config["settings"]["epochs"], config["settings"]["optim"]["lr"]) == (1, 8, 0.1)
    assert config["examples"]["sizes"] == {"train": 331, "test": 597}
    assert {"python", "torch", "srepr"} <= config["versions"].keys()
    results = read_json(trained / "results.json")
    assert list(results) == ["sgd", "swa"]
    assert all(row["n"] == 597 and row["acc"] > 0.5 for row in results.values())


def test_a_finished_run_prints_its_results_again_and_changes_nothing(srepr, trained):
    before = snapshot(trained)
    answer = srepr(*TRAIN, "--epochs", 8, "--out", trained, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == read_json(trained / "results.json")
    assert snapshot(trained) == before
    assert not (trained / "state").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--epochs", "9"], "--epochs was 8, now 9"),
        (["--epochs", "8", "--optim.lr", "0.2"], "--optim.lr was 0.1, now 0.2"),
        (["--epochs", "8", "--seed", "1"], "--seed was 0, now 1"),
        (["--epochs", "8", "--imbalance", "0.1"], "--imbalance was None, now 0.1"),
        (["--epochs", "8", "--no-baseline"], "--baseline was True, now False"),
    ],
)
def test_other_settings_are_refused_and_named(srepr, trained, words, named):
    before = snapshot(trained)
    complaint = srepr(*TRAIN, *words, "--out", trained).complaint
    assert complaint.startswith(f"{trained} holds a run with other settings: {named}. Choose another folder")
    assert snapshot(trained) == before


def test_what_does_not_change_the_result_may_change(srepr, trained):
    words = [*TRAIN, "--epochs", 8, "--out", trained]
    assert srepr(*words, "--workers", 0, "--checkpoint-minutes", 5).code == 0


@pytest.mark.parametrize("part", ["x_train", "x_test"])
def test_changed_data_is_refused_in_words(srepr, tmp_path, part):
    chance = np.random.default_rng(0)
    arrays = {f"x_{name}": chance.normal(size=(20, 3)) for name in ("train", "test")}
    labels = {"y_train": np.arange(20) % 2, "y_test": np.arange(20) % 2}
    words = ["train", tmp_path / "t.npz", "--epochs", 1, "--batch-size", 8, "--out", tmp_path / "run"]
    np.savez(tmp_path / "t.npz", **arrays, **labels)
    assert srepr(*words).code == 0
    arrays[part][3, 1] += 1
    np.savez(tmp_path / "t.npz", **arrays, **labels)
    assert srepr(*words).complaint.startswith(f"the data changed since {tmp_path / 'run'} was started.")
    assert "are not those that" in srepr("evaluate", tmp_path / "run").complaint


def test_a_folder_with_other_things_in_it_is_refused(srepr, tmp_path):
    (tmp_path / "thesis.tex").touch()
    assert "is not empty and not a run folder" in srepr("train", "digits-lt", "--out", tmp_path).complaint
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_second_writer_is_refused(srepr, written_to, tmp_path):
    run = tmp_path / "run"
    words = ["train", "digits-lt", "--epochs", 1, "--out", run]
    create_folder(run)
    with written_to(run):
        assert srepr(*words).complaint.startswith(f"another process is writing to {run}.")
    assert srepr(*words).code == 0


def test_one_epoch_with_a_baseline_works(tmp_path):
    results = train(replace(DIGITS, baseline=True), tmp_path / "run")
    assert [(line["branch"], line["epoch"]) for line in read_log(tmp_path / "run")] == [("swa", 0), ("sgd", 0)]
    assert results.keys() == {"sgd", "swa"}


def test_a_table_with_a_class_of_one_example_works(table, tmp_path, monkeypatch):
    """It is trained on, and has no accuracy of its own; a relative path is found again from elsewhere."""
    monkeypatch.chdir(table.parent)
    settings = Train(source="table.npz", epochs=2, batch_size=8)
    results = train(settings, tmp_path / "run")["swa"]
    assert results["per_class"][2] is None
    assert results["n"] == 8
    assert results["validation"]["n"] == 3
    assert read_settings(tmp_path / "run")["network"] == "mlp"
    monkeypatch.chdir("/")
    assert load_run_data(tmp_path / "run").counts.tolist() == [22, 6, 1]


@pytest.mark.parametrize("noun", ["rows", "images"])
def test_the_pace_is_counted_in_what_the_examples_are(table, tmp_path, capsys, noun):
    train(replace(DIGITS, epochs=1) if noun == "images" else Train(source=str(table), epochs=1), tmp_path / "run")
    assert re.search(rf"^swa   1/1 .* \d+ {noun}/s\b", capsys.readouterr().err, re.MULTILINE)


def test_a_data_set_without_a_test_part_is_trained_and_measured_on_nothing(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.eye(4), y=np.arange(4))
    results = train(Train(source=str(tmp_path / "t.npz"), epochs=1, batch_size=4), tmp_path / "run")
    assert results == {"swa": {}}


@pytest.mark.parametrize(
    ("network", "expected", "options"),
    [
        ("auto", "resnet32", {"channels": 1, "shortcut": "A"}),
        ("mlp", "mlp", {"inputs": 64}),
        ("resnet18",) * 2 + ({},),
    ],
)
def test_a_network_is_built_for_the_input(network, expected, options):
    about = describe(Train(source="digits-lt", network=network), load("digits-lt"))
    assert about.network == expected
    assert options.items() <= about.options.items()
    assert (about.shape, about.counts, sum(about.counts)) == ((1, 8, 8), tuple(load("digits-lt").counts), 331)


def test_networks_that_do_not_fit_the_input_are_refused(table):
    with pytest.raises(InputError, match=r"resnet8 takes images, and .*table\.npz has vectors"):
        describe(Train(source=str(table), network="resnet8"), load(table))


@pytest.mark.parametrize(
    ("settings", "machine", "complaint"),
    [
        (replace(DIGITS, batch_size=2), Machine(devices=2), "each process gets 1 of a batch"),
        (
            replace(DIGITS, batch_size=500),
            Machine(devices=200),
            "BatchNorm needs 400, and 331 remain .* Add more images, or lower `devices`",
        ),
        (replace(DIGITS, batch_size=33, mixup=0.2), Machine(), "mixup pairs the examples of a process, and 33 is odd"),
        (replace(DIGITS, batch_size=10, mixup=0.2), Machine(devices=2), "and 5 is odd"),
    ],
)
def test_batches_that_cannot_be_shared_out_are_refused(tmp_path, settings, machine, complaint):
    with pytest.raises(InputError, match=complaint):
        train(settings, tmp_path / "run", machine=machine)
    assert not (tmp_path / "run").exists()


def test_the_held_out_part_is_kept_away_from_the_training(tmp_path):
    settings = replace(DIGITS, data=Data(protocol="holdout"))
    results = train(settings, tmp_path / "run")["swa"]
    sizes = read_json(tmp_path / "run" / "config.json")["examples"]["sizes"]
    assert sizes["train"] + sizes["validation"] == 331
    assert results["validation"]["n"] == sizes["validation"]
    assert results["n"] == 597


def test_the_paper_train_sets_have_their_sizes(real_cifar):
    for name, classes, size in (("cifar10-lt", 10, 12_406), ("cifar100-lt", 100, 10_847)):
        data = load(name, data_dir=real_cifar)
        assert (len(data.train), len(data.test), len(data.class_names)) == (size, 10_000, classes)


def test_cifar_runs_from_end_to_end(real_cifar, tmp_path, srepr):
    """Two images a class for training, and the whole test set."""
    words = ["train", "cifar100-lt", "--data-dir", real_cifar, "--epochs", 1, "--counts", *[2] * 100]
    answer = srepr(*words, "--network", "resnet8", "--out", tmp_path / "run", "--json")
    assert answer.code == 0
    results = json.loads(answer.out)["swa"]
    assert results["n"] == 10_000
    assert results["many"] is results["medium"] is None
    assert results["few"] == results["acc"]
    assert read_log(tmp_path / "run")[0]["loss"] < 2 * math.log(100)
