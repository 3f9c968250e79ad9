"""Checkpoints are data: what is in them comes back as torch.load gives it, and what wants to run does not."""

import argparse
import collections
import contextlib
import copy
import datetime
import functools
import io
import os
import pathlib
import pickle
import runpy
import shutil
import struct
import subprocess
import types
import warnings
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from tests.importing.networks import Ldam

from srepr.errors import InputError
from srepr.importing.checkpoint import read_checkpoint, report
from srepr.storage.pickles import Foreign, Machine
from srepr.storage.reader import read

MACHINE = {"rebuild": {}, "persistent": lambda identity: None}


# What comes back


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text() | st.integers(-(2**31), 2**31 - 1), inner)
    ),
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
@settings(max_examples=60)
def test_plain_data_reads_as_pickle_reads_it(value, protocol):
    assert Machine(**MACHINE).read(io.BytesIO(pickle.dumps(value, protocol))) == value


def test_shared_and_recursive_lists_stay_so():
    value = [[1]]
    value += [value[0], value]
    found = Machine(**MACHINE).read(io.BytesIO(pickle.dumps(value)))
    assert found[0] is found[1]
    assert found[2] is found


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])
def test_tensors_read_as_torch_reads_them(tmp_path, legacy, dtype):
    base = torch.randn(6, 5).mul(3).to(getattr(torch, dtype))
    parameter = torch.nn.Parameter(torch.randn(3))
    state = {"whole": base, "rows": base[2:4], "turned": base.T[1:], "none": base[:0], "scalar": base[1, 1]}
    state |= {"parameter": parameter, "ordered": collections.OrderedDict(a=base[0]), "size": base.shape}
    torch.save(state, tmp_path / "t.pth", _use_new_zipfile_serialization=not legacy)
    found = read(tmp_path / "t.pth").value
    expected = torch.load(tmp_path / "t.pth", weights_only=True)
    for name in ("whole", "rows", "turned", "none", "scalar", "parameter"):
        assert torch.equal(found[name], expected[name])
        assert found[name].dtype == expected[name].dtype
    assert torch.equal(found["ordered"]["a"], base[0])
    assert found["size"] == (6, 5)


@pytest.mark.parametrize("protocol", [2, 4])
def test_objects_of_any_class_become_inert(tmp_path, protocol):
    """Among them classes that torch's own restricted reader refuses."""
    anything = [types.SimpleNamespace(lr=0.1), collections.Counter("aab"), np.float64(3), np.arange(3), {1, 2}]
    anything += [frozenset([1]), 3j, torch.device("cpu"), torch.float16, collections.defaultdict(list, a=[1])]
    torch.save({"anything": anything, "w": torch.ones(2)}, tmp_path / "t.pth", pickle_protocol=protocol)
    content = read(tmp_path / "t.pth")
    assert content.value["w"].tolist() == [1, 1]
    assert all(isinstance(value, Foreign) for value in content.value["anything"][:4])
    assert {"types.SimpleNamespace", "collections.Counter"} <= set(content.foreign)
    assert content.unusual == ()


# What wants to run


