"""Stage 2: what keeping the features saves, what it costs in quality, and how much memory it needs.

    python -m benchmarks.stage2 cost       wall-clock of SRepr and of a second head against a plain on-the-fly cRT
    python -m benchmarks.stage2 quality    kept features against fresh draws and views in every epoch, three seeds
    python -m benchmarks.stage2 memory     one epoch on a made-up cache of the size of ImageNet-LT

The network is the SWA network of the run folder in SREPR_BENCH_RUN, a stage 1 on CIFAR10-LT; without one, a stage 1
of a few epochs is trained first.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Table, verdict
from benchmarks.throughput import ROOT, cifar_folder

EPOCHS, SEEDS = 10, (0, 1, 2)
QUALITY_EPOCHS = 3
SHORT_STAGE_1 = 6
IMAGENET_LT, LENGTH, SAMPLES, CLASSES = 115_846, 2048, 10, 1000


def measure() -> list[Table]:
    """Every part in a process of its own."""
    tables = []
    with cifar_folder("cifar-10") as folder, tempfile.TemporaryDirectory() as scratch:
        run = os.environ.get("SREPR_BENCH_RUN") or stage_1(folder, Path(scratch) / "run")
        environment = {**os.environ, "SREPR_BENCH_RUN": str(run), "SREPR_TEST_DATA": str(folder)}
        for part in ("cost", "quality", "memory"):
            command = [sys.executable, "-m", "benchmarks.stage2", part]
            child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
            tables.append(Table(**json.loads(child.stdout.splitlines()[-1])))
    return tables


def stage_1(folder: Path | None, out: Path) -> Path:
    """A short stage 1 to measure on."""
    if folder is None:
        raise SystemExit("benchmarks.stage2 needs CIFAR-10: set SREPR_TEST_DATA to the folder of its binary files")
    from srepr.config import settings_for
    from srepr.run.train import train

    train(replace(settings_for("cifar10-lt"), epochs=SHORT_STAGE_1), out, data_dir=folder)
    return out


def frozen(run: Path, scratch: Path, workers: int = 0) -> tuple[Any, Any]:
    """The run's network with an empty cache, and its data."""
    from srepr.run.classifiers import open_network
    from srepr.run.folder import load_run_data

    (scratch / "heads").mkdir(parents=True)
    data = load_run_data(run, Path(os.environ["SREPR_TEST_DATA"]))
    return replace(open_network(run, "swa", workers=workers), run=scratch), data


def head_seconds(work: Any, data: Any, name: str, epochs: int = EPOCHS, **changes: Any) -> tuple[float, Any]:
    """Wall-clock of one head, features included, and the head."""
    from srepr.config import Retrain
    from srepr.methods import METHODS
    from srepr.retraining import train_head

    settings = Retrain(solver="sgd", epochs=epochs, batch_size=128, **changes)
    began = time.perf_counter()
    source = work.features(data.train, METHODS[name].representation, settings, augment=True)
    head = train_head(source, work.layer, work.about.counts, METHODS[name], settings)
    return time.perf_counter() - began, head


