"""BatchNorm folded into the convolution before it, for inference.

    s (W x + b - mean) + shift  =  (s W) x + (s (b - mean) + shift),      s = scale / sqrt(variance + eps)

Which layer follows which is read off a symbolic trace; the copy keeps its class, its forward and its other names.
"""

import copy
from collections import Counter
from typing import Any

from torch import nn
from torch.fx import Graph, Tracer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from srepr.models.split import swap, unwrap

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """A copy in eval mode, with an identity for every BatchNorm whose only input is the output of a convolution.

    A model that cannot be traced (its forward branches on values) is copied as it is.

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
    except Exception:  # whatever the model's own code raises when it is given proxies
        return folded
    for convolution, norm in _pairs(folded, graph):
        swap(folded, convolution, fuse_conv_bn_eval(convolution, norm))
        swap(folded, norm, nn.Identity())
    return folded


class _ConvolutionTracer(Tracer):
    """Looks only into modules that hold a convolution, so that what the others do cannot stop the trace."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, CONVOLUTIONS) or not any(isinstance(inner, CONVOLUTIONS) for inner in m.modules())


def _pairs(model: nn.Module, graph: Graph) -> list[tuple[Any, _BatchNorm]]:
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    pairs = []
    for node in calls:
        norm, source = model.get_submodule(node.target), node.args[0]
        if isinstance(norm, _BatchNorm) and norm.running_mean is not None and source in calls:
            convolution: Any = model.get_submodule(source.target)
            # Exactly these types and no hooks: a parametrised or weight-normed convolution makes its weight anew.
            plain = type(convolution) in CONVOLUTIONS and not convolution._forward_pre_hooks
            if plain and len(source.users) == times[node.target] == times[source.target] == 1:
                pairs.append((convolution, norm))
    return pairs
