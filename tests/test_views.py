"""A test part that is not balanced, in both views: against repeated examples and against `with_prior`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from srepr.classifier import Classifier
from srepr.data import load
from srepr.metrics import COLUMNS, LongTailMetrics, measure
from srepr.views import SMALL, VIEWS, footnotes, is_balanced, judge, share_weights, too_small

COUNTS = [300, 90, 40, 3]
LABELS = np.repeat([0, 1, 2, 3], [12, 6, 4, 1])
LOGITS = torch.from_numpy(2 * np.random.default_rng(0).normal(size=(23, 4)) + 2 * np.eye(4)[LABELS])


def metrics():
    return LongTailMetrics(COUNTS)


def batches():
    """Once, as a network gives them."""
    return iter(zip(LOGITS.split(10), torch.from_numpy(LABELS).split(10), strict=True))


def same(found, expected, keys=(*COLUMNS, "brier", "classwise_ece", "per_class")):
    for key in keys:
        assert found[key] == pytest.approx(expected[key], rel=1e-9), key


def test_the_test_parts_of_the_benchmarks_are_balanced():
    digits = load("digits-lt").test
    assert (digits.counts.min(), digits.counts.max()) == (54, 63)
    assert is_balanced(digits.labels)
    assert is_balanced(np.arange(10_000) % 100)  # as CIFAR's


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_a_part_is_balanced_if_its_largest_class_is_at_most_half_as_large_again_as_its_smallest(counts):
    present = [count for count in counts if count]
    expected = not present or 2 * max(present) <= 3 * min(present)
    assert is_balanced(np.repeat(np.arange(len(counts)), counts)) == expected


def test_on_a_balanced_part_there_is_nothing_to_choose_from():
    balanced = np.repeat([0, 1, 2, 3], [12, 12, 12, 12])
    logits = torch.randn(48, 4)
    judged = judge([(logits, balanced)], metrics(), balanced, expects=[1.0] * 4)
    assert judged.views == {}
    assert judged.metrics == measure([(logits, balanced)], metrics()).metrics


def test_as_it_is_a_classifier_has_the_metrics_that_it_always_had():
    judged = judge(batches(), metrics(), LABELS, expects=[1.0] * 4)
    plain = measure([(LOGITS, LABELS)], metrics()).metrics
    same(judged.metrics, plain)
    assert judged.metrics.keys() == plain.keys() | {"views"}
    assert set(judged.metrics["views"]) == set(VIEWS)
    assert all(found.keys() == plain.keys() for found in judged.metrics["views"].values())


def test_every_class_counts_the_same_if_all_are_repeated_to_the_same_size():
    found = judge(batches(), metrics(), LABELS, expects=[1.0] * 4).views["equal"].metrics
    repeated = np.concatenate([np.tile(np.flatnonzero(k == LABELS), 12 // n) for k, n in enumerate([12, 6, 4, 1])])
    same(found, measure([(LOGITS[repeated], LABELS[repeated])], metrics()).metrics)
    assert found["acc"] == pytest.approx(found["balanced_acc"])
    assert (found["n"], found["tested"]) == (23, {"many": 12, "medium": 10, "few": 1})


@pytest.mark.parametrize("expects", [[1.0, 1.0, 1.0, 1.0], [4.0, 2.0, 1.0, 0.5]])
def test_as_the_classes_come_a_head_has_the_prior_of_the_part_with_one_more_of_each_class(expects):
    found = judge(batches(), metrics(), LABELS, expects=expects).views["natural"]
    moved = Classifier(nn.Identity(), expects=expects).with_prior(np.bincount(LABELS) + 1)(LOGITS)
    expected = measure([(moved, LABELS)], metrics())
    assert torch.equal(found.predicted, expected.predicted)
    torch.testing.assert_close(found.nll, expected.nll, rtol=1e-5, atol=1e-6)  # `with_prior` adds in float32
    assert found.metrics["ece"] == pytest.approx(expected.metrics["ece"], abs=1e-6)


def test_a_class_without_test_examples_keeps_a_chance():
    labels = LABELS[LABELS < 3]
    judged = judge([(LOGITS[LABELS < 3], labels)], metrics(), labels, expects=[1.0] * 4)
    assert all(np.isfinite(view.metrics["nll"]) for view in judged.views.values())
    assert judged.views["natural"].marginal[3] > 0


def test_stage_1_is_moved_in_neither_view():
    judged = judge(batches(), metrics(), LABELS)
    assert judged.views["natural"] is judged.plain
    assert torch.equal(judged.views["equal"].predicted, judged.plain.predicted)


def test_the_shares_of_two_processes_add_up():
    """As the metrics add up the sums of the processes: here each process's weighted accuracy times its weight."""
    weights = share_weights(np.ones(4), LABELS)
    whole = judge(batches(), metrics(), LABELS).views["equal"].metrics["acc"]
    hits = 0.0
    for share in (np.arange(23)[rank::2] for rank in range(2)):
        part = judge([(LOGITS[share], LABELS[share])], metrics(), LABELS, share=share)
        hits += part.views["equal"].metrics["acc"] * float(weights[share].sum())
    assert hits / 23 == pytest.approx(whole)


@pytest.mark.parametrize("shares", [[1, 1, 1, 1], [8, 4, 2, 1]])
def test_weights_give_the_classes_their_shares_and_have_mean_one(shares):
    weights = share_weights(np.array(shares), LABELS).numpy()
    found = np.bincount(LABELS, weights) / weights.sum()
    np.testing.assert_allclose(found, np.array(shares) / np.sum(shares))
    assert weights.mean() == pytest.approx(1)


def test_a_group_is_too_small_below_thirty_examples_and_an_empty_one_is_not_marked():
    tested = {"many": SMALL, "medium": SMALL - 1, "few": 0}
    assert too_small({"tested": tested}) == {"medium": 29}
    assert too_small({"acc": 0.5}) == {}  # results of version 0.1.0
    assert footnotes({"few": 1}) == ["* Few has 1 test example: too small to judge"]
