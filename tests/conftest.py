import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.kill import SREPR, TRAIN

from srepr.cli import main

# One thread, here and in every process that a test starts: two runs of one training reach the same bits, and a busy
# machine costs little time.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


class Answer(NamedTuple):
    """What a command came back with."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that answers input which cannot work; nothing but lines of progress stands before it."""
        *before, line = self.err.splitlines()
        assert self.code == 2, self
        assert line.startswith("srepr: ")
        assert not [word for word in before if word.startswith("srepr: ") or "Traceback" in word]
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
        return Answer(code, *capfd.readouterr())

    return run


@pytest.fixture
def srepr_process():
    """`srepr WORDS` as a process of its own, where that is the point."""

    def run(*words: object, **options) -> Answer:
        command = [SREPR, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A finished training of eight epochs, never disturbed; no test changes it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAIN, "--epochs", "8", "--out", str(run)]) == 0
    return run


@pytest.fixture(scope="session")
def real_cifar(tmp_path_factory) -> Path:
    """The real images: where SREPR_TEST_DATA says, or unpacked from the sheets beside the repository."""
    if os.environ.get("SREPR_TEST_DATA"):
        return Path(os.environ["SREPR_TEST_DATA"])
    unpack = Path(__file__).parents[2] / "shared" / "data" / "unpack"
    if not unpack.exists():
        pytest.skip("set SREPR_TEST_DATA to a folder with cifar-100-binary/ and cifar-10-batches-bin/")
    folder = tmp_path_factory.mktemp("cifar")
    subprocess.run([sys.executable, unpack, folder], check=True, stdout=subprocess.DEVNULL)
    return folder
