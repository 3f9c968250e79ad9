"""The default penalty of the exact solver, found on held-out training rows: results/penalty.json and .md.

python -m benchmarks.penalty

Only development sets of `benchmarks.sets` take part, and of these only the training parts of seed 0. Frozen features
are the rows themselves, standardised, under five-fold cross-validation. Trained features come from a small network
that `srepr` trains on four fifths of the rows, with a posterior around it; the last fifth is held out. Each head is
compared with the best penalty of its method on that set by class-balanced NLL. Three more sets of trained features are
images, of which `--protocol holdout` keeps a tenth of the training part: the embedded digits and, where
SREPR_TEST_DATA has them, both CIFARs under a ResNet-8.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

import srepr
from benchmarks.__main__ import RESULTS, about
from benchmarks.sets import SETS, Set, present, splits
from srepr.anymodel.fit import begin, captured, optimizer_of
from srepr.config import Data, Optim, Retrain, default_penalty, first_capture, settings_for
from srepr.data import stratified_holdout
from srepr.features import Given
from srepr.methods import METHODS
from srepr.metrics import LongTailMetrics
from srepr.representation import plan
from srepr.run.retrain import retrain_run
from srepr.run.train import train
from srepr.selection import PENALTIES, class_weights, cross_validation, deterministic
from srepr.solver import Problem
from srepr.storage.files import write_json

EPOCHS = 40
IMAGE_EPOCHS = 20
Row = dict[str, str | float]


def rows_of(data: Set) -> tuple[np.ndarray, np.ndarray]:
    (X, y), _ = splits(data, 0)
    X = X if data.kind == "embeddings" else StandardScaler().fit_transform(X)
    return X.astype(np.float32), y


def frozen(data: Set) -> Iterator[Row]:
    """Each method and penalty under cross-validation of the rows."""
    X, y = rows_of(data)
    classes = int(y.max()) + 1
    folds, _ = cross_validation(Given(X, y).epoch(0), classes)
    for method in ("la", "crt"):
        starts = [None] * len(folds)
        problems = [
            Problem(
                deterministic(fold.train),
                np.bincount(y[fold.rows], minlength=classes).tolist(),
                METHODS[method].balance,
                rows=fold.rows,
            )
            for fold in folds
        ]
        for penalty in PENALTIES:
            starts = [
                problem.solve(penalty=penalty, start=start, tolerance=1e-4)
                for problem, start in zip(problems, starts, strict=True)
            ]
            logits = [
                problem.linear(solution)(torch.from_numpy(fold.features))
                for problem, solution, fold in zip(problems, starts, folds, strict=True)
            ]
            labels = np.concatenate([fold.labels for fold in folds])
            yield {"features": "frozen", "method": method, "penalty": penalty} | judged(torch.cat(logits), labels)


def trained(data: Set) -> Iterator[Row]:
    """Each method and penalty on the features of a network that was trained on the same rows."""
    X, y = rows_of(data)
    classes = int(y.max()) + 1
    kept, held = stratified_holdout(y, 0.2, seed=0)
    torch.manual_seed(0)
    network = srepr.models.mlp(classes, inputs=X.shape[1], width=256, dropout=0.1)
    start = begin(network, (X[kept], y[kept]), 64, None, 0)
    optim = Optim(lr=0.05, swa_lr=0.01)
    schedule = plan(EPOCHS, first_capture(0.75, EPOCHS))
    learning = optimizer_of(start.network, optim, None)
    loss = torch.nn.functional.cross_entropy
    posterior = captured(start, optim, schedule, loss, learning, seed=0, quiet=True, what="")
    for method in ("la", "crt", "srepr"):
        for penalty in PENALTIES:
            model = srepr.retrain(posterior, (X[kept], y[kept]), method, penalty=penalty)
            with torch.no_grad():
                logits = model(torch.from_numpy(X[held]))
            yield {"features": "trained", "method": method, "penalty": penalty} | judged(logits, y[held])


def images(source: str) -> Iterator[Row]:
    """Each method and penalty on the features of a ResNet-8 that was trained on the same images."""
    folder = os.environ.get("SREPR_TEST_DATA")
    recipe = settings_for(source)
    length = {} if source == "digits-lt" else {"epochs": IMAGE_EPOCHS, "network": "resnet8"}
    settings = replace(recipe, data=Data(protocol="holdout"), **length)
    methods = {f"{name}-{penalty}": (name, penalty) for name in ("la", "crt", "srepr") for penalty in PENALTIES}
    with TemporaryDirectory() as place:
        run = Path(place) / "run"
        train(settings, run, data_dir=None if folder is None else Path(folder), quiet=True)
        for label, (name, penalty) in methods.items():
            metrics = retrain_run(run, {label: METHODS[name]}, Retrain(penalty=penalty), quiet=True)[label]
            numbers = metrics["validation"]["views"]["equal"]
            found = {key: numbers[key] for key in ("balanced_acc", "nll", "ece")}
            yield {"features": "trained", "method": name, "penalty": penalty} | found


def judged(logits: torch.Tensor, labels: np.ndarray) -> Row:
    y = torch.from_numpy(labels)
    metrics = LongTailMetrics([1] * logits.shape[1])
    metrics.update(logits, y, class_weights(y) * len(y))
    found = metrics.compute()
    return {"balanced_acc": found["balanced_acc"], "nll": found["nll"], "ece": found["ece"]}


def excesses(found: list[Row]) -> dict[tuple[str, str, float], list[float]]:
    """By how much the NLL of each penalty is above that of the best one, on each set."""
    best: dict[tuple[str, str, str], float] = {}
    for row in found:
        key = str(row["set"]), str(row["features"]), str(row["method"])
        best[key] = min(best.get(key, np.inf), float(row["nll"]))
    excess = defaultdict(list)
    for row in found:
        key = str(row["set"]), str(row["features"]), str(row["method"])
        excess[str(row["features"]), str(row["method"]), float(row["penalty"])].append(float(row["nll"]) - best[key])
    return excess


def markdown(facts: dict[str, str], found: list[Row]) -> str:
    excess = excesses(found)
    kinds = sorted({key[:2] for key in excess})
    lines = ["| penalty | " + " | ".join(f"{method}, {features}" for features, method in kinds) + " | all |"]
    lines.append("|---" * (len(kinds) + 2) + "|")
    for penalty in PENALTIES:
        columns = [excess[features, method, penalty] for features, method in kinds]
        cells = [f"{mean(column):.3f} ({median(column):.3f})" for column in columns]
        lines.append(f"| {penalty:g} | " + " | ".join(cells) + f" | {mean(map(mean, columns)):.3f} |")
    sets = sorted({str(row["set"]) for row in found})
    about_it = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"""# The default penalty

