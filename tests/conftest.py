import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
import torch
from tests.kill import TRAIN

from srepr.cli import VERBS, flags, main
from srepr.run.folder import sole_writer

# One thread, here and in every process that a test starts: two runs of one training reach the same bits, and a busy
# machine costs little time.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# However slow the machine is; `benchmarks.mutants` has settings of its own.
hypothesis.settings.register_profile("untimed", parent=hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("untimed")

HEADS = ("crt", "lws", "la", "disalign", "ncm", "srepr")
FAST = ("--solver", "sgd", "--epochs", "2", "--samples", "2", "--json")


class Answer(NamedTuple):
    """What a command came back with."""

    code: int
    out: str
    err: str
    verb: str = ""

    @property
    def complaint(self) -> str:
        """The one line that answers input which cannot work; nothing but lines of progress stands before it.

        It speaks of flags: no argument of the command is left in it as the library calls it.
        """
        *before, line = self.err.splitlines()
        assert self.code == 2, self
        assert line.startswith("srepr: ")
        assert not [word for word in before if word.startswith("srepr: ") or "Traceback" in word]
        arguments = dict(flags(VERBS[self.verb])) if self.verb in VERBS else {}
        assert not arguments.keys() & set(re.findall(r"`(?:\w+\.)*(\w+)`", line)), line
        return line.removeprefix("srepr: ")


@pytest.fixture
def srepr(capfd):
    """`srepr WORDS` in this process: the imports are paid once."""

    def run(*words: object) -> Answer:
        capfd.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # --help
            code = int(end.code or 0)
        return Answer(code, *capfd.readouterr(), verb=str(words[0]) if words else "")

    return run


@pytest.fixture
def disk_full():
    """`with disk_full(1000)`: files cannot grow beyond so many bytes; without its signal that is a full disk.

    Only within the block: the test runner must be able to write its own report, which may go to a file.
    """

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)

    return limited


@pytest.fixture
def written_to():
    """`with written_to(run)`: another process is writing to the run folder."""

    @contextmanager
    def held(run: Path) -> Iterator[None]:
        told, tell = os.pipe()
        leave, go = os.pipe()
        child = os.fork()
        if not child:
            try:
                with sole_writer(run):
                    os.write(tell, b"!")
                    os.read(leave, 1)
            finally:
                os._exit(0)
        try:
            os.read(told, 1)
            yield
        finally:
            os.write(go, b"!")
            os.waitpid(child, 0)
            for end in (told, tell, leave, go):
                os.close(end)

    return held


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Make a folder once for all workers of pytest-xdist; nobody writes to it afterwards."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def trained(made_once, tmp_path_factory) -> Path:
    """A finished training of eight epochs, never disturbed; no test changes it."""

    def train(run: Path) -> None:
        assert main([*TRAIN, "--epochs", "8", "--out", str(run)]) == 0

    return shutil.copytree(made_once("trained", train), tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="session")
def retrained(made_once, trained, tmp_path_factory) -> Path:
    """The same with a head of each kind; no test changes it."""

    def retrain(run: Path) -> None:
        shutil.copytree(trained, run)
        assert main(["retrain", str(run), "--method", *HEADS, *FAST]) == 0

    return shutil.copytree(made_once("retrained", retrain), tmp_path_factory.mktemp("retrained") / "run")


@pytest.fixture(scope="session")
def real_cifar(made_once) -> Path:
    """The real images: where SREPR_TEST_DATA says, or unpacked from the sheets beside the repository."""
    if os.environ.get("SREPR_TEST_DATA"):
        return Path(os.environ["SREPR_TEST_DATA"])
    unpack = Path(__file__).parents[2] / "shared" / "data" / "unpack"
    if not unpack.exists():
        pytest.skip("set SREPR_TEST_DATA to a folder with cifar-100-binary/ and cifar-10-batches-bin/")

    def unpacked(folder: Path) -> None:
        folder.mkdir()
        subprocess.run([sys.executable, unpack, folder], check=True, stdout=subprocess.DEVNULL)

    return made_once("cifar", unpacked)
