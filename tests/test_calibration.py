"""The calibration on held-out logits: it is the optimum of what it states, and what must not matter does not."""

import numpy as np
import pytest
import torch
from scipy import optimize
from torch.nn import functional as F

from srepr.calibration import STRONGEST, best_temperature, calibrate, class_weights, losses

COUNTS = torch.tensor([400, 90, 30, 6])
LABELS = torch.arange(4).repeat_interleave(torch.tensor([80, 40, 20, 10]))
LOG_PRIOR = (COUNTS / COUNTS.sum()).double().log()
NOISE = torch.randn(150, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LOGITS = 2 * (NOISE + 2 * F.one_hot(LABELS, 4)) + 1.3 * LOG_PRIOR
DOUBT = 1 / 152


def probabilities(logits, labels=LABELS, counts=COUNTS):
    return calibrate(logits, labels, counts, DOUBT).of(logits).softmax(1)


def balanced_nll(logits):
    return float(class_weights(LABELS) @ losses(logits, LABELS, DOUBT))


def test_every_class_counts_the_same():
    sums = torch.bincount(LABELS, class_weights(LABELS))
    torch.testing.assert_close(sums, torch.full((4,), 0.25, dtype=torch.float64))


def test_the_temperature_is_the_optimum_of_a_fine_search():
    best = optimize.brute(lambda t: balanced_nll(LOGITS / float(t[0])), [(0.1, 10)], Ns=500)
    assert best_temperature(LOGITS, LABELS, DOUBT) == pytest.approx(float(best[0]), rel=0.01)


def test_temperature_and_adjustment_are_the_optimum_of_a_fine_search():
    def nll(at):
        return balanced_nll(LOGITS * at[0] + at[1] * LOG_PRIOR)

    sharpness, adjustment = optimize.brute(nll, [(0.05, 2), (-2, 1)], Ns=60)
    found = calibrate(LOGITS, LABELS, COUNTS, DOUBT)
    assert (1 / found.temperature, found.adjustment) == pytest.approx((sharpness, adjustment), rel=0.01)
    assert balanced_nll(found.of(LOGITS)) < balanced_nll(LOGITS / best_temperature(LOGITS, LABELS, DOUBT)) - 0.05


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(lambda z: 7 * z, id="scale"),
        pytest.param(lambda z: z + 0.6 * LOG_PRIOR, id="what the balance left of the prior"),
        pytest.param(lambda z: z + torch.linspace(-3, 3, 150)[:, None], id="a number for each example"),
    ],
)
def test_what_must_not_matter(same):
    torch.testing.assert_close(probabilities(same(LOGITS)), probabilities(LOGITS), rtol=0, atol=2e-4)


def test_neither_order_nor_repetition_matters():
    order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        probabilities(LOGITS[order], LABELS[order]), probabilities(LOGITS)[order], rtol=0, atol=2e-4
    )
    twice = probabilities(LOGITS.repeat(2, 1), LABELS.repeat(2))
    torch.testing.assert_close(twice[:150], probabilities(LOGITS), rtol=0, atol=2e-4)


def test_a_class_without_a_held_out_example_has_no_say():
    """Else the fit would learn never to predict the rarest classes, which are those without one."""
    there = LABELS < 3
    found = calibrate(LOGITS[there], LABELS[there], COUNTS, DOUBT)
    without = calibrate(LOGITS[there][:, :3], LABELS[there], COUNTS[:3], DOUBT)
    assert found.temperature == pytest.approx(without.temperature, rel=1e-3)
    assert found.adjustment == pytest.approx(without.adjustment, abs=1e-3)


def test_equal_counts_leave_nothing_to_adjust():
    found = calibrate(LOGITS, LABELS, torch.full((4,), 25), DOUBT)
    assert found.shift is None
    assert found.temperature == pytest.approx(best_temperature(LOGITS, LABELS, DOUBT))


def test_the_edges():
    one = calibrate(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.tensor([5, 1]), 0.2)
    assert one.shift is None
    never = calibrate(LOGITS, LABELS, torch.tensor([400, 90, 30, 0]), DOUBT)
    assert torch.isfinite(never.of(LOGITS)).all()
    far = calibrate(LOGITS + 50 * LOG_PRIOR, LABELS, COUNTS, DOUBT)
    assert abs(far.adjustment) <= STRONGEST
    assert np.isfinite(balanced_nll(far.of(LOGITS)))
