"""A network that was trained without srepr, before and after `srepr.collect` + `srepr.retrain`, on real CIFAR10-LT.

python -m benchmarks.collect --data-dir D [--epochs 30] [--seeds 1]      writes results/collect.json and .md

The network, its data pipeline and its loop are those of benchmarks.plain: eager PyTorch that knows nothing of srepr.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import srepr
from benchmarks.__main__ import RESULTS, processor
from benchmarks.plain import MEAN, STD, Cifar, resnet
from srepr.run.folder import provenance

LR, BATCH, LAYERS = 0.1, 128, 14
COLUMNS = {"acc": "All", "frequent": "Frequent half", "rare": "Rare half", "nll": "NLL", "ece": "ECE"}


def train(loader: DataLoader[Any], epochs: int) -> nn.Module:
    """The loop that is there already: SGD on a cosine."""
    model = resnet(10, (LAYERS - 2) // 6)
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4, nesterov=True)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, epochs * len(loader))
    for epoch in range(epochs):
        model.train()
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            cosine.step()
        print(f"epoch {epoch + 1}/{epochs}  loss of the last batch {loss.item():.3f}", flush=True)
    return model.eval()


def measured(model: nn.Module, test: Any, counts: Any) -> dict[str, float]:
    result = srepr.evaluate(model, test, counts)
    frequent, rare = np.split(np.array(result["per_class"]), 2)  # the classes of CIFAR10-LT come by falling count
    return {**{key: result[key] for key in ("acc", "nll", "ece")}, "frequent": frequent.mean(), "rare": rare.mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    table = []
    for seed in range(arguments.seeds):
        data = srepr.data.load("cifar10-lt", data_dir=arguments.data_dir, seed=seed)
        random.seed(seed)
        torch.manual_seed(seed)
        images = data.train.inputs.transpose(0, 2, 3, 1)
        loader = DataLoader(Cifar(images, data.train.labels), batch_size=BATCH, shuffle=True, drop_last=True)
        pixels = torch.from_numpy(data.test.inputs).float().div(255).sub(MEAN).div(STD)
        test = (pixels, data.test.labels)

        began = time.monotonic()
        model = train(loader, arguments.epochs)
        trained = time.monotonic()
        posterior = srepr.collect(model, loader, epochs=10, lr=LR / 10, seed=seed)
        collected = time.monotonic()
        finished = srepr.retrain(posterior, loader, "srepr", solver="sgd", seed=seed, quiet=False)
        ended = time.monotonic()
        steps = {"as trained": (model, trained - began), "+ collect + retrain": (finished, ended - trained)}
        for name, (network, seconds) in steps.items():
            row = {"step": name, "seed": seed, **measured(network, test, data.counts), "seconds": round(seconds, 1)}
            table.append(row)
            print(row, flush=True)
        print(f"collect took {collected - trained:.0f} s", flush=True)

    command = f"python -m benchmarks.collect --data-dir D --epochs {arguments.epochs} --seeds {arguments.seeds}"
    about = {"command": command, "machine": processor(), "threads": torch.get_num_threads()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "collect.json").write_text(json.dumps({"about": about, "rows": table}, indent=1) + "\n")
    lines = [f"| | seed | {' | '.join(COLUMNS.values())} | seconds |", "|---" * (len(COLUMNS) + 3) + "|"]
    for row in table:
        cells = [f"{row[key]:.3f}" if key in ("nll", "ece") else f"{100 * row[key]:.2f}" for key in COLUMNS]
        lines.append("| " + " | ".join([row["step"], str(row["seed"]), *cells, f"{row['seconds']:.0f}"]) + " |")
    versions = ", ".join(f"{package} {version}" for package, version in provenance()["versions"].items())
    text = f"""# A network trained without srepr, repaired

CIFAR10-LT, ResNet-{LAYERS} of benchmarks/plain.py, {arguments.epochs} epochs of plain SGD; then `srepr.collect` (10
epochs at a tenth of the first rate) and `srepr.retrain` with weight decay 5e-4. Frequent and rare half: mean accuracy
over the five classes with the most and with the fewest training images.

{chr(10).join(lines)}

- command: `{command}`
- machine: {processor()}, {torch.get_num_threads()} thread(s); {versions}
"""
    (RESULTS / "collect.md").write_text(text)


if __name__ == "__main__":
    main()
