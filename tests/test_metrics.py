"""The metrics against their definitions: exact rational arithmetic for the bins, float64 numpy for the rest."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, log_loss
from torch import nn

from srepr.errors import InputError
from srepr.metrics import COLUMNS, LongTailMetrics, evaluate, expected_calibration_error, measure, shot_groups

EDGES_ABOVE_HALF = [Fraction(n, 15) for n in range(8, 16)]


def exact_ece(confidences, correct, bins=15):
    """The definition with right-closed bins, in rational numbers."""
    error = Fraction(0)
    for n in range(1, bins + 1):
        inside = [i for i, c in enumerate(confidences) if Fraction(n - 1, bins) < c <= Fraction(n, bins)]
        if inside:
            accuracy = Fraction(sum(correct[i] for i in inside), len(inside))
            confidence = sum(confidences[i] for i in inside) / len(inside)
            error += Fraction(len(inside), len(confidences)) * abs(accuracy - confidence)
    return float(error)


def binary_rows(confidences, dtype):
    return torch.tensor([[float(c), float(1 - c)] for c in confidences], dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(st.lists(st.tuples(st.sampled_from(EDGES_ABOVE_HALF), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=60)
def test_ece_on_exact_edges_is_the_rational_definition(dtype, examples):
    confidences, correct = [c for c, _ in examples], [int(hit) for _, hit in examples]
    y = torch.tensor([1 - hit for hit in correct])
    assert expected_calibration_error(binary_rows(confidences, dtype), y) == pytest.approx(
        exact_ece(confidences, correct), abs=1e-7 if dtype == torch.float32 else 1e-12
    )


@pytest.mark.parametrize("bins", [1, 7, 15, 100])
@given(st.lists(st.tuples(st.integers(501, 1000), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=30)
def test_ece_of_any_confidences_is_the_rational_definition(bins, examples):
    confidences, correct = [Fraction(c, 1000) for c, _ in examples], [int(hit) for _, hit in examples]
    got = expected_calibration_error(binary_rows(confidences, torch.float64), [1 - hit for hit in correct], bins=bins)
    assert got == pytest.approx(exact_ece(confidences, correct, bins), abs=1e-12)


@pytest.mark.parametrize("numerator", range(1, 15))
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_an_edge_belongs_to_the_bin_below_it_and_its_successor_to_the_one_above(numerator, dtype):
    # Class 0 has the probability at hand; its class-wise gap shows in which bin it was put.
    def bin_of(p):
        metrics = LongTailMetrics([1, 1])
        metrics.update(torch.from_numpy(np.array([[p, 1 - p]], dtype=dtype)), [1], probabilities=True)
        return int(metrics.sums["class_gap"][0].nonzero())

    edge = dtype(numerator / 15)
    assert bin_of(edge) == numerator - 1
    assert bin_of(np.nextafter(edge, dtype(0))) == numerator - 1
    assert bin_of(np.nextafter(edge, dtype(1))) == numerator


def test_confidence_one_is_in_the_last_bin_and_zero_in_the_first():
    metrics = LongTailMetrics([1, 1])
    metrics.update_probs([[1.0, 0.0], [0.95, 0.05]], [0, 1])
    result = metrics.compute()
    assert [b["count"] for b in result["bins"]] == [0.0] * 14 + [2.0]
    assert result["bins"][14] == {"count": 2.0, "confidence": pytest.approx(0.975), "accuracy": 0.5}
    assert result["bins"][0] == {"count": 0.0, "confidence": None, "accuracy": None}
    assert result["ece"] == pytest.approx(0.475)
    assert metrics.sums["class_gap"][1].nonzero().tolist() == [[0]]


def test_one_point_zero_shares_its_bin():
    # In one bin over- and under-confidence cancel; were 1.0 in a bin of its own, they would add up.
    probs = [[1.0, 0.0], [1.0, 0.0], [0.95, 0.05], [0.95, 0.05]]
    assert expected_calibration_error(probs, [0, 1, 0, 0]) == pytest.approx(abs(0.75 - 0.975))


@pytest.mark.parametrize("cast", [torch.tensor, np.array, list])
def test_ece_takes_tensors_arrays_and_lists(cast):
    assert expected_calibration_error(cast([[0.9, 0.1], [0.2, 0.8]]), cast([0, 0])) == pytest.approx(0.45)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_a_decision_is_a_probability_of_one(dtype):
    """Half of the decisions are wrong, each with the confidence 1."""
    decisions = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype)
    assert expected_calibration_error(decisions, [0, 1, 1, 0]) == 0.5
    metrics = LongTailMetrics([9, 9])
    metrics.update_probs(decisions, [0, 1, 1, 0])
    assert [metrics.compute()[name] for name in ("acc", "ece", "brier")] == [0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        ([0.5, 0.5], [0, 1], r"shape \[2\]"),
        ([[0.5, 0.5]], [2], "label 2 is out of range"),
        ([[0.5, 0.5]], [-1], "negative"),
        ([[0.5, 0.5]], [0.0], "float64"),
        ([[0.5, 0.5]], [0, 1], "1 predictions but 2 labels"),
        ([[1.5, -0.5]], [0], r"lie in \[0, 1\]"),
        ([[1.5, 0.0]], [0], r"lie in \[0, 1\]"),
        ([[1.0, -0.0005]], [0], r"lie in \[0, 1\]"),
        (np.zeros((2, 0)), [0, 0], r"shape \[2, 0\]"),
        ([[0.5, 0.4]], [0], "sum to 1"),
        ([[math.nan, 0.5]], [0], "NaN"),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), "no probabilities"),
    ],
)
def test_what_is_not_a_probability_or_a_label_is_named(probs, y, message):
    with pytest.raises(InputError, match=message):
        expected_calibration_error(probs, y)


def test_rounding_in_a_float32_softmax_is_not_an_error():
    assert expected_calibration_error(torch.tensor([[1.0000001, 0.0]]), [0]) == pytest.approx(0, abs=1e-6)
    assert expected_calibration_error(torch.tensor([[0.7004, 0.3]]), [0]) == pytest.approx(0.2996)


def test_groups_at_their_borders():
    groups = shot_groups([101, 100, 20, 19, 0])
    assert groups["many"].tolist() == [True, False, False, False, False]
    assert groups["medium"].tolist() == [False, True, True, False, False]
    assert groups["few"].tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("counts", [[], [1.5, 2.0], [[1, 2]], [3, -1]])
def test_bad_class_counts_are_named(counts):
    with pytest.raises(InputError, match="class_counts"):
        LongTailMetrics(counts)


def reference(logits, y, counts, weight, bins=15):
    """All metrics straight from their definitions, in float64 numpy and loops."""
    logits, n, k = logits.astype(np.float64), len(y), len(counts)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    hit, onehot = probs.argmax(1) == y, np.eye(k)[y]
    of_class = np.asarray(counts)[y]

    def mean(values, mask=None):
        w = weight if mask is None else weight * mask
        return float((w * values).sum() / w.sum()) if w.sum() else None

    def binned(p, event):
        number = np.maximum(np.ceil(p * bins), 1)  # ((n-1)/bins, n/bins]; random p never sits on an edge
        return sum(abs(((event - p) * weight)[number == b].sum()) for b in range(1, bins + 1)) / weight.sum()

    per_class = [mean(hit, y == c) for c in range(k)]
    return {
        "acc": mean(hit),
        "many": mean(hit, of_class > 100),
        "medium": mean(hit, (of_class >= 20) & (of_class <= 100)),
        "few": mean(hit, of_class < 20),
        "nll": mean(-np.log(probs[np.arange(n), y])),
        "brier": mean(((probs - onehot) ** 2).sum(1)),
        "ece": binned(probs.max(1), hit),
        "classwise_ece": np.mean([binned(probs[:, c], onehot[:, c]) for c in range(k)]),
        "balanced_acc": np.mean([accuracy for accuracy in per_class if accuracy is not None]),
        "per_class": per_class,
        "n": n,
        "tested": {
            "many": (of_class > 100).sum(),
            "medium": ((of_class >= 20) & (of_class <= 100)).sum(),
            "few": (of_class < 20).sum(),
        },
    }


def assert_same(got, want):
    for name, value in want.items():
        if isinstance(value, list):
            assert [v is None for v in got[name]] == [v is None for v in value], name
            assert [v for v in got[name] if v is not None] == pytest.approx([v for v in value if v is not None]), name
        elif value is None:
            assert got[name] is None, name
        else:
            assert got[name] == pytest.approx(value, rel=1e-10, abs=1e-12), name


@given(
    seed=st.integers(0, 10_000),
    counts=st.lists(st.sampled_from([1, 19, 20, 100, 101, 5000]), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    weighted=st.booleans(),
)
@settings(max_examples=40)
def test_streaming_gives_what_the_definitions_give_in_one_shot(seed, counts, sizes, weighted):
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(sum(sizes), len(counts)))).astype(np.float32)
    y = rng.integers(len(counts), size=sum(sizes))
    weight = rng.uniform(0.1, 5, size=len(y)) if weighted else np.ones(len(y))
    metrics, start = LongTailMetrics(counts), 0
    for size in sizes:
        part = slice(start, start + size)
        metrics.update(torch.from_numpy(logits[part]), y[part], torch.from_numpy(weight[part]) if weighted else None)
        start += size
    assert_same(metrics.compute(), reference(logits, y, counts, weight))


def test_logits_probabilities_and_the_function_agree_and_sklearn_too():
    rng = np.random.default_rng(0)
    logits, y = torch.from_numpy(rng.normal(size=(500, 4))), rng.integers(4, size=500)
    probs = logits.softmax(1)
    from_logits, from_probs = LongTailMetrics([200, 50, 5, 5]), LongTailMetrics([200, 50, 5, 5])
    from_logits.update(logits, y)
    from_probs.update_probs(probs, y)
    result = from_logits.compute()
    assert result["nll"] == pytest.approx(log_loss(y, probs), rel=1e-12)
    assert result["balanced_acc"] == pytest.approx(balanced_accuracy_score(y, probs.argmax(1)), rel=1e-12)
    assert result["ece"] == pytest.approx(expected_calibration_error(probs, y), rel=1e-12)
    assert result == {
        name: value if isinstance(value, list | int) else pytest.approx(value)
        for name, value in from_probs.compute().items()
    }


def measure_share(rank, folder, logits, y):
    """One of two processes measures every second example: across both processes, and alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    both, alone = LongTailMetrics([200, 50, 5], across=True), LongTailMetrics([200, 50, 5])
    for metrics in (both, alone):
        metrics.update(logits[rank::2], y[rank::2])
    both.compute()  # which leaves the sums of this process as they are
    (folder / f"{rank}.json").write_text(json.dumps([both.compute(), alone.compute()]))
    dist.destroy_process_group()