Class-balanced NLL on held-out training rows above that of the best penalty of the same method on the same set: mean
(median) over {len(sets)} development sets, {", ".join(sets)}.
No test part was read; `benchmarks/penalty.py` says how the rows were held out.

No penalty suits all: features that the network was not trained on want a small one, those of a network that fits noisy
labels perfectly a large one. The default is used where there is no data to choose on, which is mostly after `srepr
train` on a benchmark of images. Of the networks for images here, la is best at 0.01 with 10 classes (digits-lt,
cifar10-lt) and at 0.003 with 100 (cifar100-lt), so the default is 0.03 / sqrt(K): {default_penalty(10):.4f} and
{default_penalty(100):.4f}.

{about_it}

""" + "\n".join([*lines, ""])


def main() -> None:
    facts = about("penalty") | {"command": "python -m benchmarks.penalty"}
    store = RESULTS / "penalty.json"
    found: list[Row] = json.loads(store.read_text())["rows"] if store.exists() else []
    for data in present(data for data in SETS if data.development):
        for measure in (frozen, trained):
            if any((row["set"], row["features"]) == (data.name, measure.__name__) for row in found):
                continue
            found += [{"set": data.name, **row} for row in measure(data)]
            write_json(store, {"about": facts, "rows": found})
            print(data.name, measure.__name__, flush=True)
    for source in ("digits-lt", "cifar10-lt", "cifar100-lt"):
        if source != "digits-lt" and "SREPR_TEST_DATA" not in os.environ:
            print(f"{source} is skipped: SREPR_TEST_DATA is not set.")
        elif not any(row["set"] == source for row in found):
            found += [{"set": source, **row} for row in images(source)]
            write_json(store, {"about": facts, "rows": found})
    (RESULTS / "penalty.md").write_text(markdown(facts, found))
    print(markdown(facts, found))


if __name__ == "__main__":
    main()
