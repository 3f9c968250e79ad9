"""Training throughput of stage 1 on CIFAR, against a plain eager NCHW loop with per-image transforms.

Each measurement is a process of its own, so that none inherits the other's compiler cache, allocator or threads. They
take turns, so that a machine that slows down slows all of them down. The first epoch of a process warms it up.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import Table, plain, verdict
from srepr.config import Machine, settings_for
from srepr.data import ArrayExamples, load
from srepr.models import build
from srepr.run.devices import open_fabric
from srepr.run.log import read_log
from srepr.run.train import train_representation

ROOT = Path(__file__).parents[1]
RATIO = 1.8
ROUNDS, STEPS, EPOCHS, BATCH, CLASSES = 5, 15, 2, 128, 100
VARIANTS = {
    "plain": "plain eager NCHW, per-image transforms",
    "plain-workers": "plain eager NCHW, per-image transforms in 2 worker processes",
    "srepr": "srepr train",
    "srepr-compile": "srepr train --compile",
}


def measure() -> list[Table]:
    """All variants in turn, several times; the promise is about the better of each side."""
    pace: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with cifar_folder("cifar-100") as folder:
        environment = {**os.environ, "SREPR_TEST_DATA": str(folder or "")}
        for _ in range(ROUNDS):
            for name in VARIANTS:
                command = [sys.executable, "-m", "benchmarks.throughput", name]
                pace[name].append(float(subprocess.check_output(command, cwd=ROOT, env=environment)))
                print(f"{name}: {pace[name][-1]:.0f} images/s", file=sys.stderr, flush=True)
    median = {name: statistics.median(values) for name, values in pace.items()}
    baseline = max(median["plain"], median["plain-workers"])
    ratio = max(median["srepr"], median["srepr-compile"]) / baseline
    operations, peak = operations_per_image(), matrix_product_rate()
    images = "real CIFAR-100-LT images" if folder else "random images, as no CIFAR was found (set SREPR_TEST_DATA)"
    table = Table(
        title="Training throughput, CIFAR, ResNet-32, batch 128, float32",
        how=(
            f"Images per second of an epoch of {STEPS} steps on {images}, after an epoch of warm-up, in {ROUNDS}"
            " rounds of one process for each row. The ratio is that of the medians, to the faster of the plain loops."
        ),
        rows=[
            {
                "loop": VARIANTS[name],
                "images/s": median[name],
                "slowest": min(values),
                "fastest": max(values),
                "ratio": median[name] / baseline,
            }
            for name, values in pace.items()
        ],
        verdicts=[
            verdict(
                f"at least {RATIO}x a plain eager NCHW PyTorch loop with per-image transforms",
                f"{ratio:.2f}x",
                kept=ratio >= RATIO,
            ),
            f"A training step takes {operations / 1e9:.3f} GFLOP an image, and a float32 matrix product reaches"
            f" {peak / 1e9:.0f} GFLOP/s here: direct convolutions at that rate would give {peak / operations:.0f}"
            f" images/s, {peak / operations / baseline:.2f}x the plain loop, if all the rest took no time.",
        ],
    )
    return [table]


@contextmanager
def cifar_folder(name: str) -> Iterator[Path | None]:
    """Where the files of "cifar-10" or "cifar-100" are: named by the environment, unpacked for now, or nowhere."""
    unpack = ROOT.parent / "shared" / "data" / "unpack"
    if os.environ.get("SREPR_TEST_DATA"):
        yield Path(os.environ["SREPR_TEST_DATA"])
    elif unpack.exists():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, unpack, folder, name], check=True, stdout=subprocess.DEVNULL)
            yield Path(folder)
    else:
        yield None


def operations_per_image() -> float:
    """Floating-point operations of convolutions and products, forward and backward, for one image."""
    with FlopCounterMode(display=False) as counter:
        plain.resnet(CLASSES)(torch.zeros(2, 3, 32, 32)).sum().backward()
    return float(counter.get_total_flops()) / 2


def matrix_product_rate() -> float:
    """Operations per second of a large float32 matrix product, the best of many."""
    side = 1024
    a, b = torch.randn(side, side), torch.randn(side, side)
    seconds = []
    for _ in range(50):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return float(2 * side**3 / min(seconds))


def images_per_second(name: str) -> float:
    """One variant, in this process."""
    size = STEPS * BATCH
    if os.environ["SREPR_TEST_DATA"]:
        train = load("cifar100-lt", data_dir=Path(os.environ["SREPR_TEST_DATA"])).train
        examples = train.subset(np.random.default_rng(0).permutation(len(train))[:size])
    else:
        rng = np.random.default_rng(0)
        pixels, labels = rng.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8), rng.integers(0, CLASSES, size)
        names = tuple(map(str, range(CLASSES)))
        examples = ArrayExamples(pixels, labels, names, (0.5,) * 3, (0.25,) * 3, padding=4, flip=True)
    assert isinstance(examples, ArrayExamples)
    if name.startswith("srepr"):
        return srepr_pace(examples, compile_network=name == "srepr-compile")

    dataset = plain.Cifar(np.ascontiguousarray(examples.inputs.transpose(0, 2, 3, 1)), examples.labels)
    workers = 2 if name == "plain-workers" else 0
    return plain.images_per_second(dataset, classes=CLASSES, batch_size=BATCH, workers=workers, epochs=EPOCHS)


def srepr_pace(examples: ArrayExamples, *, compile_network: bool) -> float:
    """The last epoch's images per second in the log of a real stage 1."""
    settings = replace(settings_for("cifar100-lt"), epochs=EPOCHS, batch_size=BATCH)
    machine = Machine(accelerator="cpu", compile=compile_network)
    fabric = open_fabric(machine)
    fabric.launch()
    network = build(settings.network, CLASSES).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory() as folder:
        for _ in train_representation(network, examples, settings, machine, fabric, Path(folder)):
            pass
        return float(read_log(Path(folder))[-1]["images_per_second"])


if __name__ == "__main__":
    print(images_per_second(sys.argv[1]))
