"""What the draws know of the test set, and what re-training changed: the numbers of the paper's figures.

Examples that the averaged network finds hard, and classes that it has rarely seen, are dispersed more over the draws
F_1(x)..F_M(x), and their averaged prediction is better calibrated than one network's (section 3.2). Re-training then
evens out the marginal likelihood p(y) = E[p(y | x)] without evening out the weight norms |w_y| (appendix B).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.data.longtail import Labels
from srepr.dispersion import feature_dispersion, jensen_shannon
from srepr.errors import InputError
from srepr.evaluation import Stage1
from srepr.features import Sampling
from srepr.heads import as_linear
from srepr.metrics import LongTailMetrics
from srepr.opened import OpenedRun
from srepr.tables import COLUMNS

__all__ = [
    "Draws",
    "analyze",
    "class_means",
    "feature_dispersion",
    "jensen_shannon",
    "pearson",
    "quartile_boxes",
    "run_draws",
    "summary",
    "usual_classifier",
]

Array = npt.NDArray[Any]

CELLS = 1 << 22  # probabilities held at once: draws x examples x classes
CURVES = ("acc", "nll", "ece")


def pearson(x: Any, y: Any) -> float | None:
    """Pearson's correlation of two samples; None where one of them does not vary.

    >>> pearson([0.0, 1.0, 2.0], [1.0, 1.0, 4.0])
    0.866...
    >>> pearson([0.0, 0.0], [1.0, 2.0]) is None
    True
    """
    samples = np.stack([np.asarray(x, np.float64), np.asarray(y, np.float64)])
    if not samples.size or not np.ptp(samples, axis=1).all():
        return None
    deviations = samples - samples.mean(1, keepdims=True)
    directions = deviations / np.linalg.norm(deviations, axis=1, keepdims=True)
    return float(np.clip(directions[0] @ directions[1], -1, 1))


def quartile_boxes(values: Any, by: Any) -> list[dict[str, float | None]]:
    """The boxes of the values in four groups of equal size in the order of `by`: Q1 has the lowest.

    `low` and `high` are the last values within 1.5 times the box's height from it.

    >>> quartile_boxes([1.0, 2.0, 3.0, 4.0, 10.0], by=[0, 0, 1, 2, 3])[0]
    {'low': 1.0, 'q1': 1.25, 'median': 1.5, 'q3': 1.75, 'high': 2.0}
    """
    values = np.asarray(values, np.float64)
    order = np.argsort(np.asarray(by), kind="stable")
    return [_box(values[group]) for group in np.array_split(order, 4)]


def class_means(values: Any, labels: Labels, classes: int) -> list[float | None]:
    """The mean of the values over the examples of each class; None where there is none.

    >>> class_means([1.0, 3.0, 5.0], np.array([0, 0, 2]), classes=3)
    [2.0, None, 5.0]
    """
    sums, counts = np.bincount(labels, values, classes), np.bincount(labels, minlength=classes)
    return [float(total / n) if n else None for total, n in zip(sums, counts, strict=True)]


class Draws(NamedTuple):
    """What the averaged network and M draws around it say of the test part.

    >>> Draws(head="srepr", before="swa", classifier="swa", instances={}, ensemble=[], single={"acc": 0.9}).single
    {'acc': 0.9}
    """

    head: str
    """The re-trained classifier that is to be looked at."""
    before: Stage1
    """The classifier of stage 1 that it replaced."""
    classifier: str
    """The classifier on the draws."""
    instances: dict[str, Array]
    """[N] each: label, nll, confidence and correct (the averaged network's), feature_ and probability_dispersion."""
    ensemble: list[dict[str, Any]]
    """The metrics of the averaged probabilities of the first 1..M draws."""
    single: dict[str, Any]
    """The metrics of the averaged network."""


def analyze(
    opened: OpenedRun, *, head: str | None = None, classifier: str | None = None, samples: int = 10, seed: int = 0
) -> dict[str, Any]:
    """Every analysis of the paper for one head of a run and the classifier that it replaced, ready for JSON.

    The head is `srepr` unless named, or where there is none the newest on the averaged network. The classifier on the
    draws is `crt` as in the paper, or the head where the run has no `crt`, unless another of the run is named.

    >>> from srepr.config import Train
    >>> from srepr.opened import open_trained
    >>> from srepr.stage1 import train
    >>> run = getfixture("tmp_path") / "run"
    >>> _ = train(Train(source="digits-lt", network="resnet8", epochs=1), run)
    >>> result = analyze(open_trained(run, quiet=True), head="swa", samples=3)
    >>> result["part"], len(result["ensemble"]), list(result["dispersion"])
    ('test', 3, ['feature', 'probability'])
    """
    return summary(opened, run_draws(opened, head=head, classifier=classifier, samples=samples, seed=seed))


def run_draws(
    opened: OpenedRun, *, head: str | None = None, classifier: str | None = None, samples: int = 10, seed: int = 0
) -> Draws:
    """Run a classifier of the run on the features of M draws and of the averaged network, over the test part.

    The draws have BatchNorm statistics of the training part; the probabilities are held chunk by chunk.

    >>> from pathlib import Path
    >>> run_draws(OpenedRun(run=Path("R"), data=None, networks={}, classifiers={}))
    Traceback (most recent call last):
    srepr.errors.InputError: R has no re-trained classifier. Make one with: srepr retrain R
    """
    if samples < 1:
        raise InputError(f"--samples is {samples}: at least 1 is needed")
    head = _known(opened, head or opened.usual_head)
    before = opened.classifiers[head].stage1
    classifier = _known(opened, classifier or usual_classifier(opened, head))
    stage1, layer, _ = opened.classifiers[classifier]
    frozen, part = opened.networks[stage1], opened.part
    sampling = Sampling(samples=samples, seed=seed)
    features = frozen.features(part, sampling, augment=False, calibration=opened.data.train).epoch(0)
    single, *ensemble = (LongTailMetrics(frozen.about.counts, sync_on_compute=False) for _ in range(samples + 1))
    rows = max(1, CELLS // (samples * len(frozen.about.counts)))
    chunks: list[dict[str, Tensor]] = []
    for chunk in np.array_split(np.arange(len(part)), -(-len(part) // rows)):
        y = torch.from_numpy(part.labels[chunk])
        stochastic, mean = features.batch(chunk)
        with torch.inference_mode():
            logits, probs = layer(mean).double(), layer(stochastic).double().softmax(-1)
        single.update(logits, y)
        for m, total in enumerate(probs.cumsum(0)):
            ensemble[m].update_probs(total / (m + 1), y)
        confidence, prediction = logits.softmax(1).max(1)
        chunks.append(
            {
                "label": y,
                "nll": F.cross_entropy(logits, y, reduction="none"),
                "confidence": confidence,
                "correct": prediction == y,
                "feature_dispersion": feature_dispersion(stochastic),
                "probability_dispersion": jensen_shannon(probs),
            }
        )
    instances = {name: torch.cat([chunk[name] for chunk in chunks]).numpy() for name in chunks[0]}
    curve = [metrics.compute() for metrics in ensemble]
    return Draws(head, before, classifier, instances, curve, single.compute())


def usual_classifier(opened: OpenedRun, head: str) -> str:
    """The classifier that reads the draws where none is named: cRT's on the network of the head, or the head itself.

    >>> from pathlib import Path
    >>> from srepr.opened import TrainedClassifier
    >>> heads = {name: TrainedClassifier("swa", nn.Identity(), {}) for name in ("srepr", "crt")}
    >>> usual_classifier(OpenedRun(run=Path("R"), data=None, networks={}, classifiers=heads), "srepr")
    'crt'
    """
    crt = "crt" if opened.classifiers[head].stage1 == "swa" else "sgd-crt"
    return crt if crt in opened.classifiers else head


def summary(opened: OpenedRun, draws: Draws) -> dict[str, Any]:
    """The draws in the numbers of the paper's figures, and the classifier before and after re-training.

    - dispersion: in `feature` and `probability` space, its `pearson` correlation with the NLL, its boxes over the
      `quartiles` of the NLL, its mean `per_class`.
    - ensemble, single: acc, nll and ece of 1..M averaged draws, and of the averaged network, with `classifier`.
    - weight_norms, marginal, reliability, per_class, metrics, each `before` and `after`: |w_k| of each class, the mean
      test probability of each class, the reliability diagram, the accuracy of each class, the table's metrics.

    None stands where nothing can be said: no example of a class, no spread, a head without a weight for each class.

    >>> from srepr.config import Train
    >>> from srepr.opened import open_trained
    >>> from srepr.stage1 import train
    >>> run = getfixture("tmp_path") / "run"
    >>> _ = train(Train(source="digits-lt", network="resnet8", epochs=1), run)
    >>> opened = open_trained(run, quiet=True)
    >>> summary(opened, run_draws(opened, head="swa", samples=1))["dispersion"]["feature"]["pearson"] is None
    True
    """
    names = {"before": draws.before, "after": draws.head}
    instances, classes = draws.instances, len(opened.data.counts)
    measured = {when: _measure(opened, name) for when, name in names.items()}
    return {
        "head": draws.head,
        "before": draws.before,
        "classifier": draws.classifier,
        "samples": len(draws.ensemble),
        "part": "validation" if opened.data.test is None else "test",
        "counts": opened.data.counts.tolist(),
        "classes": list(opened.data.class_names),
        "dispersion": {
            space: {
                "pearson": pearson(values, instances["nll"]),
                "quartiles": quartile_boxes(values, by=instances["nll"]),
                "per_class": class_means(values, instances["label"], classes),
            }
            for space, values in ((name, instances[f"{name}_dispersion"]) for name in ("feature", "probability"))
        },
        "ensemble": [
            {"samples": m, **{name: metrics[name] for name in CURVES}} for m, metrics in enumerate(draws.ensemble, 1)
        ],
        "single": {name: draws.single[name] for name in CURVES},
        "weight_norms": {when: _weight_norms(opened.classifiers[name].head, classes) for when, name in names.items()},
        "marginal": {when: result["marginal"] for when, result in measured.items()},
        "reliability": {when: result["bins"] for when, result in measured.items()},
        "per_class": {when: result["per_class"] for when, result in measured.items()},
        "metrics": {when: {name: result[name] for name in COLUMNS} for when, result in measured.items()},
    }


def _known(opened: OpenedRun, name: str) -> str:
    if name not in opened.classifiers:
        raise InputError(f"{opened.run} has no head {name!r}. Known: {', '.join(opened.classifiers)}.")
    return name


def _measure(opened: OpenedRun, name: str) -> dict[str, Any]:
    """The metrics of a classifier, and its mean probability of each class."""
    counts, labels = opened.data.counts.tolist(), opened.part.labels
    metrics, total = LongTailMetrics(counts, sync_on_compute=False), torch.zeros(len(counts), dtype=torch.float64)
    for chunk, logits in opened.outputs(name):
        metrics.update(logits, torch.from_numpy(labels[chunk]))
        total += logits.double().softmax(1).sum(0)
    return {**metrics.compute(), "marginal": (total / len(labels)).tolist()}


def _weight_norms(head: nn.Module, classes: int) -> list[float | None]:
    """|w_k| of the linear classifier that the head amounts to; None for one that is not linear."""
    linear = as_linear(head)
    return [None] * classes if linear is None else linear.weight.detach().double().norm(dim=1).tolist()


def _box(values: Array) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("low", "q1", "median", "q3", "high"))
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    reach = 1.5 * (q3 - q1)
    low, high = min(q1, values[values >= q1 - reach].min()), max(q3, values[values <= q3 + reach].max())
    return {"low": float(low), "q1": float(q1), "median": float(median), "q3": float(q3), "high": float(high)}
