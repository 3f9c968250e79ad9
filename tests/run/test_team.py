"""Features made by several processes: the bits of one process, one voice, and no process that waits for ever."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kill import SREPR, start
from tests.run.test_distributed import PATIENCE, children, ends

from srepr.cli import main

RETRAIN = ("--method", "la", "srepr", "--samples", "20", "--solver", "sgd", "--epochs", "2")


def made(run):
    """The features and heads of a run, by name."""
    return {path.name: path.read_bytes() for path in (*run.glob("cache/*.bin"), *run.glob("heads/*.safetensors"))}


@pytest.fixture(scope="module")
def alone(made_once, trained):
    """What one process makes."""

    def retrain(run):
        shutil.copytree(trained, run)
        with (run / "said.json").open("w") as said, contextlib.redirect_stdout(said):
            assert main(["retrain", str(run), *RETRAIN, "--json"]) == 0

    return made_once("retrained-alone", retrain)


def timeless(said):
    return {name: {**metrics, "seconds": None} for name, metrics in json.loads(said).items()}


@pytest.mark.parametrize("launcher", ["srepr", "torchrun"])
def test_several_processes_make_the_same_bits_and_one_speaks(launcher, trained, alone, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    words = [SREPR, "retrain", run, *RETRAIN, "--json"]
    if launcher == "srepr":
        words += ["--devices", "2"]
    else:
        words = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", "2", *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert timeless(done.stdout) == timeless((alone / "said.json").read_text())
    assert made(run) == made(alone)
    assert not list(run.glob("cache/.*"))


def start_and_wait_for_features(words, run):
    """The first process, and the id of the second, which has not finished its part of the features."""
    process = start(words)
    while process.poll() is None and not list(run.glob("cache/.*.partial")):
        time.sleep(0.005)
    (second,) = children(process.pid)
    return process, second


def test_whichever_process_is_killed_the_same_command_finishes(trained, alone, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    words = ["retrain", str(run), *RETRAIN, "--devices", "2"]

    first, second = start_and_wait_for_features(words, run)
    os.kill(second, signal.SIGKILL)
    _, err = first.communicate(timeout=PATIENCE)
    assert (first.returncode, "Traceback" in err) == (2, False), err
    (said,) = [line for line in err.splitlines() if line.startswith("srepr: ")]
    assert said.startswith("srepr: a process of this run died")

    first, second = start_and_wait_for_features(words, run)
    first.kill()
    _, err = first.communicate(timeout=PATIENCE)  # the second holds the same pipe
    assert "Traceback" not in err
    assert ends(second)

    last = start(words)
    _, err = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, err
    assert made(run) == made(alone)
    assert not list(run.glob("cache/.*"))


def test_what_goes_wrong_in_another_process_is_said_once(trained, tmp_path):
    """The disk of the second process is full."""
    run = shutil.copytree(trained, tmp_path / "run")
    process = start(["retrain", str(run), *RETRAIN, "--devices", "2"])
    while process.poll() is None and not children(process.pid):
        time.sleep(0.005)
    (second,) = children(process.pid)
    _, hard = resource.prlimit(second, resource.RLIMIT_FSIZE)
    resource.prlimit(second, resource.RLIMIT_FSIZE, (4096, hard))
    _, err = process.communicate(timeout=PATIENCE)
    (said,) = [line for line in err.splitlines() if line.startswith("srepr: ")]
    assert (process.returncode, "Traceback" in err) == (2, False), err
    assert said == f"srepr: {run / 'cache'}: File too large. Free space or fix access."
    assert ends(second)
    assert not list(run.glob("cache/.*"))


def test_a_folder_that_is_not_there_ends_before_a_second_process_begins(srepr, tmp_path):
    before = children(os.getpid())
    complaint = srepr("retrain", tmp_path / "nothing", "--devices", "2").complaint
    assert complaint == f"{tmp_path / 'nothing'} is not a folder. Pass a run folder made by `srepr train`."
    assert children(os.getpid()) == before