class Payload:
    """A call that is made where this is unpickled."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def nested(payload):
    """Deep in a checkpoint that is otherwise a good one."""
    state = Ldam(10, normed=False, channels=1).state_dict()
    return {"state_dict": state, "optimizer": {"state": {0: [{"momentum": (1, payload)}]}}}


def as_state_dict(payload):
    return {"state_dict": payload}


def alone(payload):
    return payload


ATTACKS = {  # what is called, by its name in the pickle; each makes the file
    "posix.system": lambda file: Payload(os.system, f"touch {file}"),
    "builtins.eval": lambda file: Payload(eval, f"open({str(file)!r}, 'w')"),
    "builtins.exec": lambda file: Payload(exec, f"open({str(file)!r}, 'w')"),
    "io.open": lambda file: Payload(open, str(file), "w"),
    "subprocess.call": lambda file: Payload(subprocess.call, ["touch", str(file)]),
    "shutil.copyfile": lambda file: Payload(shutil.copyfile, __file__, str(file)),
    "runpy.run_path": lambda file: Payload(runpy.run_path, script(file)),
}


def script(file):
    """A program that makes the file."""
    program = file.with_suffix(".py")
    program.write_text(f"open({str(file)!r}, 'w')")
    return str(program)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("place", [alone, as_state_dict, nested])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_malicious_checkpoint_does_nothing_and_is_reported(srepr, tmp_path, name, place, legacy):
    """torch.load without its restrictions makes the file: the attack is real. What else the file holds is read."""
    bad, made, run = tmp_path / "bad.pth", tmp_path / "made", tmp_path / "run"
    torch.save(place(ATTACKS[name](made)), bad, _use_new_zipfile_serialization=not legacy)
    with contextlib.suppress(Exception):
        torch.load(bad, weights_only=False)
    assert made.exists()
    made.unlink()
    answer = srepr("import", bad, "--source", "digits-lt", "--out", run, "--json")
    assert answer.err.splitlines()[0] == f"{bad} names {name}, which is unusual in a checkpoint: not executed"
    assert not made.exists()
    assert run.exists() == (answer.code == 0) == (place is nested)
    if place is not nested:
        assert f"{bad}: its layout is unknown" in answer.complaint


DANGEROUS = [
    "torch:os.system",
    "torch:serialization.os.system",
    "numpy:os.system",
    "torch.nn.modules.module:os.system",
    "omegaconf:os.system",
    "posix:system",
    "nt:system",
    "os:execv",
    "subprocess:Popen",
    "_posixsubprocess:fork_exec",
    "pty:spawn",
    "builtins:exec",
    "builtins:getattr",
    "builtins:__import__",
    "builtins:compile",
    "__builtin__:eval",
    "dill:loads",
    "dill._dill:_create_function",
    "cloudpickle:loads",
    "pickle:loads",
    "_pickle:loads",
    "joblib:load",
    "marshal:loads",
    "types:FunctionType",
    "types:CodeType",
    "importlib:import_module",
    "runpy:run_path",
    "operator:attrgetter",
    "operator:methodcaller",
    "functools:reduce",
    "shutil:rmtree",
    "pathlib:os.system",
    "torch:load",
    "torch.hub:load",
    "torch.storage:_load_from_bytes",
    "torch.jit:load",
    "numpy:load",
    "numpy.f2py:compile",
    "torch.utils.cpp_extension:load",
    "pandas:read_pickle",
    "sys:exit",
    "socket:socket",
    "webbrowser:open",
    "ctypes:CDLL",
    "multiprocessing.util:spawnv_passfds",
    "asyncio:run",
    "uuid:_popen",
    "code:interact",
    "logging.config:listen",
]


@pytest.mark.parametrize("name", DANGEROUS)
def test_every_name_that_is_not_usual_is_reported(tmp_path, name):
    module, attribute = name.split(":")
    program = b"\x80\2}X\1\0\0\0wc" + f"{module}\n{attribute}\n".encode() + b"X\1\0\0\0a\x85Rs."
    content = read(archive(tmp_path / "bad.pth", program))
    assert content.value == {"w": Foreign(content.foreign[0], made=True)}
    assert content.foreign == content.unusual == (f"{module.replace('__builtin__', 'builtins')}.{attribute}",)


def test_settings_of_the_usual_kinds_are_not_reported(tmp_path):
    args = argparse.Namespace(layer=functools.partial(torch.nn.Conv2d, bias=False), out=pathlib.Path("runs"))
    args.when, args.schedule = datetime.datetime(2020, 1, 2), collections.defaultdict(list, lr=[np.float32(0.1)])
    state = {"state_dict": Ldam(10, normed=False, channels=1).state_dict(), "args": args, "loss": torch.nn.MSELoss()}
    torch.save(state, tmp_path / "good.pth")
    content = read(tmp_path / "good.pth")
    assert "functools.partial" in content.foreign
    assert content.unusual == ()


def test_names_in_a_report_are_short_and_printable(tmp_path, capfd):
    report(tmp_path / "bad.pth", ["os\x1b[2J.system", "m" * 999, "c", "d", "e"])
    line = capfd.readouterr().err
    assert "names os\\x1b[2J.system, mmm" in line
    assert line.endswith("..., c and 2 more, which is unusual in a checkpoint: not executed\n")
    assert len(line) < 300 + len(str(tmp_path))


def archive(path, program, **members):
    """A file in the zip format of torch.save around a program of one's own."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {"data.pkl": program, "version": b"3\n", **members}.items():
            file.writestr(f"archive/{name.replace('__', '/')}", content)
    return path


