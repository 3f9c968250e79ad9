"""The figures: whole files that show something, text that stays text, the same bytes each time."""

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rcParams
from PIL import Image

from srepr.run.figures import FIGURES, save_figures

SVG = "{http://www.w3.org/2000/svg}"
PAGE = {"dispersion-by-nll", "dispersion-by-class", "ensemble", "reliability", "class-accuracy", "retraining"}


def invented(classes):
    """An analysis as `summary` returns it, of so many classes in no order of their counts."""
    chance = np.random.default_rng(classes)
    counts = np.maximum(1, 500 * 0.005 ** np.linspace(0, 1, classes)).astype(int)
    chance.shuffle(counts)

    def values(scale):
        return (scale * chance.uniform(0.2, 1, classes)).tolist()

    def both(make):
        return {"before": make(), "after": make()}

    def spread(scale):
        boxes = np.sort(scale * chance.uniform(size=(4, 5)), axis=1).tolist()
        names = ("low", "q1", "median", "q3", "high")
        quartiles = [dict(zip(names, box, strict=True)) for box in boxes]
        return {"pearson": 0.25, "quartiles": quartiles, "per_class": values(scale)}

    def bins():
        empty = [{"count": 0.0, "confidence": None, "accuracy": None}] * 3
        return empty + [
            {"count": 9.0, "confidence": (n + 0.5) / 15, "accuracy": chance.uniform()} for n in range(3, 15)
        ]

    points = [{"samples": m, "acc": 0.6 + m / 100, "nll": 1.5 - m / 100, "ece": 0.2 - m / 100} for m in range(1, 11)]
    return {
        "head": "srepr",
        "before": "swa",
        "counts": counts.tolist(),
        "classes": [f"the class of number {k}" for k in range(classes)],
        "dispersion": {"feature": spread(0.01), "probability": spread(0.1)},
        "ensemble": points,
        "single": {"acc": 0.65, "nll": 1.45, "ece": 0.15},
        "weight_norms": both(lambda: values(2)),
        "marginal": both(lambda: values(1 / classes)),
        "reliability": both(bins),
        "per_class": both(lambda: [None, *values(1)[1:]]),
        "metrics": both(lambda: {"ece": 0.123}),
    }


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ten")
    save_figures(invented(10), folder)
    return folder


def ink(file):
    """The share of pixels that are darker than the background and its bands."""
    return float((np.asarray(Image.open(file).convert("L")) < 220).mean())


def words(file):
    return {element.text for element in ElementTree.parse(file).iter(f"{SVG}text")}


def test_every_figure_is_there_in_print_size_with_something_on_it(ten):
    assert {file.name for file in ten.iterdir()} == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    for name in FIGURES:
        with Image.open(ten / f"{name}.png") as image:
            assert image.width == round(300 * (6.8 if name in PAGE else 3.3))
            assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert 0.01 < ink(ten / f"{name}.png") < 0.6


def test_text_in_the_vector_files_is_text(ten):
    assert {"feature space, r = 0.250", "probability space, r = 0.250", "Q4"} <= words(ten / "dispersion-by-nll.svg")
    assert {"accuracy (%)", "NLL", "ECE", "draws averaged", "averaged network"} <= words(ten / "ensemble.svg")
    assert {"SWA, ECE 0.123", "SRepr, ECE 0.123"} <= words(ten / "reliability.svg")
    for name in ("weight-norms", "marginal-likelihood", "class-accuracy", "retraining"):
        assert {"SWA", "SRepr", "many", "medium", "few", "the class o…"} <= words(ten / f"{name}.svg")


def test_a_name_is_no_formula_and_may_have_any_character(tmp_path):
    names = [r"$\frac$", "a$b$", "bird\udce9", "\x07", ""]
    save_figures({**invented(5), "classes": names}, tmp_path)
    assert {r"$\frac$", "a$b$", r"bird\udce9", r"\x07"} <= words(tmp_path / "class-accuracy.svg")


def test_before_and_after_differ_without_colour(ten):
    """One of the two lines is dashed."""
    paths = ElementTree.parse(ten / "class-accuracy.svg").iter(f"{SVG}path")
    lines = [
        path.get("style") for path in paths if "#0072b2" in path.get("style", "") or "#e69f00" in path.get("style")
    ]
    dashed = {("stroke-dasharray" in style, "#0072b2" in style) for style in lines if "fill: none" in style}
    assert dashed == {(True, False), (False, True)}


def test_the_same_analysis_gives_the_same_bytes_whatever_the_settings(ten, tmp_path, monkeypatch):
    monkeypatch.setitem(rcParams, "font.size", 20.0)
    for file in save_figures(invented(10), tmp_path):
        assert file.read_bytes() == (ten / file.name).read_bytes()
    assert rcParams["font.size"] == 20.0


def test_thousands_of_classes_are_a_cloud_and_its_mean_in_a_small_file(tmp_path):
    save_figures(invented(8142), tmp_path)
    for name in FIGURES:
        assert (tmp_path / f"{name}.svg").stat().st_size < 1_000_000
        assert 0.01 < ink(tmp_path / f"{name}.png") < 0.7
    assert not any("class of" in (text or "") for text in words(tmp_path / "class-accuracy.svg"))


def test_nothing_to_show_is_shown_as_nothing(tmp_path):
    """No spread, no weights, no examples of a class or in a quartile, one draw, one class."""
    analysis = invented(1)
    empty = dict.fromkeys(("low", "q1", "median", "q3", "high"))
    nothing = {"pearson": None, "quartiles": [dict.fromkeys(empty, 0.0), *[empty] * 3], "per_class": [0.0]}
    analysis |= {
        "dispersion": {"feature": nothing, "probability": nothing},
        "ensemble": analysis["ensemble"][:1],
        "weight_norms": {"before": [1.0], "after": [None]},
        "per_class": {"before": [1.0], "after": [None]},
    }
    save_figures(analysis, tmp_path)
    assert "feature space, r undefined" in words(tmp_path / "dispersion-by-nll.svg")
    assert "SRepr" not in words(tmp_path / "weight-norms.svg")
