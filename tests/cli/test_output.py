"""Tables in the paper's digits, the best of each column in bold."""

from srepr.cli.output import results_table

SGD = {"many": 0.7, "medium": None, "few": 0.1, "acc": 0.5, "nll": 1.5, "ece": 0.2}
SWA = {"many": 0.6, "medium": None, "few": 0.3, "acc": 0.5, "nll": 1.25, "ece": 0.25}


def rows(table):
    return list(zip(*(column._cells for column in table.columns), strict=True))


def test_the_best_of_each_column_is_bold():
    assert rows(results_table({"sgd": SGD, "swa": SWA})) == [
        ("SGD", "[bold]70.00[/bold]", "-", "10.00", "[bold]50.00[/bold]", "1.500", "[bold]0.200[/bold]"),
        ("SWA", "60.00", "-", "[bold]30.00[/bold]", "[bold]50.00[/bold]", "[bold]1.250[/bold]", "0.250"),
    ]


def test_one_row_has_no_best_and_a_name_of_its_own():
    assert rows(results_table({"mine": SGD})) == [("mine", "70.00", "-", "10.00", "50.00", "1.500", "0.200")]


def test_an_infinite_likelihood_is_read_back_from_json():
    """results.json holds it as a string."""
    first, second = rows(results_table({"sgd": {**SGD, "nll": "inf"}, "swa": SWA}))
    assert (first[5], second[5]) == ("inf", "[bold]1.250[/bold]")


def test_a_network_without_a_test_part_has_dashes():
    assert rows(results_table({"swa": {}})) == [("SWA", *["-"] * 6)]
