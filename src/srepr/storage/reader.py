"""Read checkpoints into dicts and tensors without executing them: torch's two formats, and safetensors.

    zip (torch >= 1.6)    NAME/data.pkl, and a member NAME/data/KEY with the bytes of each storage
    legacy                pickles of a magic number, a version, the machine, the object and the storage keys, then
                          the length and bytes of each storage
    safetensors           a flat dict of tensors

A tensor is a view (offset, size, stride) of a storage; all three are checked against the available bytes. Work and
memory are proportional to the size of the file (SECURITY.md).
"""

from __future__ import annotations

import math
import mmap
import re
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from srepr.errors import InputError
from srepr.storage.pickles import Foreign, Machine, work_for

MAGIC = 0x1950A86A20F9469CFC6C
DTYPES = {
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
MOST_DIMENSIONS = 64
OVERLAP = 8
"""Tensors may share storages: all together they may be this many times as large as the file."""


class Content(NamedTuple):
    """Content of a file, and the names in it that were not called."""

    value: Any
    foreign: tuple[str, ...]
    unusual: tuple[str, ...] = ()
    """Those among them that checkpoints do not usually hold."""


def read(path: Path) -> Content:
    """Content of a checkpoint. A damaged or unknown file raises a one-line InputError.

    >>> path = getfixture("tmp_path") / "model.pth"
    >>> torch.save({"epoch": 3, "w": torch.ones(2), "machine": torch.device("cpu")}, path)
    >>> read(path).value["w"]
    tensor([1., 1.])
    >>> read(path).foreign
    ('torch.device',)
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file. Pass a checkpoint.")
    with path.open("rb") as file:
        start = file.read(9)
    formats = {b"PK": read_zip, b"\x80": read_legacy}
    known = [function for first, function in formats.items() if start.startswith(first)]
    if start[8:] == b"{":  # safetensors: a JSON header after its 8-byte length
        known = [read_safetensors]
    if not known:
        raise InputError(f"{path} is not a checkpoint: expected a torch.save or safetensors file.")
    try:
        return known[0](path)
    except InputError:
        raise
    except Exception as error:  # a broken file can raise anything
        reason = shown(f"{type(error).__name__}: {error}", 200)
        raise InputError(f"{path} is damaged, or no checkpoint of PyTorch ({reason}). Fetch it again.") from None


def read_safetensors(path: Path) -> Content:
    """Read a flat dict of tensors; its metadata, which may be anything, are left alone."""
    with safe_open(path, framework="pt") as file:
        return Content({name: file.get_tensor(name) for name in file.keys()}, ())  # noqa: SIM118


def shown(text: str, most: int = 80) -> str:
    r"""Text of a file in a message: printable, in one line and of limited length.

    >>> print(shown("os\x1b[2J\n.system"), shown("a" * 9, most=3))
    os\x1b[2J\n.system aaa...
    """
    escaped = re.sub(r"[^ -~]", lambda found: ascii(found[0])[1:-1], text[:most])
    return escaped + "..." * (len(text) > most)


def read_zip(path: Path) -> Content:
    """Read a file of torch.save since 1.6. Members are looked up in the archive, never in the file system."""
    storages: dict[str, Tensor] = {}
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        (program,) = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
        root = program.removesuffix("data.pkl")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError("torch.save does not compress")
        if sum(member.file_size for member in members.values()) > path.stat().st_size:
            raise ValueError("its members are larger than the file")
        if f"{root}byteorder" in members and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")

        def storage(dtype: torch.dtype, key: str, length: int) -> Tensor:
            if key not in storages:
                storages[key] = of_bytes(archive.read(f"{root}data/{key}"))
            return storages[key][: length * dtype.itemsize].view(dtype)

        code = archive.read(program)
        machine = machine_for(storage, len(code), path.stat().st_size)
        return content_of(machine.read(BytesIO(code)), machine)


def read_legacy(path: Path) -> Content:
    """Read a file of torch.save before 1.6: the storages' bytes come after the tensors that view them."""
    storages: dict[str, Tensor] = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        room = len(content)

        def storage(dtype: torch.dtype, key: str, length: int) -> Tensor:
            nonlocal room
            if key not in storages:
                room -= length * dtype.itemsize
                if room < 0:
                    raise ValueError("its storages are larger than the file")
                storages[key] = torch.zeros(length, dtype=dtype)
            return storages[key]

        machine = machine_for(storage, room, room)
        if machine.read(content) != MAGIC:
            raise ValueError("a pickle that torch.save did not write")
        _version, _computer, value = (machine.read(content) for _ in range(3))
        keys = machine.read(content)
        known = isinstance(keys, list) and all(isinstance(key, str) and key in storages for key in keys)
        if not known or not len(set(keys)) == len(keys) == len(storages):
            raise ValueError("its storages are not those of its tensors")
        for key in keys:
            if int.from_bytes(content.read(8), "little") != len(storages[key]):
                raise ValueError("its storages do not have the lengths of its tensors")
            storages[key].copy_(of_bytes(content.read(storages[key].nbytes)).view(storages[key].dtype))
        return content_of(value, machine)


def content_of(value: Any, machine: Machine) -> Content:
    """What a machine has read, and the names that it met."""
    foreign = (name for name in machine.foreign if name not in DTYPES)
    return Content(value, tuple(foreign), tuple(machine.unusual))


def machine_for(storage: Callable[[torch.dtype, str, int], Tensor], program: int, file: int) -> Machine:
    """A machine that can only build dicts, and tensors over `storage(dtype, key, length)`.

    `program` and `file` are sizes in bytes, which limit its work and the size of its tensors.
    """
    room = OVERLAP * file

    def persistent(identity: Any) -> Tensor | Foreign:
        if not isinstance(identity, tuple) or not 1 < len(identity) < 8:
            raise ValueError("its storages are not torch's")
        if identity[0] == "module":  # a class with its source code, from a fully pickled model
            return Foreign("module")
        kind, storage_type, key, _device, length, *views = identity
        if kind != "storage" or any(views) or not isinstance(key, str) or len(key) > 64 or not is_size([length]):
            raise ValueError("its storages are not torch's")
        return storage(DTYPES[storage_type.name], key, length)

    def view(of: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
        nonlocal room
        found = tensor(of, offset, size, stride)
        room -= found.nbytes
        if room < 0:
            raise ValueError(f"its tensors are more than {OVERLAP} times as large as the file")
        return found

    rebuild: dict[str, Callable[..., Any]] = {
        "torch.Size": shape,
        "torch._utils._rebuild_tensor": view,
        "torch._utils._rebuild_tensor_v2": view,
        "torch._utils._rebuild_parameter": lambda data, *_: data,
        "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
    }
    machine = Machine(rebuild, persistent, work_for(program))
    rebuild["collections.OrderedDict"] = machine.as_dict
    return machine


def tensor(storage: Tensor, offset: int, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """View of a storage, checked to lie inside it and to be no larger than it."""
    fits = isinstance(storage, Tensor) and is_size([offset, *shape(size), *shape(stride)])
    if not fits or len(size) != len(stride):
        raise ValueError("its tensors are not torch's")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if math.prod(size) > len(storage) or (0 not in size and last >= len(storage)):
        raise ValueError(f"a tensor of size {size} and stride {stride} does not fit its storage of {len(storage)}")
    return storage.as_strided(size, stride, offset)


def shape(numbers: Any) -> tuple[int, ...]:
    """A list of few numbers as a tuple, as `torch.Size` does."""
    if not isinstance(numbers, list | tuple) or len(numbers) > MOST_DIMENSIONS:
        raise ValueError("its tensors are not torch's")
    return tuple(numbers)


def of_bytes(content: bytes) -> Tensor:
    """The bytes as a uint8 tensor, which may be empty."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def is_size(numbers: Sequence[Any]) -> bool:
    """Whether all are integers that a file can hold."""
    return all(type(number) is int and 0 <= number < 2**48 for number in numbers)
