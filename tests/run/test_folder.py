"""The run folder: nothing mixed up, one writer, the newest state."""

import json
import os
import signal
import sys
import time
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from srepr.errors import InputError
from srepr.run.folder import differences, enter_run, newest_state, provenance, read_settings, save_state, sole_writer
from srepr.run.log import append_log, cut_log, read_log

FACTS = {"examples": {"fingerprint": "a9dc"}}


def names(folder):
    return sorted(file.name for file in folder.rglob("*"))


settings = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))


@pytest.mark.parametrize(("freeze", "refused"), [("body", False), ("none", True)])
def test_the_optimiser_of_a_frozen_body_does_not_matter(tmp_path, freeze, refused):
    run = tmp_path / "run"
    enter_run(run, {"freeze": freeze, "optim": {"name": "sgd", "lr": 0.1}}, FACTS)
    with pytest.raises(InputError, match=r"`optim\.lr` was 0\.1, now 0\.2") if refused else nullcontext():
        enter_run(run, {"freeze": freeze, "optim": {"name": "sgd", "lr": 0.2, "clip": 1.0}}, FACTS)


@given(old=settings, new=settings, inner=st.tuples(settings, settings))
def test_differences_names_exactly_the_settings_that_differ(old, new, inner):
    said = differences({**old, "optim": inner[0]}, {**new, "optim": inner[1]})
    flat = [
        {**outer, **{f"optim.{name}": value for name, value in nested.items()}}
        for outer, nested in zip((old, new), inner, strict=True)
    ]
    expected = sorted(name for name in flat[0] | flat[1] if flat[0].get(name) != flat[1].get(name))
    assert said == "; ".join(f"`{name}` was {flat[0].get(name)}, now {flat[1].get(name)}" for name in expected)


def test_a_run_is_entered_again_with_the_same_settings_and_data_only(tmp_path):
    run = tmp_path / "deep" / "run"
    wanted = {"seed": 0, "optim": {"lr": 0.5}, "counts": (3, 1)}
    enter_run(run, wanted, {**FACTS, "command": "first"})
    enter_run(run, wanted, {**FACTS, "command": "second"})
    assert json.loads((run / "config.json").read_text())["command"] == "first"
    with pytest.raises(InputError, match=r"other settings: `optim\.lr` was 0\.5, now 0\.1\."):
        enter_run(run, {**wanted, "optim": {"lr": 0.1}}, FACTS)
    with pytest.raises(InputError, match=r"the data changed since .*run was started"):
        enter_run(run, wanted, {"examples": {"fingerprint": "ffff"}})
    assert names(run) == ["config.json"]


def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not empty and not a run folder"):
        enter_run(tmp_path, {"seed": 0}, FACTS)
    assert names(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ('{"format": 2, "settings": {}}', "run format 2; this version of srepr reads format 1"),
        ("[]", "does not describe a run"),
    ],
)
def test_a_config_of_another_kind_is_refused(tmp_path, config, complaint):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=complaint):
        read_settings(tmp_path)


def test_a_second_writer_is_refused_until_the_first_is_dead(tmp_path):
    """Dead is enough: a worker that it forked may live on for a while."""
    (tmp_path / ".weights.123.partial").touch()
    told, tell = os.pipe()
    holder = os.fork()
    if not holder:
        try:
            with sole_writer(tmp_path):
                worker = os.fork()
                if worker:
                    os.write(tell, str(worker).encode())
                time.sleep(60)
        finally:
            os._exit(0)
    worker = int(os.read(told, 20))
    try:
        assert not (tmp_path / ".weights.123.partial").exists()
        with pytest.raises(InputError, match="another process is writing"), sole_writer(tmp_path):
            pass
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.kill(worker, 0)  # raises where the worker is dead too, and the test shows nothing
        with sole_writer(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(told)
        os.close(tell)


def test_the_newest_state_that_can_be_read_counts(tmp_path):
    for epoch, step in [(9, 0), (9, 25), (10, 0)]:
        save_state(tmp_path, (epoch, step), {"w": torch.tensor(float(epoch))}, {"sums": [step]})
    assert names(tmp_path / "state") == ["000009-0000025.safetensors", "000010-0000000.safetensors"]
    tensors, note = newest_state(tmp_path)
    assert (tensors["w"].item(), note) == (10, {"position": [10, 0], "sums": [0]})
    newest = tmp_path / "state" / "000010-0000000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert newest_state(tmp_path)[1]["position"] == [9, 25]


def test_a_log_line_that_a_kill_cut_short_is_forgotten(tmp_path):
    for epoch in range(3):
        append_log(tmp_path, {"epoch": epoch, "loss": 1 / 3})
    log = tmp_path / "log.jsonl"
    whole = log.read_text()
    log.write_text(whole[:-5])
    assert [line["epoch"] for line in read_log(tmp_path)] == [0, 1]
    cut_log(tmp_path, 3)
    append_log(tmp_path, {"epoch": 2, "loss": 1 / 3})
    assert log.read_text() == whole


def test_provenance_names_the_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/srepr", "train", "my data"])
    assert provenance()["command"] == "srepr train 'my data'"
