"""Laws of the balancing, against the paper's formulas in numpy and Bayes' rule."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from srepr import balance
from srepr.errors import InputError

counts_lists = st.lists(st.integers(1, 10_000), min_size=2, max_size=50)


@given(counts_lists, st.floats(0, 2))
def test_weights_and_offsets_are_the_papers(counts, rho):
    pi = np.array(counts) / np.sum(counts)
    weights = balance.grw_weights(counts, rho)
    np.testing.assert_allclose(weights, pi**-rho / (pi**-rho).sum(), rtol=1e-5)
    np.testing.assert_allclose(balance.logit_offset(counts, rho), rho * np.log(pi), rtol=1e-5, atol=1e-7)
    assert weights.sum().item() == pytest.approx(1, rel=1e-5)


@given(counts_lists, st.floats(0, 2))
def test_mean_one_weights_have_mean_one_over_the_data_and_the_same_ratios(counts, rho):
    weights = balance.grw_weights(counts, rho)
    scaled = balance.mean_one(weights, counts)
    pi = np.array(counts) / np.sum(counts)
    assert (pi * scaled.numpy()).sum() == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(scaled / scaled[0], weights / weights[0], rtol=1e-5)


def test_a_class_of_weight_zero_stays_at_zero():
    torch.testing.assert_close(balance.mean_one(torch.tensor([0.0, 0.5]), [3, 1]), torch.tensor([0.0, 4.0]))


def test_ten_thousand_classes_with_one_example_each_are_uniform():
    weights = balance.grw_weights([1] * 10_000)
    torch.testing.assert_close(weights, torch.full((10_000,), 1e-4))
    torch.testing.assert_close(balance.mean_one(weights, [1] * 10_000), torch.ones(10_000))


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_counts_come_in_any_container(make):
    counts = make([500, 20, 1])
    for result in (balance.grw_weights(counts), balance.logit_offset(counts)):
        assert result.dtype == torch.float32
    assert balance.grw_weights(counts).tolist() == balance.grw_weights([500, 20, 1]).tolist()


def balanced_posterior(joint, balance_, counts):
    """What the loss under a balance has as its optimum, for a joint distribution [x, K] of inputs and classes."""
    weight = np.ones(len(counts)) if balance_.weight is None else balance_.weight.double().numpy()
    offset = np.zeros(len(counts)) if balance_.offset is None else balance_.offset.double().numpy()
    drawn = joint / joint.sum(0) if balance_.sampling else joint
    free = drawn * weight * np.exp(-offset)
    return free / free.sum(1, keepdims=True)


@pytest.mark.parametrize("name", balance.BALANCES)
@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_the_strength_of_a_balance_is_the_prior_that_it_leaves(name, rho):
    """p(y | x) of a balanced optimum is p(x | y) pi^(1 - strength), normalised."""
    counts = [70, 20, 10]
    joint = np.array([[30.0, 10, 1], [25, 4, 4], [15, 6, 5]])
    chosen = balance.balancing(name, counts, rho)
    left = joint / joint.sum(0) * np.array(counts) ** (1 - chosen.strength)
    expected = left / left.sum(1, keepdims=True)
    np.testing.assert_allclose(balanced_posterior(joint, chosen, counts), expected, rtol=1e-5)


def test_a_balance_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(InputError, match=r"^unknown balance 'cbx'; did you mean cbs\? Known: cbs, grw, la, none$"):
        balance.balancing("cbx", [2, 1])


@pytest.mark.parametrize("function", [balance.grw_weights, balance.logit_offset])
def test_an_empty_class_is_named(function):
    with pytest.raises(InputError, match="class 2 has 0 training examples"):
        function([5, 3, 0])


def test_adjusting_to_a_prior_is_bayes_rule():
    likelihood = np.array([[0.5, 0.2, 0.9], [0.1, 0.4, 0.4]])
    train, target = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.0, 0.9])
    logits = torch.tensor(np.log(likelihood * train))
    adjusted = balance.adjust_to_prior(logits, train, target)
    posterior = likelihood * target
    np.testing.assert_allclose(adjusted.softmax(-1), posterior / posterior.sum(-1, keepdims=True), rtol=1e-6)
    assert (adjusted[:, 1] == -torch.inf).all()


def test_priors_may_be_counts_and_equal_priors_change_nothing():
    logits = torch.arange(12.0).view(4, 3)
    torch.testing.assert_close(balance.adjust_to_prior(logits, [7, 2, 1], [0.7, 0.2, 0.1]), logits)
    torch.testing.assert_close(balance.adjust_to_prior(logits, [7, 2, 1], [70, 20, 10]), logits)


@pytest.mark.parametrize(
    ("train", "target", "message"),
    [
        ([0.5, 0.5], [0.2, 0.3, 0.5], "train prior has 2 classes"),
        ([0.5, 0.5, 0.0], [0.2, 0.3, 0.5], "class 2 has 0"),
        ([0.2, 0.3, 0.5], [-0.2, 0.7, 0.5], "target prior"),
        ([0.2, 0.3, 0.5], [0, 0, 0], "target prior"),
    ],
)
def test_impossible_priors_are_refused(train, target, message):
    with pytest.raises(InputError, match=message):
        balance.adjust_to_prior(torch.zeros(1, 3), train, target)