def storage(kind="torch\nFloatStorage", key="0", length=4):
    """The program that puts a storage onto the stack."""
    text = b"X" + struct.pack("<I", len(key)) + key.encode()
    number = b"J" + struct.pack("<i", length)
    return b"(X\x07\0\0\0storagec" + kind.encode() + b"\n" + text + b"X\3\0\0\0cpu" + number + b"tQ"


def tensor(source, *, offset=0, size=b"K\4\x85", stride=b"K\1\x85"):
    """The program of a tensor over a storage, in a dict."""
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + source + b"J" + struct.pack("<i", offset) + size + stride
    return b"\x80\2}X\1\0\0\0w" + call + b"\x89NtRs."


def test_the_program_of_a_tensor_is_one(tmp_path):
    path = archive(tmp_path / "t.pth", tensor(storage()), data__0=np.arange(4, dtype=np.float32).tobytes())
    assert read(path).value["w"].tolist() == [0, 1, 2, 3]
    assert torch.load(path, weights_only=True)["w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (tensor(storage(kind="posix\nsystem")), "posix.system"),
        (tensor(storage(kind="torch\nFloatTensor")), "torch.FloatTensor"),
        (tensor(storage(key="../../secret")), "no item named 'archive/data/../../secret'"),
        (tensor(storage(key="/etc/passwd")), "no item named"),
        (tensor(storage(length=-1)), "its storages are not torch's"),
        (tensor(storage(), size=b"J\xff\xff\xff\x7f\x85", stride=b"K\0\x85"), "does not fit its storage of 4"),
        (tensor(storage(), size=b"K\5\x85"), "does not fit its storage of 4"),
        (tensor(storage(), offset=1), "does not fit its storage of 4"),
        (tensor(storage(), offset=-1), "its tensors are not torch's"),
        (tensor(storage(), stride=b"J\xff\xff\xff\xff\x85"), "its tensors are not torch's"),
        (tensor(storage(), size=b"X\1\0\0\0a\x85"), "its tensors are not torch's"),
        (tensor(storage(), size=b")"), "its tensors are not torch's"),
        (tensor(b"N"), "its tensors are not torch's"),
        (tensor(storage())[:-3], "damaged"),
        (tensor(storage(), size=b"(" + b"K\1" * 65 + b"t"), "its tensors are not torch's"),
        (b"\x80\4\x8c\5torch\x8c\4load\x93\x8c\1f\x85R.", "its layout is unknown"),
        (b"\x80\4\x8c\x0ctorch._utils\x8c\x0b__globals__\x93\x8c\1f\x85R}\x85b.", "its layout is unknown"),
        (b"\x80\2(c__builtin__\neval\nX\1\0\0\x001o.", "its layout is unknown"),
        (b"(X\1\0\0\x001i__builtin__\neval\n.", "its layout is unknown"),
        (b"\x80\2K\1K\2\x85R.", "it calls int instead of a name"),
        (b"\x80\2\x82\1.", "the opcode EXT1 does not belong in a checkpoint"),
        (b"\x80\2N.", "its layout is unknown"),
        (b"\x80\2" + b"(" * 10**5 + b"t" * 10**5 + b".", "its layout is unknown"),
        (b"\x80\2})" + b"\x85" * 10**5 + b"Ns.", "its layout is unknown"),
        (b"\x80\2" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".", "its layout is unknown"),
    ],
)
def test_crafted_programs_are_refused_in_one_line(srepr, tmp_path, program, reason):
    """Abused storages, sizes and rebuilders; names by every opcode that has them; deep nesting, also in a key."""
    bad = archive(tmp_path / "bad.pth", program, data__0=bytes(16))
    assert reason in srepr("import", bad, "--source", "digits-lt", "--out", tmp_path / "run").complaint


