"""`srepr train`: data and settings in, a run folder with the averaged network, its posterior and its metrics out."""

from __future__ import annotations

import copy
import math
import shutil
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from srepr import runs
from srepr.checkpoints import About, save_model, save_posterior
from srepr.config import Machine, Train
from srepr.data import LongTailData, load
from srepr.data.loading import batches
from srepr.data.sampling import epoch_batches
from srepr.devices import as_launched, failing_together, open_fabric, process_rank
from srepr.errors import InputError
from srepr.evaluation import STAGE_1, Stage1, measure_parts
from srepr.given import Given, given_network
from srepr.models.batchnorm import update_batchnorm
from srepr.recipes import RECIPES
from srepr.representation import Learner, summed, train_representation

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    settings: Train,
    out: Path,
    *,
    data_dir: Path | None = None,
    machine: Machine | None = None,
    start: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Train, average, recompute BatchNorm, evaluate; the metrics of `swa` (and `sgd`), as in `R/results.json`.

    A run that was cut short goes on; one that is finished is left as it is. Other settings or data are refused.
    `start` is a network that is trained already, a run folder or a checkpoint: the training goes on from its weights,
    and it stands in the run as the baseline, as it was given.

    >>> from srepr.recipes import settings_for
    >>> settings = replace(settings_for("digits-lt"), epochs=1)
    >>> results = train(settings, getfixture("tmp_path") / "run")
    >>> 0 < results["swa"]["acc"] <= 1
    True
    """
    machine = as_launched(machine or Machine())
    data = load(settings.source, data_dir=data_dir, seed=settings.seed, **data_options(settings))
    given = None if start is None else given_network(start, data)
    if given is not None and settings.baseline:
        raise InputError("with --from the given network is the baseline. Leave --baseline out.")
    about = describe(settings, data) if given is None else given.about
    settings = replace(settings, network=about.network)
    share = min(settings.batch_size, len(data.train)) // (machine.devices * machine.num_nodes)
    if share < 2:
        raise InputError(f"each process gets {share} of a batch, BatchNorm needs 2. Raise --batch-size.")
    if settings.mixup and share % 2:
        raise InputError(f"mixup pairs the examples of a process, and {share} is odd. Change --batch-size.")
    fabric = open_fabric(machine)

    leads = process_rank() == 0
    if leads:
        arithmetic = {name: getattr(machine, name) for name in ("devices", "num_nodes", "precision", "compile")}
        wanted = {**asdict(settings), **arithmetic}
        wanted["data"]["protocol"] = data.protocol
        if given is not None:
            wanted["from"] = given.digest
        place = data_dir if settings.source in RECIPES else Path(settings.source)
        facts = {"data_dir": str(place.resolve() if place else ""), "examples": data.describe()}
        runs.open_run(out, wanted, {**runs.provenance(), **facts})
        if data.skipped:
            first = f"{data.skipped[0]} is the first" if len(data.skipped) > 1 else data.skipped[0]
            print(f"srepr: going on without {len(data.skipped):,} bad images ({first})", file=sys.stderr)
        (out / "state").mkdir(exist_ok=True)
    with runs.sole_writer(out) if leads else nullcontext():
        if not (out / "results.json").exists():
            fabric.launch()
            with failing_together(out):
                run_branches(settings, about, data, machine, fabric, out, given)
        elif leads:
            shutil.rmtree(out / "state", ignore_errors=True)
    results: dict[str, dict[str, Any]] = runs.read_json(out / "results.json")
    return results


def data_options(settings: Train) -> dict[str, Any]:
    """The settings of the data in the form that `srepr.data.load` takes.

    >>> data_options(Train(source="digits-lt"))["holdout"]
    0.1
    """
    return {**asdict(settings.data), "counts": settings.data.counts or None}


def describe(settings: Train, data: LongTailData) -> About:
    """The network that the settings ask for on these data, with everything that using it will need.

    >>> describe(Train(source="digits-lt"), load("digits-lt")).network
    'resnet32'
    """
    shape = data.train.shape
    network = settings.network
    if network == "auto":
        network = "mlp" if len(shape) == 1 else "resnet32" if shape[1] <= 64 else "resnet50"
    if network != "mlp" and len(shape) == 1:
        raise InputError(f"{network} takes images, and {settings.source} has vectors. Use --network mlp.")
    options: dict[str, Any] = {"inputs": math.prod(shape)} if network == "mlp" else {"channels": shape[0]}
    if network in ("resnet8", "resnet14", "resnet20", "resnet32"):
        options["shortcut"] = settings.shortcut
    about = About(
        network=network,
        options=options,
        class_names=data.class_names,
        counts=tuple(int(count) for count in data.counts),
        shape=shape,
        mean=data.train.mean,
        std=data.train.std,
    )
    about.build()  # an unknown network is refused before anything is written
    return about


def run_branches(
    settings: Train,
    about: About,
    data: LongTailData,
    machine: Machine,
    fabric: Fabric,
    out: Path,
    given: Given | None = None,
) -> None:
    """Train, and write each branch's network when it is finished; the results come last and mark the end."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = about.build() if given is None else copy.deepcopy(given.network)
        network = network.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        leads = fabric.global_rank == 0
        options = {
            "workers": machine.workers,
            "rank": fabric.global_rank,
            "world_size": fabric.world_size,
            "quiet": not leads,
        }
        if given is not None:
            metrics = measure_parts(network, about, data, **options)
            if leads:
                runs.write_json(out / "state" / "sgd.json", metrics)
                save_model(out / STAGE_1["sgd"], network, about)
        for epoch, learner in train_representation(network, data.train, settings, machine, fabric, out):
            finished = learner.network
            if epoch.branch == "swa":
                finished = averaged(learner, data, settings, machine, fabric)
            metrics = measure_parts(finished, about, data, **options)
            if leads:
                runs.write_json(out / "state" / f"{epoch.branch}.json", metrics)
                save_model(out / STAGE_1[cast(Stage1, epoch.branch)], finished, about)
                if epoch.branch == "swa":
                    save_posterior(out / "posterior.safetensors", learner.posterior)
    fabric.barrier()
    if leads:
        names = ["sgd", "swa"] if settings.baseline or given else ["swa"]
        runs.write_json(out / "results.json", {name: runs.read_json(out / "state" / f"{name}.json") for name in names})
        shutil.rmtree(out / "state")
    fabric.barrier()


def averaged(learner: Learner, data: LongTailData, settings: Train, machine: Machine, fabric: Fabric) -> nn.Module:
    """A copy of the network with the SWA weights, and BatchNorm statistics of its own over the training data."""
    network = copy.deepcopy(learner.network)
    learner.posterior.apply_mean(network)
    order = epoch_batches(
        data.train.labels,
        batch_size=settings.batch_size,
        seed=settings.seed,
        epoch=settings.epochs,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        drop_last=False,
    )
    order = [share for share in order if len(share)]  # of a last batch smaller than the number of processes
    stream = batches(data.train, order, view=(settings.seed, settings.epochs), workers=machine.workers)
    update_batchnorm(network, (inputs for inputs, _, _ in stream), reduce=partial(summed, fabric))
    return network
