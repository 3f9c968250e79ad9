"""`srepr report`: what the page says is what the run says, and the page is a file that needs nothing else."""

import base64
import dataclasses
import io
import json
import math
import multiprocessing.dummy
import re
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import confusion_matrix

from srepr.config import RECIPES, Retrain, Train
from srepr.data import ArrayExamples, load
from srepr.features import NetworkFeatures
from srepr.methods import METHODS
from srepr.metrics import COLUMNS, Measured
from srepr.report.content import describe_run
from srepr.report.mistakes import CLASSES, CONFUSIONS, EXAMPLES, picture, worst_classes
from srepr.report.page import render
from srepr.report.verdict import Change, flips, verdict
from srepr.run.analyze import run_draws, summary
from srepr.run.classifiers import Frozen, open_run
from srepr.run.folder import read_fingerprint
from srepr.run.log import read_log
from srepr.run.retrain import retrain_run
from srepr.run.train import train
from srepr.storage.files import read_json, write_json
from srepr.views import VIEWS

BLOCK = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)
SWA = {"many": 0.75, "medium": 0.4, "few": 0.121, "acc": 0.5, "ece": 0.3}


@pytest.fixture
def run(retrained, tmp_path):
    return shutil.copytree(retrained, tmp_path / "run")


@pytest.fixture(scope="module")
def described(retrained):
    return {"name": "run", **describe_run(open_run(retrained, quiet=True), dispersion=False)}


def content(page):
    """The runs in the JSON block of a page."""
    return json.loads(BLOCK.search(page)[1])["runs"]


def read(file):
    return content(file.read_text(encoding="utf-8"))


def said(predicted, confidence):
    """What a classifier says of each example."""
    nothing = torch.empty(0)
    return Measured({}, torch.from_numpy(predicted), torch.from_numpy(confidence), nothing, nothing)


def changed(after, spread=0.004):
    """The changes from SWA to these numbers, each with an interval of so much to both sides."""
    after = SWA | after
    return {
        key: Change(old, after[key], *(after[key] - old + x for x in (-spread, spread))) for key, old in SWA.items()
    }


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (
            {"many": 0.72, "few": 0.314, "acc": 0.55, "ece": 0.15},
            "raises accuracy on the few-shot classes from 12.1 % to 31.4 % (+18.9 to +19.7 points) and lowers ECE from"
            " 0.300 to 0.150 (-0.154 to -0.146), at the price of 3.0 points on the many-shot classes (-3.4 to -2.6).",
        ),
        (
            {"few": 0.314, "acc": 0.55, "ece": 0.15},
            "raises accuracy on the few-shot classes from 12.1 % to 31.4 % (+18.9 to +19.7 points) and lowers ECE from"
            " 0.300 to 0.150 (-0.154 to -0.146).",
        ),
        (
            {"few": 0.05, "medium": 0.38, "acc": 0.48, "ece": 0.4},
            "lowers accuracy on the few-shot classes from 12.1 % to 5.0 % (-7.5 to -6.7 points) and raises ECE from"
            " 0.300 to 0.400 (+0.096 to +0.104), and loses 2.0 points on the medium-shot classes (-2.4 to -1.6) and"
            " 2.0 points overall (-2.4 to -1.6).",
        ),
        (
            {"few": 0.05, "many": 0.8, "ece": 0.4},
            "lowers accuracy on the few-shot classes from 12.1 % to 5.0 % (-7.5 to -6.7 points) and raises ECE from"
            " 0.300 to 0.400 (+0.096 to +0.104), but gains 5.0 points on the many-shot classes (+4.6 to +5.4).",
        ),
        (
            {"few": 0.2, "ece": 0.4},
            "raises accuracy on the few-shot classes from 12.1 % to 20.0 % (+7.5 to +8.3 points) but raises ECE from"
            " 0.300 to 0.400 (+0.096 to +0.104).",
        ),
        (
            {"ece": 0.1},
            "makes no clear change to accuracy on the few-shot classes (12.1 % to 12.1 %, -0.4 to +0.4 points) and"
            " lowers ECE from 0.300 to 0.100 (-0.204 to -0.196).",
        ),
        (
            {"few": 0.124, "ece": 0.3004},
            "makes no clear change: accuracy on the few-shot classes goes from 12.1 % to 12.4 % (-0.1 to +0.7 points),"
            " ECE from 0.300 to 0.300 (-0.004 to +0.004).",
        ),
        (
            {"many": 0.76},
            "makes no clear change to accuracy on the few-shot classes (12.1 % to 12.1 %, -0.4 to +0.4 points) and"
            " makes no clear change to ECE (0.300 to 0.300, -0.004 to +0.004),"
            " but gains 1.0 points on the many-shot classes (+0.6 to +1.4).",
        ),
    ],
)
def test_the_verdict_says_what_the_numbers_say(after, expected):
    assert verdict("SRepr", changed(after)) == f"SRepr {expected}"