def test_a_compressed_archive_is_no_bomb(tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.pth", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(10**7))
    with pytest.raises(InputError, match="does not compress"):
        read(tmp_path / "bad.pth")


def test_what_is_no_checkpoint_is_refused(srepr, tmp_path):
    good = tmp_path / "good.pth"
    torch.save(Ldam(10, normed=False, channels=1).state_dict(), good)
    whole = good.read_bytes()
    torch.save(torch.zeros(100), tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    old = (tmp_path / "legacy.pth").read_bytes()
    contents = {
        "": "is not a checkpoint",
        "hello": "is not a checkpoint",
        whole[: len(whole) // 2]: "is damaged",
        whole[:-30]: "is damaged",
        old[:-30]: "is damaged",
        old[:60]: "is damaged",
        pickle.dumps({"w": 1}): "a pickle that torch.save did not write",
        pickle.dumps(Payload(os.system, "true")): "a pickle that torch.save did not write",
        struct.pack("<Q", 100) + b"{": "is damaged",
        struct.pack("<Q", 2**62) + b"{}": "is damaged",
        struct.pack("<Q", 1) + b"{": "is damaged",
        struct.pack("<Q", 2) + b"{}": "its layout is unknown",
    }
    for content, reason in contents.items():
        bad = tmp_path / "bad.pth"
        bad.write_bytes(content.encode() if isinstance(content, str) else content)
        assert reason in srepr("import", bad, "--source", "digits-lt", "--out", tmp_path / "run").complaint
    missing = srepr("import", tmp_path / "no.pth", "--source", "digits-lt", "--out", tmp_path / "run")
    assert "no.pth is not a file" in missing.complaint


def test_a_legacy_file_without_all_its_storages_is_refused(tmp_path):
    """The keys of the storages are the last pickle; without them the weights would be zeros."""
    torch.save({"w": torch.ones(3)}, tmp_path / "t.pth", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "t.pth").read_bytes()
    keys = whole.rindex(b"\x80\2]")
    (tmp_path / "t.pth").write_bytes(whole[:keys] + b"\x80\2].")
    with pytest.raises(InputError, match="its storages are not those of its tensors"):
        read(tmp_path / "t.pth")


def test_members_that_overlap_or_repeat_are_read_once(tmp_path):
    """Two names for the same bytes count twice; the last of equal names is the one that is read."""
    path = archive(tmp_path / "t.pth", tensor(storage()), data__0=bytes(16))
    with zipfile.ZipFile(path, "a") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr("archive/data/0", np.ones(4, dtype=np.float32).tobytes())
    assert read(path).value["w"].tolist() == [1, 1, 1, 1]
    with zipfile.ZipFile(path, "a") as file:
        largest = max(file.filelist, key=lambda member: member.file_size)
        for number in range(99):
            again = copy.copy(largest)
            again.filename = f"archive/data/again{number}"
            file.filelist.append(again)
            file.NameToInfo[again.filename] = again
        file._didModify = True
    with pytest.raises(InputError, match="its members are larger than the file"):
        read(path)


def saved(kind):
    """The bytes of a small checkpoint in one of the formats."""
    state = {"fc.weight": torch.arange(6.0).view(2, 3), "fc.bias": torch.zeros(2)}
    file = io.BytesIO()
    if kind == "safetensors":
        return save(state, {"srepr": "{}"})
    others = {"epoch": 3, "args": argparse.Namespace(lr=0.1), "names": ["a", ("b", 2.5)], "optimizer": {0: None}}
    torch.save({"state_dict": state, **others}, file, _use_new_zipfile_serialization=kind == "zip")
    return file.getvalue()


SAVED = {kind: saved(kind) for kind in ("zip", "legacy", "safetensors")}


@pytest.mark.parametrize("kind", SAVED)
@given(data=st.data())
@settings(max_examples=60)
def test_a_changed_checkpoint_is_refused_in_one_line_or_read(tmp_path_factory, kind, data):
    """Bytes changed, cut out or repeated anywhere in the file."""
    content = bytearray(SAVED[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 40))
        with_ = data.draw(st.binary(min_size=0, max_size=8) | st.just(bytes(content[at : at + length]) * 2))
        content[at : at + data.draw(st.sampled_from([0, len(with_), length]))] = with_
    path = tmp_path_factory.getbasetemp() / f"fuzzed.{kind}"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        read(path)
    try:
        read_checkpoint(path)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017


PROGRAM = tensor(storage()) + pickle.dumps({"a": [1, (2.5, "x")], "b": Foreign("c")}, 2)


@given(st.lists(st.tuples(st.integers(0, len(PROGRAM) - 1), st.integers(0, 255)), min_size=1, max_size=8))
@settings(max_examples=150)
def test_broken_programs_end_in_one_line_or_in_data(tmp_path_factory, changes):
    program = bytearray(PROGRAM)
    for position, byte in changes:
        program[position] = byte
    path = archive(tmp_path_factory.getbasetemp() / "fuzzed.pth", bytes(program), data__0=bytes(16))
    with contextlib.suppress(InputError):
        read(path)
