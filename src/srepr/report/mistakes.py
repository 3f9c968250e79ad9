"""Where a classifier still fails: its worst classes, what it takes them for, and pictures of that."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from srepr.data.examples import Examples
from srepr.data.longtail import Indices, Labels
from srepr.opened import OpenedRun

CLASSES, EXAMPLES, CONFUSIONS = 12, 5, 3
SMALL_SIDE = 64


def predictions(opened: OpenedRun, name: str) -> tuple[Labels, npt.NDArray[np.float64]]:
    """The predicted class [N] and its probability [N] for every example that the run is measured on.

    >>> from srepr.config import Train
    >>> from srepr.opened import open_trained
    >>> from srepr.stage1 import train
    >>> run = getfixture("tmp_path") / "run"
    >>> results = train(Train(source="digits-lt", network="resnet8", epochs=1), run)
    >>> opened = open_trained(run, quiet=True)
    >>> label, confidence = predictions(opened, "swa")
    >>> bool((label == opened.part.labels).mean() == results["swa"]["acc"])
    True
    """
    predicted = np.empty(len(opened.part), dtype=np.int64)
    confidence = np.empty(len(opened.part))
    for indices, logits in opened.outputs(name):
        probability, label = logits.double().softmax(1).max(1)
        predicted[indices], confidence[indices] = label.numpy(), probability.numpy()
    return predicted, confidence


def worst_classes(part: Examples, predicted: Labels, confidence: npt.NDArray[np.float64]) -> list[dict[str, Any]]:
    """The classes with the lowest accuracy that have mistakes, each with its confusions and its surest mistakes.

    >>> from srepr.data import ArrayExamples
    >>> part = ArrayExamples(np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 1, 1]), ("crow", "wren"))
    >>> worst_classes(part, np.array([0, 0, 0, 1]), np.array([0.9, 0.6, 0.8, 0.9]))
    [{'class': 1, 'confusions': [{'class': 0, 'count': 2}], 'examples': [{'predicted': 0, 'confidence': 0.8, 'image':
    None}, {'predicted': 0, 'confidence': 0.6, 'image': None}]}]
    """
    wrong = np.flatnonzero(predicted != part.labels)
    errors = np.bincount(part.labels[wrong], minlength=len(part.class_names))
    share = errors / np.maximum(part.counts, 1)
    worst = np.lexsort((-errors, -share))[: min(CLASSES, np.count_nonzero(errors))]
    found = []
    for k in worst.tolist():
        mistakes = wrong[part.labels[wrong] == k]
        taken_for, times = np.unique(predicted[mistakes], return_counts=True)
        frequent = np.argsort(-times, kind="stable")[:CONFUSIONS]
        surest: Indices = mistakes[np.argsort(-confidence[mistakes], kind="stable")[:EXAMPLES]]
        found.append(
            {
                "class": k,
                "confusions": [{"class": int(taken_for[i]), "count": int(times[i])} for i in frequent],
                "examples": [
                    {
                        "predicted": int(predicted[i]),
                        "confidence": float(confidence[i]),
                        "image": picture(part, int(i)),
                    }
                    for i in surest
                ],
            }
        )
    return found


def picture(part: Examples, index: int) -> str | None:
    """The example as a data: address, lossless where it is small; None where it is not an image.

    >>> from srepr.data import load
    >>> picture(load("digits-lt").test, 0)[:22]
    'data:image/png;base64,'
    """
    image = part.thumbnail(index)
    if image is None:
        return None
    kind = "png" if max(image.size) <= SMALL_SIDE else "jpeg"
    file = io.BytesIO()
    image.save(file, kind, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