def test_two_processes_measure_what_one_measures(tmp_path):
    rng = np.random.default_rng(1)
    logits, y = torch.from_numpy(rng.normal(size=(40, 3))), rng.integers(3, size=40)
    torch.multiprocessing.spawn(measure_share, (tmp_path, logits, y), nprocs=2)
    whole = LongTailMetrics([200, 50, 5])
    whole.update(logits, y)
    for rank in (0, 1):
        both, alone = json.loads((tmp_path / f"{rank}.json").read_text())
        assert_same(both, {k: v for k, v in whole.compute().items() if k != "bins"})
        part = LongTailMetrics([200, 50, 5])
        part.update(logits[rank::2], y[rank::2])
        assert alone == part.compute()


def test_without_other_processes_there_is_nothing_to_sum():
    both, alone = LongTailMetrics([5, 5], across=True), LongTailMetrics([5, 5])
    for metrics in (both, alone):
        metrics.update(torch.eye(2), torch.tensor([0, 0]))
    assert both.compute() == alone.compute()


def test_a_reset_forgets_everything():
    metrics = LongTailMetrics([1, 1])
    metrics.update_probs([[0.9, 0.1]], [1])
    metrics.reset()
    metrics.update_probs([[0.9, 0.1]], [0])
    assert (metrics.compute()["acc"], metrics.compute()["n"]) == (1.0, 1)


