"""`srepr reproduce` on the embedded digits: killed and continued, shared between tables, beside the paper."""

import csv
import json
import os
import shlex
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from tests.kill import start

from srepr.cli import main
from srepr.config import RECIPES, Retrain
from srepr.features import NetworkFeatures
from srepr.reproduction.comparison import aggregate, compare
from srepr.reproduction.datasets import available_sources, base_settings
from srepr.reproduction.experiments import EVERYTHING, TABLES
from srepr.reproduction.paper import numbers
from srepr.reproduction.plan import Experiment
from srepr.reproduction.records import records
from srepr.storage.files import read_json

ABLATION = ("reproduce", "ablation", "--seeds", "2", "--epochs", "4")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The ablation of two seeds and four epochs, never disturbed; no test changes it."""
    out = tmp_path_factory.mktemp("alone") / "out"
    assert main([*ABLATION, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shared") / "out"


@pytest.fixture
def shared(one_folder, monkeypatch):
    """One folder for tables of one epoch, in both stages."""
    monkeypatch.setattr("srepr.run.retrain.stage2_epochs", lambda _: 1)
    return one_folder


def measured(out, table, source="digits-lt"):
    return read_json(out / f"{table}-{source}.json")


def untimed(records):
    return [{key: value for key, value in record.items() if key not in ("seconds", "command")} for record in records]


def times(out, pattern="stage1/*/**/*.safetensors"):
    return {file: file.stat().st_mtime_ns for file in out.glob(pattern)}


# Killed


def test_killed_in_the_middle_the_same_command_gives_the_same_table(srepr, alone, tmp_path):
    """A process of its own, SIGKILL when it has made some of the heads of the first seed."""
    out = tmp_path / "out"
    process = start([*ABLATION, "--out", str(out)])
    while process.poll() is None and len(list(out.glob("stage1/*/heads/*.json"))) < 5:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not list(out.glob("ablation-*"))
    done = times(out)
    assert len(done) > 5

    answer = srepr(*ABLATION, "--out", out)
    assert answer.code == 0
    assert answer.out == srepr(*ABLATION, "--out", alone).out
    assert untimed(measured(out, "ablation")) == untimed(measured(alone, "ablation"))
    for suffix in ("csv", "md"):
        file = f"ablation-digits-lt.{suffix}"
        assert (out / file).read_bytes() == (alone / file).read_bytes()
    assert done.items() <= times(out).items()


# Work that is done is not done again


def test_a_finished_table_is_left_as_it_is(srepr, alone):
    before = times(alone)
    contents = {file: file.read_bytes() for file in alone.glob("ablation-*")}
    answer = srepr(*ABLATION, "--out", alone)
    assert (answer.code, "[1/" in answer.err) == (0, False)
    assert times(alone) == before
    assert {file: file.read_bytes() for file in alone.glob("ablation-*")} == contents


def test_another_table_trains_nothing_and_makes_only_the_heads_that_are_new(srepr, alone):
    before = times(alone)
    answer = srepr("reproduce", "main", "--seeds", 2, "--epochs", 4, "--out", alone, "--json")
    assert answer.code == 0
    lines = [line for line in answer.err.splitlines() if line.startswith("[")]
    assert [line.split()[:2] for line in lines] == [["[1/2]", "re-train"], ["[2/2]", "re-train"]]
    new = times(alone).keys() - before.keys()
    assert {file.stem for file in new} == {"lws-per-class", "disalign"}
    assert before.items() <= times(alone).items()
    ablation, found = ({(r["name"], r["seed"]): r for r in measured(alone, name)} for name in ("ablation", "main"))
    for name in ("swa", "crt", "la", "srepr"):
        assert all(found[name, seed]["acc"] == ablation[name, seed]["acc"] for seed in (0, 1))


def test_the_command_of_every_row_finds_the_row_done(srepr, alone):
    """`srepr train` and `srepr retrain` refuse a folder or a head that was made with other settings."""
    before = times(alone)
    second = [record for record in measured(alone, "ablation") if record["seed"] == 1]
    lines = {line for record in second for line in record["command"].split(" && ")}
    assert len(lines) == 1 + 12
    for line in sorted(lines):
        program, *words = shlex.split(line)
        assert program == "srepr"
        assert srepr(*words, "--json").code == 0, line
    assert times(alone) == before


# What is in the table


def test_records_are_what_the_runs_hold(alone):
    records = measured(alone, "ablation")
    assert len(records) == 2 * 14
    for record in records:
        run = alone / "stage1" / f"digits-lt-4-epochs-seed{record['seed']}"
        stored = read_json(run / "results.json")[record["name"]]
        assert {key: record[key] for key in EVERYTHING} == {key: stored[key] for key in EVERYTHING}
        assert record["seconds"] > 0
        note = run / "heads" / f"{record['name']}.json"
        made = read_json(note) if note.exists() else None
        assert (made is None) == (record["name"] in ("sgd", "swa"))
        if made:
            assert record["stage1"] == made["stage1"]
            assert {key: record[key] for key in ("balance", "representation", "distill")}.items() <= made[
                "method"
            ].items()
            assert made["settings"]["seed"] == record["seed"]


def test_mean_and_sample_deviation_stand_beside_the_paper(srepr, alone):
    """numpy, ddof = 1; the paper's numbers are those of its ImageNet-LT, as it has none of the digits."""
    (table,) = json.loads(srepr(*ABLATION, "--out", alone, "--json").out)
    assert (table["source"], table["paper"]) == ("digits-lt", "imagenet-lt")
    assert "only the order of the rows compares" in table["notes"][0]
    theirs = numbers("ablation", "imagenet-lt")[1]
    with (alone / "ablation-digits-lt.csv").open() as file:
        lines = {(line["name"], line["metric"]): line for line in csv.DictReader(file)}
    for row in table["rows"]:
        own = [record for record in measured(alone, "ablation") if record["name"] == row["name"]]
        for metric in EVERYTHING:
            values = np.array([record[metric] for record in own]) * (1 if metric in ("nll", "ece") else 100)
            assert row["ours"][metric] == pytest.approx([values.mean(), values.std(ddof=1)])
            line = lines[row["name"], metric]
            assert [float(line["ours"]), float(line["ours_std"])] == row["ours"][metric]
            paper = theirs[row["name"]].get(metric)
            assert row["paper"][metric] == paper
            if paper:
                assert row["difference"][metric] == pytest.approx(values.mean() - paper[0], abs=1e-5)
                assert float(line["difference"]) == row["difference"][metric]