def test_the_verdict_is_about_the_rarest_classes_that_can_be_judged():
    """A group without examples, or with too few, has no interval and is not among the changes."""
    judged = {key: change for key, change in changed({"medium": 0.5}).items() if key != "few"}
    assert "raises accuracy on the medium-shot classes from 40.0 % to 50.0 %" in verdict("LA", judged)
    assert "few" not in verdict("LA", judged)
    only = {key: change for key, change in changed({"acc": 0.6}).items() if key in ("acc", "ece")}
    assert "raises accuracy overall from 50.0 % to 60.0 %" in verdict("LA", only)


def test_in_a_view_the_verdict_is_about_all_classes():
    said = verdict("LA", changed({"acc": 0.6, "many": 0.7}), "balanced accuracy")
    assert said.startswith(
        "LA raises balanced accuracy from 50.0 % to 60.0 % (+9.6 to +10.4 points) and makes no clear"
    )
    assert said.endswith(", at the price of 5.0 points on the many-shot classes (-5.4 to -4.6).")


fractions = st.floats(0, 1)
measured = st.fixed_dictionaries(dict.fromkeys(SWA, st.tuples(fractions, fractions, st.floats(0, 0.2))))


@given(measured)
def test_a_verdict_and_its_reverse_contradict_each_other_and_noise_is_not_claimed(numbers):
    there, back = (
        verdict(
            "A",
            {
                key: Change(*pair[::way], way * (pair[1] - pair[0]) - spread, way * (pair[1] - pair[0]) + spread)
                for key, (*pair, spread) in numbers.items()
            },
        )
        for way in (1, -1)
    )
    assert ("makes no clear change:" in there) == ("makes no clear change:" in back)
    for key, what in {"few": "accuracy on the few-shot classes", "ece": "ECE"}.items():
        old, new, spread = numbers[key]
        digits = 1 if key == "few" else 3
        clear = round((new - old - spread) * (100 if key == "few" else 1), digits) > 0
        assert (f"raises {what} from" in there) == (f"lowers {what} from" in back) == clear


@given(st.integers(0, 60), st.integers(0, 60))
def test_chance_is_the_exact_sign_test(gained, lost):
    n, tail = gained + lost, min(gained, lost)
    p = min(1.0, 2 * sum(math.comb(n, k) for k in range(tail + 1)) / 2**n)
    said = flips(gained, lost, 1000)
    assert said.startswith(f"Of 1,000 examples {gained} became right and {lost} became wrong")
    shown = re.search(r"p (=|<) ([\d.]+)\)", said)
    assert float(shown[2]) == pytest.approx(p, abs=6e-4) if shown[1] == "=" else p < 0.001
    if abs(p - 0.05) > 1e-9:
        assert ("chance alone can explain" in said) == (p > 0.05)


