"""Stage 1, the representation: SGD on a cosine, then SWA and the moments of SWAG (paper, sections 2.2 and 2.3).

    epochs   0 ............. 75 % ............. 100 %
    rate     warm-up, cosine | constant eta_SWA, weights captured after every epoch   -> representation, posterior
                             | the same cosine to its end (`baseline`)                -> sgd

Everything random is a function of (seed, epoch, step, rank), so a run that was killed goes on to the same bits.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr import runs
from srepr.config import Machine, Optim, Train
from srepr.data.augment import mixup, mixup_weights
from srepr.data.loading import batches
from srepr.data.randomness import Stream, uniforms
from srepr.data.sampling import epoch_batches
from srepr.devices import compiled
from srepr.errors import InputError
from srepr.posterior import Posterior
from srepr.progress import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from srepr.data.examples import Examples

CHECK_EVERY = 25  # steps between looks at the loss, and between chances to keep the state within an epoch
EXPLODED = 100.0  # times the loss of guessing


@dataclass(frozen=True)
class Epoch:
    """One epoch of the plan: the branch it belongs to, and its number in the schedule.

    >>> Epoch("swa", 150).branch
    'swa'
    """

    branch: Literal["trunk", "swa", "sgd"]
    number: int


def plan(settings: Train) -> list[Epoch]:
    """All epochs in the order in which they are run: the common trunk, the SWA branch, the end of the baseline.

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


@dataclass(frozen=True)
class Learner:
    """What training changes: the network, the momentum of its optimiser, and the moments of the captured weights.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> learner = Learner(network, torch.optim.SGD(network.parameters(), 0.1, momentum=0.9), Posterior(network))
    >>> learner.load(learner.state())
    """

    network: nn.Module
    sgd: torch.optim.SGD
    posterior: Posterior

    def state(self) -> dict[str, Tensor]:
        """Everything a resume needs, as one flat dict."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            momentum = self.sgd.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        return tensors | {f"posterior.{name}": tensor for name, tensor in self.posterior.state_dict().items()}

    def load(self, tensors: Mapping[str, Tensor], *, with_posterior: bool = True) -> None:
        """Go on from a `state()`; a fork to another branch keeps the posterior that it has."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

        self.network.load_state_dict(part("network."))
        momentum = part("momentum.")
        for name, parameter in self.network.named_parameters():
            if name in momentum:
                self.sgd.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum[name])
            else:
                self.sgd.state.pop(parameter, None)
        if with_posterior:
            self.posterior.load_state_dict(part("posterior."))


def train_representation(
    network: nn.Module, train: Examples, settings: Train, machine: Machine, fabric: Fabric, run: Path
) -> Iterator[tuple[Epoch, Learner]]:
    """Run the plan from where the run folder stands to its end, yielding the learner after each branch's last epoch.

    Rank 0 writes: a state after every epoch (and within long ones), and a line of the log.
    """
    epochs, writes = plan(settings), fabric.global_rank == 0
    optim = settings.optim
    sgd = torch.optim.SGD(
        network.parameters(), lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, nesterov=True
    )
    model, optimizer = fabric.setup(compiled(network) if machine.compile else network, sgd)
    learner = Learner(network, sgd, Posterior(network, classifier="fc"))
    steps = len(epoch_batches(train.labels, batch_size=settings.batch_size, seed=settings.seed, epoch=0))
    guessing = math.log(len(train.class_names))

    begin, first_step, sums = 0, 0, torch.zeros(3, dtype=torch.float64, device=fabric.device)  # loss, correct, seen
    kept = runs.newest_state(run)
    if kept is not None:
        tensors, note = kept
        learner.load(tensors)
        begin, first_step = note["position"]
        sums = torch.tensor(note["sums"], dtype=torch.float64, device=fabric.device)
    if writes:
        runs.cut_log(run, begin)
    board = tensorboard(run, begin) if writes else None

    done = begin * steps + first_step
    with Progress("train", total=len(epochs) * steps, done=done, quiet=not writes) as progress:
        for index in range(begin, len(epochs)):
            epoch = epochs[index]
            branches_off = epoch.number == settings.swa_start and first_step == 0 and settings.baseline
            if branches_off and epoch.branch == "swa" and writes:
                runs.save_tensors(run / "state" / "fork.safetensors", learner.state())
            if branches_off and epoch.branch == "sgd":
                learner.load(runs.load_tensors(run / "state" / "fork.safetensors")[0], with_posterior=False)

            order = epoch_batches(
                train.labels,
                batch_size=settings.batch_size,
                seed=settings.seed,
                epoch=epoch.number,
                rank=fabric.global_rank,
                world_size=fabric.world_size,
            )
            view, began, seen_before = (settings.seed, epoch.number), time.monotonic(), float(sums[2])
            last_kept, recent = began, torch.zeros_like(sums)
            model.train()
            loading = batches(train, order[first_step:], view=view, workers=machine.workers)
            for step, (inputs, labels, indices) in enumerate(loading, start=first_step + 1):
                rate = learning_rate(optim, epoch.branch, epoch.number + step / steps, settings.epochs)
                for group in sgd.param_groups:
                    group["lr"] = rate
                seed_step(settings.seed, index, step, fabric.global_rank)
                inputs, labels = inputs.to(fabric.device), labels.to(fabric.device)
                targets = labels
                if settings.mixup:
                    one_hot = F.one_hot(labels, len(train.class_names)).float()
                    draws = uniforms(settings.seed, epoch.number, indices, 1, stream=Stream.MIXUP)[:, 0]
                    inputs, targets = mixup(inputs, one_hot, mixup_weights(settings.mixup, draws))

                logits = model(inputs)
                loss = F.cross_entropy(logits, targets)
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

                seen = len(labels)
                hits = (logits.detach().argmax(1) == labels).sum()
                recent += torch.stack([loss.detach().double() * seen, hits.double(), hits.new_tensor(seen).double()])
                progress.advance()
                if step % CHECK_EVERY == 0 or step == steps:
                    recent = summed(fabric, recent)
                    mean = float(recent[0] / recent[2]) if is_finite(network) else math.nan
                    if not mean < EXPLODED * guessing:
                        raise diverged(run, epoch, step, mean, rate)
                    sums, recent = sums + recent, torch.zeros_like(sums)
                    due = time.monotonic() - last_kept > 60 * machine.checkpoint_minutes
                    if writes and due and step < steps:
                        runs.save_state(run, (index, step), learner.state(), {"sums": sums.tolist()})
                        last_kept = time.monotonic()

            if epoch.branch == "swa":
                learner.posterior.update(network)
            loss_sum, correct, seen_all = sums.tolist()
            line = {
                "branch": epoch.branch,
                "epoch": epoch.number,
                "loss": loss_sum / seen_all,
                "acc": correct / seen_all,
                "lr": rate,
                "images_per_second": round((seen_all - seen_before) / (time.monotonic() - began), 1),
                "peak_memory_mib": peak_memory_mib(fabric.device),
            }
            first_step, sums = 0, torch.zeros_like(sums)
            if writes:
                runs.append_log(run, line)
                if board is not None:
                    for name in ("loss", "acc", "lr"):
                        board.add_scalar(f"{epoch.branch}/{name}", line[name], epoch.number)
                progress.say(epoch_line(line, settings.epochs, progress.time_left()))
            if epoch.branch != "trunk" and epoch.number == settings.epochs - 1:
                for buffer in network.buffers():  # each process has BatchNorm statistics of its own: rank 0's count
                    buffer.copy_(fabric.broadcast(buffer))
                yield epoch, learner
            if writes:
                runs.save_state(run, (index + 1, 0), learner.state(), {"sums": sums.tolist()})
            fabric.barrier()
    if board is not None:
        board.close()