def test_a_compute_between_updates_does_not_stick():
    metrics = LongTailMetrics([1, 1])
    metrics.update_probs([[0.9, 0.1]], [0])
    assert metrics.compute()["acc"] == 1.0
    metrics.update_probs([[0.9, 0.1]], [1])
    assert metrics.compute()["acc"] == 0.5


def test_the_likelihood_of_the_impossible_is_infinite_never_nan():
    metrics = LongTailMetrics([200, 5])
    metrics.update_probs([[1.0, 0.0]], [0])
    assert metrics.compute()["nll"] == 0.0
    metrics.update_probs([[1.0, 0.0]], [1])
    assert metrics.compute()["nll"] == math.inf
    masked = LongTailMetrics([200, 5])
    masked.update(torch.tensor([[0.0, -math.inf]]), [1])
    assert masked.compute()["nll"] == math.inf


def test_an_example_of_weight_zero_does_not_count_even_if_impossible():
    metrics = LongTailMetrics([200, 5])
    metrics.update_probs([[1.0, 0.0], [1.0, 0.0]], [0, 1], torch.tensor([2.0, 0.0]))
    result = metrics.compute()
    assert (result["nll"], result["acc"], result["few"], result["n"]) == (0.0, 1.0, None, 2)


@pytest.mark.parametrize("weight", [[1.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_bad_weights_are_named(weight):
    with pytest.raises(InputError, match="weight"):
        LongTailMetrics([1, 1]).update(torch.zeros(2, 2), [0, 1], torch.tensor(weight))


@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_diverged_outputs_are_named_and_leave_no_trace(row):
    metrics = LongTailMetrics([1, 1])
    with pytest.raises(InputError, match="the model's outputs contain NaN"):
        metrics.update(torch.tensor([row]), [0])
    assert not metrics.compute()["n"]


def test_outputs_of_another_number_of_classes_are_named():
    with pytest.raises(InputError, match=r"shape \[4, 3\]: 2 classes need \[B, 2\]"):
        LongTailMetrics([1, 1]).update(torch.zeros(4, 3), [0, 0, 0, 0])


def test_ties_go_to_the_first_class():
    metrics = LongTailMetrics([1, 1, 1])
    metrics.update(torch.zeros(3, 3), [0, 1, 2])
    assert metrics.compute()["per_class"] == [1.0, 0.0, 0.0]
    assert expected_calibration_error([[0.5, 0.5]], [0]) == 0.5
    assert metrics.compute()["ece"] == pytest.approx(0, abs=1e-15)


def test_groups_and_classes_without_an_example_are_none():
    metrics = LongTailMetrics([500, 50, 5])
    metrics.update(torch.eye(3)[:1], [0])
    result = metrics.compute()
    assert (result["many"], result["medium"], result["few"]) == (1.0, None, None)
    assert result["per_class"] == [1.0, None, None]
    assert result["balanced_acc"] == 1.0


def test_an_empty_batch_changes_nothing():
    metrics = LongTailMetrics([1, 1])
    metrics.update(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    result = metrics.compute()
    assert result["n"] == 0
    assert {result[name] for name in ("acc", "nll", "ece", "brier", "classwise_ece", "balanced_acc")} == {None}


def test_ten_thousand_classes():
    k = 10_000
    metrics = LongTailMetrics([5] * k)
    metrics.update(torch.zeros(8, k), torch.arange(8))
    result = metrics.compute()
    assert result["nll"] == pytest.approx(math.log(k), rel=1e-12)
    assert result["acc"] == 1 / 8
    assert result["brier"] == pytest.approx(1 - 1 / k, rel=1e-10)
    assert result["ece"] == pytest.approx(1 / 8 - 1 / k, rel=1e-10)


def test_small_batches_in_float64_do_not_drift():
    metrics = LongTailMetrics([1, 1])
    logits = torch.tensor([[0.1, 0.0]])
    for _ in range(300):
        metrics.update(logits, [0])
    exact = math.log1p(math.exp(-float(logits[0, 0])))
    assert metrics.compute()["nll"] == pytest.approx(exact, rel=1e-13)


class Noisy(nn.Module):
    """Right for inputs in eval mode only, with a part that was frozen in eval mode by its owner."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(1.0)
        self.frozen = nn.BatchNorm1d(3).eval()

    def forward(self, x):
        assert not torch.is_grad_enabled()
        return {"logits": self.dropout(self.frozen(x))}


def test_evaluate_runs_in_eval_mode_and_restores_every_flag():
    model = Noisy()
    y = torch.arange(30) % 3
    result = evaluate(model, (5 * torch.eye(3)[y], y), class_counts=[500, 50, 5])
    assert (result["acc"], result["few"], result["n"]) == (1.0, 1.0, 30)
    assert model.training
    assert model.dropout.training
    assert not model.frozen.training
    assert model.frozen.num_batches_tracked == 0


def test_evaluate_restores_the_flags_after_an_error_and_names_empty_data():
    model = Noisy()
    with pytest.raises(InputError, match="out of range"):
        evaluate(model, (torch.zeros(1, 3), torch.tensor([3])), class_counts=[1, 1, 1])
    assert model.training
    with pytest.raises(InputError, match="the data is empty"):
        evaluate(model, [], class_counts=[1, 1, 1])


@pytest.mark.parametrize(("known", "accuracy"), [(None, 1.0), (("wren", "crow"), 0.0)])
def test_labels_that_are_names_mean_the_classes_of_the_model_or_else_those_in_sorted_order(known, accuracy):
    model = nn.Identity()
    if known:
        model.class_names = known
    result = evaluate(model, (torch.tensor([[9.0, 0.0], [0.0, 9.0]]), ["crow", "wren"]), class_counts=[5, 5])
    assert result["acc"] == accuracy


@pytest.mark.parametrize("examples", [0, 1, 2])
def test_the_marginal_is_the_mean_probability_even_of_one_example_or_none(examples):
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(7)]])[:examples]
    found = measure([(logits, torch.zeros(examples, dtype=torch.int64))], LongTailMetrics([1, 1]))
    assert found.marginal.tolist() == pytest.approx([[0, 0], [1 / 4, 3 / 4], [3 / 16, 13 / 16]][examples])
    assert len(found.predicted) == len(found.confidence) == len(found.nll) == found.metrics["n"] == examples


@pytest.mark.parametrize("sizes", [[60], [1, 0, 59], [20, 20, 20]])
def test_what_is_measured_of_each_example_is_numpys_whatever_the_batches(sizes):
    chance = np.random.default_rng(0)
    logits, y = torch.from_numpy(5 * chance.normal(size=(60, 4))), torch.from_numpy(chance.integers(0, 4, 60))
    found = measure(zip(logits.float().split(sizes), y.split(sizes), strict=True), LongTailMetrics([200, 50, 5, 1]))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_array_equal(found.predicted, probs.argmax(1))
    np.testing.assert_allclose(found.confidence, probs.max(1).values, rtol=1e-5)
    np.testing.assert_allclose(found.nll, -np.log(probs[np.arange(60), y]), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.marginal, probs.mean(0), rtol=1e-5)
    assert found.metrics["acc"] == pytest.approx((probs.argmax(1) == y).double().mean())
    assert found.metrics["nll"] == pytest.approx(found.nll.mean().item())


def test_weights_of_the_examples_count_in_the_metrics_alone():
    """Twice the weight is twice the example, over the borders of batches; what is said of an example stays."""
    logits, y, weights = torch.eye(4)[[0, 1, 1, 2, 3]], torch.tensor([0, 1, 2, 2, 0]), torch.tensor([2.0, 1, 0, 1, 1])
    twice = torch.tensor([0, 0, 1, 3, 4])
    weighted = measure([(logits[:2], y[:2]), (logits[2:], y[2:])], LongTailMetrics([9, 9, 9, 9]), weights)
    repeated = measure([(logits[twice], y[twice])], LongTailMetrics([9, 9, 9, 9]))
    for name in ("acc", "nll", "ece", "brier", "balanced_acc", "many", "medium", "few"):
        assert weighted.metrics[name] == (
            None if repeated.metrics[name] is None else pytest.approx(repeated.metrics[name])
        )
    assert torch.equal(weighted.predicted[twice], repeated.predicted)
    torch.testing.assert_close(weighted.nll[twice], repeated.nll)


@pytest.mark.parametrize(
    ("name", "value", "cell"),
    [
        ("acc", 1.0, "100.00"),
        ("many", 0.0, "0.00"),
        ("balanced_acc", 0.46649, "46.65"),
        ("few", None, "-"),
        ("ece", 0.00049, "0.000"),
        ("nll", math.inf, "inf"),
        ("nll", 2.1484, "2.148"),
    ],
)
def test_cells_have_the_digits_of_the_paper(name, value, cell):
    assert COLUMNS[name].cell(value) == cell


def test_every_column_says_which_way_is_better():
    """Sure and right is better than sure and wrong in every column."""
    right, wrong = LongTailMetrics([500, 50, 5]), LongTailMetrics([500, 50, 5])
    right.update(9 * torch.eye(3), [0, 1, 2])
    wrong.update(9 * torch.eye(3), [1, 2, 0])
    best, worst = right.compute(), wrong.compute()
    assert {name: best[name] < worst[name] for name in COLUMNS} == {
        name: column.lower_is_better for name, column in COLUMNS.items()
    }
