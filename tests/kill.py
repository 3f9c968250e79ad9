"""Does a run that is killed again and again end with the same bits as one that was left alone?

    python -m tests.kill [--kills 20] [--devices 1]

One training on the embedded digits is undisturbed. Another is ended with SIGKILL, all its processes at once, at random
moments all over its course, and started again with the same command until it is through. Then every file that matters
is compared byte for byte. Twenty kills take about three minutes, most of it starting Python.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

SREPR = shutil.which("srepr", path=str(Path(sys.executable).parent)) or "srepr"
TRAIN = ("train", "digits-lt", "--baseline", "--batch-size", "8", "--checkpoint-minutes", "0")
"""With a state at step 25 and at the end of every epoch of 41 steps."""
TIMING = {"images_per_second", "peak_memory_mib"}
LONGEST_DELAY = 0.6


def start(words: Sequence[str]) -> subprocess.Popen[str]:
    """`srepr WORDS` as the leader of a process group of its own."""
    return subprocess.Popen(
        [SREPR, *words], text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def kill_underway(words: Sequence[str], run: Path, epoch: int, delay: float) -> bool:
    """Start the command and kill it some time after it got further, and to that epoch; False where it ended first."""
    before, process = progress(run), start(words)
    while process.poll() is None and progress(run) <= max(before, (f"{epoch:06d}", False)):
        time.sleep(0.01)
    time.sleep(delay)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    _, stderr = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the run ended with exit code {process.returncode}: {stderr}")
    return process.returncode != 0


def progress(run: Path) -> tuple[str, bool]:
    """How far the run is: the name of its newest state, which grows, and whether it is finished."""
    states = sorted(file.name for file in run.glob("state/*-*.safetensors"))
    return states[-1] if states else "", (run / "results.json").exists()


def outcome(run: Path) -> dict[str, Any]:
    """Everything of a finished run that must not depend on how often it was killed."""
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    lines = [{name: value for name, value in line.items() if name not in TIMING} for line in log]
    files = [*run.glob("*.safetensors"), run / "results.json"]
    return {"log.jsonl": lines} | {file.name: file.read_bytes() for file in sorted(files)}


def in_a_child(work: Callable[[], object]) -> int:
    """Do the work in a forked process and give back how that ended: 0, 1 after an error, or minus the signal."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_in_rename(work: Callable[[], object], number: int, *, renamed: bool) -> bool:
    """Do the work in a process that SIGKILL ends in that rename, before or after it; False where there are fewer."""
    rename, renames = Path.replace, itertools.count(1)

    def mortal(path: Path, target: Path) -> None:
        last = next(renames) == number
        if last and not renamed:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(path, target)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    def work_until_killed() -> None:
        type(Path()).replace = mortal  # type: ignore[assignment, method-assign]
        work()

    return in_a_child(work_until_killed) == -signal.SIGKILL


def main(kills: int = 20, devices: int = 1, seed: int = 0) -> None:
    """Kill a training on the embedded digits and compare what it leaves with an undisturbed one."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        alone, killed = Path(folder, "alone"), Path(folder, "killed")
        epochs = max(8, 2 * kills)
        words = [*TRAIN, "--epochs", str(epochs), "--devices", str(devices), "--out"]
        start([*words, str(alone)]).communicate()
        done = 0
        for epoch in sorted(chance.sample(range(epochs + epochs // 4), kills)):  # a quarter is run twice
            if kill_underway([*words, str(killed)], killed, epoch, chance.uniform(0, LONGEST_DELAY)):
                done += 1
                print(f"kill {done:2} at {progress(killed)[0]}", flush=True)
        start([*words, str(killed)]).communicate()
        expected, found = outcome(alone), outcome(killed)
    different = [name for name in expected if found.get(name) != expected[name]]
    print(f"{done} kills:", f"{', '.join(different)} differ" if different else f"{', '.join(expected)} are the same")
    sys.exit(bool(different))


if __name__ == "__main__":
    tyro.cli(main)
