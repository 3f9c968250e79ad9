"""QuaPy, TorchCP and crepes on the probabilities that `benchmarks.decisions` has written; run by it, without srepr.

PYTHON benchmarks/decisions_anchors.py prior IN.npz OUT.npz      PYTHON has quapy
PYTHON benchmarks/decisions_anchors.py sets IN.npz OUT.npz       PYTHON has torchcp and crepes
"""

import sys
from unittest.mock import MagicMock

import numpy as np
from sklearn.base import BaseEstimator

FEW = 20  # classes; with more, crepes, which takes one category after the other, is too slow


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
    from crepes import ConformalClassifier
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
        if p.shape[1] <= FEW:
            alphas = 1 - p.numpy()
            own = alphas[known, y[known]]
            plain = ConformalClassifier().fit(own)
            mondrian = ConformalClassifier().fit(own, bins=y[known].numpy())
            level = {"confidence": 1 - float(cases["alpha"]), "smoothing": False}
            found[f"crepes{case}"] = np.packbits(plain.predict_set(alphas[new], **level).astype(bool))
            columns = [
                mondrian.predict_set(alphas[new][:, [k]], bins=np.full(len(new), k), **level)[:, 0]
                for k in range(p.shape[1])
            ]
            found[f"crepes Mondrian{case}"] = np.packbits(np.column_stack(columns).astype(bool))
    return found


if __name__ == "__main__":
    job, source, target = sys.argv[1:]
    np.savez(target, **{"prior": prior, "sets": sets}[job](np.load(source)))
