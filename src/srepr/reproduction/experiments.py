"""The tables of the paper as rows: a network of stage 1, the head on it, and the setting that varies.

A row is data. Rows that name the same training or the same head share it, within a table and between tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from srepr.config import Retrain, Stage1, Train, stage2_epochs
from srepr.methods import TITLES, Method
from srepr.methods import method as choose

SPLITS = ("many", "medium", "few", "acc")
SCORES = ("acc", "nll", "ece")
EVERYTHING = ("many", "medium", "few", "acc", "nll", "ece")

LARGE = ("imagenet-lt", "inaturalist18", "cifar100-lt")
MIXUP = 0.2
TEMPERATURES = (1.0, 2.0, 5.0, 10.0, 20.0)
WEIGHT_DECAYS = (1e-4, 2e-4, 3e-4, 4e-4, 5e-4)
SWA_RATES = (0.02, 0.01, 0.005, 0.001)
PAPER = Retrain(solver="sgd")
"""Stage 2 as in the paper: SGD with weight decay 5e-4."""
PUBLISHED = {"cmo": "ride-cmo", "ride": "ride", "sade": "sade", "bcl": "bcl"}
"""Rows of the paper by a word in the file name of a checkpoint: the tensors of RIDE and SADE look the same."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: a network of stage 1, or a head on it."""

    name: str
    label: str
    train: Train | None
    """Stage 1, up to the seed; None for a number that the paper quotes from others."""
    stage1: Stage1 = "swa"
    head: str | None = None
    """Name of the head in the run folder; None for the classifier of stage 1 itself."""
    method: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    """Choices of the method that the row changes."""
    retrain: Retrain = PAPER
    """Stage 2, up to the seed."""
    cold: bool = False
    """Compute the features for this row alone, so that its time includes them."""
    varied: dict[str, Any] = field(default_factory=dict)
    """Settings that tell the rows of a sweep apart."""
    start: Path | None = None
    """Checkpoint that stage 1 starts from; default: random weights."""
    paper_name: str = ""
    """Name of the row in the paper's table; default: `name`."""

    @property
    def how(self) -> Method | Literal["auto"]:
        """The method with the row's changes."""
        return "auto" if self.method == "auto" else choose(self.method, **self.changes)


def head_name(method: str, stage1: Stage1 = "swa") -> str:
    """Default name of a head."""
    return method if stage1 == "swa" else f"{stage1}-{method}"


def network(train: Train, stage1: Stage1 = "swa") -> Row:
    """A network of stage 1 with its own classifier."""
    return Row(name=stage1, label=TITLES[stage1], train=train, stage1=stage1)


def head(train: Train, method: str, stage1: Stage1 = "swa") -> Row:
    """A method of the paper on a network of stage 1."""
    name, label = head_name(method, stage1), f"{TITLES[stage1]} + {TITLES[method]}"
    return Row(name=name, label=label, train=train, stage1=stage1, head=name, method=method)


def variant(row: Row, name: str, label: str, **changes: Any) -> Row:
    """The row under another name, with choices of its method changed."""
    return replace(row, name=name, head=name, label=label, changes=changes)


def lws(train: Train, stage1: Stage1 = "swa") -> Row:
    """LWS with a scale for each class: the paper's formula has one scalar, but its numbers come from this form."""
    row = head(train, "lws", stage1)
    scaled = variant(row, f"{row.name}-per-class", f"{row.label}, per class", head="lws-per-class")
    return replace(scaled, name=row.name)


def swa_crt(base: Train) -> list[Row]:
    """Table 1: SGD and SWA, before and after cRT."""
    return [network(base, "sgd"), network(base), head(base, "crt", "sgd"), head(base, "crt")]


def ablation(base: Train) -> list[Row]:
    """Table 2 and its full form in the appendix: each balancing, from SGD to SRepr step by step."""
    rows = [network(base, "sgd"), network(base)]
    for balance, method in {"cbs": "crt", "grw": "grw", "la": "la"}.items():  # the paper's plain CBS is cRT
        title, srepr = balance.upper(), head(base, "srepr")
        distilled = "srepr" if balance == "la" else f"{balance}-distilled"
        rows += [
            replace(head(base, method, "sgd"), label=f"{title}: SGD"),
            replace(head(base, method), label=f"{title}: SWA"),
            variant(srepr, f"{balance}-stochastic", f"{title}: + stochastic", balance=balance, distill=False),
            variant(srepr, distilled, f"{title}: + distillation", balance=balance),
        ]
    return rows


