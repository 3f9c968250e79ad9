"""Text and JSON from outside."""

import time

import pytest

from srepr.data.table import csv_rows
from srepr.errors import InputError, reading
from srepr.storage.files import as_written, no_formula, write_csv
from srepr.storage.outside import open_regular, open_text, parse_json, read_text

FORMULAS = ["=1+1", "+a", "-a", "@a", "\ta", "\na", "＝1", "'=a", "''+a", "-1+1"]
PLAIN = ["wren", "'tis", "", "-1", "+2.5e3", "a=b"]


def test_words_that_look_like_a_formula_are_kept_apart_and_read_back(tmp_path):
    assert [as_written(no_formula(cell)) for cell in FORMULAS + PLAIN] == FORMULAS + PLAIN
    assert [no_formula(cell) for cell in FORMULAS + PLAIN] == [f"'{cell}" for cell in FORMULAS] + PLAIN
    assert (no_formula("\ra"), no_formula("a\r\n=b\r=c")) == ("'\na", "a\n=b\n=c")
    assert [no_formula(number) for number in (-1.5, -2, None)] == [-1.5, -2, None]
    write_csv(tmp_path / "t.csv", [{"path": cell, "label": "=x", "number": -1} for cell in FORMULAS + PLAIN])
    assert "'=x,-1" in (tmp_path / "t.csv").read_text()
    _, rows = csv_rows(tmp_path / "t.csv")
    assert [row.cells["path"] for row in rows] == FORMULAS + PLAIN


def test_a_wide_header_over_many_rows_costs_no_more_than_the_file(tmp_path):
    (tmp_path / "t.csv").write_text("path,label" + ",x" * 50_000 + "\n" + "a.jpg,b\n" * 50_000)
    begin = time.process_time()
    _, rows = csv_rows(tmp_path / "t.csv")
    assert sum(1 for _ in rows) == 50_000
    assert time.process_time() - begin < 5


def test_a_file_above_the_limit_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("12345")
    assert read_text(tmp_path / "t.txt", 5) == "12345"
    with pytest.raises(InputError, match="has 5 bytes, and at most 4 are read"):
        read_text(tmp_path / "t.txt", 4)
    with pytest.raises(InputError, match="is a folder"):
        open_regular(tmp_path, 4)
    with pytest.raises(InputError, match="does not exist"):
        read_text(tmp_path / "gone.txt")


@pytest.mark.parametrize("text", ["", "[" * 100_000, "9" * 5000, "NaN", "-Infinity", "{'a': 1}", "[1,]", "\ud800"])
def test_what_is_no_json_is_said_in_one_line(text):
    with pytest.raises(InputError, match=r"^x\.json is no JSON"):
        parse_json(text, "x.json is")


def test_what_goes_wrong_in_a_reader_names_the_file(tmp_path):
    (tmp_path / "t.txt").write_text("a\n")
    for raised in (KeyError("x"), RecursionError(), MemoryError(), PermissionError(13, "Permission denied")):
        with pytest.raises(InputError, match=r"t\.txt cannot be read") as caught, open_text(tmp_path / "t.txt"):
            raise raised
        assert caught.value.__cause__ is raised
    with pytest.raises(KeyboardInterrupt), reading("t.txt"):
        raise KeyboardInterrupt
