"""Call any model: move its inputs to its device, and find the logits in its output.

A model takes one input, several as positional arguments, or a dict as keyword arguments, and returns logits in one of
the usual containers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from srepr.errors import InputError


def call(model: nn.Module, inputs: Any) -> Tensor:
    """Logits of the model. Inputs are moved to the device and dtype of its first floating-point weight.

    A dict is passed as keyword arguments, a tuple or list as positional arguments.

    >>> call(nn.Linear(3, 2), torch.zeros(4, 3, dtype=torch.float64)).shape
    torch.Size([4, 2])
    >>> call(nn.Bilinear(3, 1, 2), (torch.zeros(4, 3), torch.zeros(4, 1))).shape
    torch.Size([4, 2])
    """
    like = next((tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.is_floating_point()), None)
    if like is not None:
        inputs = placed(inputs, like)
    if isinstance(inputs, Mapping):
        return logits_in(model, model(**inputs))
    return logits_in(model, model(*inputs) if isinstance(inputs, tuple | list) else model(inputs))


def logits_in(model: nn.Module, output: Any) -> Tensor:
    """Logits in a model's output: a tensor, the first item of a tuple, `.logits` or ["logits"]."""
    if hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, Mapping):
        output = output.get("logits")
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise InputError(f"{type(model).__name__} returns no logits: return a tensor, or an object with .logits")
    return output


def repeats(model: nn.Module, inputs: Any) -> bool:
    """Whether the model in eval mode gives the same logits for the same inputs again.

    >>> repeats(nn.Dropout(), torch.ones(99))
    True
    """
    with torch.no_grad(), eval_mode(model):
        first, second = call(model, inputs), call(model, inputs)
    return torch.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True)


def placed(inputs: Any, like: Tensor) -> Any:
    """Inputs on the device of `like`; floating-point inputs also get its dtype."""
    if isinstance(inputs, Tensor):
        dtype = like.dtype if inputs.is_floating_point() else inputs.dtype
        return inputs.to(like.device, dtype, non_blocking=True)
    if isinstance(inputs, Mapping):
        return {name: placed(value, like) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return [placed(value, like) for value in inputs]
    return inputs


def to_device(inputs: Any, device: torch.device | str) -> Any:
    """Move every tensor in nested dicts, tuples and lists to the device."""
    if isinstance(inputs, Tensor):
        return inputs.to(device, non_blocking=True)
    if isinstance(inputs, Mapping):
        return {name: to_device(value, device) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        moved = [to_device(value, device) for value in inputs]
        return moved if isinstance(inputs, list) else tuple(moved)
    return inputs


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode inside the block, then restore each module's flag, even after an error.

    >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
    >>> with eval_mode(model):
    ...     model[0].training
    False
    >>> model.training, model[0].training, model[1].training
    (True, True, False)
    """
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training
