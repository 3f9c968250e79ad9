"""Dry runs: the work behind a table, and estimates of its time from logs and head notes."""

import json
from dataclasses import replace

import pytest

from srepr.reproduction.datasets import base_settings
from srepr.reproduction.plan import Experiment, plan
from srepr.reproduction.timing import estimates
from srepr.storage.files import write_json


@pytest.mark.parametrize("name", ["ablation", "long-training"])
def test_a_dry_run_says_what_there_is_to_do_and_writes_nothing(srepr, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = srepr("reproduce", name, "digits-lt", "--seeds", 2, "--dry-run", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert not list(tmp_path.iterdir())
    work = json.loads(answer.out)
    assert all(piece["seconds"] is None and not piece["done"] for piece in work)
    assert len(work) == len({piece["work"] for piece in work})
    experiment = Experiment(table=name, base=base_settings("digits-lt"), seeds=2, out=tmp_path)
    assert [piece["work"] for piece in work] == [str(piece) for piece in plan(experiment)]


def write_run(run, *, source="digits-lt", network="resnet8", paces=(), heads=None):
    """A run folder with what an estimate reads: an epoch of 331 digits takes 320 of them, in batches of 32."""
    (run / "heads").mkdir(parents=True)
    settings = {"source": source, "network": network, "batch_size": 32}
    write_json(run / "config.json", {"format": 1, "settings": settings, "examples": {"sizes": {"train": 331}}})
    lines = [{"branch": "trunk", "epoch": epoch, "images_per_second": pace} for epoch, pace in enumerate(paces)]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, (representation, seconds) in (heads or {}).items():
        metrics = {"diverged": "at last"} if seconds is None else {"seconds": seconds}
        settings = {"epochs": 10, "on_the_fly": False, "samples": 10}
        note = {"method": {"representation": representation}, "settings": settings, "metrics": metrics}
        write_json(run / "heads" / f"{name}.json", note)


def test_estimates_come_from_logs_and_head_notes_of_the_same_network_and_data(tmp_path):
    """By hand: SWA and SGD share three epochs of four, so a training has five; a head has ten."""
    stage1, base = tmp_path / "stage1", replace(base_settings("digits-lt"), epochs=4)
    pieces = plan(Experiment(table="full", base=base, seeds=2, out=tmp_path))

    def seconds(table=pieces):
        return [found for _, found in estimates(table, tmp_path)]

    assert seconds() == [None] * 6
    write_run(stage1 / "other-data", source="cifar10-lt", paces=[320], heads={"la": ("deterministic", 9)})
    write_run(stage1 / "other-network", network="resnet14", paces=[320], heads={"srepr": ("swag", 9)})
    assert seconds() == [None] * 6
    write_run(pieces[0].run, paces=[160.0, 320.0, 320.0])  # a running training: (2 + 1 + 1) / 3 seconds per epoch
    assert seconds() == pytest.approx([2 * 4 / 3, None, None, 5 * 4 / 3, None, None])
    write_run(stage1 / "by-hand", paces=[32.0], heads={"sgd-la": ("deterministic", 7), "x": ("swag", 5)})
    median = (4 / 3 + 10) / 2
    # The heads: four on SGD, of which one is known by name; four and SRepr on SWA, for which others stand in.
    assert seconds() == pytest.approx([2 * median, 4 * 7, 4 * 7 + 5, 5 * median, 4 * 7, 4 * 7 + 5])
    heads = {"sgd-crt": ("deterministic", 30), "sgd-lws-per-class": ("deterministic", 2), "srepr": ("swag", None)}
    write_run(stage1 / "more", heads=heads)
    others = (7 + 30 + 2) / 3
    assert seconds()[4:] == pytest.approx([30 + 2 + 7 + others, 4 * others + 5])
    write_run(pieces[3].run, heads={"sgd-crt": ("deterministic", 30), "sgd-la": ("deterministic", 7)})
    assert seconds()[4] == pytest.approx(2 + (7 + 30 + 2 + 30 + 7) / 5)  # two of the four are done
    cold = plan(Experiment(table="cost", base=base, seeds=2, out=tmp_path))
    assert seconds(cold)[1:7] == [None] * 6  # warm heads say nothing of cold ones


def test_a_dry_run_without_an_estimate_says_that_its_total_is_a_lower_bound(srepr, tmp_path):
    words = ["reproduce", "swa-crt", "digits-lt", "--epochs", 4, "--out", tmp_path, "--dry-run"]
    *lines, last = srepr(*words).out.splitlines()
    assert {line[:21] for line in lines} == {"no estimate yet      "}
    assert last == "3 of 3 to do, at least 0 s: 3 of them have no estimate yet"
    write_run(tmp_path / "stage1" / "by-hand", paces=[32.0])
    first, *others, last = srepr(*words).out.splitlines()
    assert first == "about 50 s           train digits-lt, 4 epochs, seed 0"
    assert {line[:21] for line in others} == {"no estimate yet      "}
    assert last == "3 of 3 to do, at least 50 s: 2 of them have no estimate yet"
