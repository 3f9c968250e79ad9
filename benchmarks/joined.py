"""What it brings to train the head on the validation set as well, once the choice is made on it.

python -m benchmarks.joined cifar100-lt cifar10-lt --data-dir D      writes results/joined.md

On the reference runs, with the methods la and crt. The images of the training part of CIFAR that a run has not seen
are dealt anew by each seed: as many as a tenth of each class for validation, and up to 200 others of the class to
measure on, where it has so many. The test part is not read.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.__main__ import RESULTS, about
from benchmarks.own_data import scores
from srepr.config import Retrain
from srepr.data import load
from srepr.features import Given
from srepr.methods import METHODS
from srepr.retraining import retrain_head
from srepr.run.classifiers import open_run

SEEDS = range(5)


def measured(name: str, data_dir: Path) -> list[str]:
    """A line of the table for each seed."""
    frozen = open_run(RESULTS / "runs" / name, data_dir=data_dir, quiet=True).networks["swa"]
    seen = load(name, data_dir=data_dir).train
    everything = load(name, data_dir=data_dir, imbalance=1.0).train
    known = {image.tobytes() for image in seen.inputs}
    other = np.flatnonzero([image.tobytes() not in known for image in everything.inputs])
    train, unseen = (
        frozen.features(part, "deterministic", Retrain(samples=1), augment=augment).epoch(0)
        for part, augment in ((seen, True), (everything.subset(other), False))
    )
    methods = {method: METHODS[method] for method in ("la", "crt")}
    lines = []
    for seed in SEEDS:
        held, measure = deal(unseen.labels, seen.counts, seed)
        validation = Given(unseen.mean[held], unseen.labels[held])
        cells = []
        for joining in (None, validation):
            source = Given(train.mean, train.labels)
            made = retrain_head(
                source, frozen.layer, seen.counts, methods, Retrain(), held=validation.epoch(0), joining=joining
            )
            with torch.no_grad():
                probabilities = made.head(torch.tensor(unseen.mean[measure])).double().softmax(1).numpy()
            found = scores(probabilities, unseen.labels[measure])
            cells.append(f"{100 * found['balanced_acc']:.2f} | {found['nll']:.3f} | {found['ece']:.3f}")
        lines.append(f"| {name} | {seed} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def deal(labels: np.ndarray, counts: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images for validation, and images to measure on."""
    chance = np.random.default_rng(seed)
    held, measure = [], []
    for k, count in enumerate(counts):
        members = chance.permutation(np.flatnonzero(labels == k))
        size = max(1, round(0.1 * count))
        if len(members) >= size + 10:
            held.append(members[:size])
            measure.append(members[size : size + 200])
    return np.concatenate(held), np.concatenate(measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=("cifar100-lt", "cifar10-lt"))
    parser.add_argument("--data-dir", type=Path, required=True)
    arguments = parser.parse_args()
    titles = "| set | seed | accuracy, apart | NLL | ECE | accuracy, joined | NLL | ECE |"
    lines = [titles, "|---|---|---|---|---|---|---|---|"]
    for name in arguments.names:
        lines += measured(name, arguments.data_dir)
    facts = about("joined") | {"command": f"python -m benchmarks.joined {' '.join(arguments.names)} --data-dir D"}
    lines += ["", *(f"- {fact}: {value}" for fact, value in facts.items())]
    (RESULTS / "joined.md").write_text(
        """# The validation set as training data of the head

Heads of `auto` on the reference runs, solved on the training images alone (apart) and, with the same penalty and
calibration, on the training and the validation images (joined). Measured on other images of CIFAR's training part; no
test image was read. Every class counts the same. What the seeds draw is in `benchmarks/joined.py`.

"""
        + "\n".join([*lines, ""])
    )


if __name__ == "__main__":
    main()
