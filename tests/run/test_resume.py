"""A run that is killed goes on to the same bits: killed in every single write, and by SIGKILL at random moments."""

import os
import random

import numpy as np
import pytest
from tests.kill import TRAIN, kill_underway, outcome, progress, start

from srepr import representation
from srepr.config import Machine, Train
from srepr.run.train import train
from srepr.storage import files, tensors


class Killed(BaseException):
    """Stands for a SIGKILL: what the program does about exceptions must not help it."""


def train_up_to_write(settings, run, number, *, renamed):
    """Train and die in the write of that number, just before or just after its rename; False where there are fewer."""
    writes = 0

    def write_whole(path, write):
        nonlocal writes
        writes += 1
        temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
        write(temporary)
        if writes == number and not renamed:
            raise Killed
        temporary.replace(path)
        if writes == number:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        for module in (files, tensors):
            patch.setattr(module, "write_whole", write_whole)
        try:
            train(settings, run, machine=Machine(checkpoint_minutes=0))
        except Killed:
            return True
    return False


@pytest.mark.parametrize(("renamed", "mixup"), [(False, 0.2), (True, 0.0)])
def test_killed_in_any_write_the_run_ends_with_the_same_bits(tmp_path, monkeypatch, renamed, mixup):
    """A small table, three epochs, a state after every second step."""
    monkeypatch.setattr(representation, "CHECK_EVERY", 2)
    chance = np.random.default_rng(0)
    np.savez(tmp_path / "table.npz", x=chance.normal(size=(60, 4)), y=np.arange(60) ** 2 // 1200)
    settings = Train(source=str(tmp_path / "table.npz"), epochs=3, batch_size=12, baseline=True, mixup=mixup)
    train(settings, tmp_path / "alone")
    expected, number = outcome(tmp_path / "alone"), 1
    while train_up_to_write(settings, run := tmp_path / str(number), number, renamed=renamed):
        train(settings, run, machine=Machine(checkpoint_minutes=0))
        assert outcome(run) == expected, number
        assert {file.name for file in run.rglob("*")} >= {*expected, "config.json"}
        assert not list(run.rglob(".*.partial"))
        assert not (run / "state").exists()
        number += 1
    assert number > 15
    assert len(expected["log.jsonl"]) == 4


def test_killed_by_sigkill_the_run_ends_with_the_same_bits(tmp_path, trained):
    run, chance = tmp_path / "run", random.Random(0)
    words = [*TRAIN, "--epochs", "8", "--out", str(run)]
    for epoch in (2, 6, 8):  # of the trunk, of the SWA branch, of the rest of the baseline
        assert kill_underway(words, run, epoch, chance.uniform(0, 0.1))
        assert progress(run) > (f"{epoch:06d}", False)
    process = start(words)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert outcome(run) == outcome(trained)
