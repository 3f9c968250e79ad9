"""Confidence intervals of the change from one classifier to another on the same examples: the paired bootstrap.

The test examples are drawn R times with replacement, and both classifiers are measured on the same draws. With the
change d and the quantiles q of the drawn changes, the 95 % interval is the basic one (Davison and Hinkley 1997, 5.2),

    [2 d - q(0.975), 2 d - q(0.025)].

The ECE of a sample is larger than that of its population, and that of a draw larger still. An interval of the plain
quantiles repeats this bias; the basic one removes most of it. What is left makes the change towards a well-calibrated
classifier look smaller than it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from srepr.analysis import Array
from srepr.data.longtail import Labels, groups
from srepr.data.sampling import chunks
from srepr.metrics import BINS, Measured, bin_index
from srepr.views import SMALL, share_weights

RESAMPLES = 2000
CELLS = 1 << 21  # multiplicities held at once: draws x examples


def change_intervals(
    before: Measured,
    after: Measured,
    labels: Labels,
    class_counts: Sequence[int] | Labels,
    *,
    equal: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """95 % intervals (low, high) of after - before, for acc, nll, ece and the groups that are large enough to judge.

    With `equal`, every class counts the same, and examples are drawn within their class. An infinite NLL has no
    interval.

    >>> import torch
    >>> from srepr.metrics import LongTailMetrics, measure
    >>> labels, logits = np.arange(60) % 2, torch.eye(2).repeat(30, 1)
    >>> before, after = (measure([(z, labels)], LongTailMetrics([90, 9])) for z in (0 * logits, logits))
    >>> change_intervals(before, after, labels, [90, 9])["few"]
    (1.0, 1.0)
    """
    rights = [(side.predicted.numpy() == labels).astype(np.float64) for side in (before, after)]
    losses = [side.nll.numpy() for side in (before, after)]
    everyone = np.ones(len(labels))
    terms: dict[str, tuple[Array, Array]] = {"acc": (everyone, rights[1] - rights[0])}
    for name, members in groups(class_counts).items():
        if members[labels].sum() >= SMALL:
            terms[name] = (members[labels], rights[1] - rights[0])
    if np.isfinite(losses).all():
        terms["nll"] = (everyone, losses[1] - losses[0])

    weights = share_weights(np.ones(len(class_counts)), labels).numpy() if equal else everyone
    inside, values = (np.column_stack(arrays) for arrays in zip(*terms.values(), strict=True))
    gaps = [_gaps(side, right) for side, right in zip((before, after), rights, strict=True)]
    columns = weights[:, None] * np.column_stack([inside * values, inside, *gaps])

    def changes(counts: Array) -> Array:
        """Each metric [R, metrics] on draws that have the examples so many times [R, N]."""
        sums = np.split(counts @ columns, np.cumsum([len(terms), len(terms), BINS]), axis=1)
        ece = (np.abs(sums[3]).sum(1) - np.abs(sums[2]).sum(1)) / sums[1][:, 0]
        return np.column_stack([sums[0] / sums[1], ece])

    change = changes(np.ones((1, len(labels))))
    drawn = np.concatenate([changes(counts) for counts in draws(labels if equal else 0 * labels, resamples, seed)])
    high, low = (2 * change - np.quantile(drawn, [0.025, 0.975], axis=0)).tolist()
    return dict(zip([*terms, "ece"], zip(low, high, strict=True), strict=True))


def draws(strata: Labels, times: int, seed: int = 0) -> Iterator[Array]:
    """How often each of N examples is drawn, blocks of rows [R, N]; each draw has as many of a stratum as there are.

    >>> next(draws(np.array([0, 0, 0, 1]), times=3))
    array([[2., 1., 0., 1.],
           [0., 1., 2., 1.],
           [0., 1., 2., 1.]])
    """
    n, order = len(strata), np.argsort(strata, kind="stable")
    _, first, sizes = np.unique(strata[order], return_index=True, return_counts=True)
    start, size = np.repeat(first, sizes), np.repeat(sizes, sizes)
    chance = np.random.default_rng(seed)
    for block in chunks(times, max(1, CELLS // n)):
        chosen = start + (size * chance.random((len(block), n))).astype(np.int64)
        places = chosen + n * np.arange(len(block))[:, None]
        counts = np.empty((len(block), n))
        counts[:, order] = np.bincount(places.ravel(), minlength=counts.size).reshape(counts.shape)
        yield counts


def _gaps(side: Measured, right: Array) -> Array:
    """Accuracy minus confidence of each example in the column of its bin [N, bins]."""
    gaps = np.zeros((len(right), BINS))
    gaps[np.arange(len(right)), bin_index(side.confidence).numpy()] = right - side.confidence.numpy()
    return gaps
