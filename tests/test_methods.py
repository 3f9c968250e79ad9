"""The choices of a method combine as far as they can, and one that does not exist is refused."""

from dataclasses import astuple

import pytest

from srepr.errors import InputError
from srepr.methods import METHODS, Method, method


def test_choices_are_changed_one_by_one_and_none_leaves_them():
    assert astuple(method("srepr", distill=False)) == ("linear", "stage 1", "la", "swag", False)
    assert astuple(method("la", representation="augment", distill=True)) == (
        "linear",
        "stage 1",
        "la",
        "augment",
        True,
    )
    assert method("crt", head=None, start=None, balance=None, representation=None, distill=None) == METHODS["crt"]


@pytest.mark.parametrize(
    ("choice", "known"),
    [
        ({"head": "cosine"}, "lws, lws-per-class, disalign, linear, tau-norm, ncm"),
        ({"start": "zero"}, "stage 1, random"),
        ({"balance": "cbx"}, "cbs, grw, la, none"),
        ({"representation": "swa"}, "deterministic, swag, augment"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(choice, known):
    (name, value) = next(iter(choice.items()))
    with pytest.raises(InputError, match=rf"^unknown {name} '{value}'(\.|; did you mean .*\?) Known: {known}$"):
        method("la", **choice)


def test_a_method_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(
        InputError, match=r"^unknown method 'sreper'; did you mean srepr\? Known: auto, crt, lws, la, grw, "
    ):
        method("sreper")


@pytest.mark.parametrize(
    ("how", "rho", "expected"),
    [
        (Method(head="linear"), 1.0, [64, 16]),
        (Method(head="linear", balance="la"), 1.0, [1, 1]),
        (Method(head="linear", balance="la"), 0.5, [8, 4]),
        (Method(head="disalign", balance="grw"), 0.5, [8, 4]),
        (Method(head="lws", balance="cbs"), 0.5, [1, 1]),
        (Method(head="tau-norm"), 0.5, [1, 1]),
        (Method(head="ncm", balance="la"), 0.5, [1, 1]),
    ],
)
def test_a_head_expects_what_the_balance_leaves_of_the_training_prior(how, rho, expected):
    """pi^(1 - rho) after weights and offsets; sampling is fully strong, and a closed form has no loss to balance."""
    assert how.expected_prior([64, 16], rho) == expected


def test_distillation_needs_several_representations():
    with pytest.raises(InputError, match="needs several representations"):
        method("srepr", representation="deterministic")
    with pytest.raises(InputError, match="needs several representations"):
        Method(head="linear", distill=True)


@pytest.mark.parametrize("head", ["lws", "lws-per-class", "disalign", "tau-norm", "ncm"])
def test_only_a_linear_head_starts_at_random(head):
    with pytest.raises(InputError, match=f"the head {head} is made from the stage-1 classifier"):
        method("crt", head=head)
    assert method("crt", head=head, start="stage 1").balance == "cbs"
