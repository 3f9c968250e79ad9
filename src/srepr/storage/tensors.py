"""Tensors and a few words about them in a safetensors file, written whole or not at all, with a checksum.

The checksum stands in the metadata and covers the whole file, with zeros in its own place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from srepr.errors import InputError
from srepr.storage import checksums, schema
from srepr.storage.files import write_whole
from srepr.storage.outside import check_regular

HEADER_SIZE = 8
CHECKSUM = re.compile(rb'"srepr":"\{\\"checksum\\": \\"([0-9a-f]{16})\\"')
"""In the header, where the metadata are JSON in a text of JSON."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file; the same content gives the same bytes.

    >>> path = getfixture("tmp_path") / "weights.safetensors"
    >>> import torch
    >>> save_tensors(path, {"w": torch.ones(2)}, {"epoch": "3"})
    >>> load_tensors(path)
    ({'w': tensor([1., 1.])}, {'epoch': '3'})
    """
    # Clones: the format refuses tensors that share memory (tied weights).
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    # One entry: the format's library writes several in an order that changes from process to process.
    packed = {"srepr": json.dumps({"checksum": checksums.ZEROS, **dict(sorted((metadata or {}).items()))})}

    # In memory: what the library writes to the disk itself is left under a name of its own if the process is killed.
    content = memoryview(save(own, packed))
    place = _place_in(content)
    assert place is not None
    digits = checksums.of_bytes(content).encode()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.writelines((content[:place], digits, content[place + checksums.DIGITS :]))

    write_whole(path, write)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; a missing or damaged one is an InputError."""
    with _opened(path) as (file, metadata):
        return {name: _tensor(path, file, name) for name in file.keys()}, metadata  # noqa: SIM118


def load_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; its tensors are not read."""
    with _opened(path) as (_, metadata):
        return metadata


def is_own(path: Path) -> bool:
    """Whether a safetensors file has metadata of srepr; other projects may have any.

    >>> path = getfixture("tmp_path") / "weights.safetensors"
    >>> import torch
    >>> _ = path.write_bytes(save({"w": torch.ones(2)}, {"srepr": "no JSON"}))
    >>> is_own(path)
    False
    """
    try:
        check_regular(path, path.stat())
        with safe_open(path, framework="pt") as file:
            schema.parsed_text((file.metadata() or {}).get("srepr", ""), dict[str, str])
    except schema.Mismatch:
        return False
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}). Fetch it again.") from None
    return True


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """The open file and its metadata, after a look at its checksum."""
    try:
        check_regular(path, path.stat())
        opened: Any = safe_open(path, framework="pt")
        metadata = _metadata(opened.metadata() or {})
        expected = metadata.pop("checksum", None)
        place = None if expected is None else _checksum_place(path)
        intact = expected is None or (place is not None and checksums.of_file(path, place) == expected)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Is the training finished?") from None
    except (SafetensorError, schema.Mismatch, OSError) as error:
        raise _damaged(path, error) from None
    if not intact:
        raise InputError(f"{path} is damaged: its checksum does not match. Restore it from a copy, or make it again.")
    with opened as file:
        yield file, metadata


def _tensor(path: Path, file: Any, name: str) -> Tensor:
    """A tensor of an open file. Its type and shape are handed to torch, which may not have them."""
    try:
        tensor: Tensor = file.get_tensor(name)
    except (SafetensorError, AttributeError, RuntimeError, TypeError) as error:
        raise _damaged(path, error) from None
    return tensor


def _damaged(path: Path, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [""])[0][:200]
    return InputError(f"{path} is damaged ({reason}). Delete it and run the same command again.")


def _metadata(found: Mapping[str, str]) -> dict[str, str]:
    if "srepr" not in found:
        return dict(found)
    metadata: dict[str, str] = schema.parsed_text(found["srepr"], dict[str, str])
    return metadata


def _checksum_place(path: Path) -> int | None:
    """Where in the file the checksum begins."""
    with path.open("rb") as file:
        size = file.read(HEADER_SIZE)
        return _place_in(size + file.read(int.from_bytes(size, "little")))


def _place_in(content: bytes | memoryview) -> int | None:
    end = HEADER_SIZE + int.from_bytes(content[:HEADER_SIZE], "little")
    found = CHECKSUM.search(content, HEADER_SIZE, end)
    return None if found is None else found.start(1)


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
