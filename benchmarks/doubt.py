"""Which number to doubt a prediction by: errors, inputs of another kind, and what rejection does to rare classes.

python -m benchmarks.sets fetch                       once
python -m benchmarks.doubt --data-dir D --cache C     writes results/doubt.json and .md

D has both CIFARs. Logits and features are kept in the folder C, so an interrupted measurement goes on there. The
models are `srepr.retrain` on the sets of results/own-data.md, in the same splits, and the head `auto` of the runs in
results/runs. Everything is chosen on held-out rows of the training parts (cross-validation), and on training images of
the CIFARs that the runs did not see. The test parts measure what was chosen.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import srepr
from benchmarks import verdict
from benchmarks.__main__ import RESULTS, about
from benchmarks.sets import SETS, Set, splits
from srepr import dirichlet
from srepr.data.longtail import groups
from srepr.decisions import doubt
from srepr.decisions.rejection import most_doubtful, risk_coverage
from srepr.models.fold import fold_batchnorm
from srepr.models.split import feature_extractor
from srepr.objective import LARGEST_EXPONENT
from srepr.run import checkpoints
from srepr.storage.files import write_json

Array = np.ndarray
PLAIN, FORMER, DEFAULT, ENERGY = "1 - max p", "without classes", "doubt", "energy"
TEMPERATURE = 20.0
OTHER = {"cifar100-lt": "cifar10-lt", "cifar10-lt": "cifar100-lt"}
UNSEEN, UNSEEN_OTHER, SYNTHETIC = 6000, 3000, 1000
BATCH = 64


def information(logits: Tensor, temperature: float) -> Tensor:
    return dirichlet.mutual_information((logits / temperature).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp())


CANDIDATES: dict[str, Callable[[Tensor], Tensor]] = {
    PLAIN: lambda z: doubt.doubt(z.softmax(1)),
    "margin": lambda z: 1 - z.softmax(1).topk(2).values.diff(dim=1)[:, 0].abs(),
    "entropy": lambda z: torch.special.entr(z.softmax(1)).sum(1),
    "max logit": lambda z: -z.amax(1),
    ENERGY: lambda z: -z.logsumexp(1),
    "MI, T = 20": lambda z: information(z, TEMPERATURE),
    "MI, T = 1": lambda z: information(z, 1.0),
}
"""Functions of the logits; MI is the mutual information of Dir(exp(z / T)), at T = 20 the uncertainty until 0.1."""


# What is measured on


def own_logits(data: Set, seed: int, cache: Path) -> dict[str, Array]:
    """Logits and labels of the test rows, and of the training rows in the folds of the cross-validation."""
    file = cache / "own" / f"retrain-{data.name}-{seed}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        (X, y), (X_test, y_test) = splits(data, seed)
        if data.kind == "table":
            scaler = StandardScaler().fit(X)
            X, X_test = scaler.transform(X), scaler.transform(X_test)
        torch.manual_seed(seed)
        layer = torch.nn.Linear(X.shape[1], int(y.max()) + 1)
        model = srepr.retrain(layer, (torch.from_numpy(X).float(), torch.from_numpy(y)))
        with torch.no_grad():
            logits = model(torch.from_numpy(X_test).float()).numpy()
        held = {"held": model.held.logits.numpy(), "held_y": model.held.labels.numpy()}
        np.savez(file, z=logits, y=y_test, **held)
    return dict(np.load(file))


def features_of(name: str, data_dir: Path, cache: Path) -> dict[str, Array]:
    """Features of the run's averaged network, by what they are of, with labels NAME_y."""
    file = cache / f"{name}.npz"
    if file.exists():
        return dict(np.load(file))
    network, described = checkpoints.load_model(RESULTS / "runs" / name / "representation.safetensors")
    body = fold_batchnorm(feature_extractor(network, described.classifier)).to(memory_format=torch.channels_last)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (described.mean, described.std))

    def seen_by_network(images: Tensor) -> Array:
        with torch.inference_mode():
            parts = [body(part.contiguous(memory_format=torch.channels_last)) for part in images.split(BATCH)]
        return torch.cat(parts).numpy()

    chance = np.random.default_rng(0)
    own, full = (srepr.data.load(name, data_dir=data_dir, **change) for change in ({}, {"imbalance": 1.0}))
    known = {image.tobytes() for image in own.train.inputs}
    unseen = np.flatnonzero([image.tobytes() not in known for image in full.train.inputs])
    other = srepr.data.load(OTHER[name], data_dir=data_dir, imbalance=1.0)
    parts = {
        "rest": (full.train, chance.permutation(unseen)[:UNSEEN]),
        "other_rest": (other.train, chance.permutation(len(other.train))[:UNSEEN_OTHER]),
        "train": (own.train, np.arange(len(own.train))),
        "test": (own.test, np.arange(len(own.test))),
        "other_test": (other.test, np.arange(len(other.test))),
    }
    found: dict[str, Array] = {"counts": np.array(described.counts)}
    for part, (examples, rows) in parts.items():
        images = examples.load(rows)
        found |= {part: seen_by_network(images), f"{part}_y": examples.labels[rows]}
        if part in ("rest", "test"):
            generator = torch.Generator().manual_seed(0)
            pixels = [torch.randperm(1024, generator=generator) for _ in range(SYNTHETIC)]
            some = [image.flatten(1)[:, order].view(3, 32, 32) for image, order in zip(images, pixels, strict=False)]
            found[f"{part}_scrambled"] = seen_by_network(torch.stack(some))
    generator = torch.Generator().manual_seed(1)
    for kind, size in {"blank": 1, "noise": 32}.items():
        images = torch.rand(SYNTHETIC, 3, size, size, generator=generator).expand(-1, -1, 32, 32)
        found[kind] = seen_by_network((images - mean) / std)
    np.savez(file, **found)
    return found