def summed(fabric: Fabric, tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes."""
    return cast(Tensor, fabric.all_reduce(tensor, reduce_op="sum"))


def seed_step(seed: int, epoch: int, step: int, rank: int) -> None:
    """Make torch's own randomness (dropout) a function of the place in the run.

    >>> seed_step(0, 3, 7, 0); first = torch.rand(1)
    >>> seed_step(0, 3, 7, 0); bool(torch.rand(1) == first)
    True
    """
    torch.manual_seed(int(np.random.SeedSequence((seed, epoch, step, rank)).generate_state(1, np.uint64)[0] >> 1))


def is_finite(network: nn.Module) -> bool:
    """Whether every weight and every statistic is a finite number; the loss shows one that is not a step later.

    >>> is_finite(nn.Linear(2, 2)), is_finite(nn.Linear(2, 2).apply(lambda layer: layer.bias.data.fill_(torch.inf)))
    (True, False)
    """
    return all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values())


def diverged(run: Path, epoch: Epoch, step: int, loss: float, rate: float) -> InputError:
    """The complaint about a loss that is not a number any more, or absurdly large.

    >>> raise diverged(Path("R"), Epoch("trunk", 3), 17, float("nan"), 0.5)
    Traceback (most recent call last):
    srepr.errors.InputError: the loss became nan in epoch 3, step 17, at a learning rate of 0.5. Train into...
    """
    kept = f" The last good state is kept in {run / 'state'}." if any((run / "state").glob("*-*.safetensors")) else ""
    return InputError(
        f"the loss became {loss:.3g} in epoch {epoch.number}, step {step}, at a learning rate of {rate:.3g}.{kept}"
        f" Train into a new folder with a smaller --optim.{'swa-lr' if epoch.branch == 'swa' else 'lr'}."
    )


def epoch_line(line: Mapping[str, Any], epochs: int, time_left: str) -> str:
    """A line of the log for people.

    >>> epoch_line({"branch": "swa", "epoch": 150, "loss": 0.5, "acc": 0.9, "lr": 0.1, "images_per_second": 400.0},
    ...            200, "20 min 3 s")
    'swa   151/200  loss 0.5000  acc 90.0 %  lr 0.1000   400 images/s  20 min 3 s left'
    """
    return (
        f"{line['branch']:<5} {line['epoch'] + 1}/{epochs}  loss {line['loss']:.4f}  acc {100 * line['acc']:.1f} %"
        f"  lr {line['lr']:.4f}  {line['images_per_second']:4.0f} images/s  {time_left} left"
    )


def peak_memory_mib(device: torch.device) -> int:
    """The most memory held so far: of the GPU, or of this process.

    >>> peak_memory_mib(torch.device("cpu")) > 0
    True
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def tensorboard(run: Path, begin: int) -> Any:
    """A TensorBoard writer into the run folder where the extra is installed, else None.

    >>> board = tensorboard(getfixture("tmp_path"), begin=0)
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=begin)