def test_people_get_three_lines_a_row_within_a_hundred_characters(srepr, alone):
    lines = srepr(*ABLATION, "--out", alone).out.splitlines()
    assert max(map(len, lines)) <= 100
    (at,) = [number for number, line in enumerate(lines) if line.split()[:2] == ["LA:", "SWA"]]
    acc = 100 * np.array([record["acc"] for record in measured(alone, "ablation") if record["name"] == "la"])
    assert f"{acc.mean():.2f}±{acc.std(ddof=1):.2f}" in lines[at]
    assert lines[at + 1].split()[:2] == ["paper", "61.60±0.07"]
    assert "51.62±0.05" in lines[at + 1]
    assert f"{acc.mean() - 51.62:+.2f}" in lines[at + 2]
    page = (alone / "ablation-digits-lt.md").read_text()
    assert "ImageNet-LT, 100 epochs, test set" in page
    assert "| 51.62±0.05 | 2.206±0.009 | 0.077±0.002 |" in page


@pytest.mark.parametrize("name", sorted(TABLES.keys() - {"ablation", "cost", "long-training", "combine"}))
def test_every_table_runs(srepr, shared, name):
    answer = srepr("reproduce", name, "digits-lt", "--epochs", 1, "--out", shared, "--json")
    assert answer.code == 0, answer.err
    (table,) = json.loads(answer.out)
    assert [row["name"] for row in table["rows"]] == [record["name"] for record in measured(shared, name)]
    for row in table["rows"]:
        assert row["ours"].keys() == set(TABLES[name].columns)
        assert all(spread is None for _, spread in row["ours"].values())  # of one seed there is none
    assert any(row["paper"]["acc"] for row in table["rows"])
    assert " test set; paper: " in table["caption"]  # digits have no validation part


