"""The paper's tables as rows: which network, which classifier on it, and what varies.

A row is data. Two rows that name the same training share it, and two that name the same head share that, within a
table and between tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from srepr.config import Retrain, Train, stage2_epochs
from srepr.methods import Balance, Method
from srepr.methods import method as choose
from srepr.tables import NAMES

if TYPE_CHECKING:
    from srepr.evaluation import Stage1

SPLITS = ("many", "medium", "few", "acc")
SCORES = ("acc", "nll", "ece")
EVERYTHING = ("many", "medium", "few", "acc", "nll", "ece")

LARGE = ("imagenet-lt", "inaturalist18", "cifar100-lt")
MIXUP = 0.2
TEMPERATURES = (1.0, 2.0, 5.0, 10.0, 20.0)
WEIGHT_DECAYS = (1e-4, 2e-4, 3e-4, 4e-4, 5e-4)
SWA_RATES = (0.02, 0.01, 0.005, 0.001)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: a network of stage 1, and the head on it where there is one.

    >>> Row(name="swa", label="SWA", train=Train(source="digits-lt")).head is None
    True
    """

    name: str
    """As in `srepr.reproduction.paper`."""
    label: str
    train: Train | None
    """Stage 1, up to the seed; None where the number is other people's, which the paper quotes."""
    stage1: Stage1 = "swa"
    head: str | None = None
    """The name of the head in the run folder; None where the classifier of stage 1 itself is the row."""
    method: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    """Choices of the method that the row changes."""
    retrain: Retrain = field(default_factory=Retrain)
    """Stage 2, up to the seed."""
    cold: bool = False
    """Time is the point: the features are made for this row alone."""
    varied: dict[str, Any] = field(default_factory=dict)
    """The settings that tell the rows of a sweep apart."""

    @property
    def how(self) -> Method:
        """The method with the row's changes."""
        return choose(self.method, **self.changes)


def network(train: Train, stage1: Stage1 = "swa") -> Row:
    """The network of stage 1 as it is.

    >>> network(Train(source="digits-lt"), "sgd").label
    'SGD'
    """
    return Row(name=stage1, label=NAMES[stage1], train=train, stage1=stage1)


def head(train: Train, method: str, stage1: Stage1 = "swa") -> Row:
    """A method of the paper on a network of stage 1.

    >>> row = head(Train(source="digits-lt"), "crt", "sgd")
    >>> row.name, row.label
    ('sgd-crt', 'SGD + cRT')
    """
    name = method if stage1 == "swa" else f"{stage1}-{method}"
    label = f"{NAMES[stage1]} + {NAMES[method]}"
    return Row(name=name, label=label, train=train, stage1=stage1, head=name, method=method)


def variant(row: Row, name: str, label: str, **changes: Any) -> Row:
    """The same row with choices of its method changed, under a name of its own.

    >>> variant(head(Train(source="digits-lt"), "srepr"), "srepr-cbs", "with CBS", balance="cbs").how.balance
    'cbs'
    """
    return replace(row, name=name, head=name, label=label, changes=changes)


def lws(train: Train, stage1: Stage1 = "swa") -> Row:
    """LWS with a scale for each class: the paper writes one scalar down, but its numbers are those of this form.

    >>> row = lws(Train(source="digits-lt"), "sgd")
    >>> row.label, row.how.head
    ('SGD + LWS, per class', 'lws-per-class')
    """
    row = head(train, "lws", stage1)
    scaled = variant(row, f"{row.name}-per-class", f"{row.label}, per class", head="lws-per-class")
    return replace(scaled, name=row.name)


def swa_crt(base: Train) -> list[Row]:
    """Table 1: SGD and SWA, before and after cRT.

    >>> [row.name for row in swa_crt(Train(source="digits-lt"))]
    ['sgd', 'swa', 'sgd-crt', 'crt']
    """
    return [network(base, "sgd"), network(base), head(base, "crt", "sgd"), head(base, "crt")]