# How it is measured


def auroc(positive: Array, negative: Array) -> float:
    """P(a positive has the larger number), equal ones half."""
    ranks = rankdata(np.concatenate([positive, negative]))[: len(positive)]
    return float((ranks.sum() - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative)))


def fpr95(strange: Array, known: Array) -> float:
    """The share of strange inputs that are accepted at the threshold that accepts 95 % of the known ones."""
    return float((strange <= np.quantile(known, 0.95)).mean())


def judged(doubts: dict[str, Array], wrong: Array) -> dict[str, dict[str, float]]:
    return {
        name: {"AUROC": auroc(d[wrong], d[~wrong]), "AURC": risk_coverage(d, wrong).area} for name, d in doubts.items()
    }


def by_logits(logits: Array) -> dict[str, Array]:
    z = torch.from_numpy(logits).double()
    return {name: measure(z).numpy() for name, measure in CANDIDATES.items()}


class Images:
    """A CIFAR run: its head, what its features look like, and the doubts of images by any candidate."""

    def __init__(self, name: str, features: dict[str, Array], known: Array, labels: Array) -> None:
        head = checkpoints.load_head(RESULTS / "runs" / name / "heads" / "auto.safetensors")
        assert isinstance(head, torch.nn.Linear)
        self.head, self.features = head, features
        given = (features["train"], features["train_y"], known, labels, self.logits(known))
        trained, trained_labels, x, y, z = map(torch.from_numpy, given)
        relative = doubt.fit_relative(trained, trained_labels, x, y, z.softmax(1))
        self.familiar = doubt.fit(x)._replace(relative=relative)
        self.centres = np.stack([known[labels == k].mean(0) for k in np.unique(labels)])
        within = known - self.centres[np.searchsorted(np.unique(labels), labels)]
        variances, axes = np.linalg.eigh(np.cov(within.T))
        self.whiten = axes / np.sqrt(variances.clip(variances.max() * 1e-6))

    def logits(self, features: Array) -> Array:
        with torch.no_grad():
            return self.head(torch.from_numpy(features)).double().numpy()

    def doubts(self, features: Array) -> dict[str, Array]:
        z = self.logits(features)
        excess = self.familiar.excess(torch.from_numpy(features))
        x, centres = features @ self.whiten, self.centres @ self.whiten
        nearest = ((x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)).min(1)
        p, x = torch.from_numpy(z).softmax(1), torch.from_numpy(features)
        former, combined = doubt.doubt(p, excess).numpy(), self.familiar.doubt(p, x).numpy()
        direct = {"class means": nearest, "direction": excess.numpy()}
        return {**by_logits(z), **direct, FORMER: former, DEFAULT: combined}

    def wrong(self, features: Array, labels: Array) -> Array:
        return self.logits(features).argmax(1) != labels


