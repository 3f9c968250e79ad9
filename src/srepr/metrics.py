"""Accuracy, likelihood and calibration of a long-tailed classifier, accumulated in float64 batch by batch.

Calibration sorts predictions into N equal bins of confidence *closed on the right*, ((n-1)/N, n/N]. A confidence
of exactly 1.0 belongs to the last one. ECE compares accuracy with mean confidence in each (paper, A.3):

    ECE = sum_n (|B_n| / |D|) |accuracy(B_n) - confidence(B_n)|
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.data.loaders import as_labels, class_names, loader, numbered, split
from srepr.data.longtail import groups
from srepr.errors import InputError
from srepr.models.call import call, eval_mode, to_device

BINS = 15
MOST_BINS = 10_000


class Column(NamedTuple):
    """A metric in the tables of the command line, the report and the model card.

    >>> COLUMNS["acc"].cell(0.47813), COLUMNS["nll"].cell(2.1484), COLUMNS["few"].cell(None)
    ('47.81', '2.148', '-')
    """

    title: str
    lower_is_better: bool = False
    percent: bool = True

    def cell(self, value: float | None) -> str:
        """One number in the paper's digits; a dash for None."""
        if value is None:
            return "-"
        return f"{100 * value:.2f}" if self.percent else f"{value:.3f}"


COLUMNS = {
    "many": Column("Many"),
    "medium": Column("Medium"),
    "few": Column("Few"),
    "acc": Column("All"),
    "balanced_acc": Column("Balanced"),
    "nll": Column("NLL", lower_is_better=True, percent=False),
    "ece": Column("ECE", lower_is_better=True, percent=False),
}
"""The metrics that the tables show, in this order. Any metric of `LongTailMetrics.compute` can be a row here."""


def bin_index(p: Tensor, bins: int = BINS) -> Tensor:
    """Index n - 1 of the bin ((n-1)/bins, n/bins] of each probability; 0 goes to the first.

    The edges are rounded to the precision of p: the float32 nearest to 2/15 is that edge, although it lies above 2/15.

    >>> bin_index(torch.tensor([0.0, 0.2, 0.21, 1.0]), bins=5)
    tensor([0, 0, 1, 4])
    """
    edges = (torch.arange(1, bins, dtype=torch.float64, device=p.device) / bins).to(p.dtype)
    return torch.searchsorted(edges.double(), p.double().contiguous())


def expected_calibration_error(probs: Any, y: Any, bins: int = BINS) -> float:
    """ECE of the probabilities [B, K] for the labels [B], each a tensor, an array or a list.

    >>> expected_calibration_error([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.25, 0.75]], [0, 0, 1, 0])
    0.0625
    """
    _check_bins(bins)
    probs = _as_probs(probs)
    y = _labels_for(probs, y)
    if not len(y):
        raise InputError("there are no probabilities: the calibration error of nothing is undefined")
    confidence, prediction = probs.max(1)
    gap = (prediction == y).double() - confidence.double()
    return float(torch.bincount(bin_index(confidence, bins), gap).abs().sum()) / len(y)


def shot_groups(class_counts: Sequence[int]) -> dict[str, Tensor]:
    """Which classes are many-shot (n > 100), medium-shot (20 to 100) and few-shot (n < 20), as masks [K].

    >>> shot_groups([500, 100, 20, 19])["medium"]
    tensor([False,  True,  True, False])
    """
    n = _array(class_counts)
    if n.ndim != 1 or n.dtype.kind not in "iu" or (n < 0).any():
        raise InputError("class_counts must be the K numbers of training examples: count them with count_labels(data)")
    return {name: torch.from_numpy(mask) for name, mask in groups(n).items()}


