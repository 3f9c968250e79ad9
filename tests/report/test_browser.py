"""The page of `srepr report` in a real browser: it draws, sorts, filters, explains itself and fits everywhere."""

import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from tests.report.test_use import re_weighted

from srepr.data.longtail import groups
from srepr.decisions.conformal import Thresholds
from srepr.progress import duration
from srepr.report.mix import EXPONENTS, describe_mix
from srepr.report.page import render
from srepr.report.use import UNWATCHED, confusion, judged_sets, rejection, reliability, used

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'srepr[test]'")
HOSTILE = '</script><img src=x onerror="document.title=1">'
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5E"
    "rkJggg=="
)


def made_up_use(per_class, counts):
    """The section on using a model that gets these shares of ten examples right; the first class is not tested."""
    chance, classes = np.random.default_rng(0), len(counts)
    truth = np.repeat(np.arange(1, classes), 10)
    right = np.tile(np.arange(10), classes - 1) < np.round(10 * per_class[1:]).repeat(10)
    predicted = np.where(right, truth, (truth + 1 + np.arange(len(truth)) % 2) % classes)
    members = {name: mask[truth] for name, mask in groups(counts).items() if mask[truth].any()}
    sums = np.abs(chance.normal(size=(1 + len(EXPONENTS), classes, 17)))
    sets = Thresholds("interpolated", 0.9, (0.1,) * classes, note=f"Borrowed: {HOSTILE}.")
    return {
        "part": "test",
        **confusion(truth, predicted, classes),
        **reliability(right, predicted, chance.random(len(truth)), counts),
        "rejection": rejection(chance.random(len(truth)), truth != predicted, members) | {"by": UNWATCHED},
        "sets": judged_sets(right, np.full(len(truth), 2), truth, counts, members, sets),
        "mix": describe_mix(torch.from_numpy(sums), [0] + [10] * (classes - 1), counts),
        "without_sets": "",
    }


def made_up(classes, name="made-up", views=("",)):
    """A run as `describe_run` describes one, with so many classes of every size; the few-shot ones are too small."""
    generator = np.random.default_rng(classes)
    counts = np.geomspace(500, 2, classes).astype(int)
    before, after = np.linspace(0.9, 0.1, classes), generator.random(classes)

    def side(label, per_class, nll, ece):
        edges = (np.arange(15) + 0.5) / 15
        bins = [{"count": 40.0, "confidence": float(x), "accuracy": float(x**2)} for x in edges]
        bins[0] = {"count": 0.0, "confidence": None, "accuracy": None}
        accuracies = {key: float(per_class[members].mean()) for key, members in groups(counts).items()}
        overall = dict.fromkeys(("acc", "balanced_acc"), float(per_class.mean()))
        row = {"name": label, **accuracies, **overall, "nll": nll, "ece": ece}
        return {**row, "per_class": [None, *per_class[1:].tolist()], "bins": bins}

    def row(side):
        return {key: value for key, value in side.items() if key not in ("per_class", "bins")}

    def view(title):
        return {
            "title": title,
            "about": f"About {title}." if title else "",
            "overall": "Accuracy, all",
            "verdict": f"{title}: SRepr changes something (-1.0 to +2.0 points).".removeprefix(": "),
            "intervals": {"acc": [-0.01, 0.02], "ece": [-0.25, -0.15]},
            "results": [
                row(swa),
                {"name": "cRT", **dict.fromkeys(groups(counts), None), "diverged": "at 5"},
                row(srepr),
            ],
            "before": swa,
            "after": srepr,
        }

    swa, srepr = side("SWA", before, 2.0, 0.3), side("SRepr", after, "inf", 0.1)
    boxes = [{"low": m / 2, "q1": m, "median": 2 * m, "q3": 3 * m, "high": 4 * m} for m in (1e-4, 2e-4, 3e-4, 4e-4)]
    spread = {"pearson": None, "quartiles": boxes, "per_class": [None, *(after[1:] / 1000).tolist()]}
    example = {"predicted": 0, "confidence": 0.99, "image": DOT}
    return {
        "name": name,
        "source": "birds",
        "facts": "resnet8",
        "views": [view(title) for title in views],
        "small": {"few": 12},
        "footnotes": ["* Few has 12 test examples: too small to judge"],
        "flips": "Of 9 examples 3 became right and 2 became wrong.",
        "classes": [HOSTILE, *(f"bird {k}" for k in range(1, classes))],
        "counts": counts.tolist(),
        "tested": [0] + [10] * (classes - 1),
        "groups": np.select(list(groups(counts).values()), list(groups(counts)), "").tolist(),
        "dispersion": {
            "samples": 2,
            "ensemble": [{"samples": m, "acc": 0.5 + m / 10, "nll": 2.0, "ece": 0.1 / m} for m in (1, 2)],
            "single": {"acc": 0.5, "nll": "inf", "ece": 0.2},
            "feature": spread,
            "probability": spread,
        },
        "worst": [{"class": 1, "confusions": [{"class": 0, "count": 3}], "examples": [example] * 5}],
        "use": made_up_use(after, counts),
        "cost": [{"what": "Stage 2, SRepr", "seconds": 0.01}, {"what": "Stage 1", "seconds": 4000}],
        "settings": {"seed": "0"},
        "head_settings": {"lr": "0.1"},
        "provenance": {"command": "srepr train birds"},
    }


