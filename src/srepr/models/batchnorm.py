"""BatchNorm statistics for weights that were not trained as such: averaged weights, or a draw around them.

With n_i values per channel in batch i, of mean m_i and (biased) variance v_i, and N = sum_i n_i,

    mean = sum_i n_i m_i / N,    variance = (sum_i n_i (v_i + m_i^2) / N - mean^2) N / (N - 1),

the mean and the unbiased variance of all N values, independent of the batch split.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from srepr.errors import InputError
from srepr.models.call import call, eval_mode
from srepr.models.split import unwrap


def update_batchnorm(
    model: nn.Module, batches: Iterable[Any], *, reduce: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Recompute the running statistics of every BatchNorm layer over batches of inputs, in place.

    Each batch is normalised by its own statistics, as in training; dropout is off. Layers that are frozen, track no
    running statistics, or are not reached, stay unchanged. A single value per channel has no variance and is
    normalised but not counted. In a distributed run, `reduce` sums a tensor over the processes.

    >>> model = nn.BatchNorm1d(1)
    >>> update_batchnorm(model, [torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[3.0], [4.0]])])
    >>> model.running_mean, model.running_var
    (tensor([2.]), tensor([2.5000]))
    """
    model = unwrap(model)
    frozen = frozen_norms(model)
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    layers = [layer for layer in layers if layer not in frozen]
    if not layers:
        return
    # Per layer: N, then the sums of n m and of n (v + m^2).
    totals = [torch.zeros(1 + 2 * layer.num_features, dtype=torch.float64) for layer in layers]
    hooks = [hook for layer, total in zip(layers, totals, strict=True) for hook in _accumulate(layer, total)]
    momenta = [layer.momentum for layer in layers]
    device = next(model.buffers()).device
    try:
        with torch.no_grad(), eval_mode(model):
            for layer in layers:
                layer.momentum = 1.0  # the running statistics become those of the last batch
            for inputs in batches:
                call(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    if reduce is not None:
        totals = [reduce(total.to(device)).cpu() for total in totals]
    if not any(total[0] for total in totals):
        raise InputError("no BatchNorm layer received two values per channel: pass batches of at least two inputs")
    for layer, total in zip(layers, totals, strict=True):
        if total[0]:
            assert layer.running_mean is not None
            assert layer.running_var is not None
            mean, square = (total[1:] / total[0]).chunk(2)
            layer.running_mean.copy_(mean)
            layer.running_var.copy_((square - mean**2).clamp(min=0) * total[0] / (total[0] - 1))


def frozen_norms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers whose weights need no gradient while others do: they keep their statistics as well.

    >>> model = nn.Sequential(nn.BatchNorm1d(2).requires_grad_(False), nn.BatchNorm1d(2))
    >>> len(frozen_norms(model)), len(frozen_norms(model.requires_grad_(False)))
    (1, 0)
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return []
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in norms if norm.weight is not None and not norm.weight.requires_grad]


def _accumulate(layer: _BatchNorm, total: Tensor) -> tuple[RemovableHandle, RemovableHandle]:
    def before(module: _BatchNorm, args: tuple[Tensor]) -> None:
        module.training = args[0].numel() > module.num_features
        if module.training:
            module.reset_running_stats()  # otherwise a NaN survives a momentum of 1

    def after(module: _BatchNorm, args: tuple[Tensor], output: Tensor) -> None:
        if module.training:
            assert module.running_mean is not None
            assert module.running_var is not None
            n = args[0].numel() // module.num_features
            mean, variance = module.running_mean.cpu().double(), module.running_var.cpu().double() * (n - 1) / n
            total.add_(n * torch.cat([torch.ones(1), mean, variance + mean**2]))

    return layer.register_forward_pre_hook(before), layer.register_forward_hook(after)
