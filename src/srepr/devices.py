"""Where the arithmetic happens: a Fabric for the machine's settings, after trying what is known to fail badly."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings

import torch
from lightning_fabric import Fabric

from srepr.config import Machine
from srepr.errors import InputError

BF16_TRIAL = """
import torch
network = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 16))
with torch.autocast("cpu", torch.bfloat16):
    network(torch.randn(8, 16, 8, 8).to(memory_format=torch.channels_last)).sum().backward()
"""


def open_fabric(machine: Machine) -> Fabric:
    """The Fabric for these settings, not launched yet.

    bfloat16 on a CPU is first tried in a process of its own: a processor that announces the instructions but does not
    run them ends the process that uses them.

    >>> open_fabric(Machine(accelerator="cpu")).device
    device(type='cpu')
    """
    warnings.filterwarnings("ignore", message=".*does not have many workers.*|.*isinstance.treespec.*")
    fabric = Fabric(
        accelerator=machine.accelerator,
        devices=machine.devices,
        num_nodes=machine.num_nodes,
        precision=machine.precision,
        strategy="ddp" if machine.devices * machine.num_nodes > 1 else "auto",
    )
    if fabric.device.type == "cpu" and machine.precision != "32-true":
        if machine.precision == "16-mixed":
            raise InputError("--precision 16-mixed needs a GPU. Use --precision 32-true.")
        trial = subprocess.run([sys.executable, "-c", BF16_TRIAL], capture_output=True, check=False)  # noqa: S603
        if trial.returncode:
            how = signal.Signals(-trial.returncode).name if trial.returncode < 0 else f"exit code {trial.returncode}"
            raise InputError(f"bfloat16 does not run on this processor (a trial ended with {how}). Use 32-true.")
    return fabric


def compiled(network: torch.nn.Module) -> torch.nn.Module:
    """The network compiled, or as it is with one line of notice where compiling does not work here.

    >>> isinstance(compiled(torch.nn.Linear(2, 2)), torch.nn.Module)
    True
    """
    try:
        torch.compile(lambda x: x.relu() + 1)(torch.ones(4))
    except Exception as error:  # the compiler's own exceptions have no common base
        print(f"srepr: going on without compiling ({type(error).__name__}: is a C++ compiler installed?)", file=sys.stderr)
        return network
    compiled_network: torch.nn.Module = torch.compile(network)
    return compiled_network
