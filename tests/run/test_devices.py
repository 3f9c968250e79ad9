"""What the machine can do is tried, and what it cannot do is said."""

import json

import pytest
import torch
from torch import nn

from srepr.config import Machine
from srepr.errors import InputError
from srepr.models.hardware import runner
from srepr.run import devices
from srepr.run.devices import as_launched, check_devices, failing_together, open_fabric


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_accelerator_that_is_not_there_is_refused():
    said = (
        r"^`accelerator` is cuda, and this machine has none. Set it to cpu( or mps)?, or leave it out .*srepr doctor$"
    )
    with pytest.raises(InputError, match=said):
        open_fabric(Machine(accelerator="cuda"))


@pytest.mark.parametrize("kind", ["cuda", "auto"])
def test_more_gpus_than_there_are_are_refused(monkeypatch, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_devices(Machine(accelerator=kind, devices=2))
    check_devices(Machine(accelerator="cpu", devices=3))
    with pytest.raises(InputError, match=r"^`devices` is 3, and this machine has 2 \(cuda\). Lower it."):
        open_fabric(Machine(accelerator=kind, devices=3))


def test_half_precision_on_a_cpu_is_refused():
    with pytest.raises(InputError, match="16-mixed needs a GPU"):
        open_fabric(Machine(accelerator="cpu", precision="16-mixed"))


@pytest.mark.parametrize(
    ("ending", "reason"),
    [("os.kill(os.getpid(), 4)", "a trial ended with SIGILL"), ("sys.exit(3)", "a trial ended with exit code 3")],
)
def test_bfloat16_is_tried_in_a_process_that_may_die(monkeypatch, ending, reason):
    monkeypatch.setattr(devices, "BF16_TRIAL", f"import os, sys; {ending}")
    assert devices.bf16_failure() == reason
    with pytest.raises(InputError, match=f"bfloat16 does not run on this CPU .{reason}"):
        open_fabric(Machine(accelerator="cpu", precision="bf16-mixed"))


def test_doctor_says_what_works_and_what_does_not(srepr, monkeypatch):
    monkeypatch.setattr(devices, "compile_failure", lambda: "no C++ compiler")
    monkeypatch.setattr(devices, "bf16_failure", lambda: "")
    found = json.loads(srepr("doctor", "--json").out)
    assert (found["compile"], found["bfloat16"], found["torch"]) == ("no C++ compiler", "works", torch.__version__)
    lines = dict(line.split(maxsplit=1) for line in srepr("doctor").out.splitlines())
    assert lines == found


def test_a_machine_without_a_compiler_goes_on_without_and_says_so(monkeypatch, capsys):
    def broken(function):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", broken)
    network, inputs = nn.Linear(2, 2), torch.ones(1, 2)
    (features,) = runner([network], compiled=True)(inputs)
    assert torch.equal(features, network(inputs))
    assert capsys.readouterr().err.startswith("srepr: continuing without compiling (RuntimeError")


def test_torchrun_says_how_many_processes_there_are(monkeypatch):
    """Two nodes of four."""
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert as_launched(Machine(precision="bf16-mixed")) == Machine(devices=4, num_nodes=2, precision="bf16-mixed")
    assert as_launched(Machine(devices=4, num_nodes=2)) == Machine(devices=4, num_nodes=2)
    with pytest.raises(InputError, match="8 processes were started, and `devices` asks for 2"):
        as_launched(Machine(devices=2))


def test_slurm_says_how_many_processes_there_are(monkeypatch):
    for name, value in {"SLURM_NTASKS": "6", "SLURM_NNODES": "3", "SLURM_JOB_NAME": "train"}.items():
        monkeypatch.setenv(name, value)
    assert as_launched(Machine()) == Machine(devices=2, num_nodes=3)


LOST = RuntimeError("[pair.cc:547] Connection closed by peer [127.0.0.1]:29500")


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (InputError("a.jpg cannot be decoded"), 0, "^a.jpg cannot be decoded$"),
        (LOST, 1, "^a process of this run died"),
    ],
)
def test_a_process_that_does_not_lead_is_silent_and_the_leader_tells_its_reason(
    tmp_path, monkeypatch, capsys, error, code, told
):
    (tmp_path / "state").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(devices, "process_rank", lambda: 1)
        with pytest.raises(SystemExit) as end, failing_together(tmp_path):
            raise error
    assert end.value.code == code
    with pytest.raises(InputError, match=told):
        leader_loses_the_others(tmp_path)
    assert capsys.readouterr() == ("", "")


def leader_loses_the_others(run):
    """Its block begins before the other's ends: what it clears away at first is the note of an earlier start."""
    note = run / "state" / "failure.txt"
    reason = note.read_text() if note.exists() else None
    with failing_together(run):
        assert not note.exists()
        if reason is not None:
            note.write_text(reason)
        raise LOST


def test_other_errors_are_not_hidden(tmp_path):
    with pytest.raises(RuntimeError, match="mat1 and mat2"), failing_together(tmp_path):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
