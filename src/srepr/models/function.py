"""A network that a function of yours builds, by name: package.module:function, from the number of classes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from torch import nn

from srepr.errors import InputError

NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def is_function(name: str) -> bool:
    """Whether a network is given as a function, package.module:function.

    >>> is_function("my_package.networks:build"), is_function("hf:bert"), is_function("resnet32")
    (True, False, False)
    """
    return ":" in name and not name.startswith("hf:")


def build_function(name: str, classes: int) -> nn.Module:
    """Import the function and call it with the number of classes; the network is used in single precision.

    A description in a file of weights may name any function, so those of Python's own library are refused.

    >>> build_function("srepr.models:resnet8", 10).fc
    Linear(in_features=64, out_features=10, bias=True)
    >>> build_function("os:system", 10)
    Traceback (most recent call last):
    srepr.errors.InputError: os:system builds no network. Name a function of your own: package.module:function
    """
    found = NAME.fullmatch(name)
    own = "Name a function of your own: package.module:function"
    if found is None:
        raise InputError(f"{name} is no function. {own}")
    module, function = found.groups()
    if module.split(".")[0] in sys.stdlib_module_names:
        raise InputError(f"{name} builds no network. {own}")
    with calling(name):
        found_module = import_module(module)
    if not hasattr(found_module, function):
        raise InputError(f"{name}: {module} has no function {function}. Check its name")
    with calling(name):
        network = getattr(found_module, function)(classes)
    if not isinstance(network, nn.Module):
        raise InputError(f"{name} returns a {type(network).__name__}. It must return an nn.Module")
    return network.float()


@contextmanager
def calling(name: str) -> Iterator[None]:
    """Turn whatever the code of the function raises into an InputError that names the function.

    >>> with calling("mine:build"):
    ...     {}["width"]
    Traceback (most recent call last):
    srepr.errors.InputError: mine:build fails (KeyError: 'width'). Correct the function
    """
    try:
        yield
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: there is no module {error.name}. Install it, or put its folder into PYTHONPATH"
        ) from error
    except Exception as error:  # of code that is not ours
        raise InputError(f"{name} fails ({type(error).__name__}: {str(error)[:200]}). Correct the function") from error