def main(base: Train) -> list[Row]:
    """Table 3: every method on SWA."""
    la, disalign, srepr = (head(base, method) for method in ("la", "disalign", "srepr"))
    return [network(base), head(base, "crt"), lws(base), la, disalign, srepr]


def full(base: Train) -> list[Row]:
    """The full results in the appendix: every method on SGD and SWA."""
    crt, la, disalign = (head(base, method, "sgd") for method in ("crt", "la", "disalign"))
    return [network(base, "sgd"), crt, lws(base, "sgd"), la, disalign, *main(base)]


def cifar(base: Train) -> list[Row]:
    """The same on the CIFARs, and what this package does by default, which chooses nothing on the test set."""
    auto = replace(head(base, "auto"), label="SWA + Auto, this package", retrain=Retrain())
    return [*full(base), auto]


def temperature(base: Train) -> list[Row]:
    """The temperature of the distillation; at the default, the head is shared with the other tables."""
    rows = []
    for tau in TEMPERATURES:
        name = f"temperature-{tau:g}"
        row = replace(head(base, "srepr"), name=name, label=f"tau = {tau:g}", varied={"temperature": tau})
        if tau != PAPER.temperature:
            row = replace(row, head=f"srepr-{name}", retrain=replace(PAPER, temperature=tau))
        rows.append(row)
    return rows


def weight_decay(base: Train) -> list[Row]:
    """The weight decay of stage 1, measured on SGD: the paper's values and the recipe's."""
    rows = []
    for value in sorted({*WEIGHT_DECAYS, base.optim.weight_decay}):
        row = network(replace(base, optim=replace(base.optim, weight_decay=value)), "sgd")
        name, label = f"weight-decay-{value:g}", f"weight decay {value:g}"
        rows.append(replace(row, name=name, label=label, varied={"weight_decay": value}))
    return rows


def swa_lr(base: Train) -> list[Row]:
    """The learning rate while weights are captured: the paper's values and the recipe's."""
    rows = []
    for value in sorted({*SWA_RATES, base.optim.swa_lr}, reverse=True):
        shared = value == base.optim.swa_lr
        row = network(replace(base, optim=replace(base.optim, swa_lr=value), baseline=base.baseline and shared))
        rows.append(replace(row, name=f"swa-lr-{value:g}", label=f"SWA rate {value:g}", varied={"swa_lr": value}))
    return rows


def cost(base: Train) -> list[Row]:
    """Seconds of stage 2: on the fly, cRT with twice the epochs of SRepr, and SRepr on cached features."""
    once = stage2_epochs(base.epochs)
    rows = []
    for times in (1, 2):
        for method, factor, on_the_fly in (("crt", 2 * times, True), ("srepr", times, True), ("srepr", times, False)):
            row, epochs, kept = head(base, method), factor * once, "" if on_the_fly else "-kept"
            row = replace(
                row,
                name=f"{method}-{factor}x{kept}",
                label=f"{row.label}, {epochs} epochs, {'cached features' if kept else 'on the fly'}",
                head=f"cost-{method}-{epochs}-epochs{kept}",
                retrain=replace(PAPER, epochs=epochs, on_the_fly=on_the_fly),
                cold=True,
                varied={"retrain_epochs": epochs, "on_the_fly": on_the_fly},
            )
            rows.append(row)
    return rows


def representation(base: Train) -> list[Row]:
    """The source of the stochastic representations: draws of the weights, or augmented views of the input."""
    srepr = head(base, "srepr")
    return [
        head(base, "crt"),
        replace(srepr, label=f"{srepr.label}, SWAG"),
        variant(srepr, "srepr-augment", f"{srepr.label}, augmentation", representation="augment"),
    ]


def mixup(base: Train) -> list[Row]:
    """Stage 1 with and without mixup, under cRT and SRepr."""
    rows = []
    for method in ("crt", "srepr"):
        plain, mixed = head(base, method), head(replace(base, mixup=MIXUP, baseline=False), method)
        mixed = replace(mixed, name=f"mixup-{method}", label=f"mixup, {mixed.label}")
        rows += [replace(plain, varied={"mixup": 0.0}), replace(mixed, varied={"mixup": MIXUP})]
    return rows


