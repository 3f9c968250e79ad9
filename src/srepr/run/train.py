"""`srepr train`: data and settings in, a run folder with the averaged network, its posterior and its metrics out.

Everything random is a function of (seed, epoch, step, rank), so a run that was killed continues to the same bits.
"""

from __future__ import annotations

import copy
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.config import Machine, Stage1, Train
from srepr.data import LongTailData, load
from srepr.data.about import About
from srepr.data.augment import mixup, mixup_weights
from srepr.data.examples import Examples
from srepr.data.randomness import Stream, uniforms
from srepr.data.sampling import epoch_batches
from srepr.data.workers import batches
from srepr.errors import InputError, tell
from srepr.models.batchnorm import update_batchnorm
from srepr.models.hardware import can_compile
from srepr.models.syncbatchnorm import synchronise_batchnorm
from srepr.posterior import Posterior
from srepr.progress import Progress
from srepr.representation import EXPLODED, Batch, Diverged, Epoch, Learner, descend, freeze, optimizer_for, plan
from srepr.run import folder
from srepr.run.checkpoints import build_network, save_model, save_posterior
from srepr.run.description import Start, check_sizes, data_options, describe, suited
from srepr.run.devices import as_launched, failing_together, launch, open_fabric, process_rank
from srepr.run.estimate import announce
from srepr.run.evaluate import measure_network, on_parts
from srepr.run.folder import STAGE_1
from srepr.run.heartbeat import heard_by_all
from srepr.run.log import append_log, cut_log, epoch_line, log_line, tensorboard
from srepr.run.probe import probe, start_solved
from srepr.run.schema import read_results
from srepr.storage.checksums import FOLDER
from srepr.storage.files import read_json, write_json
from srepr.storage.tensors import load_tensors, save_tensors

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    settings: Train,
    out: Path,
    *,
    data_dir: Path | None = None,
    machine: Machine | None = None,
    start: Callable[[LongTailData], Start] | None = None,
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Train, average, recompute BatchNorm, evaluate; the metrics of `swa` (and `sgd`), as in `R/results.json`.

    An unfinished run continues; a finished one is left as it is. Other settings or data are refused. `start` gives a
    network that is already trained (`srepr.importing.start`): training goes on from its weights, and the run keeps it
    as the baseline if it was trained for these classes. With `freeze` "body" nothing is trained (`srepr.run.probe`).
    """
    machine = as_launched(machine or Machine())
    options = data_options(settings)
    data = load(settings.source, data_dir=data_dir, seed=settings.seed, **options)
    given = None if start is None else start(data)
    settings = suited(settings, given)
    if data_options(settings) != options:
        data = load(settings.source, data_dir=data_dir, seed=settings.seed, **data_options(settings))
        given = None if start is None else start(data)
    if given is not None and given.trained and settings.baseline:
        raise InputError("the network to start from is the baseline. Leave `baseline` out.")
    about = describe(settings, data) if given is None else given.about
    data = data.prepared(about)
    settings = replace(settings, network=about.network)
    check_sizes(settings, data, machine.devices * machine.num_nodes)
    if settings.freeze not in ("body", "none"):  # a layer that is not there is refused before anything is written
        freeze(build_network(about) if given is None else given.network, settings.freeze)
    fabric = open_fabric(machine)
    leads = process_rank() == 0
    if leads:
        arithmetic = ("devices", "num_nodes", "precision", "compile", "sync_batchnorm")
        wanted = {**asdict(settings), **{name: getattr(machine, name) for name in arithmetic}}
        wanted["data"]["protocol"] = data.protocol
        if given is not None:
            wanted["from"] = given.digest
        facts = folder.data_facts(data, settings.source, data_dir)
        folder.enter_run(out, wanted, {**folder.provenance(), **facts})
        if given is not None and given.notice:
            tell(given.notice)
        if data.skipped:
            first = f"{data.skipped[0]} is the first" if len(data.skipped) > 1 else data.skipped[0]
            tell(f"skipped {len(data.skipped):,} bad images ({first})")
        (out / "state").mkdir(exist_ok=True)
    with folder.sole_writer(out) if leads else nullcontext():
        if not (out / "results.json").exists():
            started = launch(fabric)
            with failing_together(out), heard_by_all(fabric.global_rank, fabric.world_size, started):
                try:
                    run_branches(settings, about, data, machine, fabric, out, given, quiet=quiet)
                except Diverged as error:
                    kept = f" The last good state is in {out / 'state'}." if folder.newest_state(out) else ""
                    raise InputError(f"{error}{kept} Train into a new folder.") from None
        elif leads:
            shutil.rmtree(out / "state", ignore_errors=True)
    return read_results(out)


def run_branches(
    settings: Train,
    about: About,
    data: LongTailData,
    machine: Machine,
    fabric: Fabric,
    out: Path,
    given: Start | None = None,
    *,
    quiet: bool = False,
) -> None:
    """Train, and write each branch's network when it is finished; the results come last and mark the end."""
    leads = fabric.global_rank == 0

    def finish(name: Stage1, network: nn.Module) -> None:
        options: dict[str, Any] = {"rank": fabric.global_rank, "world_size": fabric.world_size}
        options |= {"workers": machine.workers, "quiet": quiet or not leads}
        metrics = on_parts(data, lambda part: measure_network(network, part, about.counts, **options))
        if leads:
            write_json(out / "state" / f"{name}.json", metrics)
            save_model(out / STAGE_1[name], network, about)

    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = build_network(about) if given is None else copy.deepcopy(given.network)
        if given is not None and not given.trained:  # by the seed, as all that is random
            network.get_submodule(about.classifier).reset_parameters()  # type: ignore[operator]
        if leads and not quiet and folder.newest_state(out) is None:
            with torch.random.fork_rng():
                announce(network, about, data, settings, pretrained=given is not None)
        if settings.freeze == "body":
            if leads:
                probe(network, about, data, out, machine, seed=settings.seed, quiet=quiet)
            fabric.barrier()
            return
        if given is not None and not given.trained and leads and folder.newest_state(out) is None:
            # The other processes take over the parameters of the first.
            start_solved(network, about, data, out, machine, seed=settings.seed, quiet=quiet)
        network = network.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if given is not None and given.trained:
            finish("sgd", network)
        for branch, learner in train_representation(
            network, data.train, settings, machine, fabric, out, classifier=about.classifier, quiet=quiet
        ):
            average = branch == "swa"
            finish(branch, averaged(learner, data, settings, machine, fabric) if average else learner.network)
            if average and leads:
                save_posterior(out / "posterior.safetensors", learner.posterior)
    fabric.barrier()
    if leads:
        names = ["sgd", "swa"] if settings.baseline or (given and given.trained) else ["swa"]
        write_json(out / "results.json", {name: read_json(out / "state" / f"{name}.json") for name in names})
        shutil.rmtree(out / "state")
        shutil.rmtree(out / FOLDER / "state", ignore_errors=True)
    fabric.barrier()