def ablation(base: Train) -> list[Row]:
    """Table 2 and its full form in the appendix: each balance, from SGD to SRepr step by step.

    >>> [row.name for row in ablation(Train(source="digits-lt"))][-4:]
    ['sgd-la', 'la', 'la-stochastic', 'srepr']
    """
    rows = [network(base, "sgd"), network(base)]
    plain: dict[Balance, str] = {"cbs": "crt", "grw": "grw", "la": "la"}  # the paper's plain CBS is cRT
    for balance, method in plain.items():
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
    """Table 3: every method on SWA.

    >>> [row.name for row in main(Train(source="digits-lt"))]
    ['swa', 'crt', 'lws', 'la', 'disalign', 'srepr']
    """
    la, disalign, srepr = (head(base, method) for method in ("la", "disalign", "srepr"))
    return [network(base), head(base, "crt"), lws(base), la, disalign, srepr]


def full(base: Train) -> list[Row]:
    """The full results in the appendix, of ImageNet-LT, iNaturalist-2018 and both CIFARs: the same on SGD as well.

    >>> len(full(Train(source="digits-lt")))
    11
    """
    crt, la, disalign = (head(base, method, "sgd") for method in ("crt", "la", "disalign"))
    return [network(base, "sgd"), crt, lws(base, "sgd"), la, disalign, *main(base)]


def temperature(base: Train) -> list[Row]:
    """The temperature of the distillation; at the default one the head is that of the other tables.

    >>> [row.head for row in temperature(Train(source="digits-lt"))][-2:]
    ['srepr-temperature-10', 'srepr']
    """
    rows = []
    for tau in TEMPERATURES:
        name = f"temperature-{tau:g}"
        row = replace(head(base, "srepr"), name=name, label=f"tau = {tau:g}", varied={"temperature": tau})
        if tau != Retrain().temperature:
            row = replace(row, head=f"srepr-{name}", retrain=Retrain(temperature=tau))
        rows.append(row)
    return rows


def weight_decay(base: Train) -> list[Row]:
    """The weight decay of stage 1, by what it does to SGD: the paper's values, and the recipe's own.

    >>> [row.varied["weight_decay"] for row in weight_decay(Train(source="digits-lt"))]
    [0.0001, 0.0002, 0.0003, 0.0004, 0.0005]
    """
    rows = []
    for value in sorted({*WEIGHT_DECAYS, base.optim.weight_decay}):
        row = network(replace(base, optim=replace(base.optim, weight_decay=value)), "sgd")
        name, label = f"weight-decay-{value:g}", f"weight decay {value:g}"
        rows.append(replace(row, name=name, label=label, varied={"weight_decay": value}))
    return rows


def swa_lr(base: Train) -> list[Row]:
    """The learning rate while weights are captured: the paper's values, and the recipe's own.

    >>> from srepr.recipes import RECIPES
    >>> [row.varied["swa_lr"] for row in swa_lr(RECIPES["cifar100-lt"])]
    [0.1, 0.02, 0.01, 0.005, 0.001]
    """
    rows = []
    for value in sorted({*SWA_RATES, base.optim.swa_lr}, reverse=True):
        shared = value == base.optim.swa_lr
        row = network(replace(base, optim=replace(base.optim, swa_lr=value), baseline=base.baseline and shared))
        rows.append(replace(row, name=f"swa-lr-{value:g}", label=f"SWA rate {value:g}", varied={"swa_lr": value}))
    return rows