def long_training(base: Train) -> list[Row]:
    """Longer training, mixup and ResNeXt-50, beside the published methods that the paper compares with."""

    def quoted(name: str, label: str) -> Row:
        return Row(name=name, label=label, train=None)

    def srepr(times: float, extra: str = "", **changes: Any) -> Row:
        train = replace(base, epochs=round(times * base.epochs), **changes)
        return replace(
            head(train, "srepr"),
            name="-".join(["srepr", f"{times:g}x", extra]).rstrip("-"),
            label=", ".join(["SWA + SRepr", f"{train.epochs} epochs", extra]).rstrip(", "),
            varied={"mixup": train.mixup, "network": train.network},
        )

    with_mixup = {"mixup": MIXUP, "baseline": False}
    return [
        quoted("kcl", "KCL, 200 epochs"),
        srepr(2),
        quoted("mislas", "MiSLAS, 180 epochs, mixup"),
        srepr(1.8, "mixup", **with_mixup),
        quoted("lade", "LADE, 180 epochs, resnext50"),
        srepr(1.8, "resnext50", network="resnext50", baseline=False),
        quoted("liu-moco", "Liu et al., 300 epochs, MoCo v2"),
        srepr(3, "mixup", **with_mixup),
        quoted("liu-moco-rwsam", "Liu et al., 300 epochs, MoCo v2, rwSAM"),
        srepr(4, "mixup", **with_mixup),
    ]


def combine(base: Train, *checkpoints: Path) -> list[Row]:
    """Appendix B.4: other projects' checkpoints, before and after SWA + SRepr."""
    rows = []
    for checkpoint in checkpoints:
        name = checkpoint.stem
        known = next((row for word, row in PUBLISHED.items() if word in name.lower()), name)
        for suffix, label, row in (
            ("", name, network(base, "sgd")),
            ("+srepr", "  + SWA + SRepr", head(base, "srepr")),
        ):
            rows.append(replace(row, name=name + suffix, label=label, start=checkpoint, paper_name=known + suffix))
    return rows


@dataclass(frozen=True)
class Table:
    """A table of the paper: its rows for a given stage 1, and the metrics that it shows."""

    title: str
    rows: Callable[..., list[Row]]
    """Called with the settings of stage 1, and for `combine` with the checkpoints."""
    columns: tuple[str, ...]
    part: Literal["test", "validation"] = "test"
    """The set that the paper measures on; data without a validation set are measured on the test set."""
    sources: tuple[str, ...] = LARGE
    """Default data sets."""
    stage: str = "stage 1"
    """What the number of epochs counts."""
    length: str = ""
    """Length of this stage in the paper; default: the epochs of the recipe."""
    comparable: str = "the order of the rows"
    """What can be compared with the paper on other data."""


TABLES: dict[str, Table] = {
    "swa-crt": Table("SGD and SWA before and after cRT", swa_crt, SPLITS),
    "ablation": Table("Balance, stochastic representation and distillation", ablation, EVERYTHING),
    "main": Table("Methods of re-training on SWA", main, SCORES),
    "full": Table("Methods of re-training on SGD and SWA", full, EVERYTHING),
    "cifar": Table("Methods of re-training on SGD and SWA", cifar, EVERYTHING, sources=("cifar10-lt", "cifar100-lt")),
    "temperature": Table("Temperature of the distillation", temperature, EVERYTHING, "validation"),
    "weight-decay": Table("Weight decay of SGD", weight_decay, SPLITS, "validation"),
    "swa-lr": Table("Learning rate of SWA", swa_lr, SPLITS, "validation"),
    "cost": Table("Wall-clock time of re-training", cost, ("seconds", *SCORES), "validation"),
    "representation": Table("Source of the stochastic representation", representation, SCORES, "validation"),
    "mixup": Table("Mixup and SRepr", mixup, SCORES, "validation"),
    "long-training": Table("Longer training, against the state of the art", long_training, ("acc",)),
    "combine": Table(
        "Other projects' checkpoints, and SWA + SRepr on them",
        combine,
        SCORES,
        stage="collection",
        length="about 10 epochs",
        comparable="the direction of the changes",
    ),
}
