"""`srepr analyze`: what the draws know of the test set, and what re-training changed, as numbers and figures.

Examples that the averaged network finds hard, and classes that it has rarely seen, are dispersed more over the draws
F_1(x)..F_M(x), and their averaged prediction is better calibrated than one network's (paper, section 3.2). Re-training
then evens out the marginal likelihood p(y) = E[p(y | x)] without evening out the weight norms |w_y| (appendix B).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from srepr.analysis import Array, class_means, feature_dispersion, jensen_shannon, pearson, quartile_boxes
from srepr.config import MOST_SAMPLES, Retrain, Stage1
from srepr.data.longtail import groups
from srepr.data.sampling import chunks
from srepr.errors import check_count
from srepr.heads import as_linear
from srepr.metrics import COLUMNS, LongTailMetrics
from srepr.run.classifiers import Run, open_run
from srepr.run.figures import save_figures
from srepr.run.folder import sole_writer
from srepr.storage.files import create_folder, write_csv, write_json

CELLS = 1 << 22  # probabilities held at once: draws x examples x classes
CURVES = ("acc", "nll", "ece")


def analyze_run(
    path: Path,
    out: Path | None = None,
    *,
    head: str | None = None,
    classifier: str | None = None,
    samples: int = 10,
    data_dir: Path | None = None,
    workers: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Analyze a head of a run and write everything to `out` (RUN/analysis); returns the content of analysis.json."""
    run = open_run(path, data_dir=data_dir, workers=workers, quiet=quiet)
    out = out or path / "analysis"
    with sole_writer(path, reading=True):
        create_folder(out)
        draws = run_draws(run, head=head, classifier=classifier, samples=samples)
        analysis = summary(run, draws)
        write_csv(out / "instances.csv", instance_rows(draws.instances))
        write_csv(out / "classes.csv", class_rows(analysis))
        write_csv(out / "ensemble.csv", analysis["ensemble"])
        save_figures(analysis, out)
        write_json(out / "analysis.json", analysis)
    return analysis


class Draws(NamedTuple):
    """What the averaged network and M draws around it say of the test set."""

    head: str
    """The re-trained classifier that is analysed."""
    before: Stage1
    """The classifier of stage 1 that it replaced."""
    classifier: str
    """The classifier on the draws."""
    instances: dict[str, Array]
    """[N] each: label, nll, confidence and correct (the averaged network's), feature_ and probability_dispersion."""
    ensemble: list[dict[str, Any]]
    """The metrics of the averaged probabilities of the first 1..M draws."""