def train_representation(
    network: nn.Module,
    train: Examples,
    settings: Train,
    machine: Machine,
    fabric: Fabric,
    run: Path,
    *,
    classifier: str = "fc",
    quiet: bool = False,
) -> Iterator[tuple[Stage1, Learner]]:
    """Run the plan from where the run folder stands to its end, yielding the learner after each branch's last epoch.

    Rank 0 writes: a state after every epoch (and within long ones), and a line of the log.
    """
    epochs, writes = plan(settings.epochs, settings.swa_start, baseline=settings.baseline), fabric.global_rank == 0
    if machine.sync_batchnorm:
        synchronise_batchnorm(network)
    optimizer = optimizer_for(freeze(network, settings.freeze), settings.optim, classifier)
    wrapped = torch.compile(network) if machine.compile and can_compile() else network
    model, wrapped_optimizer = fabric.setup(cast(nn.Module, wrapped), optimizer)
    learner = Learner(network, optimizer, Posterior(network, classifier=classifier))
    steps = len(epoch_batches(train.labels, batch_size=settings.batch_size, seed=settings.seed, epoch=0))
    position, sums = resumed(run, learner, settings, writes=writes)
    if not position[1]:
        branch_off(run, learner, epochs, position[0], settings, writes=writes)
    if writes:
        cut_log(run, position[0])
    board = tensorboard(run, position[0]) if writes else None
    saved = began = time.monotonic()
    before = sums[2]
    done = position[0] * steps + position[1]
    with Progress("train", total=len(epochs) * steps, done=done, quiet=quiet or not writes) as progress:
        for moment in descend(
            learner,
            epochs,
            partial(stream, train, settings, machine, fabric),
            optim=settings.optim,
            loss=partial(F.cross_entropy, label_smoothing=settings.label_smoothing),
            steps=steps,
            model=model,
            optimizer=wrapped_optimizer,
            backward=fabric.backward,
            reduce=partial(summed, fabric),
            start=position,
            sums=sums,
            limit=EXPLODED * math.log(len(train.class_names)),
            advance=progress.advance,
        ):
            if not moment.done:
                if writes and time.monotonic() - saved > 60 * machine.checkpoint_minutes:
                    note = {"sums": moment.sums.tolist()}
                    folder.save_state(run, (moment.index, moment.step), learner.state(), note)
                    saved = time.monotonic()
                continue
            line = log_line(moment, before, time.monotonic() - began, fabric.device)
            if writes:
                append_log(run, line)
                if board is not None:
                    for name in ("loss", "acc", "lr"):
                        board.add_scalar(f"{line['branch']}/{name}", line[name], line["epoch"])
                progress.say(epoch_line(line, settings.epochs, progress.time_left(), train.noun))
            epoch = moment.epoch
            if epoch.branch != "trunk" and epoch.number == settings.epochs - 1:
                for buffer in network.buffers():  # each process has its own BatchNorm statistics: rank 0's count
                    buffer.copy_(fabric.broadcast(buffer))
                yield epoch.branch, learner
            if writes:
                note = {"sums": [0.0, 0.0, 0.0]}
                folder.save_state(run, (moment.index + 1, 0), learner.state(), note)
            fabric.barrier()
            branch_off(run, learner, epochs, moment.index + 1, settings, writes=writes)
            before, saved, began = 0.0, time.monotonic(), time.monotonic()
    if board is not None:
        board.close()


