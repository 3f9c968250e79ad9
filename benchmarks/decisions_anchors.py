"""QuaPy, TorchCP, MAPIE and crepes on the probabilities that `benchmarks.decisions` has written; run without srepr.

PYTHON benchmarks/decisions_anchors.py prior IN.npz OUT.npz      PYTHON has quapy
PYTHON benchmarks/decisions_anchors.py sets IN.npz OUT.npz       PYTHON has torchcp, mapie and crepes
"""

import sys
from unittest.mock import MagicMock

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

UNUSED = ("torchsort", "torch_geometric", "torch_geometric.loader", "torch_geometric.nn", "torch_geometric.utils")
"""What TorchCP imports for its graphs and training losses."""
SLOW, FEW = 5, 10
"""Splits for crepes, and classes for its class-conditional form: it compares each label of each example with all."""


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are its probabilities already."""

    def __init__(self, classes=2):
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, probabilities, labels):
        return self

    def predict_proba(self, probabilities):
        return probabilities

    def predict(self, probabilities):
        return probabilities.argmax(1)

    def __sklearn_is_fitted__(self):
        return True


def prior(cases):
    from quapy.method.aggregative import EMQ, BBSEhard, BBSEsoft

    found = {}
    probabilities, labels = cases["p"], cases["y"]
    classes = probabilities.shape[1]
    for case in range(int(cases["cases"])):
        known, new = cases[f"known{case}"], cases[f"new{case}"]
        p = probabilities[new]
        found[f"EMQ{case}"] = EMQ.EM(np.full(classes, 1 / classes), p)[0]
        for kind in (BBSEhard, BBSEsoft):
            method = kind(Given(classes), fit_classifier=False, val_split=None)
            held = probabilities[known]
            hard = kind is BBSEhard
            method.aggregation_fit(held.argmax(1) if hard else held, labels[known])
            found[f"{kind.__name__}{case}"] = method.aggregate(p.argmax(1) if hard else p)
    return found


def numpy_sets(cases, case):
    """The sets of MAPIE and crepes."""
    from crepes import WrapClassifier
    from mapie.classification import SplitConformalClassifier

    known, new = cases[f"known{case}"], cases[f"new{case}"]
    held, labels, p = cases["p"][known], cases["y"][known], cases["p"][new]
    given, coverage = Given(p.shape[1]), 1 - float(cases["alpha"])
    split = SplitConformalClassifier(given, confidence_level=coverage, conformity_score="lac", prefit=True)
    found = {f"MAPIE LAC{case}": np.packbits(split.conformalize(held, labels).predict_set(p)[1][:, :, 0])}
    kinds = (False, True) if p.shape[1] <= FEW else (False,)
    for by_class in kinds if case < SLOW else ():
        wrapped = WrapClassifier(given)
        wrapped.calibrate(held, labels, class_cond=by_class)
        inside = np.zeros(p.shape, dtype=bool)
        for row, labels_of_row in zip(
            inside, wrapped.predict_set(p, confidence=coverage, smoothing=False), strict=True
        ):
            row[np.array(labels_of_row, dtype=int)] = True
        found[f"crepes {'class-conditional' if by_class else 'standard'}{case}"] = np.packbits(inside)
    return found


def sets(cases):
    sys.modules.update({name: MagicMock() for name in (*UNUSED, "torch_geometric.utils.convert", "transformers")})
    import torch
    from torchcp.classification.predictor import ClassConditionalPredictor, ClusteredPredictor, SplitPredictor
    from torchcp.classification.score import LAC

    found = {}
    for case in range(int(cases["cases"])):
        found |= numpy_sets(cases, case)
    p, y = torch.from_numpy(cases["p"]), torch.from_numpy(cases["y"])
    for case in range(int(cases["cases"])):
        known, new = (torch.from_numpy(cases[f"{name}{case}"]) for name in ("known", "new"))
        for kind in (SplitPredictor, ClassConditionalPredictor, ClusteredPredictor):
            torch.manual_seed(case)
            predictor = kind(LAC(score_type="identity"), alpha=float(cases["alpha"]))
            predictor.calculate_threshold(p[known], y[known])
            found[f"TorchCP {kind.__name__}{case}"] = np.packbits(
                predictor.predict_with_logits(p[new]).numpy().astype(bool)
            )
    return found


if __name__ == "__main__":
    job, source, target = sys.argv[1:]
    np.savez(target, **{"prior": prior, "sets": sets}[job](np.load(source)))
