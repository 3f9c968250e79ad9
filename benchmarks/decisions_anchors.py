"""QuaPy and TorchCP on the probabilities that `benchmarks.decisions` has written; run by it, without srepr.

PYTHON benchmarks/decisions_anchors.py prior IN.npz OUT.npz      PYTHON has quapy
PYTHON benchmarks/decisions_anchors.py sets IN.npz OUT.npz       PYTHON has torchcp
"""

import sys
from unittest.mock import MagicMock

import numpy as np
from sklearn.base import BaseEstimator

UNUSED = ("torchsort", "torch_geometric", "torch_geometric.loader", "torch_geometric.nn", "torch_geometric.utils")
"""What TorchCP imports for its graphs and training losses."""


class Given(BaseEstimator):
    """A classifier whose inputs are its probabilities already."""

    def __init__(self, classes=2):
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, probabilities, labels):
        return self


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


def sets(cases):
    sys.modules.update({name: MagicMock() for name in (*UNUSED, "torch_geometric.utils.convert", "transformers")})
    import torch
    from torchcp.classification.predictor import ClassConditionalPredictor, ClusteredPredictor, SplitPredictor
    from torchcp.classification.score import LAC

    found = {}
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
