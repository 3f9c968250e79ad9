"""srepr at its defaults on real long-tailed data, beside what people use today.

python -m benchmarks.sets fetch      once
python -m benchmarks.own_data        writes results/own-data.json and .md, and goes on where it was interrupted

NLL and ECE are class-balanced, as accuracy is: an example of a class with n test rows weighs 1 / n. The sets, the
splits and how the sets were chosen are in `benchmarks/sets.py`; no default was chosen on a set that is shown here.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from scipy.special import softmax
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

import srepr
from benchmarks import verdict
from benchmarks.__main__ import RESULTS, about
from benchmarks.sets import SETS, Set, present, splits
from srepr.integrations.sklearn import LongTailClassifier
from srepr.metrics import Column, LongTailMetrics
from srepr.storage.files import read_json, write_json

Array = np.ndarray
Row = dict[str, str | int | float]
Summary = dict[tuple[str, str], dict[str, tuple[float, float]]]
LARGE = 1e7  # numbers in the features


class Model(NamedTuple):
    """Class probabilities [N, K] of test rows, from training rows, their labels, the test rows and a seed."""

    predict: Callable[[Array, Array, Array, int], Array]
    standardized: bool = True
    """Tables come with each column scaled to mean 0 and variance 1; embeddings always come as they are."""


def retrained(X: Array, y: Array, X_test: Array, seed: int) -> Array:
    torch.manual_seed(seed)
    layer = torch.nn.Linear(X.shape[1], int(y.max()) + 1)
    better = srepr.retrain(layer, (torch.from_numpy(X).float(), torch.from_numpy(y)))
    return better.predict(torch.from_numpy(X_test).float()).probabilities.numpy()


def long_tail_classifier(X: Array, y: Array, X_test: Array, seed: int) -> Array:
    return LongTailClassifier(random_state=seed).fit(X, y).predict_proba(X_test)


def balanced_regression(X: Array, y: Array, X_test: Array, seed: int) -> Array:
    model = LogisticRegression(class_weight="balanced", max_iter=5000, random_state=seed)
    return model.fit(X, y).predict_proba(X_test)


def adjusted_regression(X: Array, y: Array, X_test: Array, seed: int) -> Array:
    """C of the best cross-validated log loss, then p(k | x) / p(k): post-hoc logit adjustment.

    With many long vectors, which would take hours, C is one of four, and a fifth of the examples stands for all.
    """
    folds: Any = StratifiedKFold(shuffle=True, random_state=seed)  # some tables are sorted
    strengths: Any = 10
    if X.size > LARGE:
        folds, strengths = StratifiedShuffleSplit(1, test_size=0.2, random_state=seed), (1e-3, 1e-2, 1e-1, 1.0)
    model = LogisticRegressionCV(
        Cs=strengths, cv=folds, scoring="neg_log_loss", max_iter=5000, l1_ratios=(0.0,), use_legacy_attributes=False
    )
    logs = np.log(model.fit(X, y).predict_proba(X_test).clip(1e-300))
    return softmax(logs - np.log(np.bincount(y) / len(y)), 1)


def perceptron(X: Array, y: Array, X_test: Array, seed: int) -> Array:
    return MLPClassifier(max_iter=1000, random_state=seed).fit(X, y).predict_proba(X_test)


def boosting(X: Array, y: Array, X_test: Array, seed: int) -> Array:
    model = HistGradientBoostingClassifier(class_weight="balanced", random_state=seed)
    return model.fit(X, y).predict_proba(X_test)


RETRAIN, CLASSIFIER = "srepr.retrain", "LongTailClassifier"
BALANCED, ADJUSTED = REGRESSIONS = "LogisticRegression, balanced", "LogisticRegressionCV, adjusted"
PERCEPTRON, BOOSTING = "MLPClassifier", "HistGradientBoosting, balanced"
MODELS = {
    RETRAIN: Model(retrained),
    CLASSIFIER: Model(long_tail_classifier, standardized=False),
    BALANCED: Model(balanced_regression),
    ADJUSTED: Model(adjusted_regression),
    PERCEPTRON: Model(perceptron),
    BOOSTING: Model(boosting),
}
MEASURES = {
    "balanced_acc": Column("balanced accuracy"),
    "nll": Column("balanced NLL", lower_is_better=True, percent=False),
    "ece": Column("balanced ECE", lower_is_better=True, percent=False),
}
PROMISES = (
    # ours, at least as good as each of these, in what, and how much worse is still kept
    (RETRAIN, REGRESSIONS, "balanced_acc", 0.01),
    (RETRAIN, REGRESSIONS, "nll", 0.0),
    (RETRAIN, REGRESSIONS, "ece", 0.0),
    (CLASSIFIER, (BALANCED,), "balanced_acc", 0.0),
    (CLASSIFIER, (PERCEPTRON,), "balanced_acc", 0.0),
    (CLASSIFIER, (BOOSTING,), "balanced_acc", 0.02),
)


def measure(data: Set, seed: int, name: str) -> Row:
    (X, y), (X_test, y_test) = splits(data, seed)
    model = MODELS[name]
    began = time.process_time()
    if data.kind == "table" and model.standardized:
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # has fewer rows than there are folds
        probabilities = model.predict(X, y, X_test, seed)
    seconds = time.process_time() - began
    return {"set": data.name, "seed": seed, "model": name, **scores(probabilities, y_test), "CPU seconds": seconds}


def scores(probabilities: Array, y: Array) -> dict[str, float]:
    """Measures in which every class counts the same; p(y) counts as at least 1e-12."""
    counts = np.bincount(y)
    metrics = LongTailMetrics(counts.tolist())
    metrics.update_probs(probabilities.astype(float).clip(1e-12, 1), y, torch.from_numpy(1 / counts[y]))
    found = metrics.compute()
    return {name: found[name] for name in MEASURES}


def summarize(rows: Sequence[Row]) -> Summary:
    """Mean and standard deviation of each number over the seeds, by set and model."""
    summary: Summary = {}
    for key in product([data.name for data in SETS], MODELS):
        group = [row for row in rows if (row["set"], row["model"]) == key]
        if group:
            names = (*MEASURES, "CPU seconds")
            summary[key] = {name: spread([float(row[name]) for row in group]) for name in names}
    return summary


def spread(values: Sequence[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def told(summary: Summary, ours: str, others: Sequence[str], name: str, allowed: float) -> str | None:
    """The verdict on a promise, from the means on the sets where all its models were measured; None without one."""
    measure = MEASURES[name]
    sign = -1 if measure.lower_is_better else 1
    gaps = {
        data: min(sign * (summary[data, ours][name][0] - summary[data, other][name][0]) for other in others)
        for data, model in summary
        if model == ours and all((data, other) in summary for other in others)
    }
    if not gaps:
        return None
    worse = [f"{data} (by {measure.cell(-gap)})" for data, gap in gaps.items() if gap < -allowed]
    better = sum(gap > 0 for gap in gaps.values())
    promise = f"{ours} is at least as good in {measure.title} as {' and '.join(others)}"
    within = f", within {100 * allowed:.1f} points" if allowed else ""
    found = f"kept on {len(gaps) - len(worse)} of {len(gaps)} sets, better on {better}"
    return verdict(promise + within, found + (f"; worse on {', '.join(worse)}" if worse else ""), kept=not worse)


def averages(summary: Summary) -> list[str]:
    """The mean of each measure over the sets, a line for each model."""
    lines = [
        f"| mean over the sets | {' | '.join(measure.title for measure in MEASURES.values())} |",
        "|" + 4 * "---|",
    ]
    for model in MODELS:
        found = [numbers for (_, name), numbers in summary.items() if name == model]
        if found:
            cells = [measure.cell(mean(one[key][0] for one in found)) for key, measure in MEASURES.items()]
            lines.append(f"| {' | '.join([model, *cells])} |")
    return lines


def markdown(facts: dict[str, str], rows: list[Row]) -> str:
    summary = summarize(rows)
    titles = [measure.title for measure in MEASURES.values()]
    lines = [f"| set | model | {' | '.join(titles)} | CPU seconds |", "|" + 6 * "---|"]
    for key, found in summary.items():
        cells = [" ± ".join(map(measure.cell, found[name])) for name, measure in MEASURES.items()]
        lines.append(f"| {' | '.join([*key, *cells])} | {found['CPU seconds'][0]:.2f} |")
    verdicts = [f"- {line}" for promise in PROMISES if (line := told(summary, *promise))]
    about_it = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"""# Data as people have it

