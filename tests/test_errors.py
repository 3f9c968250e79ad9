"""The one error for a name that is not known: it says what is, and the nearest of them."""

import pytest

from srepr.errors import InputError, check, unknown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sreper", "unknown method 'sreper'; did you mean srepr? Known: crt, srepr, la"),
        ("Srepr", "unknown method 'Srepr'; did you mean srepr? Known: crt, srepr, la"),
        ("magic", "unknown method 'magic'. Known: crt, srepr, la"),
        ("", "unknown method ''. Known: crt, srepr, la"),
        (None, "unknown method 'None'. Known: crt, srepr, la"),
        (3, "unknown method '3'. Known: crt, srepr, la"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_and_all_that_are_known(name, said):
    assert str(unknown("method", name, ["crt", "srepr", "la"])) == said


def test_names_may_come_from_a_table_or_a_generator_and_a_hint_ends_the_message():
    error = unknown("data set", "cifar", {"cifar10-lt": 1}, hint=", or a path")
    assert isinstance(error, InputError)
    assert str(error) == "unknown data set 'cifar'; did you mean cifar10-lt? Known: cifar10-lt, or a path"
    assert str(unknown("head", "x", (name for name in ("a", "b")))) == "unknown head 'x'. Known: a, b"


def test_a_check_complains_only_where_it_does_not_hold():
    check(True, "never said")
    with pytest.raises(InputError, match=r"^`epochs` is 0$"):
        check(False, "`epochs` is 0")
