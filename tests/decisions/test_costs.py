"""Decisions by expected cost: against the sum itself, Chow's rule and the argmax; the file of costs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from srepr.decisions.costs import decide, expected_costs
from srepr.deploy.costs import read_costs
from srepr.errors import InputError

NAMES = ("wren", "crow", "jay")


def probabilities(seed, classes=3, examples=20):
    return np.random.default_rng(seed).dirichlet(np.ones(classes), size=examples)


@given(st.integers(0, 100), st.integers(1, 6))
def test_the_expected_cost_is_its_sum_and_no_decision_is_cheaper(seed, decisions):
    p, costs = probabilities(seed), np.random.default_rng(seed).normal(size=(3, decisions))
    found = expected_costs(p, costs).numpy()
    for i in range(len(p)):
        for j in range(decisions):
            assert found[i, j] == pytest.approx(sum(p[i, k] * costs[k, j] for k in range(3)), abs=1e-12)
    decision, cost = decide(p, costs)
    np.testing.assert_array_equal(found[np.arange(len(p)), decision], cost)
    assert (cost.numpy() <= found.min(1) + 1e-12).all()


def test_equal_costs_of_all_mistakes_are_the_most_probable_class():
    p = probabilities(0)
    assert decide(p, 1 - np.eye(3))[0].tolist() == p.argmax(1).tolist()


@pytest.mark.parametrize("price", [0.1, 0.3, 0.6])
def test_a_person_of_constant_price_is_chows_rule(price):
    """The person decides iff the probability of the best label is below 1 - price."""
    p = probabilities(1, examples=500)
    found = decide(p, np.column_stack([1 - np.eye(3), np.full(3, price)]))[0].numpy()
    np.testing.assert_array_equal(found == 3, p.max(1) < 1 - price)
    np.testing.assert_array_equal(found[found < 3], p.argmax(1)[found < 3])


def test_what_is_added_to_the_costs_of_a_class_decides_nothing():
    p, costs = probabilities(2), np.random.default_rng(2).random((3, 4))
    assert torch.equal(decide(p, costs)[0], decide(p, 3 * costs + np.array([[1.0], [-2.0], [5.0]]))[0])


@pytest.mark.parametrize(
    ("costs", "complaint"),
    [
        ([[0, 1], [1, 0]], "`costs` has 2 rows for 3 classes"),
        ([[0, 1], [1, 0], [1, float("nan")]], "`costs` has a NaN or infinite cost"),
        ([1, 2, 3], r"`costs` has the shape \[3\]"),
        (torch.empty(3, 0), r"`costs` has the shape \[3, 0\]"),
        ([["x"]], "`costs` is not an array of numbers"),
    ],
)
def test_bad_costs_are_named(costs, complaint):
    with pytest.raises(InputError, match=complaint):
        decide(probabilities(0), costs)


GOOD = "truth,crow,wren,jay,person\njay,3,2,0,0.2\nwren,1,0,2,0.2\n\ncrow,0,5,1,0.2\n"


def test_a_file_is_read_by_its_names(tmp_path):
    (tmp_path / "costs.csv").write_text(GOOD)
    found = read_costs(tmp_path / "costs.csv", NAMES)
    assert found.decisions == ("wren", "crow", "jay", "person")
    assert found.costs.tolist() == [[0, 1, 2, 0.2], [5, 0, 1, 0.2], [2, 3, 0, 0.2]]


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("jay,3", "owl,3", "unknown class in .*costs.csv, line 2: 'owl'"),
        ("jay,3,2,0,0.2\n", "", "has no row for the class 'jay'"),
        ("crow,wren,jay", "crow,wren,owl", "has no column for the class 'jay'"),
        ("jay,person", "jay,jay", "has several columns 'jay'"),
        ("\n\ncrow", "\nwren,0,0,0,0\ncrow", "line 4: class 'wren' has a second row"),
        ("3,2,0,0.2", "3,2,0", "line 2: 3 costs for 4 decisions"),
        ("3,2,0,0.2", "3,2,zero,0.2", "line 2: a cost is no number"),
        ("3,2,0,0.2", "3,2,inf,0.2", "line 2: a cost is infinite or NaN"),
        (GOOD, "", "has no column for the class 'wren'"),
        (GOOD, "\0", "there is a NUL"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, before, after, complaint):
    assert before in GOOD
    (tmp_path / "costs.csv").write_text(GOOD.replace(before, after))
    with pytest.raises(InputError, match=complaint):
        read_costs(tmp_path / "costs.csv", NAMES)


def test_a_file_that_is_none_is_named(tmp_path):
    for path in (tmp_path / "nothing.csv", tmp_path, tmp_path / ("x" * 400)):
        with pytest.raises(InputError, match=path.name[:20]):
            read_costs(path, NAMES)
