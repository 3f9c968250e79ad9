"""Two processes on the CPU: one result, one voice, and no process that waits for ever for one that is gone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.kill import SREPR, outcome, progress, start

from srepr.run.folder import read_settings
from srepr.storage.files import read_json

# 331 % 22 = 1: of the last batch of a pass over everything, the second process has nothing.
TRAIN_22 = ["train", "digits-lt", "--baseline", "--epochs", "6", "--batch-size", "22", "--checkpoint-minutes", "0"]
PATIENCE = 900  # seconds; on an idle machine nothing here takes ten


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    """Whether a process that has let go of the pipe is gone, which may take it a moment."""
    until = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


def start_and_wait_for_progress(words: list[str], run: Path) -> tuple[subprocess.Popen, int]:
    """The first process, and the id of the second."""
    before, process = progress(run), start(words)
    while process.poll() is None and progress(run) <= before:
        time.sleep(0.01)
    (second,) = children(process.pid)
    return process, second


@pytest.fixture(scope="module")
def torchrun(made_once):
    """An undisturbed run, and what it said; started by torchrun, which says how many processes there are."""

    def launch(folder):
        folder.mkdir()
        launcher = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", "2", SREPR]
        words = [*launcher, *TRAIN_22, "--out", folder / "run", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        (folder / "stdout").write_text(done.stdout)
        (folder / "stderr").write_text(done.stderr)

    return made_once("torchrun", launch)


def test_one_process_speaks(torchrun):
    assert json.loads((torchrun / "stdout").read_text()) == read_json(torchrun / "run/results.json")
    lines = (torchrun / "stderr").read_text().splitlines()
    assert len([line for line in lines if line.startswith("trunk 1/6")]) == 1
    assert read_settings(torchrun / "run")["devices"] == 2


def test_the_saved_networks_are_those_that_were_measured(srepr, torchrun, tmp_path):
    """BatchNorm statistics differ between the processes; rank 0's are saved, and all must measure with them."""
    run = shutil.copytree(torchrun / "run", tmp_path / "run")
    expected, found = read_json(run / "results.json"), json.loads(srepr("evaluate", run, "--json").out)
    for name in ("sgd", "swa"):
        assert found[name]["per_class"] == expected[name]["per_class"]
        assert found[name]["nll"] == pytest.approx(expected[name]["nll"], rel=1e-6)


