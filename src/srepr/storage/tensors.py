"""Tensors and a few words about them in a safetensors file, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from srepr.errors import InputError
from srepr.storage.files import write_whole


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
    packed = {"srepr": json.dumps(dict(metadata or {}), sort_keys=True)}
    try:
        write_whole(path, lambda temporary: save_file(own, temporary, packed))
    except SafetensorError as error:
        raise InputError(f"{path} cannot be written ({error}). Free space, then run the same command again.") from None


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; a missing or damaged one is an InputError."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _metadata(file)  # noqa: SIM118


def load_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; its tensors are not read."""
    with _opened(path) as file:
        return _metadata(file)


def _metadata(file: Any) -> dict[str, str]:
    metadata = file.metadata() or {}
    found: dict[str, str] = json.loads(metadata["srepr"]) if "srepr" in metadata else metadata
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Is the training finished?") from None
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}). Delete it and run the same command again.") from None


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