@pytest.fixture
def visit(browser, tmp_path):
    """Open a page about some runs; nothing may go wrong in it, and nothing be fetched but the file itself."""
    page = browser.new_page()
    page.set_viewport_size({"width": 1200, "height": 900})
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    visited = []

    def open_page(*runs, file=tmp_path / "report.html"):
        visited.append(file.as_uri())
        if runs:
            file.write_text(render(runs), encoding="utf-8")
        page.goto(file.as_uri())
        page.locator("#classes svg .count").first.wait_for(state="attached")
        return page

    yield open_page
    page.close()
    assert problems == []
    assert {address for address in requests if not address.startswith("data:")} == set(visited)


def column(page, section, number):
    """The cells of a column of a section's table."""
    return page.locator(f"#{section} > .wide tbody tr > :nth-child({number})").all_inner_texts()


def tip(page, section):
    """What is said about the mark under the mouse or the keyboard; nothing where it is hidden."""
    return page.locator(f"#{section} .tip:visible").all_inner_texts()


def test_a_real_report_draws_itself(visit, srepr, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    assert srepr("retrain", run, "--epochs", 1, "--samples", 2, "--json").code == 0
    assert srepr("report", run, "--no-dispersion").code == 0
    page = visit(file=run / "report.html")
    assert page.locator("#classes svg .count").count() == 10
    assert page.locator("#worst img").count() > 0


def test_everything_is_there_and_the_page_is_not_blank(visit):
    page = visit(made_up(12))
    assert page.locator(".sentence").inner_text() == "SRepr changes something (−1.0 to +2.0 points)."
    assert page.locator("figure").count() == 1 + 2 + 4 + 3 + 5
    assert page.locator("figure svg > title").count() == page.locator("figure svg > desc").count() == 15
    for image in page.locator("main img").all():
        assert image.get_attribute("alt")
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")
    assert column(page, "cost", 2) == ["< 0.1 s", duration(4000)]
    assert "diverged: at 5" in page.locator("#results").inner_text()
    assert "∞" in page.locator("#results").inner_text()
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    assert len(picture.getcolors(picture.width * picture.height)) > 100
    assert all(band.std() > 4 for band in np.array_split(np.asarray(picture), 5))


def test_the_tiles_say_what_is_clear_and_what_is_too_small(visit):
    page = visit(made_up(12))
    few, overall, nll, ece = (tile.split("\n") for tile in page.locator(".tiles > div").all_inner_texts())
    assert few[0] == "Accuracy, few-shot"
    assert few[3:] == ["12 test examples: too small to judge"]
    assert overall[3:] == ["no clear change", "−1.0 to +2.0 points"]
    assert nll[1:] == ["∞", "was 2.000"]
    assert ece[1:] == ["0.100", "was 0.300", "better", "−0.250 to −0.150"]


def test_a_group_that_is_too_small_is_marked_and_has_no_best(visit):
    page = visit(made_up(12))
    assert [cell[-1] for cell in column(page, "results", 4)] == ["*", "*"]  # cRT diverged
    assert not [cell for cell in page.locator("#results td.best").all_inner_texts() if cell.endswith("*")]
    assert page.locator("#results .footnote").all_inner_texts() == ["* Few has 12 test examples: too small to judge"]


def test_each_view_has_its_verdict_its_table_and_its_diagrams(visit):
    page = visit(made_up(12, views=("every class counts the same", "as the classes come")))
    sentences = page.locator(".sentence").all_inner_texts()
    assert [words.split(":")[0] for words in sentences] == ["every class counts the same", "as the classes come"]
    assert page.locator(".tiles").count() == 2
    assert [words.split(" About")[0] for words in page.locator("#results h3").all_inner_texts()] == [
        "Every class counts the same",
        "As the classes come",
    ]
    assert page.locator("#results table").count() == 2
    assert page.locator("#calibration figcaption b").all_inner_texts() == [
        f"{side}, {view}"
        for view in ("every class counts the same", "as the classes come")
        for side in ("SWA", "SRepr")
    ]
    second = page.locator("#results table").nth(1)
    second.locator("thead button", has_text="ECE").click()  # sorts this table alone
    assert second.locator("tbody th").all_inner_texts() == ["SRepr", "SWA", "cRT"]
    assert page.locator("#results table").first.locator("tbody th").all_inner_texts() == ["SWA", "cRT", "SRepr"]


def test_runs_with_and_without_views_share_a_page(visit):
    views = ("every class counts the same", "as the classes come")
    page = visit(made_up(12, "balanced"), made_up(12, "natural", views))
    tables = page.locator("#results table")
    assert [tables.nth(i).locator("thead [colspan]").all_inner_texts() for i in range(tables.count())] == [
        ["balanced birds"],
        ["natural birds"],
        ["natural birds"],
    ]


def test_a_hostile_name_is_shown_and_does_nothing(visit):
    page = visit(made_up(12))
    assert column(page, "classes", 1)[0] == HOSTILE
    assert page.title() == "birds: srepr report"
    assert page.locator("img[src=x]").count() == 0


def test_the_classes_sort_by_every_column(visit):
    run = made_up(12)
    page = visit(run)
    names = [run["classes"][k] for k in np.argsort(run["views"][0]["before"]["per_class"][1:]) + 1]
    page.get_by_label("Sort by").select_option("before")
    assert column(page, "classes", 1) == [*names, HOSTILE]  # a class without examples comes last
    page.get_by_role("button", name="Reverse").click()
    assert column(page, "classes", 1) == [*names[::-1], HOSTILE]

    change = np.subtract(run["views"][0]["after"]["per_class"][1:], run["views"][0]["before"]["per_class"][1:])
    page.locator("#classes thead button", has_text="Change").click()
    assert column(page, "classes", 1) == [run["classes"][k] for k in np.argsort(-change) + 1] + [HOSTILE]
    assert page.locator("#classes th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.locator("#classes .plot").hover(position={"x": 60, "y": 100})
    assert tip(page, "classes")[0].startswith(column(page, "classes", 1)[0])

    page.get_by_label("Sort by").select_option("name")
    assert column(page, "classes", 1)[1:] == [f"bird {k}" for k in range(1, 12)]  # 2 before 10


def test_the_classifiers_sort_with_the_best_first_and_the_missing_last(visit):
    run = made_up(12)
    page = visit(run)
    accuracy = {side["name"]: side["acc"] for side in (run["views"][0]["before"], run["views"][0]["after"])}
    heading = page.locator("#results thead button", has_text="All")
    heading.click()
    assert column(page, "results", 1) == [*sorted(accuracy, key=accuracy.get, reverse=True), "cRT"]
    page.keyboard.press("Enter")  # the focus has stayed on the heading
    assert column(page, "results", 1) == [*sorted(accuracy, key=accuracy.get), "cRT"]
    best = page.locator("#results td.best").all_inner_texts()
    assert f"{100 * max(accuracy.values()):.2f}" in best
    assert "2.000" in best


def test_filters_leave_what_they_say(visit):
    run = made_up(12)
    page = visit(run)
    everything = len(column(page, "classes", 1))
    page.locator("#classes .choice label", has_text="few").click()
    few = [name for name, group in zip(run["classes"], run["groups"], strict=True) if group == "few"]
    assert 0 < len(few) < everything == 12
    assert column(page, "classes", 1) == few
    assert page.locator("#classes svg .count").count() == len(few)
    page.get_by_label("Find").fill("BIRD 11")
    assert column(page, "classes", 1) == ["bird 11"]
    assert page.locator("#classes output").inner_text() == "1 of 12 classes"
    page.get_by_label("Find").fill("ostrich")
    assert "No class answers to that" in column(page, "classes", 1)[0]
    page.get_by_label("Find").fill("")
    page.locator("#classes .choice label", has_text="all").click()
    assert len(column(page, "classes", 1)) == everything


def test_the_keyboard_reaches_everything_and_shows_where_it_is(visit):
    page = visit(made_up(12), made_up(30, "other"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    wanted = page.evaluate(
        "[...document.querySelectorAll('a, button:not(:disabled), select, [type=search], [type=range], .plot, .wide,"
        " summary')]"
        ".filter(element => element.checkVisibility()).length"
    )
    reached = 0
    for _ in range(3 * wanted):
        kind, outline = page.evaluate(
            """() => {
              const here = document.activeElement, shown = here.type === "radio" ? here.nextElementSibling : here;
              return [here.type ?? here.tagName, getComputedStyle(shown).outlineStyle];
            }"""
        )
        if kind == "BODY":
            break
        assert outline == "solid"
        reached += kind != "radio"
        page.keyboard.press("Tab")
    assert reached == wanted


def test_a_chart_speaks_to_the_mouse_and_to_the_arrow_keys(visit):
    page = visit(made_up(12))
    assert tip(page, "classes") == []
    page.locator("#classes .plot").hover(position={"x": 1000, "y": 100})
    assert tip(page, "classes")[0].splitlines()[0] == "bird 11"
    page.mouse.move(2, 2)
    assert tip(page, "classes") == []

    page.get_by_role("radio", name="all").focus()
    page.keyboard.press("Tab")
    assert tip(page, "classes")[0].splitlines()[0] == HOSTILE
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    name, size, before, after = tip(page, "classes")[0].splitlines()
    assert (name, size) == ("bird 2", f"{made_up(12)['counts'][2]} training examples (many), 10 tested")
    assert before == f"SWA: {100 * made_up(12)['views'][0]['before']['per_class'][2]:.1f} %"
    assert after.startswith(f"SRepr: {100 * made_up(12)['views'][0]['after']['per_class'][2]:.1f} % (")
    page.keyboard.press("End")
    assert tip(page, "classes")[0].startswith("bird 11\n")
    page.keyboard.press("Escape")
    assert tip(page, "classes") == []
    for section in ("calibration", "dispersion", "rejection", "mix"):
        for plot in page.locator(f"#{section} .plot").all():
            plot.focus()
            page.keyboard.press("Home")
            assert len(tip(page, section)) == 1


def test_the_numbers_of_a_chart_are_a_table_as_well(visit):
    page = visit(made_up(12))
    page.locator("#calibration summary").first.click()
    rows = page.locator("#calibration details").first.locator("tbody tr")
    playwright.expect(rows).to_have_count(14)  # of 15 bins one is empty; the table is made when it is opened
    assert rows.last.inner_text().split("\t") == ["96.7 %", "93.4 %", "40"]


def test_the_candidates_of_a_choice_are_a_table_and_without_a_choice_there_is_none(visit):
    best = {"method": "srepr", "title": "SRepr", "penalty": 0.03, "distill_weight": 0.5, "temperature": 0.75}
    best |= {
        "adjustment": -0.25,
        "balanced_acc": 0.9,
        "nll": 0.388,
        "excess": 0.0,
        "standard_error": 0.0,
        "chosen": True,
    }
    other = {**best, "title": "LA", "distill_weight": None, "excess": 0.02, "standard_error": 0.011, "chosen": False}
    choice = {"on": "35 validation examples", "candidates": [other, best]}
    page = visit({**made_up(12), "choice": choice})
    assert "compared on 35 validation examples" in page.locator("#choice .lede").inner_text()
    cells = [row.split("\t") for row in page.locator("#choice tbody tr").all_inner_texts()]
    assert cells == [
        ["LA", "0.03", "-", "0.75", "-0.25", "90.0 %", "0.388", "+0.020 ± 0.011"],
        ["SRepr, chosen", "0.03", "0.5", "0.75", "-0.25", "90.0 %", "0.388", "best"],
    ]
    assert not visit(made_up(12)).locator("#choice").is_visible()


def test_several_runs_are_side_by_side_and_one_at_a_time(visit):
    page = visit(made_up(12, "first"), made_up(30, "second"))
    assert page.locator("#verdict h2").all_inner_texts() == ["first", "second"]
    assert page.locator("#results thead [colspan]").all_inner_texts() == ["first birds", "second birds"]
    assert page.locator("#results tbody tr").first.locator("td").count() == 14
    assert page.locator("#classes output").inner_text() == "12 of 12 classes"
    page.get_by_role("radio", name="first").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#classes output").inner_text() == "30 of 30 classes"
    assert "second" in page.locator("#provenance").inner_text()


def test_colours_follow_the_system_until_the_button_is_pressed(visit):
    page = visit(made_up(12))

    def paper():
        return sum(
            map(int, page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(","))
        )

    page.emulate_media(color_scheme="light")
    light = paper()
    page.emulate_media(color_scheme="dark")
    dark = paper()
    assert light > 700
    assert dark < 150
    page.locator("#theme").click()
    assert paper() == light
    page.reload()
    assert paper() == light  # remembered for the session
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    assert paper() == dark
    page.emulate_media(media="print")
    assert paper() == light


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_the_page_fits_the_window(visit, width):
    views = ("every class counts the same", "as the classes come")
    page = visit(made_up(40, "a-very-long-name-of-a-run-folder", views), made_up(12))
    page.set_viewport_size({"width": width, "height": 740})
    page.wait_for_function(
        "width => document.querySelector('#classes .plot svg').viewBox.baseVal.width < width", arg=width
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_thousands_of_classes_stay_quick(visit):
    page = visit(made_up(2000))
    assert 20 < page.locator("#classes svg .count").count() < 400
    assert len(column(page, "classes", 1)) == 20
    page.locator("#classes .plot").hover(position={"x": 500, "y": 100})
    assert "classes: bird" in tip(page, "classes")[0]
    spent = page.evaluate(
        """() => {
          const began = performance.now(), find = document.querySelector("[name=text]");
          for (const text of ["bird 1", "bird 12", ""]) {
            find.value = text;
            find.dispatchEvent(new Event("input"));
          }
          return performance.now() - began;
        }"""
    )
    assert spent < 3000  # three complete redraws, and a busy machine
    page.get_by_role("button", name="Next").click()
    assert page.locator(".pages span").inner_text() == "21 to 40 of 2,000"
    page.get_by_label("Find").fill("bird 77")
    assert column(page, "classes", 1) == ["bird 77", *(f"bird {k}" for k in range(770, 780))]
    assert page.locator("#classes svg .count").count() == 11


def table(page, section):
    """The cells of the rows of a table."""
    return [row.split("\t") for row in page.locator(f"#{section} > .wide tbody tr").all_inner_texts()]


def test_the_calibration_is_shown_by_the_group_of_the_predicted_class(visit):
    run = made_up(12)
    page = visit(run)
    rows = [
        [row["group"], str(row["predicted"]), *(f"{100 * row[key]:.1f} %" for key in ("accuracy", "confidence"))]
        for row in run["use"]["reliability"]
    ]
    assert len(rows) > 1
    assert [row[:4] for row in table(page, "calibration")] == rows
    assert [row[4] for row in table(page, "calibration")] == [f"{row['ece']:.3f}" for row in run["use"]["reliability"]]


def test_the_classes_have_precision_and_f1_beside_their_accuracy(visit):
    run = made_up(12)
    page = visit(run)
    shown = [f"{100 * value:.1f} %" if value is not None else "–" for value in run["use"]["precision"]]
    assert column(page, "classes", 8) == shown
    sure = [f"{100 * value:.1f} %" if value is not None else "–" for value in run["use"]["confidence"]]
    assert column(page, "classes", 9) == sure
    assert column(page, "classes", 10) == [f"{value:.3f}" for value in run["use"]["f1"]]
    page.get_by_label("Sort by").select_option("f1")
    assert column(page, "classes", 1) == [run["classes"][k] for k in np.argsort(run["use"]["f1"], kind="stable")]


def chosen(page):
    """What is said about the chosen cell of the confusion matrix."""
    return [words for words in page.locator("#use .panel [role=status]").inner_text().splitlines() if words]


def press_cell(page, row, column, of):
    """Click into a cell of the confusion matrix, which has so many on each side."""
    field = page.locator("#use .field")
    x, y, width = (float(field.get_attribute(name)) for name in ("x", "y", "width"))
    place = {"x": x + (column + 0.5) * width / of, "y": y + (row + 0.5) * width / of}
    page.locator("#use .matrix .plot").click(position=place)
    return chosen(page)


def test_a_cell_of_the_matrix_says_what_is_in_it_and_shows_the_mistakes_of_the_pair(visit):
    run = made_up(12)
    cells = run["use"]["confusion"]
    times = dict(zip(zip(cells["truth"], cells["predicted"], strict=True), cells["count"], strict=True))
    (example, *_) = run["worst"][0]["examples"]
    run["worst"][0] |= {"class": 4, "examples": [{**example, "predicted": k} for k in (5, 5, 6, 0, 0)]}
    page = visit(run)
    count = times[4, 5]
    assert press_cell(page, 4, 5, 12)[:2] == [
        "bird 4, taken for bird 5",
        f"mistakes: {count} of 10 examples, {10 * count:.1f} %",
    ]
    assert page.locator("#use .panel img").count() == 2
    right = round(10 * run["views"][0]["after"]["per_class"][7])
    assert press_cell(page, 7, 7, 12) == ["bird 7", f"right: {right} of 10 examples, {10 * right:.1f} %"]
    assert press_cell(page, 0, 3, 12)[0] == f"{HOSTILE}, taken for bird 3"

    page.keyboard.press("ArrowDown")
    assert chosen(page)[0] == "bird 1, taken for bird 3"
    listed = page.locator("#use .panel .confusions button")
    listed.nth(1).click()
    truth, predicted = (run["classes"][cells[key][1]] for key in ("truth", "predicted"))
    assert chosen(page)[0] == f"{truth}, taken for {predicted}"


def test_a_matrix_of_thousands_of_classes_is_looked_into(visit):
    run = made_up(2000)
    page = visit(run)
    assert page.locator("#use .matrix svg rect").count() < 2000
    cells = run["use"]["confusion"]
    mistakes = zip(cells["truth"], cells["predicted"], cells["count"], strict=True)
    inside = {(k, other): count for k, other, count in mistakes if 40 <= k < 60 and 40 <= other < 60}
    wrong = sum(inside.values())
    said = press_cell(page, 2, 2, 100)
    assert said[0] == "20 classes: bird 40 … bird 59, taken for 20 classes: bird 40 … bird 59"
    assert said[2] == f"mistakes: {wrong} of 200 examples, {wrong / 2:.1f} %"
    page.get_by_role("button", name="Look inside").click()
    (k, other), count = next(iter(inside.items()))
    assert press_cell(page, k - 40, other - 40, 20) == [
        f"bird {k}, taken for bird {other}",
        f"mistakes: {count} of 10 examples, {count}0.0 %",
    ]
    page.locator("#use .matrix .plot").focus()
    page.keyboard.press("Escape")
    assert chosen(page)[0].startswith("20 classes")


def test_the_slider_re_weights_the_metrics(visit):
    """What the page shows at each position is what the logits give, example by example."""
    run = made_up(12)
    chance, labels = np.random.default_rng(0), np.repeat(np.arange(1, 12), 10)
    logits = torch.from_numpy(chance.normal(size=(110, 12)) + 2 * np.eye(12)[labels])
    outputs = [(logits, torch.from_numpy(labels), None)]
    run["use"]["mix"] = used(outputs, run["counts"], expects=[1.0] * 12)["mix"]
    page = visit(run)
    slider = page.locator("[name=mix]")
    slider.focus()
    for power in EXPONENTS:
        expected = re_weighted(logits, labels, run["counts"], np.ones(12), power)
        shown = [[f"{100 * acc:.1f} %", f"{nll:.3f}", f"{ece:.3f}"] for acc, nll, ece in expected]
        assert [cells[1:] for cells in table(page, "mix")] == shown
        page.keyboard.press("ArrowRight")
    assert slider.input_value() == "20"
    assert slider.get_attribute("aria-valuetext") == "turned round"
    few = np.array(run["groups"][1:]) == "few"
    shares = 1 / np.array(run["counts"][1:])
    assert f"few {100 * shares[few].sum() / shares.sum():.1f} %" in page.locator("#mix .footnote").inner_text()
    assert "1 class without test examples does not count" in page.locator("#mix .footnote").inner_text()


def test_sets_and_rejection_are_shown_or_it_is_said_why_not(visit):
    run = made_up(12)
    page = visit(run, {**made_up(12, "other"), "use": {**run["use"], "sets": None, "without_sets": "No examples."}})
    assert [cells[0] for cells in table(page, "sets")] == ["all", "many", "medium", "few", "training mix"]
    assert table(page, "sets")[0][1:] == ["110", f"{100 * run['use']['sets']['rows'][0]['coverage']:.1f} %", "2.00"]
    assert page.locator("#sets .footnote").inner_text() == f"Borrowed: {HOSTILE}."
    page.locator("#rejection .plot").focus()
    page.keyboard.press("End")
    wrong = run["use"]["rejection"]["risk"]["all"][-1]
    assert tip(page, "rejection")[0].splitlines()[:2] == ["100 % kept", f"all: {100 * wrong:.1f} % wrong"]
    page.get_by_role("radio", name="other").focus()
    page.keyboard.press("Space")
    assert page.locator("#sets .lede").inner_text() == "No examples."
    assert not page.locator("#sets table").is_visible()