@given(st.integers(2, 15), st.integers(0, 80), st.integers(0, 2**32 - 1))
def test_the_worst_classes_and_their_confusions_are_those_of_the_confusion_matrix(classes, n, seed):
    generator = np.random.default_rng(seed)
    labels, predicted = generator.integers(0, classes, (2, n))
    confidence = generator.random(n)
    part = ArrayExamples(np.zeros((n, 2), dtype=np.float32), labels, tuple(map(str, range(classes))))
    found = worst_classes(part, said(predicted, confidence))
    matrix = confusion_matrix(labels, predicted, labels=range(classes)) if n else np.zeros((classes, classes), int)
    errors = matrix.sum(1) - matrix.diagonal()
    share = errors / np.maximum(matrix.sum(1), 1)

    assert len(found) == min(CLASSES, (errors > 0).sum())
    assert [share[bad["class"]] for bad in found] == sorted(share[errors > 0], reverse=True)[:CLASSES]
    for bad in found:
        row = matrix[bad["class"]] * (np.arange(classes) != bad["class"])
        assert all(row[c["class"]] == c["count"] for c in bad["confusions"])
        assert [c["count"] for c in bad["confusions"]] == sorted(row[row > 0], reverse=True)[:CONFUSIONS]
        wrong = confidence[(labels == bad["class"]) & (predicted != labels)]
        assert [example["confidence"] for example in bad["examples"]] == sorted(wrong, reverse=True)[:EXAMPLES]


def test_small_pictures_are_the_pixels_and_large_ones_are_jpeg():
    test = load("digits-lt").test
    kind, data = picture(test, 3).split(",")
    assert kind == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), test.inputs[3, 0])
    large = ArrayExamples(np.zeros((1, 3, 96, 96), dtype=np.uint8), np.array([0]), ("night",))
    assert picture(large, 0).startswith("data:image/jpeg;base64,")
    assert picture(ArrayExamples(np.zeros((1, 2), dtype=np.float32), np.array([0]), ("row",)), 0) is None


def test_the_page_is_about_the_run(srepr, run):
    answer = srepr("report", run, "--no-dispersion")
    assert answer.code == 0
    (page,) = read(run / "report.html")
    assert answer.out.splitlines() == [page["verdict"], f"The report is {run / 'report.html'}"]
    results = read_json(run / "results.json")
    (view,) = page["views"]
    assert (view["title"], page["small"], page["footnotes"]) == ("", {}, [])
    assert page["verdict"] == f"{view['verdict']} Brackets: 95 % confidence intervals of the change."
    assert [row["name"] for row in view["results"]] == ["SGD", "SWA", "cRT", "LWS", "LA", "DisAlign", "NCM", "SRepr"]
    for row, metrics in zip(view["results"], results.values(), strict=True):
        assert all(row[key] == pytest.approx(metrics[key], rel=1e-4) for key in COLUMNS)
    assert (page["name"], page["source"], page["dispersion"]) == ("run", "digits-lt", None)
    assert (view["before"]["name"], view["after"]["name"]) == ("SWA", "SRepr")
    assert view["after"]["per_class"] == pytest.approx(results["srepr"]["per_class"], rel=1e-4)
    assert page["groups"] == ["many"] + 4 * ["medium"] + 5 * ["few"]
    assert sum(page["tested"]) == 597
    assert str(run.parent) not in json.dumps({**page, "provenance": None, "worst": None})
    assert read_fingerprint(run) in page["provenance"]["data"]
    assert page["settings"]["optim.swa-lr"] == "0.02"
    assert page["head_settings"]["distill"] == "yes"


