"""The paired bootstrap against the metrics of the drawn examples, closed forms and scipy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap, norm

import srepr.bootstrap
from srepr.bootstrap import change_intervals, draws
from srepr.metrics import LongTailMetrics, expected_calibration_error, measure

COUNTS = [300, 200, 90, 40, 5, 3]


def two_classifiers(sizes, seed=0):
    """Labels with so many examples of each class, and the logits of a classifier and of a sharper, better one."""
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    noise = chance.normal(size=(len(labels), len(sizes)))
    return labels, *(torch.from_numpy(scale * (noise + np.eye(len(sizes))[labels])) for scale in (0.5, 2.0))


def measured(logits, labels, weights=None):
    return measure([(logits, labels)], LongTailMetrics(COUNTS[: logits.shape[1]]), weights)


def normal(change, variance):
    reach = norm.ppf(0.975) * math.sqrt(variance)
    return change - reach, change + reach


def test_a_draw_has_as_many_examples_of_each_stratum_as_there_are():
    strata = np.array([2, 0, 2, 2, 0, 5])
    counts = np.concatenate(list(draws(strata, times=500)))
    assert counts.shape == (500, 6)
    for stratum in (0, 2, 5):
        assert (counts[:, strata == stratum].sum(1) == (strata == stratum).sum()).all()
    np.testing.assert_allclose(counts.mean(0), 1, atol=0.15)
    assert (counts[:, 5] == 1).all()
    assert counts[:, 0].max() == 3


def test_draws_are_a_function_of_the_seed_whatever_the_size_of_the_blocks(monkeypatch):
    strata = np.arange(50) % 3
    whole = np.concatenate(list(draws(strata, times=20, seed=1)))
    monkeypatch.setattr(srepr.bootstrap, "CELLS", 150)
    blocks = list(draws(strata, times=20, seed=1))
    assert len(blocks) > 5
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    assert not np.array_equal(np.concatenate(list(draws(strata, times=20, seed=2))), whole)


@pytest.mark.parametrize("equal", [False, True])
def test_the_intervals_are_those_of_the_metrics_on_the_drawn_examples(equal):
    """Each draw is laid out as a test set and measured by `LongTailMetrics`; basic quantiles of the changes."""
    sizes = [60, 40, 50, 30, 20, 11]
    labels, *logits = two_classifiers(sizes)
    weights = torch.from_numpy(1 / np.array(sizes)[labels])

    def change(chosen):
        old, new = (measured(z[chosen], labels[chosen], weights[chosen] if equal else None).metrics for z in logits)
        return {key: new[key] - old[key] for key in ("many", "medium", "few", "acc", "nll", "ece")}

    found = change_intervals(*(measured(z, labels) for z in logits), labels, COUNTS, equal=equal, resamples=40)
    counts = np.concatenate(list(draws(labels if equal else 0 * labels, times=40)))
    drawn = [change(np.repeat(np.arange(len(labels)), row.astype(int))) for row in counts]
    whole = change(np.arange(len(labels)))
    assert found.keys() == whole.keys()
    for key, (low, high) in found.items():
        above, below = np.quantile([change[key] for change in drawn], [0.975, 0.025])
        assert (low, high) == pytest.approx((2 * whole[key] - above, 2 * whole[key] - below), abs=1e-9), key


def test_of_means_the_interval_is_the_normal_one():
    labels, *logits = two_classifiers([500, 400, 600, 500, 300, 200])
    before, after = (measured(z, labels) for z in logits)
    found = change_intervals(before, after, labels, COUNTS)
    right = [side.predicted.numpy() == labels for side in (before, after)]
    gains = {"acc": right[1] * 1.0 - right[0], "nll": (after.nll - before.nll).numpy()}
    for key, values in gains.items():
        expected = normal(values.mean(), values.var() / len(labels))
        assert found[key] == pytest.approx(expected, abs=0.06 * (expected[1] - expected[0])), key


def test_if_every_class_counts_the_same_the_variance_is_the_stratified_one():
    """The mean of K class means, each of n_k examples: sum_k s_k^2 / n_k / K^2."""
    labels, *logits = two_classifiers([900, 60, 300, 40, 100, 50])
    before, after = (measured(z, labels) for z in logits)
    classes = [(after.nll - before.nll).numpy()[labels == k] for k in range(6)]
    expected = normal(np.mean([c.mean() for c in classes]), sum(c.var() / len(c) for c in classes) / 36)
    found = change_intervals(before, after, labels, COUNTS, equal=True)["nll"]
    assert found == pytest.approx(expected, abs=0.06 * (expected[1] - expected[0]))


def test_of_the_ece_the_interval_is_scipys():
    labels, *logits = two_classifiers([80, 60, 70, 50, 30, 40])
    probs = [z.softmax(1).numpy() for z in logits]

    def change(chosen):
        old, new = (expected_calibration_error(p[chosen], labels[chosen]) for p in probs)
        return new - old

    theirs = bootstrap(
        (np.arange(len(labels)),),
        change,
        vectorized=False,
        n_resamples=2000,
        method="basic",
        rng=np.random.default_rng(5),
    ).confidence_interval
    ours = change_intervals(*(measured(z, labels) for z in logits), labels, COUNTS)["ece"]
    assert ours == pytest.approx(tuple(theirs), abs=0.08 * (theirs.high - theirs.low))


def test_the_true_change_of_the_ece_is_in_nineteen_of_twenty_intervals():
    """200 samples of a classifier that is 15 points too sure, and of one that is 6 points too sure."""
    chance, hits = np.random.default_rng(0), 0
    for seed in range(200):
        truth = chance.uniform(0.52, 0.84, size=300)
        labels = (chance.random(300) > truth).astype(np.int64)  # class 0 with that probability
        sure = [np.stack([truth + more, 1 - truth - more], 1) for more in (0.15, 0.06)]
        before, after = (measured(torch.from_numpy(np.log(p)), labels) for p in sure)
        low, high = change_intervals(before, after, labels, COUNTS[:2], resamples=200, seed=seed)["ece"]
        hits += low <= -0.09 <= high
    assert 180 <= hits < 200


def test_the_same_classifier_twice_has_no_change_and_the_reverse_has_the_opposite():
    labels, *logits = two_classifiers([40, 30, 50, 30, 20, 30])
    before, after = (measured(z, labels) for z in logits)
    assert set(change_intervals(before, before, labels, COUNTS, resamples=50).values()) == {(0.0, 0.0)}
    there, back = (change_intervals(*pair, labels, COUNTS) for pair in ((before, after), (after, before)))
    for key, (low, high) in there.items():
        assert back[key] == pytest.approx((-high, -low), abs=1e-12)
    assert there == change_intervals(before, after, labels, COUNTS)


def test_what_cannot_be_judged_has_no_interval():
    """A group of fewer than 30 test examples, and an infinite likelihood."""
    labels, *logits = two_classifiers([40, 30, 20, 10, 20, 9])
    before, after = (measured(z, labels) for z in logits)
    assert change_intervals(before, after, labels, COUNTS, resamples=9).keys() == {
        "acc",
        "many",
        "medium",
        "nll",
        "ece",
    }
    impossible = after._replace(nll=after.nll.index_fill(0, torch.tensor([3]), math.inf))
    for pair in ((before, impossible), (impossible, impossible)):
        assert "nll" not in change_intervals(*pair, labels, COUNTS, resamples=9)
