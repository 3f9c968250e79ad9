"""`srepr predict --html`: the page has what the rows have, beside the inputs, and no name or text does anything."""

import csv
import json
import re

import numpy as np
import pytest
from PIL import Image

from srepr.config import Retrain, Train
from srepr.data import load
from srepr.data.about import About
from srepr.data.unlabelled import Unlabelled, unlabelled_texts
from srepr.methods import METHODS
from srepr.report.mistakes import picture
from srepr.report.predictions import SHOWN, Doubtful, write_predictions
from srepr.run.retrain import retrain_run
from srepr.run.train import train

DIGITS = load("digits-lt").test
HOSTILE = "</script><img src=x onerror=document.title=1>"


def content(file):
    """The content of a page of predictions."""
    page = file.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def rows_of(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A run on vectors with a validation set and a head, and its inputs; no test changes it."""
    folder, chance = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [120, 60, 30])
    np.savez(folder / "data.npz", x=chance.normal(size=(210, 4)) + y[:, None], y=y)
    train(Train(source=str(folder / "data.npz"), network="mlp", epochs=3, batch_size=16), folder / "run")
    retrain_run(folder / "run", {"la": METHODS["la"]}, Retrain(), quiet=True)
    return folder


@pytest.fixture
def visit(browser):
    """Open a page; nothing may go wrong in it, and nothing be fetched but the file itself."""
    page = browser.new_page()
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    visited = []

    def opened(file):
        visited.append(file.as_uri())
        page.goto(file.as_uri())
        page.locator("#predictions tbody tr").first.wait_for()
        return page

    yield opened
    page.close()
    assert problems == []
    assert {address for address in requests if not address.startswith("data:")} == set(visited)


def write_digits(folder, *names):
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(DIGITS.inputs[index, 0]).save(folder / name)


def cells(page, number):
    return page.locator(f"#predictions tbody tr > :nth-child({number})").all_inner_texts()


def test_the_page_has_the_rows_of_the_file_the_most_doubtful_first(srepr, retrained, here):
    np.savez(here / "digits.npz", x=DIGITS.inputs)
    answer = srepr("predict", retrained, "digits.npz", "--top", 2, "--html", "page.html", "-o", "rows.csv")
    assert (answer.code, answer.out) == (0, "The page is page.html\n")
    found, rows = content(here / "page.html"), rows_of(here / "rows.csv")
    doubts = [float(row["uncertainty"]) for row in rows]
    order = np.argsort(-np.array(doubts), kind="stable")[:SHOWN].tolist()
    assert [row["input"] for row in found["rows"]] == [rows[index]["input"] for index in order]
    assert (len(found["rows"]), found["total"], found["rejected"]) == (SHOWN, len(DIGITS), None)
    for row, index in zip(found["rows"], order, strict=True):
        assert {key: str(row[key]) for key in found["columns"]} == rows[index]
        assert row["image"] == picture(DIGITS, index)
    assert (here / "page.html").stat().st_size < 200_000


def test_without_another_output_the_rows_are_not_printed(srepr, vectors, here):
    answer = srepr("predict", vectors / "run", vectors / "data.npz", "--html", "page.html")
    assert answer.out == "The page is page.html\n"
    assert [path.name for path in here.iterdir()] == ["page.html"]


def test_a_picture_is_that_of_its_row_also_after_an_image_that_is_skipped(srepr, retrained, here):
    write_digits(here, "a.png", "c.png")
    (here / "b.png").write_bytes(b"no image")
    answer = srepr("predict", retrained, "a.png", "b.png", "c.png", "--skip-bad-images", "--html", "page.html")
    assert answer.code == 0
    found = content(here / "page.html")
    assert found["total"] == 2
    images = {row["input"]: row["image"] for row in found["rows"]}
    lone = {}
    for name in ("a.png", "c.png"):
        assert srepr("predict", retrained, name, "--html", f"{name}.html").code == 0
        lone[name] = content(here / f"{name}.html")["rows"][0]["image"]
    assert images == lone
    assert lone["a.png"] != lone["c.png"]


def test_lists_with_the_same_names_show_their_own_pictures(srepr, retrained, here):
    """The first a.png cannot be read: the second must not show the first one's picture."""
    for folder in ("one", "two"):
        (here / folder).mkdir()
        (here / folder / "list.csv").write_text("path\na.png\n")
    write_digits(here / "two", "a.png")
    (here / "one" / "a.png").write_bytes(b"no image")
    words = ("predict", retrained, "one/list.csv", "two/list.csv", "--skip-bad-images", "--html", "page.html")
    answer = srepr(*words)
    assert (answer.code, answer.err) == (0, "srepr: skipped 1 bad images (one/a.png)\n")
    (row,) = content(here / "page.html")["rows"]
    assert srepr("predict", retrained, "two/a.png", "--html", "alone.html").code == 0
    assert (row["input"], row["image"]) == ("two/a.png", content(here / "alone.html")["rows"][0]["image"])


def test_a_hostile_file_name_is_shown_and_does_nothing(srepr, visit, retrained, here):
    write_digits(here, "1.png", f"{HOSTILE}.png")
    assert srepr("predict", retrained, "1.png", f"{HOSTILE}.png", "--html", "page.html").code == 0
    page = visit(here / "page.html")
    assert set(cells(page, 1)) == {"1.png", f"{HOSTILE}.png"}
    assert page.title() == "run: srepr predict"
    assert page.locator("img[src=x]").count() == 0
    for image in page.locator("#predictions img").all():
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")


def test_a_hostile_text_is_shown_and_does_nothing(visit, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    about = About(
        network="hf:nothing",
        options={},
        class_names=(HOSTILE, "b"),
        counts=(9, 3),
        shape=(5,),
        mean=(),
        std=(),
        tokenizer=made.to_str(),
    )
    long = "a long text " * 100
    inputs = unlabelled_texts([HOSTILE, long], about)
    assert isinstance(inputs, Unlabelled)
    doubtful = Doubtful(inputs.names)
    rows = [
        {"input": HOSTILE, "label": HOSTILE, "probability": 0.4, "uncertainty": 0.6, "set": [HOSTILE, "b"]},
        {"input": long, "label": "b", "probability": 0.9, "uncertainty": 0.1, "set": ["b"]},
    ]
    assert list(doubtful.passing(rows)) == rows
    write_predictions(tmp_path / "page.html", HOSTILE, inputs, doubtful, list(rows[0]))
    page = visit(tmp_path / "page.html")
    first, second = cells(page, 1)
    assert first == HOSTILE
    assert second.endswith("…")
    assert len(second) < 300
    assert cells(page, 2) == [HOSTILE, "b"]
    assert cells(page, 5) == [f"{HOSTILE}, b (2)", "b (1)"]
    assert page.title() == f"{HOSTILE}: srepr predict"
    assert page.locator("img").count() == 0


def test_the_page_says_what_the_command_says_about_the_decisions(srepr, vectors, here):
    words = ["predict", vectors / "run", vectors / "data.npz", "--prior", "estimate", "--coverage", 0.99]
    answer = srepr(*words, "--html", "page.html")
    told = [line.removeprefix("srepr: ") for line in answer.err.splitlines()]
    assert told[0].startswith("class prior estimated from 210 inputs: ")
    assert "borrow" in told[1]
    assert content(here / "page.html")["sentences"][1:] == [told[0].capitalize()[:1] + told[0][1:], told[1]]


def test_sets_and_rejected_rows_are_marked_and_the_headings_sort(srepr, visit, vectors, here):
    words = ["predict", vectors / "run", vectors / "data.npz", "--coverage", 0.9, "--reject", 0.3]
    assert srepr(*words, "--html", "page.html", "-o", "rows.csv").code == 0
    rows, page = rows_of(here / "rows.csv"), visit(here / "page.html")
    rejected = sum(row["reject"] == "True" for row in rows)
    lede = page.locator("#predictions .lede").inner_text()
    assert 0 < rejected < SHOWN < len(rows) == 210
    assert f"The {SHOWN} most doubtful inputs are shown; 10 others are left out." in lede
    assert f"{rejected} of 210 are rejected" in lede
    assert "with a probability of 90 %" in lede
    assert cells(page, 6).count("yes") == page.locator("tr.rejected").count() == rejected
    shown = {row["input"]: row for row in rows}
    first = cells(page, 1)[0].split("\n")
    x = np.load(vectors / "data.npz")["x"][int(first[0])]
    assert first[1] == ", ".join(f"{number:.4g}" for number in x)
    assert (
        cells(page, 5)[0]
        == f"{', '.join(shown[first[0]]['set'].split('|'))} ({shown[first[0]]['set'].count('|') + 1})"
    )

    doubts = [float(words.split()[0]) for words in cells(page, 4)]
    assert doubts == sorted(doubts, reverse=True)
    page.locator("thead button", has_text="Doubt").click()
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    assert [float(words.split()[0]) for words in cells(page, 4)] == doubts[::-1]
    page.keyboard.press("Enter")  # the focus has stayed on the heading
    assert [float(words.split()[0]) for words in cells(page, 4)] == doubts
    page.locator("thead button", has_text="Set").click()
    sizes = [int(re.search(r"\((\d)\)", words)[1]) for words in cells(page, 5)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_the_window(srepr, visit, vectors, here, width):
    words = ["predict", vectors / "run", vectors / "data.npz", "--coverage", 0.9, "--reject", 0.3, "--top", 3]
    assert srepr(*words, "--html", "page.html").code == 0
    page = visit(here / "page.html")
    page.set_viewport_size({"width": width, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_cannot_be_written_is_one_line(srepr, vectors, here):
    (here / "folder").mkdir()
    (here / "link.html").symlink_to("/proc/self/fd/1")
    words = ["predict", vectors / "run", vectors / "data.npz"]
    for out in ("folder", "/dev/null", "link.html"):
        complaint = srepr(*words, "--html", out).complaint
        assert complaint == f"{out} is no file. Choose the name of a file with --html."
    assert srepr(*words, "--html", "nowhere/p.html").complaint.startswith(
        "nowhere is not a folder. Make it, or choose"
    )
    page, rows = (srepr(*words, flag, "/proc/p.html").complaint for flag in ("--html", "-o"))
    assert page == rows  # a folder that cannot be written to
    same = srepr(*words, "--html", "p.html", "-o", "folder/../p.html").complaint
    assert same == "--html and --out name the same file. Choose two."
    assert sorted(path.name for path in here.iterdir()) == ["folder", "link.html"]


def test_a_page_is_there_whole_or_not_at_all(srepr, vectors, here, disk_full):
    (here / "page.html").write_text("old")
    with disk_full(2000):
        answer = srepr("predict", vectors / "run", vectors / "data.npz", "--html", "page.html")
    assert answer.complaint.startswith("page.html: File too large")
    assert (here / "page.html").read_text() == "old"
    assert [path.name for path in here.iterdir()] == ["page.html"]