def test_the_flips_are_counted_over_the_same_examples(retrained, described):
    opened = open_run(retrained, quiet=True)
    right = {name: opened.measure(name).predicted.numpy() == opened.part.labels for name in ("swa", "srepr")}
    gained, lost = (right["srepr"] & ~right["swa"]).sum(), (right["swa"] & ~right["srepr"]).sum()
    assert described["flips"].startswith(f"Of 597 examples {gained} became right and {lost} became wrong")
    assert right["srepr"].sum() - right["swa"].sum() == gained - lost
    for bad in described["worst"]:
        accuracy = right["srepr"][opened.part.labels == bad["class"]].mean()
        assert described["views"][0]["after"]["per_class"][bad["class"]] == pytest.approx(accuracy)
        assert all(example["image"].startswith("data:image/png") for example in bad["examples"])


@pytest.fixture(scope="module")
def natural(tmp_path_factory):
    """A run with a re-trained head whose test part has the mix of the training part; no test changes it."""
    folder = tmp_path_factory.mktemp("natural")
    chance = np.random.default_rng(0)
    y = {name: np.repeat([0, 1, 2], [120, 40, 10]) for name in ("y_train", "y_test")}
    x = {name.replace("y", "x"): chance.normal(size=(len(k), 4)) + k[:, None] for name, k in y.items()}
    np.savez(folder / "data.npz", **x, **y)
    train(Train(source=str(folder / "data.npz"), epochs=4, batch_size=16), folder / "run")
    retrain_run(folder / "run", {"crt": METHODS["crt"], "la": METHODS["la"]}, Retrain(epochs=2), quiet=True)
    return folder / "run"


def test_a_part_that_is_not_balanced_is_judged_in_both_views(natural):
    described, results = describe_run(open_run(natural, quiet=True)), read_json(natural / "results.json")
    assert [view["title"] for view in described["views"]] == [VIEWS[view].title for view in VIEWS]
    for key, view in zip(VIEWS, described["views"], strict=True):
        for name, row in zip(results, view["results"], strict=True):
            expected = results[name]["views"][key]
            assert all(row[column] == pytest.approx(expected[column], rel=1e-5) for column in COLUMNS)
        assert view["before"]["acc"] == pytest.approx(results["swa"]["views"][key]["acc"])
        assert view["after"]["acc"] == pytest.approx(results["la"]["views"][key]["acc"])
        assert view["intervals"].keys() == {"acc", "many", "medium", "nll", "ece"}
        for metric in ("acc", "many", "medium", "nll"):
            low, high = view["intervals"][metric]
            assert low <= view["after"][metric] - view["before"][metric] <= high
    equal, natural_mix = (view["verdict"] for view in described["views"])
    assert equal.startswith("Every class counts the same: LA ")
    assert "balanced accuracy" in equal
    assert natural_mix.startswith("As the classes come: LA ")
    assert described["small"] == {"few": 10}
    assert described["footnotes"] == ["* Few has 10 test examples: too small to judge"]
    assert "The few-shot classes have 10 test examples: too small to judge." in described["verdict"]
    assert "on the few-shot classes" not in described["verdict"]


def test_the_flips_of_a_part_that_is_not_balanced_are_those_of_the_moved_head(natural):
    opened = open_run(natural, quiet=True)
    was = opened.measure("swa").predicted.numpy() == opened.part.labels
    now = opened.judge("la").views["natural"].predicted.numpy() == opened.part.labels
    said = describe_run(opened, dispersion=False)["flips"]
    assert said.startswith(f"Of 170 examples {(now & ~was).sum()} became right and {(was & ~now).sum()} became wrong")


def test_classifiers_from_before_there_were_views_have_a_row_without_numbers(natural, tmp_path):
    run = shutil.copytree(natural, tmp_path / "run")
    results = {
        name: {**metrics, "views": {}, "tested": {}} for name, metrics in read_json(run / "results.json").items()
    }
    write_json(run / "results.json", results)
    for view in describe_run(open_run(run, quiet=True), dispersion=False)["views"]:
        swa, crt, la = view["results"]
        assert swa["acc"] == view["before"]["acc"]
        assert la["acc"] == view["after"]["acc"]
        assert {crt[key] for key in COLUMNS} == {None}