def test_with_synchronised_batchnorm_the_number_of_processes_does_not_matter(srepr, tmp_path):
    """One process, two, and one that continues what two began: the same losses in every epoch, up to rounding."""
    words = ["train", "digits-lt", "--epochs", "3", "--batch-size", "22", "--sync-batchnorm"]
    words += ["--optim.lr", "0.003", "--optim.swa-lr", "0.003", "--checkpoint-minutes", "0"]
    process, second = start_and_wait_for_progress(
        [*words, "--devices", "2", "--out", str(tmp_path / "other")], tmp_path / "other"
    )
    process.kill()
    process.communicate()
    assert ends(second)
    two = start([*words, "--devices", "2", "--out", str(tmp_path / "two")])
    _, err = two.communicate(timeout=PATIENCE)
    assert two.returncode == 0, err
    for name in ("one", "other"):
        assert srepr(*words, "--devices", 1, "--out", tmp_path / name).code == 0
    results = {name: read_json(tmp_path / name / "results.json")["swa"]["nll"] for name in ("one", "two", "other")}
    losses = {
        name: [json.loads(line)["loss"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in results
    }
    assert len(losses["one"]) == 3
    for name in ("two", "other"):
        # An activation at the edge of a ReLU makes a rounding error of 1e-7 one of 1e-4. Without the option, the
        # losses differ by 2e-2.
        np.testing.assert_allclose(losses[name], losses["one"], rtol=1e-3)
        assert results[name] == pytest.approx(results["one"], rel=1e-2)


def test_whichever_process_is_killed_the_run_ends_with_the_same_bits(tmp_path, torchrun):
    """Here the processes are started by srepr itself; the one that is left does not wait for the other for ever."""
    run = tmp_path / "run"
    words = [*TRAIN_22, "--devices", "2", "--out", str(run)]

    first, second = start_and_wait_for_progress(words, run)
    os.kill(second, signal.SIGKILL)
    _, err = first.communicate(timeout=PATIENCE)
    assert (first.returncode, "Traceback" in err) == (2, False), err
    assert err.splitlines()[-1].startswith("srepr: a process of this run died")

    first, second = start_and_wait_for_progress(words, run)
    first.kill()
    _, err = first.communicate(timeout=PATIENCE)  # the second holds the same pipe
    assert "Traceback" not in err
    assert ends(second)

    last = start(words)
    _, err = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, err
    assert outcome(run) == outcome(torchrun / "run")


@pytest.fixture
def two_hosts():
    """Two network namespaces, joined by a cable; a function that runs a command in one of them, and their names."""
    names = [f"srepr-{os.getpid()}-{number}" for number in (0, 1)]
    cable = [f"s{os.getpid()}-{number}"[:15] for number in (0, 1)]

    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for number, (name, end) in enumerate(zip(names, cable, strict=True)):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (FileNotFoundError, subprocess.CalledProcessError):
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        pytest.skip("network namespaces need root and iproute2")
    yield names, cable
    for name in names:
        ip("netns", "delete", name)


def test_a_host_that_is_cut_off_ends_the_run_and_the_same_commands_finish_it(tmp_path, torchrun, two_hosts):
    """Without a closed connection, within a minute, with one line."""
    names, cable = two_hosts
    run = tmp_path / "run"
    words = [*TRAIN_22, "--out", run]

    def launch():
        where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "10.77.0.1", "--master-port", "29577"]
        torchrun = Path(sys.executable).with_name("torchrun")
        return [
            subprocess.Popen(
                ["ip", "netns", "exec", name, torchrun, *where, "--node-rank", str(number), SREPR, *words],
                env={**os.environ, "GLOO_SOCKET_IFNAME": end},
                text=True,
                start_new_session=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for number, (name, end) in enumerate(zip(names, cable, strict=True))
        ]

    hosts = launch()
    while all(host.poll() is None for host in hosts) and progress(run) < ("000001", False):
        time.sleep(0.01)
    subprocess.run(["ip", "-n", names[1], "link", "set", cable[1], "down"], check=True)
    began = time.monotonic()
    _, err = hosts[0].communicate(timeout=60)
    assert time.monotonic() - began < 60
    assert hosts[0].returncode != 0
    assert len([line for line in err.splitlines() if "does not answer" in line]) == 1, err
    os.killpg(hosts[1].pid, signal.SIGKILL)  # the launcher of the other host would wait for its master for long
    hosts[1].communicate(timeout=60)
    assert not (run / "results.json").exists()

    subprocess.run(["ip", "-n", names[1], "link", "set", cable[1], "up"], check=True)
    hosts = launch()
    said = [host.communicate(timeout=PATIENCE)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert outcome(run) == outcome(torchrun / "run")


def test_what_cannot_be_read_is_said_once(tmp_path):
    """The pictures break while both processes are at work; either may be the first to find out."""
    chance = np.random.default_rng(0)
    for number in range(16):
        path = tmp_path / "birds" / ("crow" if number % 2 else "wren") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (80, 80, 3), np.uint8)).save(path)
    words = ["train", str(tmp_path / "birds"), "--protocol", "paper", "--network", "resnet8", "--image-size", "72"]
    words += ["--epochs", "999", "--batch-size", "4", "--workers", "0", "--devices", "2"]
    first, second = start_and_wait_for_progress([*words, "--out", str(tmp_path / "run")], tmp_path / "run")
    for path in (tmp_path / "birds").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:100])
    _, err = first.communicate(timeout=PATIENCE)
    (said,) = [line for line in err.splitlines() if line.startswith("srepr: ")]
    assert first.returncode == 2
    assert "cannot be decoded" in said
    assert "Traceback" not in err
    assert ends(second)


def test_bad_input_ends_before_a_second_process_begins(srepr, tmp_path):
    words = ["train", "digits-lt", "--devices", "2", "--network", "resnet9", "--out", tmp_path / "run"]
    before = children(os.getpid())
    assert srepr(*words).complaint.startswith("unknown network 'resnet9'")
    assert children(os.getpid()) == before