def test_the_time_of_a_head_includes_its_features(srepr, shared, monkeypatch):
    """Each row of the cost table sweeps what it needs by itself, although the run folder keeps it all."""
    monkeypatch.setattr("srepr.reproduction.experiments.stage2_epochs", lambda epochs: 1)
    monkeypatch.setattr("srepr.reproduction.experiments.PAPER", Retrain(solver="sgd", samples=2))
    run = shared / "stage1" / "digits-lt-1-epochs-seed0"
    assert srepr("reproduce", "representation", "digits-lt", "--epochs", 1, "--out", shared).code == 0
    warm = {file.name for file in (run / "cache").iterdir()}
    make, swept = NetworkFeatures.make, []
    monkeypatch.setattr(
        NetworkFeatures, "make", lambda self, missing, view: swept.append(len(missing)) or make(self, missing, view)
    )
    answer = srepr("reproduce", "cost", "digits-lt", "--epochs", 1, "--out", shared, "--json")
    assert all(row["ours"]["seconds"][0] > 0 for row in json.loads(answer.out)[0]["rows"])
    crt, srepr_, test = [1], [1 + 2], [1]
    assert swept == [
        *(2 * crt + test + srepr_ + test + srepr_ + test),
        *(4 * crt + test + 2 * srepr_ + test + srepr_ + test),
    ]
    assert {file.name for file in (run / "cache").iterdir()} == warm
    assert not (run / "cost-cache").exists()
    (kept,) = [record for record in measured(shared, "cost") if record["name"] == "srepr-2x-kept"]
    assert (kept["retrain_epochs"], kept["on_the_fly"]) == (2, False)


def test_a_head_that_diverges_is_not_available_and_named_with_its_temperature(srepr, shared, monkeypatch):
    assert srepr("reproduce", "main", "digits-lt", "--epochs", 1, "--out", shared).code == 0
    monkeypatch.setattr("srepr.reproduction.experiments.TEMPERATURES", (3.0, 20.0))
    monkeypatch.setattr("srepr.retraining.EXPLODED", 0.0)  # every loss from now on
    answer = srepr("reproduce", "temperature", "digits-lt", "--epochs", 1, "--out", shared)
    assert answer.code == 0
    (row,) = [line for line in answer.out.splitlines() if "tau = 3 " in line]
    assert row.split()[3:] == ["N/A"] * 6
    words = " ".join(answer.out.split())
    assert "N/A: tau = 3: the re-training diverged in epoch 0, step 0" in words
    assert "at temperature 3. Raise `temperature`" in words
    assert [record["acc"] is None for record in measured(shared, "temperature")] == [True, False]


def test_people_bring_their_own_data_and_choices_are_measured_on_its_validation_part(srepr, tmp_path, monkeypatch):
    monkeypatch.setattr("srepr.run.retrain.stage2_epochs", lambda _: 1)
    labels = np.repeat([0, 1, 2], [120, 40, 20])
    x = np.random.default_rng(0).normal(size=(180, 6)).astype(np.float32) + labels[:, None]
    np.savez(tmp_path / "mine.npz", x=x, y=labels)
    words = [tmp_path / "mine.npz", "--epochs", 2, "--out", tmp_path / "out"]
    for table, part in (("representation", "validation"), ("main", "test")):
        assert srepr("reproduce", table, *words).code == 0
        run = tmp_path / "out" / "stage1" / "mine.npz-2-epochs-seed0"
        stored = read_json(run / "results.json")["srepr"]
        (record,) = [record for record in measured(tmp_path / "out", table, "mine.npz") if record["name"] == "srepr"]
        assert record["part"] == part
        assert record["nll"] == (stored["validation"] if part == "validation" else stored)["nll"]
    assert stored["nll"] != stored["validation"]["nll"]


# Which data


def imagenet_lists(folder, parts):
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "one.JPEG").touch()
    for part in parts:
        lines = [f"images/one.JPEG {k}" for k in range(1000)] * 2
        (folder / f"ImageNet_LT_{part}.txt").write_text("\n".join(lines))
    return folder


def test_a_validation_part_that_costs_no_training_is_held_beside(tmp_path):
    whole = imagenet_lists(tmp_path / "whole", ["train", "val", "test"])
    without = imagenet_lists(tmp_path / "without", ["train", "test"])
    assert base_settings("imagenet-lt", data_dir=whole).data.protocol == "holdout"
    assert base_settings("imagenet-lt", data_dir=without).data.protocol is None
    assert base_settings("digits-lt").data.protocol is None


def test_the_data_sets_of_the_table_that_are_there_are_taken(srepr, tmp_path):
    whole = imagenet_lists(tmp_path / "whole", ["train", "val", "test"])
    assert available_sources("main", whole) == ["imagenet-lt"]
    assert (
        "has none of cifar10-lt, cifar100-lt. Name a SOURCE"
        in srepr("reproduce", "cifar", "--data-dir", whole).complaint
    )
    answer = srepr("reproduce", "swa-crt", "--epochs", 1, "--dry-run", "--out", tmp_path / "out")
    assert "the embedded digits-lt stands in" in answer.err
    assert "train digits-lt, 1 epochs, seed 0" in answer.out