def test_a_report_is_the_same_every_time(natural):
    first, second = (describe_run(open_run(natural, quiet=True), dispersion=False) for _ in range(2))
    assert first == second


def test_the_cost_is_that_of_the_log_and_of_the_notes(retrained, described):
    cost = {item["what"]: item["seconds"] for item in described["cost"]}
    paces = [8 * 41 / line["images_per_second"] for line in read_log(retrained) if line["branch"] == "swa"]
    assert len(paces) == 2
    assert cost["Stage 1, SWA"] == pytest.approx(sum(paces))
    assert cost["Stage 2, cRT"] == read_json(retrained / "heads/crt.json")["metrics"]["seconds"]


def test_the_head_is_srepr_or_the_one_that_is_named_or_the_newest(srepr, run):
    answer = srepr("report", run, "--no-dispersion", "--head", "crt", "--json", "-o", run / "sub" / "crt.html")
    page = run / "sub" / "crt.html"
    assert json.loads(answer.out) == {"report": str(page), "verdicts": [read(page)[0]["verdict"]]}
    assert read(page)[0]["views"][0]["after"]["name"] == "cRT"
    for file in ("heads/srepr.json", "heads/srepr.safetensors"):
        (run / file).unlink()
    assert srepr("report", run, "--no-dispersion").out.startswith("NCM ")


