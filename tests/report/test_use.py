"""`Using this model` in the report: every number against an independent computation from the logits."""

import json
import shutil
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from srepr.config import Data, Retrain, Train
from srepr.data.longtail import groups
from srepr.decisions.conformal import Thresholds, calibrate
from srepr.decisions.doubt import doubt
from srepr.methods import METHODS
from srepr.metrics import LongTailMetrics, expected_calibration_error, measure
from srepr.report import use
from srepr.report.content import describe_run
from srepr.report.mix import EXPONENTS
from srepr.report.page import render
from srepr.report.template import shortened
from srepr.report.use import UNWATCHED, WATCHED, confusion, describe_use, reliability, used
from srepr.run.checkpoints import load_head, save_head
from srepr.run.classifiers import open_run
from srepr.run.load import load
from srepr.run.retrain import retrain_run
from srepr.run.train import train
from srepr.views import share_weights


def made_up(classes, tested, seed=0, absent=(), largest=300):
    """Logits that are right about half the time, labels, and training counts; some classes have no test examples."""
    chance = np.random.default_rng(seed)
    counts = np.geomspace(largest, 3, classes).astype(np.int64)
    labels = chance.choice(np.setdiff1d(np.arange(classes), absent), tested)
    logits = chance.normal(size=(tested, classes)) + 2.5 * np.eye(classes)[labels]
    return torch.from_numpy(logits).float(), torch.from_numpy(labels), counts.tolist()


def batches(logits, labels, excess=None, size=64):
    for part in torch.split(torch.arange(len(labels)), size):
        yield logits[part], labels[part], None if excess is None else excess[part]


def in_the_page(mix, power):
    """What the page makes of the sums of the classes, in its words (`mixed` in use.js)."""
    weights = np.array(mix["sizes"], dtype=np.float64) ** power
    weights /= weights @ mix["classes"]
    return weights @ mix["right"], weights @ mix["nll"], np.abs(weights @ np.array(mix["gaps"])).sum()


def re_weighted(logits, y, counts, expects, power):
    """(acc, nll, ece) as it is and adjusted, in float64 from the logits, example by example.

    An example of class k counts q_k / m_k, where m_k of class k are tested; adjusted logits are z + log q - log e.
    """
    q, tested = np.array(counts, dtype=np.float64) ** power, np.bincount(y, minlength=len(counts))
    there = np.where(tested > 0, q, 0)
    weights = (there / there.sum() / np.maximum(tested, 1))[y]
    z = logits.double().numpy()
    for moved in (z, z + np.log(q / q.sum()) - np.log(expects / expects.sum())):
        log_p = special.log_softmax(moved, axis=1)
        confidence, right = np.exp(log_p.max(1)), log_p.argmax(1) == y
        bins = np.ceil(confidence * 15 - 1e-12).astype(int)
        ece = sum(abs((weights * (right - confidence))[bins == b].sum()) for b in range(1, 16))
        yield weights @ right, -weights @ log_p[np.arange(len(y)), y], ece


