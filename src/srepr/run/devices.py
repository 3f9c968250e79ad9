"""Devices and precision: a Fabric for the machine's settings, after checks for known failures."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from srepr import __version__
from srepr.config import Machine
from srepr.errors import InputError, check
from srepr.models.hardware import compile_failure
from srepr.run.heartbeat import DEAD
from srepr.run.imports import only_the_version

with only_the_version("torchmetrics"):  # which takes longer to import than torch
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.utilities.exceptions import MisconfigurationException
    from lightning_fabric.utilities.rank_zero import rank_zero_only

MOST_PROCESSES = max(16, 2 * (os.cpu_count() or 1))
"""Processes that train on the CPU of one machine: each is as large as a single one."""
BF16_TRIAL = """
import torch
network = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 16))
with torch.autocast("cpu", torch.bfloat16):
    network(torch.randn(8, 16, 8, 8).to(memory_format=torch.channels_last)).sum().backward()
"""


def as_launched(machine: Machine) -> Machine:
    """Settings with the number of processes that torchrun or SLURM started; unchanged without a launcher.

    >>> as_launched(Machine(devices=2)).devices
    2
    """
    if TorchElasticEnvironment.detect():
        processes, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    elif SLURMEnvironment.detect():
        processes = int(os.environ["SLURM_NTASKS"])
        devices = processes // int(os.environ.get("SLURM_NNODES", "1"))
    else:
        alone = machine.num_nodes > 1 and "MASTER_ADDR" not in os.environ
        check(not alone, f"`num_nodes` is {machine.num_nodes}: start srepr on each machine, with torchrun or SLURM")
        return machine
    wanted = machine.devices * machine.num_nodes
    if wanted not in (1, processes):
        raise InputError(f"{processes} processes were started, and `devices` asks for {wanted}. Leave out `devices`.")
    return replace(machine, devices=devices, num_nodes=processes // devices)


def check_devices(machine: Machine) -> None:
    """Raise an InputError if this machine has no device of the wanted kind, or fewer than wanted.

    >>> check_devices(Machine(accelerator="cpu", devices=4))
    """
    found = {"cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0}
    found["mps"] = int(torch.backends.mps.is_available())
    kind: str = machine.accelerator
    if found.get(kind) == 0:
        others = " or ".join(["cpu", *(name for name, count in found.items() if count)])
        raise InputError(
            f"`accelerator` is {kind}, and this machine has none. Set it to {others}, or leave it out to take the best"
            " that is there. See: srepr doctor"
        )
    if kind == "auto":
        kind = next((name for name, count in found.items() if count), "cpu")
    there = found.get(kind, MOST_PROCESSES)
    if machine.devices > there:
        has = f"this machine has {there} ({kind})" if kind in found else f"at most {there} processes share a CPU"
        raise InputError(f"`devices` is {machine.devices}, and {has}. Lower it. See: srepr doctor")


def open_fabric(machine: Machine) -> Fabric:
    """Fabric for these settings, not launched yet.

    bfloat16 on a CPU is first tried in a subprocess: a CPU that reports the instructions but cannot run them kills the
    process.

    >>> open_fabric(Machine(accelerator="cpu")).device
    device(type='cpu')
    """
    warnings.filterwarnings("ignore", message=".*does not have many workers|.*isinstance.treespec|.*AMP with fp16")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    check_devices(machine)
    try:
        fabric = Fabric(
            accelerator=machine.accelerator,
            devices=machine.devices,
            num_nodes=machine.num_nodes,
            precision=machine.precision,
            strategy="ddp" if machine.devices * machine.num_nodes > 1 else "auto",
        )
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        raise InputError(f"the requested hardware is not available: {error} See: srepr doctor") from None
    if fabric.device.type == "cpu" and machine.precision == "16-mixed":
        raise InputError("the precision 16-mixed needs a GPU. Set `precision` to 32-true.")
    if fabric.device.type == "cpu" and machine.precision == "bf16-mixed":
        failure = bf16_failure()
        if failure:
            raise InputError(f"bfloat16 does not run on this CPU ({failure}). Set `precision` to 32-true.")
    return fabric


def launch(fabric: Fabric) -> list[subprocess.Popen[bytes]]:
    """Start the other processes if nobody has; those that this one has started.

    Lightning would end this process without a word if one of them failed. `heard_by_all` says so.

    >>> launch(open_fabric(Machine(accelerator="cpu")))
    []
    """
    fabric.launch()
    watched = getattr(fabric.strategy.launcher, "procs", [])
    started, watched[:] = [*watched], []
    return started


def process_rank() -> int:
    """Rank of this process, from the launcher's environment before launch; 0 without a launcher."""
    return int(getattr(rank_zero_only, "rank", 0))


@contextlib.contextmanager
def failing_together(run: Path) -> Iterator[None]:
    """If one process fails, all stop and one reports: rank 0 raises, any other leaves it a note and exits.

    An exiting process closes its connections, which aborts the collective operation that the others wait in.

    >>> with failing_together(getfixture("tmp_path")):
    ...     raise InputError("no such image")
    Traceback (most recent call last):
    srepr.errors.InputError: no such image
    """
    note = run / "state" / "failure.txt"
    leads = process_rank() == 0
    if leads:
        note.unlink(missing_ok=True)
    try:
        yield
    except InputError as error:
        if leads:
            raise
        note.write_text(str(error))
        sys.exit(0)
    except RuntimeError as error:
        if not re.search("gloo|NCCL|Connection", str(error)):
            raise
        if not leads:
            sys.exit(1)
        raise InputError(note.read_text() if note.exists() else DEAD) from None


def bf16_failure() -> str:
    """How a trial of bfloat16 on the CPU failed, in a subprocess; empty if it works."""
    trial = subprocess.run([sys.executable, "-c", BF16_TRIAL], capture_output=True, check=False)  # noqa: S603
    if trial.returncode < 0:
        return f"a trial ended with {signal.Signals(-trial.returncode).name}"
    return f"a trial ended with exit code {trial.returncode}" if trial.returncode else ""


def diagnose() -> dict[str, str]:
    """Facts about this machine, as printed by `srepr doctor`."""
    accelerators = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        accelerators.append("Apple GPU")
    return {
        "srepr": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": version("lightning-fabric"),
        "devices": ", ".join(accelerators) or f"CPU ({torch.backends.cpu.get_cpu_capability()})",
        "threads": str(torch.get_num_threads()),
        "compile": compile_failure() or "works",
        "bfloat16": bf16_failure() or "works",
    }
