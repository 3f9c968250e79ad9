"""Where a classifier still fails: its worst classes, what it takes them for, and examples."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from srepr.data.examples import Examples
from srepr.data.longtail import Indices
from srepr.metrics import Measured

CLASSES, EXAMPLES, CONFUSIONS = 12, 5, 3
SMALL_SIDE, LARGE_SIDE = 64, 128


def worst_classes(part: Examples, measured: Measured) -> list[dict[str, Any]]:
    """The classes with the lowest accuracy that have mistakes, each with its confusions and its surest mistakes."""
    predicted, confidence = measured.predicted.numpy(), measured.confidence.numpy()
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
                        "text": part.excerpt(int(i)),
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
    image.thumbnail((LARGE_SIDE, LARGE_SIDE))
    kind = "png" if max(image.size) <= SMALL_SIDE else "jpeg"
    file = io.BytesIO()
    image.save(file, kind, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
