"""Tables in the paper's digits, the best of each column in bold; one for each view of a test part."""

from rich.text import Text

from srepr.cli.output import results_table, show_results

SGD = {"many": 0.7, "medium": None, "few": 0.1, "acc": 0.5, "balanced_acc": 0.4, "nll": 1.5, "ece": 0.2}
SWA = {"many": 0.6, "medium": None, "few": 0.3, "acc": 0.5, "balanced_acc": 0.45, "nll": 1.25, "ece": 0.25}
SMALL = {"tested": {"many": 300, "medium": 0, "few": 12}}


def rows(table):
    return list(zip(*(column._cells for column in table.columns), strict=True))


def bold(cell):
    return Text(cell, style="bold")


def test_the_best_of_each_column_is_bold():
    assert rows(results_table({"sgd": SGD, "swa": SWA})) == [
        ("SGD", bold("70.00"), "-", "10.00", bold("50.00"), "40.00", "1.500", bold("0.200")),
        ("SWA", "60.00", "-", bold("30.00"), bold("50.00"), bold("45.00"), bold("1.250"), "0.250"),
    ]


def test_one_row_has_no_best_and_a_name_of_its_own():
    assert rows(results_table({"mine": SGD})) == [("mine", "70.00", "-", "10.00", "50.00", "40.00", "1.500", "0.200")]


def test_an_infinite_likelihood_is_read_back_from_json():
    """results.json holds it as a string."""
    first, second = rows(results_table({"sgd": {**SGD, "nll": "inf"}, "swa": SWA}))
    assert (first[6], second[6]) == ("inf", bold("1.250"))


def test_a_network_without_a_test_part_has_dashes():
    assert rows(results_table({"swa": {}})) == [("SWA", *["-"] * 7)]


def test_a_group_that_is_too_small_is_marked_and_has_no_best():
    table = results_table({"sgd": SGD | SMALL, "swa": SWA | SMALL})
    assert [row[1:4] for row in rows(table)] == [(bold("70.00"), "-", "10.00*"), ("60.00", "-", "30.00*")]
    assert table.caption == "* Few has 12 test examples: too small to judge"


def test_a_test_part_that_is_not_balanced_has_a_table_for_each_view(capsys):
    equal, natural = SWA | SMALL | {"acc": 0.3}, SWA | SMALL | {"acc": 0.6}
    results = {"sgd": SGD, "swa": SWA | SMALL | {"views": {"equal": equal, "natural": natural}}}
    show_results(results, "runs/birds", as_json=False)
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("runs/birds: every class counts the same")
    assert second.startswith("runs/birds: as the classes come")
    for table, accuracy in ((first, "30.00"), (second, "60.00")):
        sgd, swa = (line.split() for line in table.splitlines() if line.startswith(("│ SGD", "│ SWA")))
        assert sgd.count("-") == 7  # measured before there were views
        assert swa[9] == accuracy
        assert "* Few has 12 test examples: too small to judge" in table


def test_json_has_everything(capsys):
    show_results({"swa": SWA | {"views": {"equal": SWA, "natural": SGD}}}, "title", as_json=True)
    assert '"natural": {' in capsys.readouterr().out