def test_several_runs_share_a_page(srepr, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = shutil.copytree(run, tmp_path / "elsewhere" / "run")
    answer = srepr("report", run, other, "--no-dispersion")
    assert [line.split(": ")[0] for line in answer.out.splitlines()] == [
        str(run),
        str(other),
        "The report is report.html",
    ]
    assert [page["name"] for page in read(tmp_path / "report.html")] == [f"{tmp_path.name}/run", "elsewhere/run"]


def test_every_test_image_is_loaded_once_and_every_classifier_runs_over_it_once(srepr, run, monkeypatch):
    """With nothing cached: one sweep of the averaged network and its ten draws, then three heads on its features."""
    shutil.rmtree(run / "cache")
    test, loaded, sweeps, measured = load("digits-lt").test, [], [], []
    take, make, judge = ArrayExamples.load, NetworkFeatures.make, Frozen.judge

    def watched_load(self, indices, view=None):
        if len(self) == len(test):
            loaded.extend(np.asarray(indices).tolist())
        return take(self, indices, view)

    def watched_make(self, missing, view):
        sweeps.append([source.name for source in missing])
        return make(self, missing, view)

    def watched_judge(self, head, examples, expects=None):
        measured.append(id(head))
        assert examples.fingerprint() == test.fingerprint()
        return judge(self, head, examples, expects)

    monkeypatch.setattr(ArrayExamples, "load", watched_load)
    monkeypatch.setattr(NetworkFeatures, "make", watched_make)
    monkeypatch.setattr(Frozen, "judge", watched_judge)
    assert srepr("report", run, "--workers", 0, "--json").code == 0
    assert sorted(loaded) == list(range(len(test)))
    assert sweeps == [["mean", *(f"draw {m} of epoch 0" for m in range(10))]]
    assert len(measured) == len(set(measured)) == 3  # swa, srepr, and crt on the draws


def test_an_analysis_of_the_same_head_is_used_again(srepr, run):
    opened = open_run(run, quiet=True)
    found = summary(opened, run_draws(opened, head="srepr", samples=2))
    (run / "analysis").mkdir()
    write_json(run / "analysis" / "analysis.json", found)
    assert srepr("report", run, "--json").code == 0
    spread = read(run / "report.html")[0]["dispersion"]
    assert (spread["samples"], len(spread["ensemble"])) == (2, 2)
    assert spread["feature"]["pearson"] == pytest.approx(found["dispersion"]["feature"]["pearson"], rel=1e-4)
    assert spread["probability"]["per_class"] == pytest.approx(
        found["dispersion"]["probability"]["per_class"], rel=1e-4
    )

    assert srepr("report", run, "--json", "--head", "crt").code == 0
    assert read(run / "report.html")[0]["dispersion"]["samples"] == 10


class Tags(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = [], set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}


def test_a_name_is_text_whatever_it_is(described):
    hostile = ['</script><img src=x onerror="alert(1)">', "<!--<script>", "$title ${data} &amp;", "a\u2028b", '"\\']
    names = [*hostile, *described["classes"][len(hostile) :]]
    page = render([{**described, "name": hostile[0], "source": hostile[0], "classes": names}])
    (found,) = content(page)
    assert found["classes"] == names
    assert (found["name"], found["source"]) == (hostile[0], hostile[0])
    clean = Tags(render([described]))
    assert Tags(page).tags == clean.tags
    assert clean.tags.count("script") == 2
    assert not [name for name in Tags(page).attributes if name.startswith("on")]


def test_the_page_needs_nothing_but_itself(described):
    page = render([described])
    own = BLOCK.sub("", page)
    assert [word for word in ("http:", "https:", "//", "url(", "@import", "src=", "<link") if word in own] == []
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in page


def test_numbers_that_json_does_not_know_stay_readable(described):
    (view,) = described["views"]
    (found,) = content(render([{**described, "views": [{**view, "after": {**view["after"], "nll": math.inf}}]}]))
    assert found["views"][0]["after"]["nll"] == "inf"


def test_a_hundred_classes_with_pictures_fit_in_a_page(described):
    noise = np.random.default_rng(0).integers(0, 256, (600, 3, 32, 32), dtype=np.uint8)
    part = ArrayExamples(noise, np.arange(600) % 100, tuple(f"class {k}" for k in range(100)))
    worst = worst_classes(part, said((np.arange(600) + 1) % 100, np.linspace(0, 1, 600)))
    assert sum(len(bad["examples"]) for bad in worst) == CLASSES * EXAMPLES
    assert len(render([{**described, "worst": worst}])) < 1_000_000


def test_what_cannot_be_reported_on_is_said_in_one_line(srepr, run, trained, tmp_path):
    assert srepr("report", tmp_path / "nothing").complaint.endswith("Pass a run folder made by `srepr train`.")
    assert "unknown head 'grw'" in srepr("report", run, "--head", "grw").complaint
    assert f"is a folder. Name the file to write: {tmp_path}" in srepr("report", run, "-o", tmp_path).complaint
    assert "needs a run folder" in srepr("report").complaint
    bare = shutil.copytree(trained, tmp_path / "bare")
    assert f"has no re-trained classifier. Make one with: srepr retrain {bare}" in srepr("report", bare).complaint
    assert not (bare / "report.html").exists()


def test_the_demo_ends_with_a_report(srepr, tmp_path, monkeypatch):
    """One epoch, in this process."""
    monkeypatch.setitem(RECIPES, "digits-lt", dataclasses.replace(RECIPES["digits-lt"], epochs=1))
    monkeypatch.setattr("srepr.cli.demo.SHOWN", {name: METHODS[name] for name in ("crt", "la", "srepr")})
    one_thread = SimpleNamespace(Pool=lambda _: multiprocessing.dummy.Pool(1))
    monkeypatch.setattr("srepr.cli.demo.get_context", lambda _: one_thread)
    answer = srepr("demo", "--seeds", 2, "--out", tmp_path / "demo")
    assert answer.out.splitlines()[-1] == f"The report of seed 0 is {tmp_path / 'demo' / 'report.html'}"
    assert "SRepr against SGD: few-shot accuracy" in answer.out
    assert len(read(tmp_path / "demo" / "report.html")[0]["views"][0]["results"]) == 5
    found = json.loads(srepr("demo", "--seeds", 2, "--out", tmp_path / "demo", "--json").out)
    assert [set(results) for results in found] == 2 * [{"sgd", "swa", "crt", "la", "srepr"}]