@given(st.integers(2, 12), st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_reliability_is_that_of_the_inputs_of_each_predicted_class(classes, n, seed):
    """Against means of masks, and the ECE of srepr on the same inputs; the total is that of all inputs."""
    chance = np.random.default_rng(seed)
    p = special.softmax(2 * chance.normal(size=(n, classes)), axis=1)
    truth, counts = chance.integers(0, classes, n), np.geomspace(300, 3, classes).astype(int).tolist()
    predicted, confidence = p.argmax(1), p.max(1)
    found = reliability(truth == predicted, predicted, confidence, counts)
    for k, value in enumerate(found["confidence"]):
        own = predicted == k
        assert value is None if not own.any() else value == pytest.approx(confidence[own].mean())
    members = {"all": np.ones(n, bool)} | {name: inside[predicted] for name, inside in groups(counts).items()}
    assert [row["group"] for row in found["reliability"]] == [name for name, own in members.items() if own.any()]
    for row in found["reliability"]:
        own = members[row["group"]]
        assert row["predicted"] == own.sum()
        assert row["accuracy"] == pytest.approx((truth == predicted)[own].mean())
        assert row["confidence"] == pytest.approx(confidence[own].mean())
        assert row["ece"] == pytest.approx(expected_calibration_error(p[own], truth[own]), abs=1e-9)


@given(st.integers(2, 12), st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_precision_f1_and_mistakes_are_those_of_sklearn(classes, n, seed):
    truth, predicted = np.random.default_rng(seed).integers(0, classes, (2, n))
    found = confusion(truth, predicted, classes)
    every = {"labels": range(classes), "average": None, "zero_division": np.nan}
    precision, _, f1, _ = precision_recall_fscore_support(truth, predicted, **every)
    as_floats = {key: np.array(found[key], dtype=np.float64) for key in ("precision", "f1")}  # None is nan
    np.testing.assert_allclose(as_floats["precision"], precision, atol=1e-12)
    np.testing.assert_allclose(as_floats["f1"], f1, atol=1e-12)
    matrix = np.zeros((classes, classes), dtype=np.int64)
    cells = found["confusion"]
    matrix[cells["truth"], cells["predicted"]] = cells["count"]
    expected = confusion_matrix(truth, predicted, labels=range(classes))
    assert (matrix == expected - np.diag(expected.diagonal())).all()
    assert cells["count"] == sorted(cells["count"], reverse=True)
    assert cells["left_out"] == 0


def test_of_too_many_cells_the_largest_are_kept_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(use, "CELLS", 2)
    found = confusion(np.array([0, 0, 0, 1, 1, 2, 2, 2]), np.array([1, 1, 1, 0, 0, 0, 1, 2]), 3)["confusion"]
    assert found == {"truth": [0, 1], "predicted": [1, 0], "count": [3, 2], "left_out": 2}


@pytest.mark.parametrize("expects", ["equal", "training"])
@pytest.mark.parametrize("absent", [(), (0, 4)], ids=["all classes tested", "two without test examples"])
def test_every_position_of_the_slider_is_the_metric_of_re_weighted_examples(expects, absent):
    logits, labels, counts = made_up(9, 400, absent=absent)
    shares = np.ones(9) if expects == "equal" else np.array(counts, dtype=np.float64)
    mix = shortened(used(batches(logits, labels), counts, expects=shares)["mix"])  # the digits that the page has
    assert mix["exponents"] == EXPONENTS == pytest.approx(np.linspace(1, -1, 21))
    y, tested = labels.numpy(), np.bincount(labels, minlength=9)
    assert [k for k in range(9) if not tested[k]] == list(absent)
    for i, power in enumerate(EXPONENTS):
        plain, adjusted = re_weighted(logits, y, counts, shares, power)
        assert in_the_page(mix, power) == pytest.approx(plain, rel=2e-5, abs=2e-6)
        found = [mix["adjusted"][key][i] for key in ("acc", "nll", "ece")]
        assert found == pytest.approx(adjusted, rel=2e-5, abs=2e-6)


def test_the_slider_agrees_with_the_metrics_of_srepr():
    logits, labels, counts = made_up(9, 400)
    mix = used(batches(logits, labels), counts, expects=[1.0] * 9)["mix"]
    weights = share_weights(np.array(counts, dtype=np.float64), labels.numpy())
    metrics = measure([(logits, labels)], LongTailMetrics(counts), weights).metrics
    assert in_the_page(mix, 1.0) == pytest.approx([metrics[key] for key in ("acc", "nll", "ece")])
    middle = EXPONENTS.index(0)  # a head that expects equal shares is not moved there
    same = measure([(logits, labels)], LongTailMetrics(counts), share_weights(np.ones(9), labels.numpy())).metrics
    for key, values in mix["adjusted"].items():
        assert values[middle] == pytest.approx(same[key])


@pytest.mark.parametrize("watched", [False, True])
def test_risk_and_coverage_are_counted_in_the_order_of_doubt(watched):
    logits, labels, counts = made_up(9, 230)
    excess = torch.linspace(0.5, 1.2, 230) if watched else None
    doubted = doubt(logits.double().softmax(1), excess)
    found = used(batches(logits, labels, doubted if watched else None), counts, expects=[1.0] * 9)["rejection"]
    doubts = doubted.numpy()
    order, wrong = np.argsort(doubts), (logits.argmax(1) != labels).numpy()
    assert len(np.unique(doubts)) == 230
    assert found["by"] == (WATCHED if watched else UNWATCHED)
    assert len(found["coverage"]) == 50
    assert found["coverage"][-1] == 1
    assert found["risk"].keys() == found["kept"].keys() == {"all", "many", "medium", "few"}
    for place, coverage in enumerate(found["coverage"]):
        kept = order[: round(coverage * 230)]
        assert found["risk"]["all"][place] == pytest.approx(wrong[kept].mean())
        for name, mask in groups(counts).items():
            members = kept[mask[labels[kept]]]
            assert found["kept"][name][place] == pytest.approx(len(members) / mask[labels].sum())
            expected = pytest.approx(wrong[members].mean()) if len(members) else None
            assert found["risk"][name][place] == expected


def test_sets_are_judged_by_group_and_in_the_mix_of_training():
    logits, labels, counts = made_up(9, 400)
    thresholds = Thresholds("marginal", 0.9, tuple(np.linspace(0.02, 0.3, 9)), note="A note.")
    found = used(batches(logits, labels), counts, expects=[1.0] * 9, thresholds=thresholds)["sets"]
    p, y = special.softmax(logits.double().numpy(), axis=1), labels.numpy()
    inside = (p >= np.linspace(0.02, 0.3, 9)) | (p == p.max(1, keepdims=True))
    tested = np.bincount(y, minlength=9)
    weights = {"all": np.ones(400), **{name: mask[y] for name, mask in groups(counts).items()}}
    weights["training mix"] = (np.array(counts) / tested)[y]
    assert [row["group"] for row in found["rows"]] == list(weights)
    for row, weight in zip(found["rows"], weights.values(), strict=True):
        assert row["tested"] == np.count_nonzero(weight)
        assert row["coverage"] == pytest.approx(np.average(inside[np.arange(400), y], weights=weight))
        assert row["size"] == pytest.approx(np.average(inside.sum(1), weights=weight))
    assert (found["form"], found["coverage"], found["note"]) == ("marginal", 0.9, "A note.")


def test_two_classes_of_which_one_is_not_tested():
    logits = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    found = used([(logits, torch.tensor([0, 0]), None)], [200, 5], expects=[1, 1])
    assert (found["precision"], found["f1"]) == ([1.0, 0.0], [pytest.approx(2 / 3), 0.0])
    assert found["rejection"]["risk"] == {"all": [0.0, 0.5], "many": [0.0, 0.5]}
    assert found["mix"]["adjusted"]["acc"][0] == 1.0  # as trained, the first class is 40 times as likely
    assert found["mix"]["sizes"] == [200]
    assert found["sets"] is None


def test_a_thousand_classes_are_quick_and_small():
    logits, labels, counts = made_up(1000, 20_000, largest=1280)
    began = time.monotonic()
    found = used(batches(logits, labels, size=1024), counts, expects=[1.0] * 1000)
    assert time.monotonic() - began < 60
    assert len(found["mix"]["sizes"]) == len(set(counts)) < 1000
    assert len(json.dumps(shortened(found), separators=(",", ":"))) < 700_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs on a table, with a validation set and without one."""
    folder, chance = tmp_path_factory.mktemp("use"), np.random.default_rng(0)

    def part(*sizes):
        y = np.repeat([0, 1, 2], sizes)
        return chance.normal(size=(len(y), 4)) + y[:, None], y

    arrays = dict(zip(("x_train", "y_train"), part(200, 80, 40), strict=True))
    tested = dict(zip(("x_test", "y_test"), part(50, 50, 50), strict=True))
    made = {}
    for name, protocol in {"held": "holdout", "plain": "paper"}.items():
        np.savez(folder / f"{name}.npz", **arrays, **tested)
        made[name] = folder / name
        source, data = str(folder / f"{name}.npz"), Data(protocol=protocol)
        train(Train(source=source, epochs=3, batch_size=16, data=data, network="mlp"), made[name])
        retrain_run(made[name], {"la": METHODS["la"]}, Retrain(), quiet=True)
    return made


def test_the_section_is_what_the_loaded_classifier_says(runs):
    """Doubt and sets are those of `srepr predict --coverage 0.9`, on the test inputs themselves."""
    opened = open_run(runs["held"], quiet=True)
    found, classifier = describe_use(opened, "la"), load(runs["held"], "la")
    part = opened.data.test
    said = classifier.predict(part.load(np.arange(len(part))))
    wrong = said.label.numpy() != part.labels
    assert classifier.familiar is not None
    order = np.argsort(said.uncertainty.numpy(), kind="stable")
    place = found["rejection"]["coverage"].index(0.5)
    assert found["rejection"]["risk"]["all"][place] == pytest.approx(wrong[order[: len(part) // 2]].mean())
    assert found["rejection"]["by"] == WATCHED
    inside = classifier.thresholds(0.9).sets(said.probabilities).numpy()
    overall = found["sets"]["rows"][0]
    assert overall["coverage"] == pytest.approx(inside[np.arange(len(part)), part.labels].mean())
    assert overall["size"] == pytest.approx(inside.sum(1).mean())
    held = classifier.held
    direct = calibrate(held.logits.softmax(1), held.labels, 0.9, expects=classifier.expects, counts=opened.data.counts)
    assert direct.minimum == classifier.thresholds(0.9).minimum
    assert (found["part"], found["without_sets"]) == ("test", "")
    metrics = opened.measure("la").metrics
    right = np.array(metrics["per_class"]) * part.counts
    assert sum(found["confusion"]["count"]) == pytest.approx(len(part) - right.sum())
    middle = EXPONENTS.index(0)
    assert found["mix"]["adjusted"]["acc"][middle] == pytest.approx(metrics["balanced_acc"])


def test_without_examples_kept_apart_there_are_no_sets_and_one_sentence(runs):
    found = describe_run(open_run(runs["plain"], quiet=True), dispersion=False)["use"]
    assert found["sets"] is None
    assert found["without_sets"].count(".") == 1
    assert "--protocol holdout" in found["without_sets"]
    assert found["rejection"]["by"] == UNWATCHED


def test_without_a_test_set_the_validation_set_is_measured_and_judges_no_sets(runs):
    opened = open_run(runs["held"], quiet=True)
    object.__setattr__(opened.data, "test", None)
    found = describe_use(opened, "la")
    assert (found["part"], found["sets"]) == ("validation", None)
    assert "no test set" in found["without_sets"]
    assert sum(found["mix"]["classes"]) == 3


def test_a_head_from_before_there_were_held_out_logits_is_to_be_made_again(runs, tmp_path):
    run = shutil.copytree(runs["held"], tmp_path / "run")
    file = run / "heads" / "la.safetensors"
    save_head(file, load_head(file), {})
    assert "srepr retrain --overwrite" in describe_use(open_run(run, quiet=True), "la")["without_sets"]


def test_a_network_of_stage_1_has_the_section_too(runs):
    found = describe_use(open_run(runs["held"], quiet=True), "swa")
    assert found["mix"]["adjusted"]["acc"][0] == pytest.approx(
        in_the_page(found["mix"], 1.0)[0]
    )  # it expects that mix
    assert found["sets"] is None
    assert "stage 1" in found["without_sets"]


def test_the_section_is_in_the_page_with_its_numbers(runs):
    described = [
        {"name": name, **describe_run(open_run(path, quiet=True), dispersion=False)} for name, path in runs.items()
    ]
    page = render(described)
    found = json.loads(page.split('type="application/json">')[1].split("</script>")[0])["runs"]
    for one, expected in zip(found, described, strict=True):
        assert one["use"]["precision"] == pytest.approx(expected["use"]["precision"], rel=1e-5)
