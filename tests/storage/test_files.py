"""Files appear whole or not at all, and come back as they were."""

import contextlib
import os
import resource
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kill import killed_in_rename

from srepr.config import Train
from srepr.errors import InputError
from srepr.storage import checksums, schema
from srepr.storage.files import read_json, write_json, write_whole
from srepr.storage.tensors import load_tensors, save_tensors


def names(folder):
    return sorted(file.name for file in folder.rglob("*"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, write)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["note.txt"]


def test_a_full_disk_leaves_no_half_written_weights(tmp_path, disk_full):
    with disk_full(1000), pytest.raises(OSError, match=r"File too large: '.*w\.safetensors'"):
        save_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(1000)})
    with disk_full(1000), pytest.raises(OSError, match=r"File too large: '.*config\.json'"):
        write_json(tmp_path / "config.json", ["word"] * 1000)
    assert names(tmp_path) == []


def test_weights_killed_half_way_leave_nothing_for_ever(tmp_path):
    """The safetensors library would leave a file under a name of its own."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        save_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(1000)})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGXFSZ
    assert names(tmp_path) == [f".w.safetensors.{child}.partial"]
    save_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(1000)})
    assert names(tmp_path) == ["w.safetensors"]


def test_equal_content_is_equal_bytes(tmp_path):
    """The safetensors library orders several entries of metadata at random."""
    metadata = {word: word for word in "one two three four five six seven".split()}  # noqa: SIM905
    for number in range(10):
        save_tensors(tmp_path / f"{number}.safetensors", {"w": torch.arange(3.0)}, metadata)
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    assert load_tensors(tmp_path / "0.safetensors")[1] == metadata


def test_tensors_come_back_bit_for_bit(tmp_path):
    """Also those that share memory, are not contiguous, or hold what is not a number."""
    base = torch.randn(3, 4, 5, 6)
    tensors = {
        "base": base,
        "view": base[0],
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": base[0, 0].T,
        "odd": torch.tensor([torch.nan, torch.inf, -0.0]),
        "count": torch.tensor(7),
        "double": torch.randn(2, dtype=torch.float64),
    }
    save_tensors(tmp_path / "t.safetensors", tensors)
    loaded, _ = load_tensors(tmp_path / "t.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


@pytest.mark.parametrize("content", [b"", b"\x08", b"\xff" * 100, b"\x02\x00\x00\x00\x00\x00\x00\x00{}extra"])
def test_damaged_weights_are_named(tmp_path, content):
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"w\.safetensors is damaged"):
        load_tensors(tmp_path / "w.safetensors")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_broken_json_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json is not valid JSON"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("renamed", [False, True], ids=["before its rename", "after it"])
def test_killed_in_any_write_a_file_and_its_checksum_still_agree(tmp_path, renamed):
    path = tmp_path / "results.json"
    (tmp_path / checksums.FOLDER).mkdir()
    write_json(path, {"acc": 0.5})
    found, number = [], 1
    while killed_in_rename(lambda: write_json(path, {"acc": 0.75}), number, renamed=renamed):
        found.append(read_json(path)["acc"])
        number += 1
    assert found == ([0.5, 0.75] if renamed else [0.5, 0.5])
    assert read_json(path) == {"acc": 0.75}
    assert names(tmp_path) == [".checksums", "results.json", "results.json"]  # what the killed ones left is gone
    path.write_text('{"acc": 0.76}')
    with pytest.raises(InputError, match=r"results\.json was damaged or changed after srepr wrote it"):
        read_json(path)


@settings(max_examples=40)
@given(content=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_a_type_is_met_or_a_mismatch_is_raised(content):
    for kind in (int, float, str, list[int], dict[str, float | None], tuple[int, str], Train):
        with contextlib.suppress(schema.Mismatch):
            schema.parsed(content, kind)
