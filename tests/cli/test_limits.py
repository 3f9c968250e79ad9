"""Numbers that no command can mean, and places that no file can be at: one line, exit code 2, nothing left behind."""

import os
import stat
import warnings

import numpy as np
import pytest
import torch

import srepr as library
from srepr.cli import main
from srepr.data import workers
from srepr.errors import InputError, check_count
from srepr.run import devices
from srepr.storage.files import write_text
from srepr.storage.tensors import save_tensors

VECTORS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
LABELS = np.arange(30) % 3


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("table.npz", x=VECTORS, y=LABELS)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--epochs", 10**9], "--epochs is 1000000000: at most 1,000,000 are possible"),
        (["--num-nodes", 2], "--num-nodes is 2: start srepr on each machine, with torchrun or SLURM"),
        (["--num-nodes", 10**9], "--num-nodes is 1000000000: at most 1,000,000 are possible"),
        (["--devices", 10**9], "--devices is 1000000000: at most 1,000,000 are possible"),
        (["--image-size", 10**9], "--image-size is 1000000000: it must lie in 8 .. 4096"),
        (["--optim.lr", "1e308"], "--optim.lr is 1e+308: it must be a finite number"),
        (["--optim.swa-lr", "1e39"], "--optim.swa-lr is 1e+39: it must be a finite number"),
        (["--optim.weight-decay", "1e308"], "--optim.weight-decay is 1e+308: it must be a finite number"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_absurd_settings_of_a_training_are_one_line(srepr, table, words, complaint):
    assert srepr("train", "table.npz", "--out", "R", *words).complaint.startswith(complaint)
    assert not (table / "R").exists()


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("samples", 10**9, "at most 10,000 are possible"),
        ("epochs", 10**9, "at most 1,000,000 are possible"),
        ("views", 10**9, "at most 1,000,000 are possible"),
        ("rho", 1e30, "it must lie in 0 .. 10"),
        ("tau", -1e30, "it must lie in -10 .. 10"),
        ("temperature", 1e-30, "it must lie in 1e-6 .. 1e6"),
        ("temperature", 1e30, "it must lie in 1e-6 .. 1e6"),
    ],
)
def test_absurd_settings_of_a_head_are_named(option, value, complaint):
    with pytest.raises(InputError, match=f"^`{option}` is .*: {complaint}$"):
        library.retrain(torch.nn.Linear(4, 3), (VECTORS, LABELS), method="srepr", **{option: value})


@pytest.mark.parametrize("function", [library.fit, library.collect])
def test_more_epochs_than_a_plan_can_hold_are_named(function):
    with pytest.raises(InputError, match="`epochs` is 1000000000: at most 1,000,000 are possible"):
        function(torch.nn.Linear(4, 3), (VECTORS, LABELS), epochs=10**9, lr=0.1)


def test_inputs_that_are_no_numbers_are_named():
    with pytest.raises(InputError, match="the inputs are no numbers"):
        library.retrain(torch.nn.Linear(4, 3), (np.array([object()] * 30), LABELS))


def test_both_ends_of_a_count_are_possible():
    check_count("samples", 1, 10)
    check_count("samples", 10, 10)
    for value in (0, 11):
        with pytest.raises(InputError):
            check_count("samples", value, 10)


def test_processes_on_a_cpu_are_bounded(srepr, table):
    most = devices.MOST_PROCESSES
    devices.check_devices(devices.Machine(accelerator="cpu", devices=most))
    with pytest.raises(InputError, match=f"`devices` is {most + 1}, and at most {most} processes share a CPU"):
        devices.check_devices(devices.Machine(accelerator="cpu", devices=most + 1))
    assert srepr("train", "table.npz", "--epochs", 1, "--out", "R").code == 0
    assert srepr("retrain", "R", "--devices", 5000).complaint.startswith("--devices is 5000, and ")


def test_no_more_workers_are_started_than_there_are_batches(monkeypatch):
    asked = []

    def loader(*_, num_workers, **__):
        asked.append(num_workers)
        return []

    monkeypatch.setattr(workers, "DataLoader", loader)
    batches = [np.arange(2)] * 3
    for number in (2, 10**9):
        assert list(workers._in_workers(None, batches, None, number)) == []
    monkeypatch.setattr(workers, "MOST_WORKERS", 1)
    assert list(workers._in_workers(None, batches, None, 10**9)) == []
    assert asked == [2, 3, 1]


def test_a_warning_is_one_line_without_a_place_in_the_code(capsys):
    with warnings.catch_warnings():
        assert main(["--version"]) == 0
        warnings.warn("the teachers still move\nand move", stacklevel=1)
    assert capsys.readouterr().err == "srepr: the teachers still move and move\n"


@pytest.mark.parametrize("out", ["", ".", "..", "/"])
@pytest.mark.parametrize("form", ["safetensors", "onnx"])
def test_an_export_needs_the_name_of_a_file(srepr, table, out, form):
    assert srepr("train", "table.npz", "--epochs", 1, "--out", "R").code == 0
    complaint = srepr("export", "R", "--format", form, "-o", out).complaint
    assert complaint == f"{out or '.'} is a folder. Choose the name of a file with --out."


def test_a_loop_of_links_is_one_line(srepr, table):
    (table / "loop").symlink_to("loop")
    for words in (["report", "loop"], ["evaluate", "loop"], ["train", "loop", "--out", "R"]):
        assert srepr(*words).complaint
    assert srepr("train", "table.npz", "--epochs", 1, "--out", "R").code == 0
    answer = srepr("predict", "R", "table.npz", "--html", "loop", "-o", "rows.csv")
    assert answer.code in (0, 2)


def test_a_nul_in_an_argument_is_one_line(srepr):
    assert srepr("train", "a\0b", "--out", "R").complaint == "an argument has a NUL. Leave it out."


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_have_the_mode_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        save_tensors(tmp_path / "w.safetensors", {"w": torch.ones(2)})
        write_text(tmp_path / "w.txt", "whole")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o666 & ~mask}