class LongTailMetrics:
    """All metrics of the paper's tables and some more, accumulated over batches and, with `across`, over processes.

    `compute()` returns fractions, or None without an example to measure:

    - acc, many, medium, few: accuracy over the examples of all classes and of each group of `shot_groups`;
      per_class: of each class; balanced_acc: the mean of those.
    - nll: mean of -ln p(y), infinite where p(y) = 0; brier: mean of sum_k (p_k - [y = k])^2.
    - ece: see the module; classwise_ece: the same for every p_k against [y = k], averaged over the classes.
    - bins: the reliability diagram, `count` (weighted), `confidence` and `accuracy` of each bin.
    - n: the number of examples; tested: that of each group.

    >>> metrics = LongTailMetrics(class_counts=[500, 50, 5])
    >>> metrics.update(torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]), torch.tensor([0, 1]))
    >>> result = metrics.compute()
    >>> result["acc"], result["many"], result["medium"], result["few"]
    (0.5, 1.0, 0.0, None)
    """

    def __init__(self, class_counts: Sequence[int], bins: int = BINS, *, across: bool = False) -> None:
        _check_bins(bins)
        self.groups = shot_groups(class_counts)
        self.classes, self.bins, self.across = len(class_counts), bins, across
        self.reset()

    def reset(self) -> None:
        """Forget everything that was added."""
        self.sums: dict[str, Tensor] = {
            name: torch.zeros(shape, dtype=torch.float64)
            for name, shape in {
                **dict.fromkeys(("nll", "brier"), ()),
                **dict.fromkeys(("examples", "class_weight", "class_correct"), (self.classes,)),
                "class_gap": (self.classes, self.bins),
                **dict.fromkeys(("bin_weight", "bin_confidence", "bin_correct"), (self.bins,)),
            }.items()
        }

    def update(self, logits: Tensor, y: Any, weight: Tensor | None = None, *, probabilities: bool = False) -> None:
        """Add a batch of logits [B, K] and labels [B]; weights [B] make the examples stand for another class prior."""
        scores = logits.detach().cpu()  # float64 is not on every device
        if scores.dim() != 2 or scores.shape[1] != self.classes:
            raise InputError(
                f"the model's outputs have shape {list(scores.shape)}: {self.classes} classes need [B, {self.classes}]"
            )
        y = _labels_for(scores, y)
        if probabilities:
            probs, log_probs = scores, scores.double().log()
        else:
            probs, log_probs = scores.double().softmax(1), scores.double().log_softmax(1)
            if probs.isnan().any():
                raise InputError(
                    "the model's outputs contain NaN or infinity: train it again with a lower learning rate"
                )
        weight = torch.ones(len(y)) if weight is None else weight
        if weight.shape != y.shape or not (weight >= 0).all() or weight.isinf().any():
            raise InputError("weight must hold one finite number >= 0 for each example, [B]")
        w = weight.cpu().double()

        nll = F.nll_loss(log_probs, y, reduction="none")
        error = F.one_hot(y, self.classes) - probs.double()
        correct = w * (scores.argmax(1) == y)
        confidence = probs.amax(1)
        index = bin_index(confidence, self.bins)
        class_index = torch.arange(self.classes) * self.bins + bin_index(probs, self.bins)

        batch = {
            "examples": torch.bincount(y, minlength=self.classes),
            "nll": (w * nll)[w > 0].sum(),  # 0 * inf is not a contribution
            "brier": w @ error.square().sum(1),
            "class_weight": torch.bincount(y, w, self.classes),
            "class_correct": torch.bincount(y, correct, self.classes),
            "class_gap": torch.bincount(
                class_index.flatten(), (w[:, None] * error).flatten(), self.classes * self.bins
            ).view(self.classes, self.bins),
            "bin_weight": torch.bincount(index, w, self.bins),
            "bin_confidence": torch.bincount(index, w * confidence, self.bins),
            "bin_correct": torch.bincount(index, correct, self.bins),
        }
        for name, part in batch.items():
            self.sums[name] += part

    def update_probs(self, probs: Any, y: Any, weight: Tensor | None = None) -> None:
        """Add a batch of probabilities [B, K], for predictions that are not a softmax of one model's logits.

        >>> metrics = LongTailMetrics([10, 10])
        >>> metrics.update_probs([[1.0, 0.0], [0.5, 0.5]], [0, 1])
        >>> metrics.compute()["nll"]
        0.34657359027997264
        """
        self.update(_as_probs(probs), y, weight, probabilities=True)

    def compute(self) -> dict[str, Any]:
        """The metrics over everything added so far, as listed above."""
        sums = {name: _over_processes(part) for name, part in self.sums.items()} if self.across else self.sums
        total, correct = sums["class_weight"], sums["class_correct"]
        weight = float(total.sum())
        per_class = [_ratio(c, t) for c, t in zip(correct.tolist(), total.tolist(), strict=True)]
        present = [accuracy for accuracy in per_class if accuracy is not None]
        bins = [sums[f"bin_{name}"].tolist() for name in ("weight", "confidence", "correct")]
        return {
            "acc": _ratio(float(correct.sum()), weight),
            **{
                name: _ratio(float(correct[mask].sum()), float(total[mask].sum()))
                for name, mask in self.groups.items()
            },
            "nll": _ratio(float(sums["nll"]), weight),
            "ece": _ratio(float((sums["bin_correct"] - sums["bin_confidence"]).abs().sum()), weight),
            "balanced_acc": _ratio(sum(present), len(present)),
            "brier": _ratio(float(sums["brier"]), weight),
            "classwise_ece": _ratio(float(sums["class_gap"].abs().sum()), weight * self.classes),
            "per_class": per_class,
            "bins": [
                {"count": w, "confidence": _ratio(confidence, w), "accuracy": _ratio(hits, w)}
                for w, confidence, hits in zip(*bins, strict=True)
            ],
            "n": int(sums["examples"].sum()),
            "tested": {name: int(sums["examples"][mask].sum()) for name, mask in self.groups.items()},
        }


