"""`srepr analyze`: the analysis of a run folder as files, numbers as JSON and CSV, figures as PNG and SVG."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from srepr import runs
from srepr.analysis import Array, run_draws, summary
from srepr.data.longtail import groups
from srepr.figures import save_figures
from srepr.opened import open_trained


def analyze_run(
    run: Path,
    out: Path | None = None,
    *,
    head: str | None = None,
    classifier: str | None = None,
    samples: int = 10,
    data_dir: Path | None = None,
    workers: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Analyze a head of a run and write everything to `out` (RUN/analysis); the content of its analysis.json.

    >>> analyze_run(getfixture("tmp_path") / "nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Name a run made by `srepr train`.
    """
    opened = open_trained(run, data_dir=data_dir, workers=workers, quiet=quiet)
    out = out or run / "analysis"
    with runs.sole_writer(run):
        runs.create_folder(out)
        draws = run_draws(opened, head=head, classifier=classifier, samples=samples)
        analysis = summary(opened, draws)
        write_csv(out / "instances.csv", instance_rows(draws.instances))
        write_csv(out / "classes.csv", class_rows(analysis))
        write_csv(out / "ensemble.csv", analysis["ensemble"])
        save_figures(analysis, out)
        runs.write_json(out / "analysis.json", analysis)
    return analysis


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, which have the same names, to a CSV file, whole or not at all; None is an empty cell.

    >>> path = getfixture("tmp_path") / "ensemble.csv"
    >>> write_csv(path, [{"samples": 1, "nll": 0.5}, {"samples": 2, "nll": None}])
    >>> path.read_text().split()
    ['samples,nll', '1,0.5', '2,']
    """
    first, *others = rows

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(first), lineterminator="\n")
            table.writeheader()
            table.writerows([first, *others])

    runs.write_whole(path, write)


def instance_rows(instances: Mapping[str, Array]) -> list[dict[str, Any]]:
    """A row for each example, in the order of the data.

    >>> import numpy as np
    >>> instance_rows({"label": np.array([3, 0]), "correct": np.array([True, False])})
    [{'index': 0, 'label': 3, 'correct': 1}, {'index': 1, 'label': 0, 'correct': 0}]
    """
    columns = {**instances, "correct": instances["correct"].astype(int)}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [{"index": index, **dict(zip(columns, row, strict=True))} for index, row in enumerate(rows)]


def class_rows(analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each class: its group, and what it is before and after.

    >>> both = {"before": [0.9, 0.1], "after": [0.8, 0.6]}
    >>> spread = {"per_class": [0.1, 0.2]}
    >>> class_rows({"counts": [120, 7], "classes": ["cat", "dog"], "per_class": both, "weight_norms": both,
    ...     "marginal": both, "dispersion": {"feature": spread, "probability": spread}})[1]
    {'class': 1, 'name': 'dog', 'count': 7, 'group': 'few', 'accuracy_before': 0.1, 'accuracy_after': 0.6,
     'feature_dispersion': 0.2, 'probability_dispersion': 0.2, 'weight_norm_before': 0.1, 'weight_norm_after': 0.6,
     'marginal_before': 0.1, 'marginal_after': 0.6}
    """
    members = groups(analysis["counts"])
    spaces = analysis["dispersion"]
    return [
        {
            "class": k,
            "name": name,
            "count": analysis["counts"][k],
            "group": next(group for group, within in members.items() if within[k]),
            "accuracy_before": analysis["per_class"]["before"][k],
            "accuracy_after": analysis["per_class"]["after"][k],
            "feature_dispersion": spaces["feature"]["per_class"][k],
            "probability_dispersion": spaces["probability"]["per_class"][k],
            "weight_norm_before": analysis["weight_norms"]["before"][k],
            "weight_norm_after": analysis["weight_norms"]["after"][k],
            "marginal_before": analysis["marginal"]["before"][k],
            "marginal_after": analysis["marginal"]["after"][k],
        }
        for k, name in enumerate(analysis["classes"])
    ]