Mean and standard deviation over the splits of the seeds 0 to {max(row["seed"] for row in rows)}; accuracy in per cent.
Every class counts the same in every measure. All models have their defaults, and more iterations where scikit-learn
asks for them; on tables, all but LongTailClassifier, which does it by itself, are behind a StandardScaler. The models
are in `benchmarks/own_data.py`, the data in `benchmarks/sets.py`.

After a first measurement, `auto` got 5 folds instead of 10 beyond 5,000 rows, for the time that it took; shuttle and
kr-vs-k were measured again.

{about_it}

""" + "\n".join([*lines, "", *averages(summary), "", *verdicts, ""])


def main() -> None:
    names = [data.name for data in SETS if not data.development]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--again", nargs="+", choices=MODELS, default=[], metavar="MODEL", help="forget its numbers")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "own-data.json")
    arguments = parser.parse_args()
    facts = about("own_data") | {"command": "OMP_NUM_THREADS=1 python -m benchmarks.own_data"}
    facts["versions"] += f", scikit-learn {sklearn.__version__}"
    stored = read_json(arguments.out)["rows"] if arguments.out.exists() else []
    rows = [row for row in stored if row["model"] not in arguments.again or row["set"] not in arguments.sets]
    done = {(row["set"], row["seed"], row["model"]) for row in rows}
    for data in present(data for data in SETS if data.name in arguments.sets):
        for seed, model in product(range(arguments.seeds), arguments.models):
            if (data.name, seed, model) not in done:
                rows.append(measure(data, seed, model))
                print(rows[-1], flush=True)
                write_json(arguments.out, {"about": facts, "rows": rows})
    written = read_json(arguments.out)
    arguments.out.with_suffix(".md").write_text(markdown(written["about"], written["rows"]))


if __name__ == "__main__":
    main()
