"""Imports of other packages that would take long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType


@contextmanager
def only_the_version(package: str) -> Iterator[None]:
    """Within the block, the package has a version and is not imported for it; does nothing if it is not there.

    >>> with only_the_version("lightning-utilities"):
    ...     sys.modules["lightning-utilities"].__version__ == version("lightning-utilities")
    True
    >>> "lightning-utilities" in sys.modules
    False
    """
    try:
        stand_in = ModuleType(package)
        stand_in.__dict__["__version__"] = version(package)
    except PackageNotFoundError:
        yield
        return
    own = sys.modules.setdefault(package, stand_in)
    try:
        yield
    finally:
        if own is stand_in:
            del sys.modules[package]