class Measured(NamedTuple):
    """A classifier on N labelled examples: its metrics, and its prediction for each example.

    >>> measure([(torch.zeros(3, 2), [0, 0, 1])], LongTailMetrics([10, 10])).confidence
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """

    metrics: dict[str, Any]
    """As `LongTailMetrics.compute` gives them."""
    predicted: Tensor
    """The most probable class [N]."""
    confidence: Tensor
    """Its probability [N]."""
    nll: Tensor
    """-ln p(y) [N]."""
    marginal: Tensor
    """The mean probability of each class [K]."""


def measure(
    outputs: Iterable[tuple[Tensor, Any]], metrics: LongTailMetrics, weights: Tensor | None = None
) -> Measured:
    """Run through batches of (logits [B, K], labels [B]); `weights` [N] make the examples stand for another prior.

    >>> measured = measure([(torch.tensor([[9.0, 0.0], [0.0, 9.0]]), [0, 0])], LongTailMetrics([10, 10]))
    >>> measured.metrics["acc"], measured.predicted
    (0.5, tensor([0, 1]))
    """
    seen = 0
    parts = [(torch.empty(0, dtype=torch.int64), torch.empty(0), torch.empty(0), torch.zeros(metrics.classes))]
    for logits, labels in outputs:
        y = _labels_for(logits, labels).cpu()
        metrics.update(logits, y, None if weights is None else weights[seen : seen + len(y)])
        log_probs = logits.detach().cpu().double().log_softmax(1)
        confidence, predicted = log_probs.exp().max(1)
        parts.append((predicted, confidence, F.nll_loss(log_probs, y, reduction="none"), log_probs.exp().sum(0)))
        seen += len(y)
    labels_n, confidence_n, nll_n, sums = (list(column) for column in zip(*parts, strict=True))
    marginal = torch.stack(sums).sum(0) / max(seen, 1)
    return Measured(metrics.compute(), torch.cat(labels_n), torch.cat(confidence_n), torch.cat(nll_n), marginal)


def evaluate(model: nn.Module, data: Any, class_counts: Sequence[int]) -> dict[str, Any]:
    """The metrics of a model on this process's data; `class_counts` are those of the training data.

    The model runs where it is, in evaluation mode and without gradients. Its training flags are restored. Labels of
    (inputs, labels) may be class names: those that the model knows as `class_names`, or else in sorted order.

    >>> model = nn.Linear(4, 2)
    >>> sorted(evaluate(model, (torch.zeros(3, 4), torch.tensor([0, 1, 1])), class_counts=[200, 10]))[:4]
    ['acc', 'balanced_acc', 'bins', 'brier']
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), eval_mode(model):
        known = getattr(model, "class_names", None)
        names = class_names(data, len(class_counts)) if known is None else known
        batches = map(split, loader(numbered(data, names)))
        first = next(batches, None)
        if first is None:
            raise InputError("the data is empty: check its path or Dataset")
        outputs = ((call(model, to_device(inputs, device)), y) for inputs, y in chain([first], batches))
        return measure(outputs, LongTailMetrics(class_counts)).metrics


def _over_processes(part: Tensor) -> Tensor:
    """The sum of all processes' parts, of a kind of tensor that their connection carries."""
    if not dist.is_initialized():
        return part
    whole = part.to("cuda" if dist.get_backend() == "nccl" else "cpu", copy=True)
    dist.all_reduce(whole)
    return whole.cpu()


def _as_probs(values: Any) -> Tensor:
    given = values if isinstance(values, Tensor) else _array(values)
    if not isinstance(given, Tensor) and given.dtype.kind not in "fiub":
        raise InputError("probabilities must be numbers [B, K], one row for each example")
    probs = torch.as_tensor(given)
    probs = probs if probs.is_floating_point() else probs.double()
    if probs.dim() != 2 or not probs.shape[1]:
        raise InputError(f"probabilities have shape {list(probs.shape)}: pass [B, K], one row for each example")
    if probs.isnan().any():
        raise InputError("the probabilities contain NaN: check the model that gave them")
    if (probs < 0).any() or (probs > 1 + 1e-6).any():
        raise InputError("probabilities must lie in [0, 1]: pass logits through softmax first")
    if (probs.double().sum(1) - 1).abs().gt(1e-3).any():
        raise InputError("the probabilities of an example must sum to 1 (within 0.001): pass them for all K classes")
    return probs


def _labels_for(scores: Tensor, y: Any) -> Tensor:
    labels = as_labels(y, scores.shape[1]).to(scores.device)
    if len(labels) != len(scores):
        raise InputError(f"there are {len(scores)} predictions but {len(labels)} labels: pass one label for each")
    return labels


def _array(values: Any) -> npt.NDArray[Any]:
    """The values as an array; of objects where the rows have different lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.empty((), dtype=object)


def _check_bins(bins: int) -> None:
    if not isinstance(bins, int) or not 1 <= bins <= MOST_BINS:
        raise InputError(f"`bins` is {bins}: it must be a whole number from 1 to {MOST_BINS:,}")


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