def settings(name: str, features: dict[str, Array]) -> Iterator[dict[str, Any]]:
    """Each setting on unseen training images: one half is known, the other half and strange images are judged."""
    half = UNSEEN // 2
    known, labels = features["rest"], features["rest_y"]
    run = Images(name, features, known[:half], labels[:half])
    kept = doubt.STEEPNESS, doubt.ENTROPY
    parts = {"errors": known[half:], "other": features["other_rest"], "scrambled": features["rest_scrambled"]}
    given = {
        part: (torch.from_numpy(run.logits(x)).softmax(1), run.familiar.excess(torch.from_numpy(x)))
        for part, x in parts.items()
    }
    wrong = run.wrong(known[half:], labels[half:])
    for steepness, entropy in product((8, 16, 32), (0.0, 0.1, 0.2, 0.5)):
        doubt.STEEPNESS, doubt.ENTROPY = steepness, entropy
        row: dict[str, Any] = {"run": name, "steepness": steepness, "entropy": entropy}
        for which in (PLAIN, DEFAULT):
            doubts = {part: doubt.doubt(p, None if which == PLAIN else s).numpy() for part, (p, s) in given.items()}
            inside = doubts.pop("errors")
            row[f"errors, {which}"] = auroc(inside[wrong], inside[~wrong])
            row |= {f"{part}, {which}": auroc(d, inside) for part, d in doubts.items()}
        yield row
    doubt.STEEPNESS, doubt.ENTROPY = kept


def weights(name: str, features: dict[str, Array]) -> Iterator[dict[str, Any]]:
    """Weight and limit of the relative distance, on the same images, and with few known ones in the training mix."""
    half, counts = UNSEEN // 2, features["counts"]
    known, labels = features["rest"][:half], features["rest_y"][:half]
    own = [np.flatnonzero(labels == k) for k in range(len(counts))]
    few = np.concatenate([rows[: round(count / 10)] for rows, count in zip(own, counts, strict=True)])
    judged_on, truth = features["rest"][half:], features["rest_y"][half:]
    parts = {"other": features["other_rest"], "scrambled": features["rest_scrambled"]}
    kept = doubt.WEIGHT, doubt.WITHIN
    for rows, weight, within in product((np.arange(half), few), (0.2, 0.3, 0.4), (0.6, 0.7, 0.8)):
        doubt.WEIGHT, doubt.WITHIN = weight, within
        run = Images(name, features, known[rows], labels[rows])
        wrong, inside = run.wrong(judged_on, truth), run.doubts(judged_on)
        row: dict[str, Any] = {"run": name, "known": len(rows), "weight": weight, "within": within}
        for which in (PLAIN, FORMER, DEFAULT):
            row[f"errors, {which}"] = auroc(inside[which][wrong], inside[which][~wrong])
            row |= {f"{part}, {which}": auroc(run.doubts(x)[which], inside[which]) for part, x in parts.items()}
        yield row
    doubt.WEIGHT, doubt.WITHIN = kept


def rejected(run: Images) -> Iterator[dict[str, Any]]:
    """What is left of many, medium and few classes if a share of the test images is rejected, and how wrong it is."""
    features, labels = run.features["test"], run.features["test_y"]
    doubts, predicted = run.doubts(features)[DEFAULT], run.logits(features).argmax(1)
    wrong = predicted != labels
    member = {"all": np.ones(len(labels), bool)}
    for group, classes in groups(run.features["counts"]).items():
        member[group] = classes[labels]
    for share, by_class in product((0.0, 0.1, 0.2, 0.3), (False, True)):
        if share or not by_class:
            out = most_doubtful(doubts, predicted, share, by_class=by_class).numpy() if share else np.zeros_like(wrong)
            row: dict[str, Any] = {"rejected": share, "by class": "yes" if by_class else "no"}
            for group, own in member.items():
                values = ((~out[own]).mean(), wrong[own & ~out].mean()) if own.any() else ("-", "-")
                row |= dict(zip((f"{group} kept", f"{group} wrong"), values, strict=True))
            yield row


# How it is told