def cost(base: Train) -> list[Row]:
    """Seconds of stage 2 on the fly, cRT with twice the epochs of SRepr, and of SRepr with kept features.

    >>> [row.name for row in cost(Train(source="digits-lt"))]
    ['crt-2x', 'srepr-1x', 'srepr-1x-kept', 'crt-4x', 'srepr-2x', 'srepr-2x-kept']
    """
    once = stage2_epochs(base.epochs)
    rows = []
    for times in (1, 2):
        for method, factor, on_the_fly in (("crt", 2 * times, True), ("srepr", times, True), ("srepr", times, False)):
            row, epochs, kept = head(base, method), factor * once, "" if on_the_fly else "-kept"
            row = replace(
                row,
                name=f"{method}-{factor}x{kept}",
                label=f"{row.label}, {epochs} epochs, {'kept features' if kept else 'on the fly'}",
                head=f"cost-{method}-{epochs}-epochs{kept}",
                retrain=Retrain(epochs=epochs, on_the_fly=on_the_fly),
                cold=True,
                varied={"retrain_epochs": epochs, "on_the_fly": on_the_fly},
            )
            rows.append(row)
    return rows


def representation(base: Train) -> list[Row]:
    """Where the stochastic representations come from: draws of the weights, or views of the input.

    >>> [row.how.representation for row in representation(Train(source="digits-lt"))]
    ['deterministic', 'swag', 'augment']
    """
    srepr = head(base, "srepr")
    return [
        head(base, "crt"),
        replace(srepr, label=f"{srepr.label}, SWAG"),
        variant(srepr, "srepr-augment", f"{srepr.label}, augmentation", representation="augment"),
    ]


def mixup(base: Train) -> list[Row]:
    """Mixup in stage 1, with cRT and with SRepr.

    >>> [row.label for row in mixup(Train(source="digits-lt"))]
    ['SWA + cRT', 'mixup, SWA + cRT', 'SWA + SRepr', 'mixup, SWA + SRepr']
    """
    rows = []
    for method in ("crt", "srepr"):
        plain, mixed = head(base, method), head(replace(base, mixup=MIXUP, baseline=False), method)
        mixed = replace(mixed, name=f"mixup-{method}", label=f"mixup, {mixed.label}")
        rows += [replace(plain, varied={"mixup": 0.0}), replace(mixed, varied={"mixup": MIXUP})]
    return rows


def long_training(base: Train) -> list[Row]:
    """Longer training, mixup and ResNeXt-50, beside the methods of others that the paper compares with.

    >>> [row.train.epochs for row in long_training(Train(source="imagenet-lt", epochs=100)) if row.train]
    [200, 180, 180, 300, 400]
    """

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


@dataclass(frozen=True)
class Table:
    """A table of the paper: its rows for a given stage 1, and what it shows of them.

    >>> [row.label for row in TABLES["swa-crt"].rows(Train(source="digits-lt"))]
    ['SGD', 'SWA', 'SGD + cRT', 'SWA + cRT']
    """

    title: str
    rows: Callable[[Train], list[Row]]
    columns: tuple[str, ...]
    part: Literal["test", "validation"] = "test"
    """What the paper measures on; the test part stands in where a data set has no validation part."""
    sources: tuple[str, ...] = LARGE
    """Data sets to look for where none is named."""


TABLES: dict[str, Table] = {
    "swa-crt": Table("SGD and SWA before and after cRT", swa_crt, SPLITS),
    "ablation": Table("Balance, stochastic representation and distillation", ablation, EVERYTHING),
    "main": Table("Methods of re-training on SWA", main, SCORES),
    "full": Table("Methods of re-training on SGD and SWA", full, EVERYTHING),
    "cifar": Table("Methods of re-training on SGD and SWA", full, EVERYTHING, sources=("cifar10-lt", "cifar100-lt")),
    "temperature": Table("Temperature of the distillation", temperature, EVERYTHING, "validation"),
    "weight-decay": Table("Weight decay of SGD", weight_decay, SPLITS, "validation"),
    "swa-lr": Table("Learning rate of SWA", swa_lr, SPLITS, "validation"),
    "cost": Table("Wall-clock time of re-training", cost, ("seconds", *SCORES), "validation"),
    "representation": Table("Source of the stochastic representation", representation, SCORES, "validation"),
    "mixup": Table("Mixup and SRepr", mixup, SCORES, "validation"),
    "long-training": Table("Longer training, against the state of the art", long_training, ("acc",)),
}
