"""The size of a network whose description is not trusted: no larger than the weights that come with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from srepr.errors import InputError

LARGEST = 1 << 24
"""Of a layer, or of a number of layers."""


@contextmanager
def no_larger_than(tensors: Mapping[str, Tensor], options: Any) -> Iterator[None]:
    """Refuse, within the block, to build a network with more parameters, or larger ones, than there are tensors.

    The whole numbers among its `options` are checked first: a network without weights can be large too.

    >>> with no_larger_than({"weight": nn.Linear(2, 3).weight}, {"width": 9999}):
    ...     nn.Linear(9999, 9999)
    Traceback (most recent call last):
    srepr.errors.InputError: the network is larger than the weights that are there. Fetch or train it again.
    """
    larger = InputError("the network is larger than the weights that are there. Fetch or train it again.")
    if max(_integers(options), default=0) > LARGEST:
        raise larger
    # With some room: layers may be replaced while a network is built, and a head takes the classifier's place.
    tensors_left, numbers_left = 2 * len(tensors) + 64, 4 * sum(map(Tensor.numel, tensors.values())) + 65536

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal tensors_left, numbers_left
        if parameter is not None and not is_lazy(parameter):
            tensors_left, numbers_left = tensors_left - 1, numbers_left - parameter.numel()
            if min(tensors_left, numbers_left) < 0:
                raise larger

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _integers(options: Any) -> Iterator[int]:
    """The whole numbers in the options of a network."""
    if isinstance(options, dict | list):
        for value in options.values() if isinstance(options, dict) else options:
            yield from _integers(value)
    elif isinstance(options, int):
        yield options
