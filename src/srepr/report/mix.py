"""What another mix of classes at the place of use would change: accuracy, NLL and ECE on re-weighted test examples.

Class k has the share q_k ~ n_k^a of its number n_k of training examples: as trained at a = 1, every class the same at
a = 0, turned round at a = -1. An example of class k then counts q_k / m_k, where m_k counts the test examples of the
class, and a metric is the sum over the classes

    acc = sum_k q_k acc_k,      nll = sum_k q_k nll_k,      ece = sum_n |sum_k q_k g_kn|

of means over the examples of each class. g_kn is the mean of [the prediction is right] - confidence, 0 outside of bin
n. Without adjustment the means do not depend on a, so the page can weight them itself. Classes of one size have one
share, so the sums over them are enough. With adjustment the logits move to z + log q - log e, where e are the class
shares that the classifier expects, and so do all means: these metrics are stored for each position.

A class without test examples has no part in the metrics. The probabilities are adjusted to the shares of all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srepr.balance import Shares, adjust_to_prior
from srepr.metrics import BINS, bin_index

EXPONENTS = [round(1 - step / 10, 1) for step in range(21)]
"""The exponents a, position by position of the page's slider."""


def shifts(counts: Sequence[int], expects: Shares) -> Tensor:
    """What is added to the logits: nothing, and then for each exponent log q - log e, [1 + 21, K].

    >>> shifts([90, 10], [1, 1])[[0, 1, 11]].exp() / 2
    tensor([[0.5000, 0.5000],
            [0.9000, 0.1000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    sizes = torch.as_tensor(counts, dtype=torch.float64).clamp(min=1)
    nothing = torch.zeros_like(sizes)
    return torch.stack([nothing, *(adjust_to_prior(nothing, expects, sizes**power) for power in EXPONENTS)])


def class_sums(logits: Tensor, labels: Tensor, shifts: Tensor) -> Tensor:
    """For each shift [R, K] of the logits [B, K], sums over the examples of each class, [R, K, 2 + 15].

    They are of [the prediction is right], of -ln p(y), and of [right] - confidence in each bin.

    >>> class_sums(torch.tensor([[0.0, 9.0]]), torch.tensor([0]), torch.tensor([[0.0, 0.0], [10.0, 0.0]]))[:, 0, :2]
    tensor([[0.0000, 9.0001],
            [1.0000, 0.3133]], dtype=torch.float64)
    """
    log_p, moves = logits.detach().cpu().double().log_softmax(1), shifts.double()
    # Of sum_k p_k exp(shift_k), one product for all shifts; what underflows in p is too small to count.
    totals = (log_p.exp() @ moves.exp().T).log()
    true = log_p.gather(1, labels[:, None])[:, 0]
    sums = torch.zeros(*moves.shape, 2 + BINS, dtype=torch.float64)
    for found, shift, total in zip(sums, moves, totals.T, strict=True):
        best, predicted = (log_p + shift).max(1)
        confidence, right = (best - total).exp(), (predicted == labels).double()
        found[:, 0].index_add_(0, labels, right)
        found[:, 1].index_add_(0, labels, total - true - shift[labels])
        found.view(-1).index_add_(0, labels * (2 + BINS) + 2 + bin_index(confidence), right - confidence)
    return sums


def describe_mix(sums: Tensor, tested: Sequence[int], counts: Sequence[int]) -> dict[str, Any]:
    """The page's numbers from the sums of `class_sums` over all test examples, of which a class has `tested` [K].

    `classes`, `right`, `nll` and `gaps` are sums over the classes of each of the `sizes`: their number, and their
    means without adjustment. `adjusted` has the metrics at each of the `exponents`.

    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1])
    >>> found = describe_mix(class_sums(logits, labels, shifts([90, 10], [1, 1])), [2, 1], [90, 10])
    >>> found["sizes"], found["right"], found["adjusted"]["acc"][::10]
    ([10, 90], [1.0, 0.5], [1.0, 0.75, 0.9])
    """
    there = np.asarray(tested) > 0
    n = np.maximum(np.asarray(counts), 1)[there]
    means = sums.numpy()[:, there] / np.asarray(tested)[there, None]
    sizes, place = np.unique(n, return_inverse=True)
    plain = np.zeros((len(sizes), means.shape[2]))
    np.add.at(plain, place, means[0])
    adjusted = []
    for power, moved in zip(EXPONENTS, means[1:], strict=True):
        shares = n.astype(np.float64) ** power
        acc, nll, *gaps = (shares / shares.sum()) @ moved
        adjusted.append((float(acc), float(nll), float(np.abs(gaps).sum())))
    return {
        "exponents": EXPONENTS,
        "sizes": sizes.tolist(),
        "classes": np.bincount(place, minlength=len(sizes)).tolist(),
        "right": plain[:, 0].tolist(),
        "nll": plain[:, 1].tolist(),
        "gaps": plain[:, 2:].tolist(),
        "adjusted": dict(zip(("acc", "nll", "ece"), map(list, zip(*adjusted, strict=True)), strict=True)),
    }
