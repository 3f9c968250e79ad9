"""The numbers of the paper: against its LaTeX, where that lies beside the repository, and against each other."""

import re
from pathlib import Path

import pytest

from srepr import methods
from srepr.config import RECIPES
from srepr.metrics import COLUMNS
from srepr.reproduction.experiments import TABLES
from srepr.reproduction.paper import SAME_ROWS, TITLES, numbers, tables

LABELS = {
    "swa-crt": "table_main_swa_crt",
    "ablation": "table/App_Full_Ablation",
    "main": "table/Main_Table",
    "full": "table/App_Full_Table",
    "cifar": "table/App_CIFAR",
    "temperature": "table_app_temperature",
    "weight-decay": "table_app_erm",
    "swa-lr": "table_app_swa",
    "cost": "table/App_Time",
    "representation": "table/App_SR",
    "mixup": "table/App_Mixup",
    "long-training": "table/Main_SOTA_Epoch",
    "combine": "table/App_CombiningSOTA",
}
SIDE_BY_SIDE = ("swa-crt", "main", "weight-decay", "swa-lr", "combine")
"""Tables with two data sets in one line; the others have them one below the other."""


@pytest.fixture(scope="module")
def latex():
    folder = Path(__file__).parents[3] / "shared" / "paper"
    if not folder.exists():
        pytest.skip("the LaTeX of the paper is not beside the repository (../shared/paper)")
    return "\n".join(file.read_text() for file in sorted(folder.glob("*.txt")))


def printed(latex, label, columns):
    """The lines of a table with numbers in them: what stands on the left, and its last cells as [mean, std]."""
    body = latex.split(f"\\label{{{label}}}", 1)[1].split("\\bottomrule", 1)[0]
    body = re.sub(r"\{\\color\{white\}0\}|\{\\scriptsize\(.*?\)\}|\\(vspace|tikzmark)\{.*?\}", "", body)
    body = re.sub(r"\$\\spm\{(.*?)\}\$", r"±\1", body)
    body = re.sub(r"\\color\{.*?\}|\\textBF|[{}]", "", body)
    for line in body.split("\\\\"):
        left, *cells = (cell.strip() for cell in line.split("&"))
        found = [
            "N/A" if cell == "N/A" else re.fullmatch(r"(\d+\.\d+)(?:±(\d+\.\d+))?(?: sec)?", cell)
            for cell in cells[-columns:]
        ]
        if any(found):
            yield (
                left,
                [
                    [float(cell[1]), cell[2] and float(cell[2])] if isinstance(cell, re.Match) else cell
                    for cell in found
                ],
            )


@pytest.mark.parametrize("table", LABELS)
def test_every_number_is_the_one_in_the_latex(latex, table):
    content = tables()[table]
    named = {name for rows in content.values() for row in rows.values() for name in row}
    metrics = [name for name in ("seconds", *COLUMNS) if name in named]
    beside = len(content) if table in SIDE_BY_SIDE else 1
    lines = list(printed(latex, LABELS[table], beside * len(metrics)))
    if beside > 1:
        blocks = [[(left, cells[i * len(metrics) :][: len(metrics)]) for left, cells in lines] for i in range(beside)]
    else:
        size = len(lines) // len(content)
        blocks = [lines[i * size : (i + 1) * size] for i in range(len(content))]
    for (source, rows), block in zip(content.items(), blocks, strict=True):
        block = [(left, cells) for left, cells in block if any(cells)]
        assert [[row.get(name) for name in metrics] for row in rows.values()] == [cells for _, cells in block], source
        if table in ("main", "full", "cifar"):
            for name, (left, _) in zip(rows, block, strict=True):
                assert methods.TITLES[name.removeprefix("sgd-")] in left
    order = [latex.split(f"\\label{{{LABELS[table]}}}", 1)[1].find(TITLES[source]) for source in content]
    assert order == sorted(order)


def test_the_short_ablation_is_its_class_balanced_part(latex):
    rows = tables()["ablation"]["imagenet-lt"]
    short = [cells for _, cells in printed(latex, "table/Main_Ablation", 3)]
    names = ["sgd-crt", "crt", "cbs-stochastic", "cbs-distilled"]
    assert short == [[rows[name][metric] for metric in ("acc", "nll", "ece")] for name in names]


def test_a_row_has_the_same_numbers_in_every_table_of_one_experiment():
    """main, swa-crt and ablation are parts of full."""
    seen = {}
    for table in SAME_ROWS:
        for source, rows in tables()[table].items():
            for row, metrics in rows.items():
                for metric, number in metrics.items():
                    assert seen.setdefault((source, row, metric), number) == number
    assert len(seen) == 2 * 11 * 6 + 11 * 3 + 11 * 6 + 3 * (14 - 7)


def test_the_rows_of_the_paper_are_the_rows_of_our_tables():
    for name, table in TABLES.items():
        for source, rows in tables()[name].items():
            files = [Path(f"{row}.pth") for row in rows if name == "combine" and not row.endswith("+srepr")]
            ours = {row.paper_name or row.name for row in table.rows(RECIPES[source], *files)} - {"auto"}
            assert rows.keys() <= ours, (name, source)
            assert all(metrics.keys() <= set(table.columns) for metrics in rows.values())
            if name not in ("swa-lr", "cost"):
                assert rows.keys() == ours, (name, source)


def test_numbers_look_like_what_they_are():
    for table in tables().values():
        for rows in table.values():
            for metrics in rows.values():
                for metric, number in metrics.items():
                    if number == "N/A":
                        continue
                    mean, std = number
                    low, high = {"nll": (0.5, 5), "ece": (0, 0.5), "seconds": (500, 1300)}.get(metric, (5, 90))
                    assert low < mean < high
                    assert std is None or 0 <= std < mean / 5


def test_the_same_data_set_stands_beside_and_else_the_one_the_table_is_best_for():
    assert numbers("swa-crt", "cifar10-lt")[0] == "cifar10-lt"
    assert numbers("ablation", "inaturalist18")[1]["srepr"]["many"] == [70.70, 0.31]
    assert numbers("ablation", "imagenet-lt")[1]["grw"] == tables()["ablation"]["imagenet-lt"]["grw"]
    assert numbers("cifar", "digits-lt") == numbers("cifar", "cifar100-lt")
    assert numbers("mixup", "cifar100-lt")[0] == "imagenet-lt"
