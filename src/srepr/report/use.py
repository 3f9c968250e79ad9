"""What the user of a classifier must know: what it confuses, and what rejection, sets and another mix would bring.

All of it is counted on the test part, in one pass over the logits. Nothing here grows with the square of the number of
classes: of the confusion matrix there are the cells that are not 0, and of these the largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from srepr.balance import Shares
from srepr.classifier import Classifier
from srepr.data.longtail import Labels, groups
from srepr.decisions.conformal import Thresholds
from srepr.decisions.doubt import doubt
from srepr.decisions.rejection import risk_coverage
from srepr.metrics import bin_index
from srepr.report.mix import class_sums, describe_mix, shifts
from srepr.run.checkpoints import load_head_and_held
from srepr.run.classifiers import Run
from srepr.views import share_weights

CELLS = 20_000
"""Cells of the confusion matrix beside the diagonal that are kept, at most."""
POINTS = 50
"""Coverages at which the risk is shown."""
COVERAGE = 0.9
WATCHED = "the doubt of srepr predict, from the probabilities and the features"
UNWATCHED = "1 − the largest probability"

Batch = tuple[Tensor, Tensor, Tensor | None]


def describe_use(run: Run, head: str) -> dict[str, Any]:
    """The section about a classifier of a run."""
    classifier, part = run.classifiers[head], run.part
    frozen = run.networks[classifier.stage1]
    counts = frozen.about.counts
    held, familiar = None, None
    if classifier.note:
        _, held, familiar = load_head_and_held(run.path / "heads" / f"{head}.safetensors", frozen.layer)
    expects = classifier.expects(counts) or list(counts)
    thresholds, without = None, ""
    if run.data.test is None:
        without = "There is no test set to judge sets of labels on: they are calibrated on the validation set."
    elif held is not None:
        thresholds = Classifier(nn.Identity(), about=frozen.about, expects=expects, held=held).thresholds(COVERAGE)
    elif not classifier.note:
        without = "A network of stage 1 has no held-out logits to calibrate sets of labels on."
    elif run.data.validation is not None:
        without = "This head has no held-out logits for sets of labels: make it again with srepr retrain --overwrite."
    else:
        without = "The run keeps no examples apart to calibrate sets of labels on: train it with --protocol holdout."

    def outputs() -> Iterator[Batch]:
        for features, labels in frozen.seen(part):
            logits = classifier.head(features)
            doubts = None if familiar is None else familiar.doubt(logits.double().softmax(1), features)
            yield logits, labels, doubts

    return {
        "part": "test" if run.data.test is not None else "validation",
        **used(outputs(), counts, expects=expects, thresholds=thresholds),
        "without_sets": without,
    }


def used(
    outputs: Iterable[Batch], counts: Sequence[int], *, expects: Shares, thresholds: Thresholds | None = None
) -> dict[str, Any]:
    """The numbers of the section from batches of (logits [B, K], labels [B], doubts [B] or None).

    `counts` are the training counts, `expects` the class shares that the classifier expects. Without `thresholds`
    there are no sets.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> found = used([(logits, torch.tensor([0, 0, 1]), None)], [90, 10], expects=[1, 1])
    >>> found["precision"], found["confusion"]["count"], found["rejection"]["risk"]["all"]
    ([1.0, 0.5], [1], [0.0, 0.0, 0.33333...])
    """
    classes, moves = len(counts), shifts(counts, expects)
    sums, watched = torch.zeros(()), False
    parts: list[list[Tensor]] = [[], [], [], [], [], []]
    for logits, labels, doubted in outputs:
        p = logits.double().softmax(1)
        inside = torch.zeros_like(p, dtype=torch.bool) if thresholds is None else thresholds.sets(p)
        watched = doubted is not None
        held = inside.gather(1, labels[:, None])[:, 0]
        batch = (labels, logits.argmax(1), p.amax(1), doubt(p) if doubted is None else doubted, held, inside.sum(1))
        for found, values in zip(parts, batch, strict=True):
            found.append(values)
        sums = sums + class_sums(logits, labels, moves)
    truth, predicted, confidence, doubts, covered, sizes = (torch.cat(found).numpy() for found in parts)
    members = {name: mask[truth] for name, mask in groups(counts).items() if mask[truth].any()}
    return {
        **confusion(truth, predicted, classes),
        **reliability(truth == predicted, predicted, confidence, counts),
        "rejection": rejection(doubts, truth != predicted, members) | {"by": WATCHED if watched else UNWATCHED},
        "sets": None if thresholds is None else judged_sets(covered, sizes, truth, counts, members, thresholds),
        "mix": describe_mix(sums, np.bincount(truth, minlength=classes).tolist(), counts),
    }


def confusion(truth: Labels, predicted: Labels, classes: int) -> dict[str, Any]:
    """Precision and F1 of each class, None where they are 0 / 0, and the mistakes by pair, the most frequent first.

    >>> found = confusion(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 3)
    >>> found["precision"], found["confusion"]
    ([1.0, 0.666..., None], {'truth': [0], 'predicted': [1], 'count': [1], 'left_out': 0})
    """
    cells, times = np.unique(truth * classes + predicted, return_counts=True)
    rows, columns = np.divmod(cells, classes)
    right = np.zeros(classes, dtype=np.int64)
    right[rows[rows == columns]] = times[rows == columns]
    tested, said = (np.bincount(labels, minlength=classes) for labels in (truth, predicted))
    mistakes = np.flatnonzero(rows != columns)
    mistakes = mistakes[np.argsort(-times[mistakes], kind="stable")]
    kept = mistakes[:CELLS]
    return {
        "precision": _ratios(right, said),
        "f1": _ratios(2 * right, tested + said),
        "confusion": {
            "truth": rows[kept].tolist(),
            "predicted": columns[kept].tolist(),
            "count": times[kept].tolist(),
            "left_out": int(times[mistakes[CELLS:]].sum()),
        },
    }


def reliability(
    right: npt.NDArray[np.bool_], predicted: Labels, confidence: npt.NDArray[np.float64], counts: Sequence[int]
) -> dict[str, Any]:
    """Mean confidence by predicted class, None where it is 0 / 0, and accuracy, confidence and ECE by its group.

    A class is calibrated if its confidence is its precision: of the inputs that are called so, as many are.

    >>> found = reliability(np.array([True, False]), np.array([0, 0]), np.array([1.0, 0.5]), [200, 3])
    >>> found["confidence"], found["reliability"][1]
    ([0.75, None], {'group': 'many', 'predicted': 2, 'accuracy': 0.5, 'confidence': 0.75, 'ece': 0.25})
    """
    said = np.bincount(predicted, minlength=len(counts))
    rows = []
    for group, inside in {"all": np.ones(len(counts), dtype=np.bool_), **groups(counts)}.items():
        own = inside[predicted]
        if own.any():
            gaps = np.bincount(bin_index(torch.from_numpy(confidence[own])).numpy(), right[own] - confidence[own])
            ece = float(np.abs(gaps).sum() / own.sum())
            means = {"accuracy": float(right[own].mean()), "confidence": float(confidence[own].mean())}
            rows.append({"group": group, "predicted": int(own.sum()), **means, "ece": ece})
    sums = np.bincount(predicted, confidence, minlength=len(counts))
    return {"confidence": _ratios(sums, said), "reliability": rows}


def rejection(
    doubts: npt.NDArray[np.float64], wrong: npt.NDArray[np.bool_], members: dict[str, npt.NDArray[np.bool_]]
) -> dict[str, Any]:
    """Risk, and what is kept of each group, at about 50 coverages; a risk is None as long as nothing is kept.

    >>> found = rejection(np.array([0.1, 0.2]), np.array([False, True]), {"few": np.array([False, True])})
    >>> found["risk"], found["kept"]
    ({'all': [0.0, 0.5], 'few': [None, 1.0]}, {'all': [0.5, 1.0], 'few': [0.0, 1.0]})
    """
    places = np.unique(np.ceil(np.linspace(1 / POINTS, 1, POINTS) * len(doubts) * (1 - 1e-12)).astype(np.int64)) - 1
    curves = {name: risk_coverage(doubts, wrong, group) for name, group in {"all": None, **members}.items()}
    kept = {name: curve.kept[places].tolist() for name, curve in curves.items()}
    risk = {name: curve.risk[places].tolist() for name, curve in curves.items()}
    return {
        "coverage": curves["all"].coverage[places].tolist(),
        "kept": kept,
        "risk": {name: [r if k else None for r, k in zip(risk[name], kept[name], strict=True)] for name in kept},
        "area": curves["all"].area,
    }


def judged_sets(
    covered: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    truth: Labels,
    counts: Sequence[int],
    members: dict[str, npt.NDArray[np.bool_]],
    thresholds: Thresholds,
) -> dict[str, Any]:
    """How often the set has the true label, and how many labels: of all, of each group, and in the mix of training.

    >>> every = Thresholds("marginal", 0.9, (0.0, 0.0))
    >>> judged_sets(np.array([True]), np.array([2]), np.array([0]), [9, 1], {}, every)["rows"][0]
    {'group': 'all', 'tested': 1, 'coverage': 1.0, 'size': 2.0}
    """
    trained = share_weights(np.asarray(counts, dtype=np.float64), truth).numpy()
    weights = {"all": np.ones(len(truth)), **members, "training mix": trained}
    return {
        "form": thresholds.form,
        "coverage": thresholds.coverage,
        "note": thresholds.note,
        "rows": [
            {
                "group": name,
                "tested": int((weight > 0).sum()),
                "coverage": float(np.average(covered, weights=weight)),
                "size": float(np.average(sizes, weights=weight)),
            }
            for name, weight in weights.items()
        ],
    }


def _ratios(parts: Labels | npt.NDArray[np.float64], wholes: Labels) -> list[float | None]:
    shares = parts / np.where(wholes > 0, wholes, math.nan)
    return [None if math.isnan(share) else share for share in shares.tolist()]
