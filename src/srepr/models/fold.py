"""Fold BatchNorm into the preceding convolution, for inference.

    s (W x + b - mean) + shift  =  (s W) x + (s (b - mean) + shift),      s = scale / sqrt(variance + eps)

A symbolic trace gives the order of the layers; the copy keeps its class, its forward and its other names.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, Tracer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from srepr.models.split import swap, unwrap

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """Copy in eval mode; every BatchNorm that only follows a convolution is folded into it and becomes an identity.

    A model that cannot be traced (its forward branches on values) is copied unchanged.

    >>> folded = fold_batchnorm(nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2)))
    >>> folded
    Sequential(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
    )
    """
    folded = copy.deepcopy(unwrap(model)).eval()
    if not any(isinstance(module, _BatchNorm) for module in folded.modules()):
        return folded
    try:
        graph = _ConvolutionTracer().trace(folded)
    except Exception:  # the model's code can raise anything on proxies
        return folded
    for convolution, norm in _pairs(folded, graph):
        swap(folded, convolution, fuse_conv_bn_eval(convolution, norm))
        swap(folded, norm, nn.Identity())
    return folded


class _ConvolutionTracer(Tracer):
    """Traces only into modules that contain a convolution, so other modules cannot break the trace."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, CONVOLUTIONS) or not any(isinstance(inner, CONVOLUTIONS) for inner in m.modules())


def _pairs(model: nn.Module, graph: Graph) -> list[tuple[Any, Any]]:
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    read = {id(attrgetter(str(node.target))(model)) for node in graph.nodes if node.op == "get_attr"}
    pairs = []
    for node in calls:
        norm = model.get_submodule(node.target)
        source = node.args[0] if node.args else node.kwargs.get("input")
        if _plain(norm, NORMS) and norm.running_mean is not None and source in calls:
            convolution = model.get_submodule(source.target)
            if (
                _plain(convolution, CONVOLUTIONS)
                and len(source.users) == times[node.target] == times[source.target] == 1
                and not any(id(tensor) in read for layer in (convolution, norm) for tensor in _tensors(layer))
            ):
                pairs.append((convolution, norm))
    return pairs


def _tensors(layer: nn.Module) -> Iterator[Tensor]:
    """Tensors that the model may also read directly; folding would change them."""
    return chain(layer.parameters(), layer.buffers())


def _plain(layer: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Exactly one of these types and without hooks: subclasses, parametrisations and hooks are not folded."""
    return type(layer) in types and not layer._forward_pre_hooks and not layer._forward_hooks