def plain_crt_seconds(work: Any, data: Any) -> float:
    """An ordinary cRT: balanced sampler, per-image transforms, the frozen network in eager NCHW in every epoch."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, WeightedRandomSampler

    from benchmarks import plain

    network = plain.resnet(len(data.class_names)).eval()
    body, classifier = network[:-1], network[-1]
    labels = data.train.labels
    dataset = plain.Cifar(np.ascontiguousarray(data.train.inputs.transpose(0, 2, 3, 1)), labels)
    sampler = WeightedRandomSampler((1 / np.bincount(labels))[labels], len(labels))
    loader = DataLoader(dataset, batch_size=128, sampler=sampler, drop_last=True)
    sgd = torch.optim.SGD(classifier.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    began = time.perf_counter()
    for _ in range(EPOCHS):
        for images, targets in loader:
            with torch.no_grad():
                features = body(images)
            loss = nn.functional.cross_entropy(classifier(features), targets)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    return time.perf_counter() - began


def described(run: Path) -> str:
    """The stage 1 of a run in a few words."""
    from srepr.run.folder import read_settings

    settings = read_settings(run)
    return f"{settings['source']}, {settings['network']}, {settings['epochs']} epochs of stage 1"


def cost() -> Table:
    """Wall-clock of ten epochs."""
    run = Path(os.environ["SREPR_BENCH_RUN"])
    seconds = {}
    with tempfile.TemporaryDirectory() as scratch:
        work, data = frozen(run, Path(scratch) / "run")
        seconds["plain on-the-fly cRT, eager NCHW"] = plain_crt_seconds(work, data)
        seconds["SRepr, features made and kept"], _ = head_seconds(work, data, "srepr")
        seconds["SRepr, features reused (another learning rate)"], _ = head_seconds(work, data, "srepr", lr=0.05)
        seconds["cRT, features reused"], _ = head_seconds(work, data, "crt")
    with tempfile.TemporaryDirectory() as scratch:
        work, data = frozen(run, Path(scratch) / "run")
        name = "SRepr, features made and kept, BatchNorm statistics of the averaged network"
        seconds[name], _ = head_seconds(work, data, "srepr", batchnorm="reuse")
    plain, first, second = list(seconds.values())[:3]
    return Table(
        title=f"Wall-clock of stage 2, {described(run)}, {EPOCHS} epochs",
        how="One process, one after the other; the ratio is to the plain cRT.",
        rows=[{"what": name, "seconds": value, "ratio": value / plain} for name, value in seconds.items()],
        verdicts=[
            verdict(
                "SRepr with its cache at most 0.6x a plain cRT", f"{first / plain:.2f}x", kept=first <= 0.6 * plain
            ),
            verdict("a second head under 5 % of the first", f"{second / first:.1%}", kept=second < 0.05 * first),
        ],
    )


def quality() -> Table:
    """Kept features against fresh ones."""
    run = Path(os.environ["SREPR_BENCH_RUN"])
    rows, means = [], {}
    for kind, changes in {"kept": {}, "on the fly": {"on_the_fly": True}}.items():
        results = []
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as scratch:
                work, data = frozen(run, Path(scratch) / "run")
                seconds, head = head_seconds(work, data, "srepr", QUALITY_EPOCHS, seed=seed, **changes)
                results.append({**work.measure(head, data.test).metrics, "seconds": seconds})
        means[kind] = {key: statistics.mean(result[key] for result in results) for key in ("acc", "nll", "ece")}
        for seed, result in zip(SEEDS, results, strict=True):
            numbers = {"acc": 100 * result["acc"], "nll": result["nll"], "ece": result["ece"]}
            rows.append({"features": kind, "seed": seed, **numbers, "seconds": result["seconds"]})
    points = 100 * (means["on the fly"]["acc"] - means["kept"]["acc"])
    nats = means["kept"]["nll"] - means["on the fly"]["nll"]
    return Table(
        title=f"SRepr from kept features and on the fly, {described(run)}, {QUALITY_EPOCHS} epochs",
        how="On the fly: ten fresh draws of the weights and a fresh view of the data in every epoch.",
        rows=rows,
        verdicts=[
            verdict("accuracy no worse than 0.2 points", f"{points:.2f} points lower", kept=points <= 0.2),
            verdict("NLL no worse than 0.01", f"{nats:.4f} higher", kept=nats <= 0.01),
        ],
    )


def memory() -> Table:
    """One epoch of SRepr on random features of the size of ImageNet-LT."""
    import torch

    from srepr.config import Retrain
    from srepr.features import EpochFeatures
    from srepr.methods import METHODS
    from srepr.retraining import train_head

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        arrays = []
        block = rng.standard_normal((4096, LENGTH), dtype=np.float32).astype(np.float16)
        for m in range(SAMPLES + 1):
            path = Path(folder) / f"{m}.bin"
            with path.open("wb") as file:
                for begin in range(0, IMAGENET_LT, len(block)):
                    file.write(np.roll(block, m, axis=1)[: IMAGENET_LT - begin].tobytes())
            arrays.append(np.memmap(path, np.float16, "r").reshape(IMAGENET_LT, LENGTH))
        labels = rng.integers(0, CLASSES, IMAGENET_LT)
        features = EpochFeatures(labels, arrays[1:], arrays[0])

        class Source:
            def epoch(self, number: int) -> EpochFeatures:
                return features

        began = time.perf_counter()
        settings = Retrain(solver="sgd", epochs=1, batch_size=256, lr=0.01)
        layer, counts = torch.nn.Linear(LENGTH, CLASSES), np.bincount(labels, minlength=CLASSES).tolist()
        train_head(Source(), layer, counts, METHODS["srepr"], settings, quiet=False)
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return Table(
        title=f"Memory of stage 2, {IMAGENET_LT:,} x {SAMPLES} x {LENGTH} features, float16, {CLASSES} classes",
        how="One epoch of SRepr, batch 256, on random features in files of 4.7 GB; the peak is the process's own.",
        rows=[{"what": "peak memory, GiB", "value": peak}, {"what": "seconds", "value": seconds}],
        verdicts=[verdict("under 3 GiB", f"{peak:.2f} GiB", kept=peak < 3)],
    )


if __name__ == "__main__":
    from dataclasses import asdict

    print(json.dumps(asdict({"cost": cost, "quality": quality, "memory": memory}[sys.argv[1]]())))