def table(titles: list[str], rows: list[list[Any]]) -> str:
    cells = [[f"{cell:.4f}" if isinstance(cell, float | np.floating) else str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *cells))


def markdown(found: dict[str, Any]) -> str:
    facts = "\n".join(f"- {name}: {value}" for name, value in found["about"].items())
    own, names = found["own"], list(CANDIDATES)
    sets = list(dict.fromkeys(row["set"] for row in own))

    def mean(which: str, part: str, name: str, measure: str) -> float:
        return float(np.mean([row[part][name][measure] for row in own if row["set"] == which]))

    def ratio(part: str, name: str) -> float:
        ours = [mean(s, part, name, "AURC") / mean(s, part, PLAIN, "AURC") for s in sets]
        judged_on = [numbers["held" if part == "held" else "errors"] for numbers in found["images"].values()]
        return float(np.mean([*ours, *(run[name]["AURC"] / run[PLAIN]["AURC"] for run in judged_on)]))

    ratios = [[name, ratio("held", name), ratio("test", name)] for name in names]
    errors = {
        measure: [[s, *(mean(s, "test", name, measure) for name in names)] for s in sets]
        for measure in ("AUROC", "AURC")
    }
    images = found["images"]
    candidates = list(images["cifar100-lt"]["errors"])
    runs = [
        [run, kind, *(part[name][measure] for name in candidates)]
        for run, numbers in images.items()
        for kind, part, measure in [
            ("errors, AUROC", numbers["errors"], "AUROC"),
            ("errors, AURC", numbers["errors"], "AURC"),
            *((f"{kind}, {m}", part, m) for kind, part in numbers["strange"].items() for m in ("AUROC", "FPR95")),
        ]
    ]
    chosen = [list(row.values()) for row in found["settings"]]
    groups_ = [[run, *row.values()] for run, numbers in images.items() for row in numbers["rejected"]]
    pair = [(run, numbers["strange"]["other CIFAR"]) for run, numbers in images.items()]
    better = all(part[DEFAULT]["AUROC"] > part[PLAIN]["AUROC"] for _, part in pair)
    shown = "; ".join(f"{run} {part[DEFAULT]['AUROC']:.4f} and {part[PLAIN]['AUROC']:.4f}" for run, part in pair)
    pairs = {run: [numbers["errors"][name]["AUROC"] for name in (DEFAULT, PLAIN)] for run, numbers in images.items()}
    ranks = all(ours >= plain for ours, plain in pairs.values())
    ranked = "; ".join(f"{run} {ours:.4f} and {plain:.4f}" for run, (ours, plain) in pairs.items())
    best = min(ratios, key=lambda row: row[1])
    lowest = f"of the functions of the logits, {PLAIN} has the lowest AURC on held-out rows"
    verdicts = [
        verdict(lowest, f"{best[0]} has {best[1]:.4f} of it", kept=best[0] == PLAIN),
        verdict(f"on the own sets the default ranks errors as well as {PLAIN}", f"it is {PLAIN} there", kept=True),
        verdict(f"the doubt ranks errors of the CIFAR runs as well as {PLAIN}", ranked, kept=ranks),
        verdict(f"the doubt tells the other CIFAR apart better than {PLAIN}", shown, kept=better),
    ]
    return f"""# When to doubt a prediction

{facts}

Errors: AUROC, the chance that a wrong prediction has the larger doubt than a right one, and AURC, the mean error rate
over all shares of rejected inputs (lower is better). Strange inputs: AUROC, the chance that one has the larger doubt
than a test image, and FPR95, the share of them that is accepted where 95 % of the test images are.

## Functions of the logits

The mean over the sets of own-data.md and the two CIFAR runs of AURC, divided by that of 1 - max p. Held-out rows and
unseen training images, on which the choice was made, and test rows; the sets in the splits of the seeds
{found["seeds"]}.

{table(["candidate", "held-out", "test"], ratios)}

AUROC for errors on the test rows of the sets. A linear model on given vectors has no features to watch: its doubt is
1 - max p.

{table(["set", *names], errors["AUROC"])}

AURC on the test rows.

{table(["set", *names], errors["AURC"])}

## The CIFAR runs

Test images, and strange ones: those of the other CIFAR's test set; {SYNTHETIC} test images with their pixels in
random order; {SYNTHETIC} of one colour each; {SYNTHETIC} of noise. `class means` is the Mahalanobis distance of the
features to the nearest class mean, `direction` is s / t of `srepr.decisions.doubt`, `doubt` the default,
`without classes` that of a run without a relative distance. They are fitted to the features of {UNSEEN:,} training
images that the runs did not see, as to those of a validation set.

{table(["run", "measured", *candidates], runs)}

Steepness and weight of the entropy, on unseen training images: {UNSEEN // 2:,} are known, {UNSEEN // 2:,} judged,
beside {UNSEEN_OTHER:,} training images of the other CIFAR and scrambled ones.
Chosen: {doubt.STEEPNESS} and {doubt.ENTROPY}.

A first measurement had a steepness of 16; this table led to 32. The limit of one in 500, the features' direction and
the entropy were chosen before, on the same unseen images and on the blank ones and noise above, among 1 in 100, 200
and 500, four forms of the features, and six functions of the logits.

{table(list(found["settings"][0]), chosen)}

Weight of the relative distance and largest variance within the classes. The same images are known, or few of them: a
tenth of the training counts, as in a validation set, where so many are unseen. Class means are those of the training
images. Chosen: {doubt.WEIGHT} and {doubt.WITHIN}, where on unseen images errors and the other CIFAR are ranked better
than by 1 - max p in both situations, and scrambled images no worse than without the classes.

Class means of the unseen images instead, whose labels the network never saw, rank errors better if there are thousands
of them (CIFAR100-LT .791, 1 - max p .787), but worse if there are as few as in a validation set (.778, .782). On the
frozen features of EfficientNet-Lite0 (CIFAR10-LT, three classes left out, half of the training images judged) the
relative distance is worse for a logistic regression: AUROC for errors .88 (1 - max p: .91), for the classes left out
.75 (.80). So there the doubt has no classes. These numbers are from an experiment that this command does not repeat.

{table(list(found["weights"][0]), [list(row.values()) for row in found["weights"]])}

## Rejection by class frequency

What is kept of each group of the test images, and the error rate there. `by class` rejects the same share of each
predicted class.

{table(["run", *images["cifar100-lt"]["rejected"][0]], groups_)}

""" + "".join(f"- {line}\n" for line in verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "doubt.json")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.doubt --data-dir D --cache C --seeds {arguments.seeds}"
    found: dict[str, Any] = {
        "about": about("doubt") | {"command": command},
        "own": [],
        "images": {},
        "settings": [],
        "weights": [],
    }
    found["seeds"] = f"0 to {arguments.seeds - 1}" if arguments.seeds > 1 else "0"
    for data, seed in product((data for data in SETS if not data.development), range(arguments.seeds)):
        logits = own_logits(data, seed, arguments.cache)
        pairs = {"held": (logits["held"], logits["held_y"]), "test": (logits["z"], logits["y"])}
        row = {part: judged(by_logits(z), z.argmax(1) != y) for part, (z, y) in pairs.items()}
        found["own"].append({"set": data.name, "seed": seed, **row})
    for name in OTHER:
        features = features_of(name, arguments.data_dir, arguments.cache)
        found["settings"] += settings(name, features)
        found["weights"] += weights(name, features)
        run = Images(name, features, features["rest"], features["rest_y"])
        inside = run.doubts(features["test"])
        kinds = {"other CIFAR": "other_test", "scrambled": "test_scrambled", "blank": "blank", "noise": "noise"}
        strange = {
            kind: {
                candidate: {"AUROC": auroc(d, inside[candidate]), "FPR95": fpr95(d, inside[candidate])}
                for candidate, d in run.doubts(features[part]).items()
            }
            for kind, part in kinds.items()
        }
        errors = judged(inside, run.wrong(features["test"], features["test_y"]))
        held = judged(by_logits(run.logits(features["rest"])), run.wrong(features["rest"], features["rest_y"]))
        numbers = {"held": held, "errors": errors, "strange": strange, "rejected": list(rejected(run))}
        found["images"][name] = numbers
    write_json(arguments.out, found)
    arguments.out.with_suffix(".md").write_text(markdown(found))


if __name__ == "__main__":
    main()
