"""Default device, and faster execution: memory layout, and torch.compile if it works."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from srepr.errors import tell
from srepr.models.call import call


def default_device() -> torch.device:
    """The first GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compile_failure() -> str:
    """Why torch.compile fails on this machine; empty if it works."""
    try:
        torch.compile(lambda x: x.relu() + 1)(torch.ones(4))
    except Exception as error:  # the compiler's own exceptions have no common base
        return f"{type(error).__name__}: is a C++ compiler installed?"
    return ""


def can_compile() -> bool:
    """Whether torch.compile works on this machine; if not, print the reason to stderr."""
    failure = compile_failure()
    if failure:
        tell(f"continuing without compiling ({failure})")
    return not failure


def channels_last(body: nn.Module) -> nn.Module:
    """Convert the weights of 2-d convolutions to channels_last, in place, for speed."""
    for parameter in body.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return body


def runner(extractors: Sequence[nn.Module], *, compiled: bool = False) -> Callable[[Any], list[Tensor]]:
    """A function from inputs to the features of each extractor. If compiled, one graph serves all their weights."""
    if compiled and extractors and can_compile():
        tensors = [{**dict(body.named_parameters()), **dict(body.named_buffers())} for body in extractors]
        template = copy.deepcopy(extractors[0]).to("meta")  # without weights, so the graph is not specialised
        one = torch.compile(lambda values, inputs: functional_call(template, values, (inputs,)))
        return lambda inputs: [one(values, inputs) for values in tensors]
    return lambda inputs: [call(extractor, inputs) for extractor in extractors]
