"""BatchNorm over the batch of all processes, on any device: torch's own needs a GPU.

    mean = sum over the processes of sum_i x_i / n,    variance = sum over the processes of sum_i (x_i - mean)^2 / n

with n values per channel in all of them. So a training does not depend on the number of processes, up to rounding.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(_BatchNorm):
    """A BatchNorm layer that normalises by the statistics of all processes while it is trained in several."""

    across: bool
    """Whether it does so; otherwise it is a plain BatchNorm layer."""

    def _check_input_dim(self, _: Tensor) -> None:
        """Inputs of any number of dimensions have channels in the second."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [B, C, ...]."""
        if not (self.training and self.across and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(x)
        axes, shape = (0, *range(2, x.dim())), (1, -1) + (1,) * (x.dim() - 2)
        values = x.float()
        count = _total(torch.tensor(values.numel() / values.shape[1], device=x.device))
        mean = _total(values.sum(axes)) / count
        centred = values - mean.view(shape)
        variance = _total(centred.square().sum(axes)) / count
        if self.track_running_stats:
            self._remember(mean.detach(), (variance * count / (count - 1)).detach())
        output = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(x.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of this batch."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def synchronise_batchnorm(network: nn.Module, *, across: bool = True) -> nn.Module:
    """Replace every BatchNorm layer of a network, in place, by one of all processes with the same tensors.

    `across=False` lets each process have its own statistics again.

    >>> synchronise_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))[0]
    SyncBatchNorm(3, ...)
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = SyncBatchNorm
            cast(SyncBatchNorm, module).across = across
    return network


def _total(part: Tensor) -> Tensor:
    """The sum over the processes, through which gradients flow."""
    from torch.distributed.nn.functional import all_reduce

    return cast(Tensor, all_reduce(part))  # type: ignore[no-untyped-call]
