"""The methods are the rows of the paper's table, and a choice that does not exist is refused."""

from dataclasses import astuple

import pytest

from srepr.errors import InputError
from srepr.methods import METHODS, Method, method

TABLE = {
    "crt": ("linear", "random", "cbs", "deterministic", False),
    "lws": ("lws", "stage 1", "cbs", "deterministic", False),
    "la": ("linear", "stage 1", "la", "deterministic", False),
    "grw": ("linear", "stage 1", "grw", "deterministic", False),
    "disalign": ("disalign", "stage 1", "grw", "deterministic", False),
    "srepr": ("linear", "stage 1", "la", "swag", True),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_row_is_that_of_the_paper(name):
    assert astuple(METHODS[name]) == TABLE[name]


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
        ({"head": "cosine"}, "linear, lws, lws-per-class, disalign, tau-norm, ncm"),
        ({"start": "zero"}, "stage 1, random"),
        ({"balance": "cbx"}, "cbs, grw, la, none"),
        ({"representation": "swa"}, "deterministic, swag, augment"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(choice, known):
    (name, value) = next(iter(choice.items()))
    with pytest.raises(InputError, match=rf"^no {name} is called '{value}'\. Known: {known}$"):
        method("la", **choice)


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
