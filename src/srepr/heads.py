"""Classifiers for stage 2; each is a module from features [..., L] to logits [..., K].

A linear head is a plain `nn.Linear`. The others start as the stage-1 classifier (W, b), keep it in buffers, and train
a few parameters around it (paper, section A.2). A cosine classifier, which has a scale, stays one: its linear head is
`Cosine`, and the other heads see unit features (`srepr.models.cosine`).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.errors import InputError, unknown
from srepr.models.cosine import Cosine as Cosine  # also a head
from srepr.models.cosine import on_unit_parts, unit_parts


class LearnableWeightScaling(nn.Module):
    """LWS: w_k / |w_k|^tau with one learned tau, or f_k w_k with a learned factor per class; the bias is fixed.

    Starts as the stage-1 classifier: tau = 0, f = 1. The weights of a cosine classifier have equal lengths, so tau is
    a temperature.

    >>> head = LearnableWeightScaling(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.zeros(2))
    >>> head(torch.ones(2))
    tensor([7., 1.], grad_fn=<...>)
    """

    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None

    def __init__(
        self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None, *, per_class: bool = False
    ) -> None:
        super().__init__()
        _keep_classifier(self, weight, bias, scale)
        if per_class:
            self.factor = nn.Parameter(weight.new_ones(len(weight)))
        else:
            self.tau = nn.Parameter(weight.new_zeros(()))
        self.per_class = per_class

    def scaled_weight(self) -> Tensor:
        """Weight [K, L] of the equivalent linear classifier.

        >>> head = LearnableWeightScaling(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), None)
        >>> _ = nn.init.ones_(head.tau)
        >>> head.scaled_weight().detach()
        tensor([[0.6000, 0.8000],
                [0.0000, 1.0000]])
        """
        return self.weight * self.factor.unsqueeze(1) if self.per_class else _normalised(self.weight, self.tau)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [..., K]."""
        return F.linear(_seen(features, self.scale), self.scaled_weight(), self.bias)


class DisAlign(nn.Module):
    """Distribution alignment: z' = s (alpha * z + beta) + (1 - s) z with s = sigmoid(gamma . z + delta), z = W x + b.

    Starts as the stage-1 classifier: alpha = 1, beta = 0, and gamma = 0, delta = 0, so s = 1/2.

    >>> head = DisAlign(torch.eye(2), torch.zeros(2))
    >>> head(torch.tensor([5.0, 6.0])).tolist()
    [5.0, 6.0]
    """

    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> None:
        super().__init__()
        classes = len(weight)
        _keep_classifier(self, weight, bias, scale)
        self.alpha = nn.Parameter(weight.new_ones(classes))
        self.beta = nn.Parameter(weight.new_zeros(classes))
        self.gamma = nn.Parameter(weight.new_zeros(classes))
        self.delta = nn.Parameter(weight.new_zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Logits [..., K]."""
        z = F.linear(_seen(features, self.scale), self.weight, self.bias)
        s = (z @ self.gamma + self.delta).sigmoid().unsqueeze(-1)
        return s * (self.alpha * z + self.beta) + (1 - s) * z


def tau_norm(weight: Tensor, tau: float = 1.0) -> nn.Linear:
    """tau-normalised classifier: w_k / |w_k|^tau without a bias, as in Kang et al. 2020. Needs no training.

    >>> tau_norm(torch.tensor([[3.0, 4.0]])).weight
    Parameter containing:
    tensor([[0.6000, 0.8000]], requires_grad=True)
    """
    if not math.isfinite(tau):
        raise InputError(f"`tau` is {tau}: it must be a finite number")
    return _linear(_normalised(_checked(weight, None), tau), None)


def nearest_class_mean(batches: Iterable[tuple[Tensor, Tensor]], classes: int, scale: Tensor | float = 30.0) -> Cosine:
    """Cosine head whose directions are the class means of the features; no training, one pass over (features, labels).

    Features [B, L] are scaled to length 1 before averaging, so long vectors do not dominate (Kang et al. 2020); a
    scale per expert scales each expert's part separately. The scale changes the confidence, not the decision. Memory:
    one [K, L] sum.

    >>> head = nearest_class_mean([(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1]))], classes=2)
    >>> head(torch.tensor([3.0, 4.0])).argmax().item()
    1
    """
    sums, scale = None, torch.as_tensor(scale)
    for features, labels in batches:
        if sums is None:
            sums = features.new_zeros(classes, features.shape[1], dtype=torch.float64)
        try:
            sums.index_add_(0, labels, unit_parts(features.double(), scale))
        except (IndexError, RuntimeError):
            raise InputError(f"features [B, L] need labels [B] of 0 to {classes - 1}; check both.") from None
    if sums is None:
        raise InputError("there are no features to average; pass at least one batch of (features, labels).")
    if not sums.isfinite().all():
        raise InputError("the features contain NaN or infinity; check the network that gave them.")
    for k in (sums == 0).all(1).nonzero().flatten().tolist():
        raise InputError(f"class {k} has no features other than 0; add examples or drop the class.")
    return Cosine(unit_parts(sums, scale).to(features.dtype), scale)  # sum and mean have the same direction


def linear(weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> nn.Linear | Cosine:
    """A linear classifier, or a cosine classifier if `scale` is set.

    >>> linear(torch.eye(2), torch.zeros(2))
    Linear(in_features=2, out_features=2, bias=True)
    """
    return _linear(weight, bias) if scale is None else Cosine(weight, scale)


class Kind(NamedTuple):
    """A type of trainable head: a row of `HEADS`."""

    make: Callable[[Tensor, Tensor | None, Tensor | None], nn.Module]
    """Builds the head from the weight, bias and scale of the stage-1 classifier, which it starts as."""
    mark: str = ""
    """Name of a tensor that only this type has; identifies a saved head."""


HEADS: dict[str, Kind] = {
    "lws": Kind(LearnableWeightScaling, "tau"),
    "lws-per-class": Kind(partial(LearnableWeightScaling, per_class=True), "factor"),
    "disalign": Kind(DisAlign, "alpha"),
    "linear": Kind(linear),
}
"""Heads trained by SGD. To add one, write a module and add a row."""


def build(
    kind: str,
    *,
    weight: Tensor,
    bias: Tensor | None,
    start: str = "stage 1",
    seed: int = 0,
    scale: Tensor | float | None = None,
) -> nn.Module:
    """Build a trainable head for a stage-1 classifier (W, b).

    The head starts as that classifier. With `start="random"`, a linear head draws W and b from U(-1/sqrt(L),
    1/sqrt(L)) with `seed` instead. A `scale` marks a cosine classifier, whose linear head is cosine as well.

    >>> build("linear", weight=torch.eye(2), bias=torch.zeros(2))
    Linear(in_features=2, out_features=2, bias=True)
    """
    if kind not in HEADS:
        raise unknown("head", kind, HEADS)
    if start not in ("stage 1", "random"):
        raise unknown("start", start, ["stage 1", "random"])
    _checked(weight, bias)
    if start == "random":
        if kind != "linear":
            raise InputError(f"the head {kind!r} rescales the stage-1 classifier. Set `start` to 'stage 1'.")
        bound, generator = 1 / math.sqrt(weight.shape[1]), torch.Generator().manual_seed(seed)
        weight = torch.empty(weight.shape).uniform_(-bound, bound, generator=generator).to(weight)
        if bias is not None:
            bias = torch.empty(bias.shape).uniform_(-bound, bound, generator=generator).to(bias)
    return HEADS[kind].make(weight, bias, None if scale is None else torch.as_tensor(scale))


def from_tensors(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Rebuild a head of any type from its state dict.

    >>> type(from_tensors(DisAlign(torch.eye(2), torch.zeros(2)).state_dict())).__name__
    'DisAlign'
    """
    kind = next(name for name, kind in HEADS.items() if not kind.mark or kind.mark in tensors)
    if "weight" not in tensors:
        raise InputError("there is no head in these tensors: they have no `weight`.")
    head = build(kind, weight=tensors["weight"], bias=tensors.get("bias"), scale=tensors.get("scale"))
    try:
        head.load_state_dict(dict(tensors))
    except RuntimeError:
        raise InputError(f"these tensors are not those of the head {kind}. Train it again.") from None
    return head


