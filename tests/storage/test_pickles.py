"""Hostile pickles cost little: work and memory follow from the size of the file, whatever it asks for."""

import io
import struct
import time
import tracemalloc

import pytest
import torch
from tests.storage.test_reader import archive, storage

from srepr.errors import InputError
from srepr.storage.pickles import MOST_WORK, Machine, work_for
from srepr.storage.reader import read

SIZE = 30_000
PRIME = 2**61 - 1  # Python's hash of a multiple of it is 0


def text(content):
    return b"X" + struct.pack("<I", len(content)) + content.encode()


def number(value):
    return b"\x8a\x0a" + value.to_bytes(10, "little")


def call(name, repeated):
    """A tuple of calls of a name with one memoised argument, which is on the stack."""
    return b"q\0c" + name + b"\nq\1(" + b"h\1h\0\x85R" * repeated + b"t."


VIEW = b"(" + storage() + b"K\0K\4\x85K\1\x85\x89Nt"
NUMBERS, PAIRS = b"](" + b"K\1" * (SIZE // 4) + b"e", b"](" + b"K\1K\2\x86" * (SIZE // 10) + b"e"

HOSTILE = {
    "sizes of a long list": NUMBERS + call(b"torch\nSize", SIZE // 12),
    "dicts of a long list": PAIRS + call(b"collections\nOrderedDict", SIZE // 12),
    "dicts of a long dict": b"}(" + b"".join(text(f"{k:02x}") + b"N" for k in range(256)) + b"u"
    + call(b"collections\nOrderedDict", SIZE // 12),
    "arguments": b"(" + b"K\1" * (SIZE // 4) + b"tq\0ctorch._utils\n_rebuild_parameter\nq\1("
    + b"h\1h\0R" * 6000 + b"t.",
    "storages": b"(" + text("storage") + b"K\1" * (SIZE // 4) + b"tq\0(" + b"h\0Q" * (SIZE // 6) + b"t.",
    "dimensions": b"ctorch._utils\n_rebuild_tensor_v2\nq\0(" + storage() + b"K\0("
    + b"K\1" * 9000 + b"tq\1h\1\x89Ntq\2(" + b"h\0h\2R" * 6000 + b"t.",
    "tensors": b"ctorch._utils\n_rebuild_tensor_v2\nq\0" + VIEW + b"q\1(" + b"h\0h\1R" * (SIZE // 5) + b"t.",
    "colliding keys": b"}(" + b"".join(number(k * PRIME) + b"N" for k in range(SIZE // 13)) + b"u.",
    "floats": b"}(" + b"".join(b"G" + struct.pack(">d", 2.0**k) + b"N" for k in range(1000)) + b"u.",
    "colliding memo": b"N" + b"".join(b"p%d\n" % (k * PRIME) for k in range(SIZE // 22)) + b".",
    "equal keys": text("k" * 15_000) + b"q\0" + text("k" * 15_000) + b"q\1}(" + b"h\0Nh\1N" * 5000 + b"u.",
    "a huge number as a key": b"\x8b" + struct.pack("<i", 30_000) + b"\1" * 30_000 + b"q\0}(" + b"h\0N" * 9000 + b"u.",
    "long names": text("m" * 15_000) + b"q\0" + text("n" * 15_000) + b"q\1(" + b"h\0h\1\x93" * 6000 + b"t.",
    "names": text("m" * 200) + b"q\0(" + b"".join(b"h\0" + text(f"{k}") + b"\x93" for k in range(SIZE // 12)) + b"t.",
    "dicts": b"(" + b"}\x94" * (SIZE // 2) + b"t.",
    "marks": b"(" * SIZE,
    "sets": b"(" + b"\x8f" * SIZE + b"t.",
    "nested dicts": b"}K\1" * (SIZE // 4) + b"}" + b"s" * (SIZE // 4) + b".",
    "laughs": b"]q\0" + b"".join(b"](h%c" % k + b"h%c" % k + b"eq%c" % (k + 1) for k in range(200)) + b".",
    "a list in itself": b"]q\0(" + b"h\0" * (SIZE // 2) + b"e.",
    "a number in decimals": b"L" + b"9" * SIZE + b"L\n.",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_work_and_memory_are_a_small_multiple_of_the_file(tmp_path, name):
    """SECURITY.md promises 200 bytes and 20 microseconds for a byte."""
    path = archive(tmp_path / "bad.pth", b"\x80\4" + HOSTILE[name], data__0=bytes(16))
    size = path.stat().st_size
    tracemalloc.start()
    began = time.process_time()
    try:
        read(path)
    except InputError as error:
        assert len(str(error)) < 400  # noqa: PT017
    finally:
        taken, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 200 * size + 500_000
    assert taken < 4 * 20e-6 * size + 1  # tracing is slow


@pytest.mark.parametrize("name", ["dicts of a long list", "dicts of a long dict", "equal keys"])
def test_what_costs_more_than_its_size_is_refused(tmp_path, name):
    path = archive(tmp_path / "bad.pth", b"\x80\4" + HOSTILE[name], data__0=bytes(16))
    with pytest.raises(InputError, match="more work than its size explains"):
        read(path)


def test_a_file_of_any_size_has_a_limited_number_of_steps():
    assert work_for(10**9) == work_for(10**12) == MOST_WORK
    machine = Machine({}, lambda identity: None, work=1000)
    machine.read(io.BytesIO(b"\x80\4" + b"N0" * 400 + b"N."))
    with pytest.raises(ValueError, match="more work"):  # what one program has used is gone for the next
        machine.read(io.BytesIO(b"\x80\4" + b"N0" * 400 + b"N."))


def test_many_views_of_one_storage_are_not_many_weights(tmp_path):
    """A clone of each would be a hundred times as large as the file."""
    whole = torch.zeros(10_000)
    torch.save({f"w{k}": whole.view(100, 100)[:] for k in range(5)}, tmp_path / "few.pth")
    assert len(read(tmp_path / "few.pth").value) == 5
    torch.save({f"w{k}": whole.view(100, 100)[:] for k in range(100)}, tmp_path / "many.pth")
    with pytest.raises(InputError, match="its tensors are more than 8 times as large as the file"):
        read(tmp_path / "many.pth")


def test_a_large_checkpoint_needs_a_fraction_of_its_budget(tmp_path):
    """The densest that torch writes: small tensors with short names, and an optimiser's settings for each."""
    model = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(40))
    optimizer = torch.optim.AdamW([{"params": [p]} for p in model.parameters()])
    model[0].weight.sum().backward()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for legacy in (False, True):
        path = tmp_path / "large.pth"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path, _use_new_zipfile_serialization=not legacy)
        found = read(path).value
        assert len(found["model"]) == len(found["optimizer"]["state"]) == 80
