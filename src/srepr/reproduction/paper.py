"""The numbers of the paper's tables (paper.json), under the names of our rows and data sets.

    table -> data set -> row -> metric -> [mean, standard deviation or null], or "N/A" if the paper's run diverged

Accuracies are in per cent, as printed. Empty cells of the paper are left out.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

TITLES = {
    "imagenet-lt": "ImageNet-LT",
    "inaturalist18": "iNaturalist-2018",
    "cifar10-lt": "CIFAR10-LT",
    "cifar100-lt": "CIFAR100-LT",
}
"""The data sets of the paper with its names for them."""

SAME_ROWS = ("swa-crt", "ablation", "main", "full", "cifar")
"""Tables of one experiment: a row of the same name in two of them is the same classifier on the same test set."""

Number = list[float | None] | str
Rows = dict[str, dict[str, Number]]


@cache
def tables() -> dict[str, dict[str, Rows]]:
    """All tables."""
    content: dict[str, dict[str, Rows]] = json.loads(files("srepr.reproduction").joinpath("paper.json").read_text())
    return content


def numbers(table: str, source: str) -> tuple[str, Rows]:
    """The paper's data set to compare with and its rows: the same data set, or else the main one of the table.

    >>> name, rows = numbers("main", "cifar100-lt")
    >>> name, rows["srepr"]["few"]
    ('cifar100-lt', [23.31, 0.11])
    >>> numbers("temperature", "photos/birds")[0]
    'imagenet-lt'
    """
    together = SAME_ROWS if table in SAME_ROWS else (table,)
    rows: Rows = {}
    for name in together:
        for row, metrics in tables()[name].get(source, {}).items():
            rows.setdefault(row, {}).update(metrics)
    return (source, rows) if rows else numbers(table, "cifar100-lt" if table == "cifar" else "imagenet-lt")


def mean_of(number: Any) -> float | None:
    """The mean; None without one.

    >>> mean_of([52.12, 0.06]), mean_of("N/A"), mean_of(None)
    (52.12, None, None)
    """
    return number[0] if isinstance(number, list) else None
