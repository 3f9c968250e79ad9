"""Stage 1 on a table: members that are trained together, each without one fold of the rows.

So every row has a member that has not seen it. Its logits choose how long to train, and later how far the network is
to be trusted (`srepr.integrations.stack`). AdamW has a constant rate; a running average of the weights is judged and
kept. The loss is that of logit adjustment, summed over the members.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.balance import logit_offset
from srepr.calibration import best_temperature, class_weights
from srepr.errors import check
from srepr.models.members import Members

BETAS = (0.9, 0.95)
WARM_UP = 0.05  # of all steps
AVERAGED = 5  # epochs that the running average looks back
LOOKS = 50  # how often the held-out rows are looked at, at most
PATIENCE = 0.25  # of all epochs: without a better look the training stops
WORTHWHILE = 1e-3  # Brier score: a look that is better by less does not count
EVALUATION_BATCH = 4096
BUDGET = 1.5e11  # multiplications in all forward passes: less than a minute of one core
FEWEST = 10  # epochs, whatever they cost
MANY = 8192  # rows
SMALLEST_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the members are built and trained.

    >>> Training(members=1)
    Traceback (most recent call last):
    srepr.errors.InputError: `samples` is 1: at least 2 members are needed, one for each fold
    """

    members: int = 10
    """Half of them from 8192 rows on."""
    width: int = 128
    depth: int = 2
    dropout: float = 0.3
    epochs: int = 200
    """At most; fewer for many rows, and none after a quarter of them without improvement."""
    batch_size: int = 256
    """At most; a sixteenth of the rows, but at least 32."""
    lr: float = 3e-3
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        check(self.members >= 2, f"`samples` is {self.members}: at least 2 members are needed, one for each fold")
        check(self.epochs >= 1, f"`epochs` is {self.epochs}: at least 1 is needed")

    def suited(self, rows: int) -> Training:
        """The same with the members and the batch size for this many rows.

        >>> Training().suited(800).batch_size, Training().suited(30_000).members
        (50, 5)
        """
        members = self.members if rows < MANY else max(2, self.members // 2)
        return replace(self, members=members, batch_size=min(self.batch_size, max(SMALLEST_BATCH, rows // 16)))


@dataclass(frozen=True)
class Trained:
    """The members, each row's logits [N, K] by a member that has not seen it, and the epoch from which they are."""

    network: Members
    held_out: Tensor
    epoch: int


@torch.enable_grad()
def train(network: Members, x: Tensor, labels: Tensor, fold: Tensor, settings: Training) -> Trained:
    """Train the members on rows [N, D]; a member sees no row of its own fold, and every row with the fold -1."""
    members, rows = len(network.scale), len(labels)
    sees = fold != torch.arange(members)[:, None]
    judged = fold >= 0
    offset = logit_offset(torch.bincount(labels))
    optimizer = adamw(network, settings)
    multiplications = rows * sum(weight.numel() for weight in network.weights)
    epochs = min(settings.epochs, max(FEWEST, int(BUDGET / multiplications)))
    steps = math.ceil(rows / settings.batch_size)
    average = copy.deepcopy(network).eval().requires_grad_(False)
    best, kept = math.inf, Trained(average, x.new_zeros(0), 0)
    done, every = 0, math.ceil(epochs / LOOKS)
    for epoch in range(1, epochs + 1):
        for batch in torch.split(torch.randperm(rows), settings.batch_size):
            done += 1
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * min(1.0, done / (WARM_UP * epochs * steps))
            logits = network.members(x[batch]) + offset
            losses = F.cross_entropy(logits.flatten(0, 1), labels[batch].repeat(members), reduction="none")
            loss = (losses * sees[:, batch].flatten()).sum() / len(batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            new = max(1 / (1 + AVERAGED * steps), 10 / (10 + done))
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), network.parameters(), strict=True):
                    mean.lerp_(weight, new)
        if epoch % every and epoch < epochs:
            continue
        held_out = unseen_logits(average, x, fold)
        score = balanced_brier(held_out[judged], labels[judged])
        if score < best - WORTHWHILE:
            best, kept = score, Trained(copy.deepcopy(average), held_out, epoch)
        elif epoch - kept.epoch > max(PATIENCE * epochs, 3 * every):
            break
    return kept


def adamw(network: nn.Module, settings: Training) -> torch.optim.AdamW:
    """The optimiser; only matrices decay, not the scale of the inputs and the biases."""
    matrices = [tensor for name, tensor in network.named_parameters() if name.startswith("weights")]
    others = [tensor for name, tensor in network.named_parameters() if not name.startswith("weights")]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS)


def unseen_logits(network: Members, x: Tensor, fold: Tensor) -> Tensor:
    """Each row's logits [N, K] by the member of its fold; those with the fold -1 are of no use."""
    with torch.no_grad():
        parts = zip(torch.split(x, EVALUATION_BATCH), torch.split(fold, EVALUATION_BATCH), strict=True)
        return torch.cat([network.members(part)[member, torch.arange(len(part))] for part, member in parts])


def balanced_brier(logits: Tensor, labels: Tensor) -> float:
    """Class-balanced Brier score, |p - one-hot|^2.

    It is bounded: a rare class with a few confident mistakes does not stop the training of all others.

    >>> round(balanced_brier(torch.zeros(3, 2), torch.tensor([0, 0, 1])), 6)
    0.5
    """
    errors = logits.double().softmax(1) - F.one_hot(labels, logits.shape[1])
    return float(class_weights(labels) @ errors.square().sum(1))


def balanced_nll(logits: Tensor, labels: Tensor) -> float:
    """Class-balanced NLL at the best temperature."""
    tempered = logits.double() / best_temperature(logits, labels)
    return float(class_weights(labels) @ F.cross_entropy(tempered, labels, reduction="none"))