def run_draws(
    run: Run, *, head: str | None = None, classifier: str | None = None, samples: int = 10, seed: int = 0
) -> Draws:
    """Run a classifier on the features of M draws and of the averaged network, over the test set.

    The default head is that of `srepr.load`. The classifier on the draws is `crt` as in the paper, or the head if the
    run has no `crt`. The draws have BatchNorm statistics of the training set.
    """
    check_count("samples", samples, MOST_SAMPLES)
    head = run.choose(head, retrained=True)
    before = run.classifiers[head].stage1
    classifier = run.choose(classifier or default_classifier(run, head))
    stage1, layer, _ = run.classifiers[classifier]
    frozen, part, settings = run.networks[stage1], run.part, Retrain(samples=samples, seed=seed)
    features = frozen.features(part, "swag", settings, augment=False, calibration=run.data.train).epoch(0)
    ensemble = [LongTailMetrics(frozen.about.counts) for _ in range(samples)]
    rows = max(1, CELLS // (samples * len(frozen.about.counts)))
    dispersion: dict[str, list[Array]] = {"feature_dispersion": [], "probability_dispersion": []}
    for chunk in chunks(len(part), rows):
        y = torch.from_numpy(part.labels[chunk])
        stochastic, _ = features.batch(chunk)
        with torch.inference_mode():
            probs = layer(stochastic).double().softmax(-1)
        for m, total in enumerate(probs.cumsum(0)):
            ensemble[m].update_probs(total / (m + 1), y)
        dispersion["feature_dispersion"].append(feature_dispersion(stochastic).numpy())
        dispersion["probability_dispersion"].append(jensen_shannon(probs).numpy())
    single = run.measure(classifier)
    instances = {
        "label": part.labels,
        "nll": single.nll.numpy(),
        "confidence": single.confidence.numpy(),
        "correct": single.predicted.numpy() == part.labels,
        **{name: np.concatenate(values) for name, values in dispersion.items()},
    }
    return Draws(head, before, classifier, instances, [metrics.compute() for metrics in ensemble])


def default_classifier(run: Run, head: str) -> str:
    """The default classifier on the draws: cRT's on the network of the head, or the head itself."""
    crt = "crt" if run.classifiers[head].stage1 == "swa" else "sgd-crt"
    return crt if crt in run.classifiers else head


def summary(run: Run, draws: Draws) -> dict[str, Any]:
    """The draws in the numbers of the paper's figures, and the classifier before and after re-training.

    - dispersion: in `feature` and `probability` space, its `pearson` correlation with the NLL, its boxes over the
      `quartiles` of the NLL, its mean `per_class`.
    - ensemble, single: acc, nll and ece of 1..M averaged draws, and of the averaged network, with `classifier`.
    - weight_norms, marginal, reliability, per_class, metrics, each `before` and `after`: |w_k| of each class, the mean
      test probability of each class, the reliability diagram, the accuracy of each class, the table's metrics
      (with both views if the test set is not balanced).

    A value is None where nothing can be said: no example of a class, no spread, a head without a weight per class.
    """
    names = {"before": draws.before, "after": draws.head}
    instances, classes = draws.instances, len(run.data.counts)
    measured = {when: run.measure(name) for when, name in names.items()}
    metrics = {when: run.judge(name).metrics for when, name in names.items()}
    single = run.measure(draws.classifier).metrics
    return {
        "head": draws.head,
        "before": draws.before,
        "classifier": draws.classifier,
        "samples": len(draws.ensemble),
        "part": "validation" if run.data.test is None else "test",
        "counts": run.data.counts.tolist(),
        "classes": list(run.data.class_names),
        "dispersion": {
            space: {
                "pearson": pearson(values, instances["nll"]),
                "quartiles": quartile_boxes(values, by=instances["nll"]),
                "per_class": class_means(values, instances["label"], classes),
            }
            for space, values in ((name, instances[f"{name}_dispersion"]) for name in ("feature", "probability"))
        },
        "ensemble": [
            {"samples": m, **{name: point[name] for name in CURVES}} for m, point in enumerate(draws.ensemble, 1)
        ],
        "single": {name: single[name] for name in CURVES},
        "weight_norms": {when: _weight_norms(run.classifiers[name].head, classes) for when, name in names.items()},
        "marginal": {when: result.marginal.tolist() for when, result in measured.items()},
        "reliability": {when: found["bins"] for when, found in metrics.items()},
        "per_class": {when: found["per_class"] for when, found in metrics.items()},
        "metrics": {
            when: {name: found[name] for name in (*COLUMNS, "tested", "views") if name in found}
            for when, found in metrics.items()
        },
    }


def _weight_norms(head: nn.Module, classes: int) -> list[float | None]:
    """|w_k| of the linear classifier that the head amounts to; None for one that is not linear."""
    linear = as_linear(head)
    return [None] * classes if linear is None else linear.weight.detach().double().norm(dim=1).tolist()


def instance_rows(instances: Mapping[str, Array]) -> list[dict[str, Any]]:
    """A row for each example, in the order of the data."""
    columns = {**instances, "correct": instances["correct"].astype(int)}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [{"index": index, **dict(zip(columns, row, strict=True))} for index, row in enumerate(rows)]


def class_rows(analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each class: its group, its dispersion, and what it is before and after."""
    members = groups(analysis["counts"])
    spaces = analysis["dispersion"]
    both = {"accuracy": "per_class", "weight_norm": "weight_norms", "marginal": "marginal"}
    return [
        {
            "class": k,
            "name": name,
            "count": analysis["counts"][k],
            "group": next(group for group, within in members.items() if within[k]),
            **{f"{space}_dispersion": spaces[space]["per_class"][k] for space in ("feature", "probability")},
            **{
                f"{column}_{when}": analysis[key][when][k]
                for column, key in both.items()
                for when in ("before", "after")
            },
        }
        for k, name in enumerate(analysis["classes"])
    ]
