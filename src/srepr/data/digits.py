"""digits-lt: scikit-learn's 8x8 digits, made long-tailed, for a first run without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from srepr.data.dataset import LongTailData
from srepr.data.examples import ArrayExamples

LARGEST = 120
MEAN, STD = (0.3053,), (0.3759,)


def read(_: Path = Path()) -> LongTailData:
    """The first 120 images of each digit for training, before subsampling; the rest for testing.

    >>> data = read()
    >>> len(data.train), len(data.test)
    (1200, 597)
    """
    digits = load_digits()
    labels = digits.target.astype(np.int64)
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    place = np.empty_like(labels)
    for k in range(10):
        place[labels == k] = np.arange(np.sum(labels == k))
    names = tuple("0123456789")
    everything = ArrayExamples(images, labels, names, MEAN, STD, padding=1)
    return LongTailData(
        name="digits-lt",
        train=everything.subset(np.flatnonzero(place < LARGEST)),
        test=everything.subset(np.flatnonzero(place >= LARGEST)),
    )
