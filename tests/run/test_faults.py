"""Each operation on the disk fails, or is the last of its process: nothing is lost, and the same command finishes.

`benchmarks.faults` does this to every command, `tests/run/test_resume.py` to a training.
"""

import shutil

import pytest
from benchmarks import faults

WHOLE = ("one line, or killed", "same result after the same command", "nothing lost")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, a run and inputs, as the commands of the benchmark want them."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "base").mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        faults.base(folder / "base")
    return folder


@pytest.mark.parametrize(
    ("command", "every", "least"),
    [("data get", 1, 10), ("predict", 1, 3), ("export", 1, 6), ("predict --html", 5, 4), ("report", 14, 2)],
)
def test_every_operation_of_a_command_may_fail(folder, tmp_path, monkeypatch, command, every, least):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(faults.LAYOUTS, "cifar100-lt", faults.LAYOUTS["cifar100-lt"])
    shutil.copytree(folder / "base", tmp_path / "base")
    with faults.served(tmp_path) as address:
        words = [*faults.COMMANDS[command], *([address] if command == "data get" else [])]
        rows = list(faults.survive(command, words, tmp_path, every=every))
    assert [row["fault"] for row in rows] == list(faults.FAULTS)
    for row in rows:
        assert int(row["injected"]) >= (least if row["fault"] not in faults.CUTS else every == 1)
        assert {row[column] for column in WHOLE} == {row["injected"]}, row
