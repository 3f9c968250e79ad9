"""cRT on features of images that stage 1 has seen and on features of images that it has not, over the penalty.

python -m benchmarks.unseen RUN --data-dir D      RUN: a run on cifar10-lt, with --baseline; writes results/unseen.md

The paper's cRT on CIFAR10-LT is 7 points above ours on SGD. This looks for the difference in the data that the
classifier is solved on, with the network as it is:

plain       the training images without augmentation
augmented   one augmented view of them, as in `srepr retrain`
ten views   ten of them
unseen      other images of CIFAR-10, as many of each class; for class 0, which has no others, its training images
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.__main__ import RESULTS, about
from srepr.config import Retrain, Stage1
from srepr.data import load
from srepr.features import EpochFeatures
from srepr.methods import METHODS
from srepr.run.classifiers import Frozen, open_run
from srepr.solver import Problem

PENALTIES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
VIEWS = 10


def training_features(frozen: Frozen, data_dir: Path) -> dict[str, EpochFeatures]:
    """The features to solve on, by what they are of."""
    seen = load("cifar10-lt", data_dir=data_dir).train
    everything = load("cifar10-lt", data_dir=data_dir, imbalance=1.0).train
    known = {image.tobytes() for image in seen.inputs}
    other = np.array([image.tobytes() not in known for image in everything.inputs])
    rows = []
    for k, count in enumerate(seen.counts):
        left = np.flatnonzero((everything.labels == k) & other)
        rows.append(left[:count] if len(left) else np.flatnonzero(everything.labels == k))
    unseen = everything.subset(np.concatenate(rows))
    print("unseen images of each class:", np.bincount(unseen.labels).tolist())
    one = Retrain(samples=1)

    def features(part, representation, settings, *, augment):
        return frozen.features(part, representation, settings, augment=augment).epoch(0)

    return {
        "plain": features(seen, "deterministic", one, augment=False),
        "augmented": features(seen, "deterministic", one, augment=True),
        "ten views": features(seen, "augment", Retrain(samples=VIEWS), augment=True),
        "unseen": features(unseen, "deterministic", one, augment=False),
    }


def accuracies(frozen: Frozen, features: EpochFeatures, test: EpochFeatures) -> list[float]:
    """Test accuracy of cRT for each penalty."""
    counts = np.bincount(features.labels).tolist()
    problem = Problem(features, counts, METHODS["crt"].balance)
    labels, found, start = torch.from_numpy(test.labels), [], None
    for penalty in PENALTIES:
        start = problem.solve(penalty=penalty, start=start)
        with torch.no_grad():
            right = problem.linear(start)(torch.tensor(test.mean)).argmax(1) == labels
        found.append(right.float().mean().item())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    arguments = parser.parse_args()
    run = open_run(arguments.run, data_dir=arguments.data_dir, quiet=True)
    networks: tuple[Stage1, ...] = ("sgd", "swa")
    lines = [f"| network | cRT on | {' | '.join(map(str, PENALTIES))} |", "|" + "---|" * (2 + len(PENALTIES))]
    for name in networks:
        frozen = run.networks[name]
        test = frozen.features(run.part, "deterministic", Retrain(samples=1), augment=False).epoch(0)
        for kind, features in training_features(frozen, arguments.data_dir).items():
            cells = [f"{100 * accuracy:.2f}" for accuracy in accuracies(frozen, features, test)]
            lines.append(f"| {name.upper()} | {kind} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    facts = about("unseen") | {"command": "python -m benchmarks.unseen results/runs/cifar10-lt --data-dir D"}
    text = "\n".join([*lines, "", *(f"- {fact}: {value}" for fact, value in facts.items()), ""])
    (RESULTS / "unseen.md").write_text(f"""# cRT on images that stage 1 has not seen

Test accuracy in per cent of exact cRT on CIFAR10-LT, by penalty and by what the classifier is solved on. The test
images choose nothing here: all penalties are shown. What the rows mean is in `benchmarks/unseen.py`.

{text}""")


if __name__ == "__main__":
    main()
