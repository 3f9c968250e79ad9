"""Which data these are: digests of settings and arrays, sizes of files, and which examples are copies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from srepr.data.image import absence
from srepr.data.longtail import Labels
from srepr.errors import InputError
from srepr.storage.outside import check_regular


def file_sizes(root: Path, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Size of each file in bytes; raises InputError for a missing file.

    >>> file_sizes(Path("nowhere"), ["1.jpg"])
    Traceback (most recent call last):
    srepr.errors.InputError: nowhere/1.jpg does not exist. Restore it, or skip it with `skip_bad_images`
    """
    return np.array([_size(root / name) for name in names], dtype=np.int64)


def _size(path: Path) -> int:
    try:
        found = path.stat()
        check_regular(path, found)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} {absence(path)}. Restore it, or skip it with `skip_bad_images`") from None
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise InputError(f"{path} cannot be read: {error}. Correct it, or skip it with `skip_bad_images`") from None
    return found.st_size


def grouped(keys: Sequence[str]) -> Labels:
    """A number for each key, the same for equal keys.

    >>> grouped(["crow", "wren", "crow"])
    array([0, 1, 0])
    """
    numbers: Labels = np.unique(np.array(keys, dtype=object), return_inverse=True)[1].astype(np.int64)
    return numbers


def sha256(about: Sequence[object], *arrays: npt.NDArray[Any]) -> str:
    """SHA-256 of plain values and arrays.

    >>> sha256(["wren"], np.arange(3))[:8] == sha256(["crow"], np.arange(3))[:8]
    False
    """
    digest = hashlib.sha256(json.dumps(about).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