def as_linear(head: nn.Module) -> nn.Linear | None:
    """The equivalent nn.Linear, or None if the head is not linear in the features.

    >>> as_linear(LearnableWeightScaling(torch.eye(2), torch.zeros(2)))
    Linear(in_features=2, out_features=2, bias=True)
    >>> as_linear(DisAlign(torch.eye(2), torch.zeros(2))) is None
    True
    """
    if isinstance(head, nn.Linear):
        return head
    if isinstance(head, LearnableWeightScaling) and head.scale is None:
        return _linear(head.scaled_weight(), head.bias)
    return None


def _keep_classifier(head: nn.Module, weight: Tensor, bias: Tensor | None, scale: Tensor | None) -> None:
    """Store the stage-1 classifier in buffers: z = W x + b, or z = W' u(x) with a scale."""
    if scale is not None:
        weight = on_unit_parts(weight, scale)
    for name, tensor in {"weight": weight, "bias": bias, "scale": scale}.items():
        head.register_buffer(name, None if tensor is None else tensor.detach().clone())


def _checked(weight: Tensor, bias: Tensor | None) -> Tensor:
    """The weight of a classifier, which must be [K, L], finite, with a bias of [K] if any."""
    if weight.ndim != 2 or not weight.numel() or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = f"{list(weight.shape)} and its bias {None if bias is None else list(bias.shape)}"
        raise InputError(f"the weight of a classifier is {shapes}; pass [K, L] and [K].")
    if not weight.isfinite().all() or (bias is not None and not bias.isfinite().all()):
        raise InputError("the classifier contains NaN or infinity: its training has diverged.")
    return weight


def _seen(features: Tensor, scale: Tensor | None) -> Tensor:
    return features if scale is None else unit_parts(features, scale)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    classes, length = weight.shape
    head = nn.Linear(length, classes, bias=bias is not None, device="meta")  # meta: draws no random numbers
    head.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        head.bias = nn.Parameter(bias.detach().clone())
    return head


def _normalised(weight: Tensor, tau: Tensor | float) -> Tensor:
    """w_k / |w_k|^tau, or 0 if w_k is 0."""
    length = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    return weight / torch.where(length > 0, length, 1) ** tau
