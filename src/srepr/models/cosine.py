"""Cosine classifier of one network or of several experts: logits depend on directions, not on lengths.

    z_k = (1 / E) sum_e s_e cos(x_e, w_ke)

With u(.), which scales each of the E parts to length 1, this is linear in u(x). Stage 2 uses this form:

    z = W' u(x),      w'_ke = (s_e / E) w_ke / |w_ke|
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Cosine(nn.Module):
    """Learned directions and a fixed scale. A scale of E numbers means E experts, whose logits are averaged.

    Features [..., E L] and weight [K, E L] concatenate the experts' parts.

    >>> head = Cosine(torch.tensor([[2.0, 0.0], [0.0, 5.0]]), scale=30.0)
    >>> head(torch.tensor([3.0, 4.0])).tolist()
    [18.0, 24.0]
    >>> two = Cosine(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), scale=torch.tensor([30.0, 30.0]))
    >>> two(torch.tensor([9.0, 4.0])).tolist()
    [30.0, 0.0]
    """

    scale: Tensor
    bias: None = None

    def __init__(self, weight: Tensor, scale: Tensor | float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.register_buffer("scale", torch.as_tensor(scale).to(weight, copy=True))

    def forward(self, features: Tensor) -> Tensor:
        """Logits [..., K]."""
        return F.linear(unit_parts(features, self.scale), on_unit_parts(self.weight, self.scale))


def unit_parts(features: Tensor, scale: Tensor) -> Tensor:
    """u(x): features [..., E L] with each of the E parts, one per entry of `scale`, scaled to length 1.

    >>> unit_parts(torch.tensor([3.0, 4.0, 0.0, 9.0]), scale=torch.ones(2))
    tensor([0.6000, 0.8000, 0.0000, 1.0000])
    """
    return F.normalize(_parts(features, scale), dim=-1).flatten(-2)


def on_unit_parts(weight: Tensor, scale: Tensor) -> Tensor:
    """W', the weight [K, E L] of the linear classifier on u(x) that is equal to the cosine classifier.

    >>> on_unit_parts(torch.tensor([[3.0, 4.0]]), scale=torch.tensor(10.0))
    tensor([[6., 8.]])
    """
    share = scale.reshape(-1, 1) / scale.numel()
    return (share * F.normalize(_parts(weight, scale), dim=-1)).flatten(-2)


def _parts(side_by_side: Tensor, scale: Tensor) -> Tensor:
    """[..., E L] as [..., E, L]."""
    *batch, length = side_by_side.shape
    return side_by_side.reshape(*batch, scale.numel(), length // scale.numel())