def resumed(run: Path, learner: Learner, settings: Train, *, writes: bool) -> tuple[tuple[int, int], list[float]]:
    """Restore the newest state of the run; its position and sums, which are zeros at the start.

    If a file that an earlier part of the training has left is damaged, the training starts again.
    """
    kept = folder.newest_state(run, discard=writes)
    if kept is None:
        return (0, 0), [0.0, 0.0, 0.0]
    tensors, note = kept
    index, step = note["position"]
    try:
        folder.check_earlier(run, settings, (index, step))
    except InputError as error:
        if writes:
            tell(f"{error} The training starts again.")
            folder.start_again(run)
        return (0, 0), [0.0, 0.0, 0.0]
    try:
        learner.load(tensors)
        _, _, _ = sums = note["sums"]
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"the state in {run / 'state'} is of another training ({reason}). Delete it.") from None
    return (index, step), sums


def branch_off(
    run: Path, learner: Learner, epochs: Sequence[Epoch], index: int, settings: Train, *, writes: bool
) -> None:
    """Before the epoch at `index`: save where the SWA branch and the baseline part, or return there."""
    fork = run / "state" / "fork.safetensors"
    if settings.baseline and index < len(epochs) and epochs[index].number == settings.swa_start:
        if epochs[index].branch == "swa" and writes:
            save_tensors(fork, learner.state())
        if epochs[index].branch == "sgd":
            learner.load(load_tensors(fork)[0], with_posterior=False)


def stream(
    train: Examples, settings: Train, machine: Machine, fabric: Fabric, index: int, epoch: Epoch, first: int
) -> Iterator[Batch]:
    """The batches of an epoch for this process from the step `first` on, augmented and perhaps mixed."""
    order = epoch_batches(
        train.labels,
        batch_size=settings.batch_size,
        seed=settings.seed,
        epoch=epoch.number,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    loading = batches(train, order[first:], view=(settings.seed, epoch.number), workers=machine.workers)
    for step, (inputs, labels, indices) in enumerate(loading, start=first + 1):
        seed_step(settings.seed, index, step, fabric.global_rank)
        inputs, labels = inputs.to(fabric.device), labels.to(fabric.device)
        targets = labels
        if settings.mixup:
            one_hot = F.one_hot(labels, len(train.class_names)).float()
            draws = uniforms(settings.seed, epoch.number, indices, 1, stream=Stream.MIXUP)[:, 0]
            inputs, targets = mixup(inputs, one_hot, mixup_weights(settings.mixup, draws))
        yield Batch(inputs, labels, targets)


def averaged(learner: Learner, data: LongTailData, settings: Train, machine: Machine, fabric: Fabric) -> nn.Module:
    """A copy of the network with the SWA weights, and its own BatchNorm statistics over the training data."""
    network = copy.deepcopy(learner.network)
    learner.posterior.apply_mean(network)
    processes = 1 if machine.sync_batchnorm else fabric.world_size
    if machine.sync_batchnorm:
        synchronise_batchnorm(network, across=False)
    order = epoch_batches(
        data.train.labels,
        batch_size=settings.batch_size,
        seed=settings.seed,
        epoch=settings.epochs,
        rank=fabric.global_rank % processes,
        world_size=processes,
        drop_last=False,
    )
    order = [share for share in order if len(share)]  # of a last batch smaller than the number of processes
    views = batches(data.train, order, view=(settings.seed, settings.epochs), workers=machine.workers)
    reduce = None if machine.sync_batchnorm else partial(summed, fabric)
    update_batchnorm(network, (inputs for inputs, _, _ in views), reduce=reduce)
    return network


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
