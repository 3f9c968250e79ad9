"""Stage 1, the representation: SGD on a cosine, then SWA and the moments of SWAG (paper, sections 2.2 and 2.3).

    epochs      0 ............ 75 % ............ 100 %
    rate        warm-up, cosine | constant eta_SWA, weights captured after every epoch     -> representation, posterior
                                | the same cosine to its end (`baseline`)                  -> sgd

Everything random is a function of (seed, epoch, step, rank), so a run that was killed goes on to the same bits.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr import runs
from srepr.config import Machine, Optim, Train
from srepr.data.augment import mixup, mixup_weights
from srepr.data.examples import Examples
from srepr.data.loading import batches
from srepr.data.randomness import uniforms
from srepr.data.sampling import epoch_batches
from srepr.errors import InputError
from srepr.metrics import LongTailMetrics
from srepr.models.batchnorm import update_batchnorm
from srepr.posterior import Posterior
from srepr.progress import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHECK_EVERY = 25  # steps between looks at the loss, and between chances to keep the state within an epoch
EXPLODED = 100.0  # times the loss of guessing
MIXUP_STREAM = 1


@dataclass(frozen=True)
class Epoch:
    """One epoch of the plan: which branch it belongs to, and its number in the schedule.

    >>> Epoch("swa", 150).branch
    'swa'
    """

    branch: Literal["trunk", "swa", "sgd"]
    number: int


def plan(settings: Train) -> list[Epoch]:
    """All epochs in the order in which they are run: the common trunk, the SWA branch, the baseline's end.

    >>> [f"{epoch.branch} {epoch.number}" for epoch in plan(Train(source="digits-lt", epochs=4, baseline=True))]
    ['trunk 0', 'trunk 1', 'trunk 2', 'swa 3', 'sgd 3']
    """
    trunk = [Epoch("trunk", number) for number in range(settings.swa_start)]
    swa = [Epoch("swa", number) for number in range(settings.swa_start, settings.epochs)]
    sgd = [Epoch("sgd", epoch.number) for epoch in swa] if settings.baseline else []
    return [*trunk, *swa, *sgd]


def learning_rate(optim: Optim, branch: str, progress: float, epochs: int) -> float:
    """The rate of a step `progress` epochs into the schedule: eta_SWA while capturing, else a warmed-up cosine.

    >>> optim = Optim(lr=0.5, swa_lr=0.1, warmup_epochs=1)
    >>> [round(learning_rate(optim, "trunk", t, 200), 3) for t in (0.5, 1.0, 100.0, 200.0)]
    [0.25, 0.5, 0.25, 0.0]
    >>> learning_rate(optim, "swa", 180.0, 200)
    0.1
    """
    if branch == "swa":
        return optim.swa_lr
    warm = min(1.0, progress / optim.warmup_epochs) if optim.warmup_epochs else 1.0
    return optim.lr * warm * 0.5 * (1 + math.cos(math.pi * progress / epochs))


def train_representation(
    network: nn.Module, train: Examples, settings: Train, machine: Machine, fabric: Fabric, run: Path
) -> tuple[Posterior, dict[str, Tensor] | None]:
    """Run the plan from where the run folder stands to its end: the posterior, and the baseline's weights if asked for.

    The network ends with the last weights of its last branch; `Posterior.apply_mean` gives the SWA weights.
    """
    epochs, writes = plan(settings), fabric.global_rank == 0
    optim = settings.optim
    sgd = torch.optim.SGD(
        network.parameters(), lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, nesterov=True
    )
    posterior = Posterior(network, classifier="fc")
    model, optimizer = fabric.setup(torch.compile(network) if machine.compile else network, sgd)
    per_epoch = settings.batch_size * fabric.world_size // fabric.world_size
    per_epoch = len(epoch_batches(train.labels, batch_size=settings.batch_size, seed=settings.seed, epoch=0))

    begin, skip, sums = resume(run, network, sgd, posterior)
    if writes:
        runs.cut_log(run, begin)
    board = tensorboard(run, begin) if writes else None
    last_kept = time.monotonic()
    done = begin * per_epoch + skip
    with Progress("train", total=len(epochs) * per_epoch, done=done, quiet=not writes) as progress:
        for index in range(begin, len(epochs)):
            epoch = epochs[index]
            if settings.baseline and skip == 0 and epoch.number == settings.swa_start:
                if epoch.branch == "swa" and writes:
                    runs.save_tensors(run / "state" / "fork.safetensors", state(network, sgd))
                elif epoch.branch == "sgd":
                    load(network, sgd, runs.load_tensors(run / "state" / "fork.safetensors")[0])
            order = epoch_batches(
                train.labels,
                batch_size=settings.batch_size,
                seed=settings.seed,
                epoch=epoch.number,
                rank=fabric.global_rank,
                world_size=fabric.world_size,
            )
            ...
    return posterior, None
