"""LongTailClassifier on long-tailed tables, beside what people use today; everything at its default settings.

python -m benchmarks.tabular      writes results/tabular.json and .md

A class keeps int(largest * imbalance^(rank / (K - 1))) rows for training, in an order of the classes drawn with the
seed; the rows beyond the largest count are the test set of every class. The defaults of LongTailClassifier were chosen
on other data: iris, diabetes in three classes, and other tables of make_classification and make_gaussian_quantiles.
"""

import time
from collections.abc import Iterator
from statistics import mean, stdev

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import verdict
from benchmarks.__main__ import RESULTS, about
from srepr.data import exponential_counts
from srepr.integrations.sklearn import LongTailClassifier
from srepr.metrics import expected_calibration_error
from srepr.storage.files import write_json

SEEDS = range(5)
WHAT = ("balanced accuracy", "ECE")
Table = tuple[np.ndarray, np.ndarray]
Row = dict[str, str | int | float]


def tables(seed: int) -> Iterator[tuple[str, Table, int, float]]:
    """Name, rows and labels, size of the largest class in training, and imbalance."""
    yield "digits", load_digits(return_X_y=True), 120, 0.02
    yield "wine", load_wine(return_X_y=True), 35, 0.1
    yield "breast cancer", load_breast_cancer(return_X_y=True), 150, 0.05
    made = make_classification(
        4000, 20, n_informative=10, n_redundant=5, n_classes=8, n_clusters_per_class=2, random_state=seed
    )
    yield "made, 8 classes", made, 300, 0.02


def long_tailed(table: Table, largest: int, imbalance: float, seed: int) -> tuple[Table, Table]:
    """Training and test part."""
    X, y = table
    rng = np.random.default_rng(seed)
    order = rng.permutation(y.max() + 1)
    rows = {k: rng.permutation(np.flatnonzero(y == k)) for k in order}
    counts = exponential_counts(largest, len(order), imbalance)
    train = np.concatenate([rows[k][:count] for k, count in zip(order, counts, strict=True)])
    test = np.concatenate([rows[k][largest:] for k in order])
    return (X[train], y[train]), (X[test], y[test])


def models(seed: int) -> dict[str, BaseEstimator]:
    return {
        "LongTailClassifier": LongTailClassifier(random_state=seed),
        'LongTailClassifier, method="la"': LongTailClassifier(method="la", random_state=seed),
        "MLPClassifier": make_pipeline(StandardScaler(), MLPClassifier(max_iter=1000, random_state=seed)),
        "LogisticRegression, balanced": make_pipeline(
            StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000)
        ),
    }


def measure() -> list[Row]:
    """One row for each table, seed and model."""
    found: list[Row] = []
    for seed in SEEDS:
        for name, table, largest, imbalance in tables(seed):
            (X, y), (X_test, y_test) = long_tailed(table, largest, imbalance, seed)
            for label, model in models(seed).items():
                began = time.process_time()
                model.fit(X, y)
                probabilities = model.predict_proba(X_test)
                row = {
                    "table": name,
                    "seed": seed,
                    "model": label,
                    "rows": len(y),
                    "test rows": len(y_test),
                    "balanced accuracy": balanced_accuracy_score(y_test, probabilities.argmax(1)),
                    "ece": expected_calibration_error(probabilities, y_test),
                    "CPU seconds": time.process_time() - began,
                }
                print(row, flush=True)
                found.append(row)
    return found


def means(found: list[Row]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Mean and standard deviation of balanced accuracy, ECE and seconds, by table and model."""
    numbers: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for row in found:
        values = float(row["balanced accuracy"]), float(row["ece"]), float(row["CPU seconds"])
        numbers.setdefault((str(row["table"]), str(row["model"])), []).append(values)
    return {
        key: [(mean(column), stdev(column)) for column in zip(*rows, strict=True)] for key, rows in numbers.items()
    }


def markdown(facts: dict[str, str], found: list[Row]) -> str:
    summary = means(found)
    sizes = {row["table"]: row["rows"] for row in found}
    lines = ["| table | model | balanced accuracy | ECE | CPU seconds |", "|---|---|---|---|---|"]
    for (table, model), ((accuracy, spread), (ece, ece_spread), (seconds, _)) in summary.items():
        lines.append(
            f"| {table} ({sizes[table]} rows) | {model} | {100 * accuracy:.1f} ± {100 * spread:.1f} |"
            f" {ece:.3f} ± {ece_spread:.3f} | {seconds:.2f} |"
        )
    lines.append("")
    for other in ("MLPClassifier", "LogisticRegression, balanced"):
        pairs = {table: (summary[table, "LongTailClassifier"], summary[table, other]) for table in sizes}
        wins = [
            [table for table, (ours, theirs) in pairs.items() if sign * (ours[column][0] - theirs[column][0]) > 0]
            for column, sign in ((0, 1), (1, -1))
        ]
        told = [f"better {what} on {', '.join(tables) or 'none'}" for what, tables in zip(WHAT, wins, strict=True)]
        promise = f"LongTailClassifier beats {other} on balanced accuracy and ECE"
        lines.append("- " + verdict(promise, "; ".join(told), kept=all(len(won) == len(sizes) for won in wins)))
    about_it = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"""# Long-tailed tables

Mean and standard deviation over the seeds {SEEDS[0]} to {SEEDS[-1]}, which decide the tail, the split, the made table
and the first weights. All models have their defaults (more iterations where scikit-learn warns), the last two behind a
StandardScaler. The data is described in `benchmarks/tabular.py`.

{about_it}

""" + "\n".join([*lines, ""])


def main() -> None:
    facts, found = about("tabular") | {"command": "python -m benchmarks.tabular"}, measure()
    write_json(RESULTS / "tabular.json", {"about": facts, "rows": found})
    (RESULTS / "tabular.md").write_text(markdown(facts, found))


if __name__ == "__main__":
    main()