def test_the_papers_own_data_set_and_length_need_no_excuse(tmp_path):
    base = replace(RECIPES["cifar100-lt"], baseline=True)
    experiment = Experiment(table="main", base=base, seeds=4, out=tmp_path)
    records = [
        {"name": row.name, "label": row.label, "part": "test", **dict.fromkeys(EVERYTHING, 0.5)}
        for row in experiment.rows
    ]
    comparison = compare(experiment, records)
    assert (comparison.paper, comparison.notes) == ("cifar100-lt", [])
    assert "seeds 0 to 3" in comparison.caption
    assert compare(replace(experiment, base=replace(base, epochs=40)), records).notes != []


def test_the_caption_names_the_part_although_the_first_row_diverged(tmp_path):
    experiment = Experiment(table="temperature", base=RECIPES["digits-lt"], seeds=1, out=tmp_path)
    name = experiment.run(experiment.base)
    lost, found = {"diverged": "at temperature 1"}, {"acc": 0.5, "validation": {"acc": 0.25}}
    heads = {f"srepr-temperature-{tau}": lost for tau in (1, 2, 5, 10)} | {"srepr": found}
    comparison = compare(experiment, records(experiment, {name: heads}))
    assert "seed 0, validation set; paper: ImageNet-LT, 100 epochs, validation set." in comparison.caption
    assert comparison.rows[-1].ours["acc"] == [25.0, None]
    assert comparison.notes[1:] == [f"N/A: tau = {tau}: at temperature 1" for tau in (1, 2, 5, 10)]


def test_infinite_and_missing_numbers():
    rows = [{"name": "la", "nll": "inf", "few": None}, {"name": "la", "nll": 1.0, "few": 0.5}]
    assert aggregate("nll", rows, "la") == [float("inf"), None]
    assert aggregate("few", rows, "la") is None
    assert aggregate("nll", rows, "crt") is None


# What would run


def test_a_dry_run_knows_what_is_done(srepr, alone):
    before = {file: file.stat().st_mtime_ns for file in alone.rglob("*")}
    *lines, last = srepr(*ABLATION, "--out", alone, "--dry-run").out.splitlines()
    assert [line.split()[0] for line in lines] == ["done"] * 6
    assert last == "0 of 6 to do, about 0 s"
    *lines, last = srepr(*ABLATION[:2], "--epochs", 4, "--seeds", 3, "--out", alone, "--dry-run").out.splitlines()
    assert [line.split()[0] for line in lines] == ["done"] * 6 + ["about"] * 3
    assert last.startswith("3 of 9 to do, about ")
    assert {file: file.stat().st_mtime_ns for file in alone.rglob("*")} == before


# Mistakes


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ablatoin"], "unknown table 'ablatoin'; did you mean ablation? Known: swa-crt, ablation, main"),
        (["quux"], "unknown table 'quux'. Known: "),
        (["main", "digits-l"], "unknown data set 'digits-l'; did you mean digits-lt?"),
        (["main", "digits-l", "--dry-run"], "unknown data set 'digits-l'; did you mean digits-lt?"),
        (["main", "cifar100-lt"], "cifar100-lt needs --data-dir"),
        (["main", "--seeds", "0"], "--seeds is 0: at least 1 is needed"),
        (["main", "--epochs", "-1"], "--epochs is -1: at least 1 is needed"),
        (["main", "--epochs", "0"], "--epochs is 0: at least 1 is needed"),
        ([], "NAME"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(srepr, tmp_path, words, complaint):
    assert complaint in srepr("reproduce", *words, "--out", tmp_path / "out").complaint
    assert not (tmp_path / "out").exists()


def test_a_run_made_by_hand_with_other_settings_is_refused_by_name(srepr, tmp_path):
    run = tmp_path / "stage1" / "digits-lt-1-epochs-seed0"
    assert srepr("train", "digits-lt", "--epochs", 1, "--out", run).code == 0
    answer = srepr("reproduce", "main", "digits-lt", "--epochs", 1, "--out", tmp_path)
    assert "`baseline` was False, now True" in answer.complaint
