"""The loss of stage 2: cross-entropy over M stochastic representations, and self-distillation from them.

Logits are [M, B, K]: one classifier on M representations of the same B inputs (paper, sections 4.1, 4.2 and A.4).
Shapes, types and settings are checked. Numbers are not, which would slow the training down: NaN gives a loss of NaN.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from srepr import dirichlet
from srepr.errors import InputError

# exp(650) = 1e282: the sum over any number of classes stays finite in float64.
LARGEST_EXPONENT = 650.0
NO_LABEL = torch.iinfo(torch.int64).min  # PyTorch leaves out the label -100 by default


def cross_entropy(logits: Tensor, y: Tensor, *, weight: Tensor | None = None, offset: Tensor | None = None) -> Tensor:
    """L_CE, the mean over B of weight[y] * -(1/M) sum_m log softmax(z_m + offset)[y], for z [M, B, K] or [B, K].

    The weighted mean is divided by B, not by the sum of the weights: it estimates the expectation in the paper's
    section A.1 for any mix of classes in the batch. The loss of a single class is 0.

    >>> logits = torch.tensor([[[2.0, 0.0]], [[1.0, 0.0]]])
    >>> cross_entropy(logits, torch.tensor([1]))
    tensor(1.7201)
    >>> cross_entropy(logits, torch.tensor([1]), weight=torch.tensor([0.2, 0.8]))
    tensor(1.3761)
    """
    if logits.ndim == 2:
        logits = logits.unsqueeze(0)
    if logits.ndim != 3 or not logits.numel() or not logits.is_floating_point():
        raise InputError(f"logits are {list(logits.shape)} of {logits.dtype}: pass floating-point numbers [M, B, K].")
    if logits.shape[1:2] != y.shape or y.dtype != torch.int64:
        raise InputError(
            f"logits {list(logits.shape)} need labels [{logits.shape[1]}] of int64, not {list(y.shape)} of {y.dtype}."
        )
    for name, numbers in {"weight": weight, "offset": offset}.items():
        if numbers is not None and numbers.shape != logits.shape[2:]:
            raise InputError(
                f"{name} is {list(numbers.shape)}: pass one number for each class, {list(logits.shape[2:])}."
            )
    if offset is not None:
        logits = logits + offset
    try:
        nll_mb = F.cross_entropy(
            logits.flatten(0, 1), y.repeat(len(logits)), reduction="none", ignore_index=NO_LABEL
        ).view(logits.shape[:2])
    except IndexError:
        raise InputError(f"the labels must be 0 to {logits.shape[2] - 1}, and {y.tolist()[:5]}... are not.") from None
    if weight is not None:
        nll_mb = nll_mb * weight[y]
    return nll_mb.mean()


def self_distillation(student: Tensor, teachers: Tensor, temperature: float = 20.0) -> Tensor:
    """L_KD, the divergence from the student's Dirichlet to the teachers', averaged over B.

        L_KD = sum_k p_T[k] (psi(a_0) - psi(a_k)) + (1 / beta_0) KL[Dir(a) || Dir(1)],    a = exp(z / temperature) + 1

    for the student's logits z [B, K]; p_T and beta_0 are the mean and precision of the teachers'
    softmax(logits [M, B, K] / temperature). No gradient reaches the teachers.

    >>> student = torch.tensor([[30.0, -10.0, 0.0]])
    >>> self_distillation(student, torch.stack([student + 4, student * 0.8]))
    tensor(0.9349)
    """
    if teachers.dim() != 3 or teachers.shape[1:] != student.shape or not teachers.numel() or student.shape[1] < 2:
        raise InputError(
            f"teachers {list(teachers.shape)} must be [M, B, K] over the student's [B, K] = {list(student.shape)},"
            " with M, B >= 1 and K >= 2."
        )
    log_probs = teachers.detach().to(torch.float64, copy=True).div_(temperature).log_softmax(-1)
    return distillation(student, *dirichlet.fit_unchecked(log_probs), temperature)


def distillation(
    student: Tensor, mean: Tensor, precision: Tensor, temperature: float = 20.0, *, weight: Tensor | None = None
) -> Tensor:
    """L_KD for teachers that are already summed up as a Dirichlet: their mean [B, K] and precision [B].

    `weight` [B] multiplies the examples, as class-balanced sampling would repeat them.

    >>> distillation(torch.tensor([[30.0, -10.0, 0.0]]), torch.tensor([[0.8, 0.1, 0.1]]), torch.tensor([40.0]))
    tensor(0.8319)
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"`temperature` is {temperature}: it must be a number above 0")
    if not student.is_floating_point() or not student.numel() or student.shape != mean.shape:
        raise InputError(
            f"student {list(student.shape)} of {student.dtype} must be floating-point numbers [B, K], as the mean is,"
            f" {list(mean.shape)}."
        )
    alpha = (student.double() / temperature).clamp(max=LARGEST_EXPONENT).exp()
    kl = dirichlet.reverse_kl(alpha + 1, mean, precision)
    return (kl if weight is None else weight * kl).mean().to(student.dtype)


def srepr_loss(
    logits: Tensor,
    student: Tensor | None,
    y: Tensor,
    *,
    weight: Tensor | None = None,
    offset: Tensor | None = None,
    distill_weight: float = 0.5,
    temperature: float = 20.0,
) -> Tensor:
    """The full loss, (1 - w) L_CE + w L_KD with w = distill_weight; only L_CE without a student.

    L_CE trains `logits` [M, B, K], which are also the teachers in L_KD; `student` [B, K] comes from the averaged
    weights. Balancing (`weight`, `offset`) applies to L_CE only.

    >>> student, y = torch.tensor([[3.0, -1.0, 0.0]]), torch.tensor([0])
    >>> srepr_loss(torch.stack([student + 1, student * 0.8]), student, y)
    tensor(0.6857)
    >>> srepr_loss(student, None, y)
    tensor(0.0659)
    """
    if not 0 <= distill_weight <= 1:
        raise InputError(f"`distill_weight` is {distill_weight}: it must be from 0 to 1")
    loss = cross_entropy(logits, y, weight=weight, offset=offset)
    if student is None:
        return loss
    return (1 - distill_weight) * loss + distill_weight * self_distillation(student, logits, temperature)
