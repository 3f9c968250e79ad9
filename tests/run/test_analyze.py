"""The analysis of a run folder: the draws against a plain loop over networks, the rest against what the run says."""

import copy
import dataclasses
import shutil

import numpy as np
import pytest
import torch

from srepr import InputError
from srepr.analysis import class_means, feature_dispersion, jensen_shannon, pearson
from srepr.config import Retrain
from srepr.data.inputs import ExampleInputs
from srepr.methods import METHODS
from srepr.metrics import COLUMNS, evaluate
from srepr.models.batchnorm import update_batchnorm
from srepr.posterior import Posterior
from srepr.run.analyze import run_draws, summary
from srepr.run.classifiers import open_run
from srepr.run.retrain import retrain_run
from srepr.storage.files import plain, read_json


def analyze(run, **options):
    return summary(run, run_draws(run, **options))


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """A run with four heads on the averaged network, and one on the SGD baseline."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("analysis") / "run")
    quick = Retrain(epochs=2, samples=2)
    retrain_run(folder, {name: METHODS[name] for name in ("srepr", "crt", "lws", "disalign")}, quick, quiet=True)
    retrain_run(folder, {"sgd-la": METHODS["la"]}, quick, stage1="sgd", quiet=True)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return open_run(folder, quiet=True)


@pytest.fixture(scope="module")
def found(run):
    return analyze(run, classifier="swa", samples=3)


def test_the_ensemble_is_that_of_networks_drawn_and_run_one_after_the_other(folder, monkeypatch):
    """Each draw with BatchNorm statistics of the training part; the averaged prediction as one plain model."""
    draws, draw = [], Posterior.draw
    monkeypatch.setattr(Posterior, "draw", lambda self, generator: draws.append(draw(self, generator)) or draws[-1])
    fresh = open_run(folder, quiet=True)
    result = analyze(fresh, classifier="swa", samples=2, seed=5)
    assert len(draws) == 2
    frozen, data = fresh.networks["swa"], fresh.data
    networks = []
    for weights in draws:
        network = copy.deepcopy(frozen.network)
        network.load_state_dict({**network.state_dict(), **weights})
        update_batchnorm(network, ExampleInputs(data.train, seed=5).calibration(4000))
        networks.append(network.eval())
    inputs = data.test.load(np.arange(len(data.test)))

    class Ensemble(torch.nn.Module):
        def __init__(self, count):
            super().__init__()
            self.count = count

        def forward(self, inputs):
            return torch.stack([network(inputs).softmax(1) for network in networks[: self.count]]).mean(0).log()

    for m, point in enumerate(result["ensemble"], start=1):
        truth = evaluate(Ensemble(m), (inputs, torch.from_numpy(data.test.labels)), data.counts.tolist())
        assert point == {
            "samples": m,
            **{name: pytest.approx(truth[name], abs=2e-3) for name in ("acc", "nll", "ece")},
        }
        assert point["nll"] == pytest.approx(truth["nll"], abs=1e-4)
    with torch.no_grad():
        probs = torch.stack([network(inputs).softmax(1) for network in networks]).double()
        features = torch.stack([network.features(inputs) for network in networks])
        nll = -frozen.network(inputs).double().log_softmax(1)[torch.arange(len(inputs)), data.test.labels]
    for space, values in {"feature": feature_dispersion(features), "probability": jensen_shannon(probs)}.items():
        assert result["dispersion"][space]["pearson"] == pytest.approx(pearson(values, nll), abs=1e-3)
        truth = class_means(values.numpy(), data.test.labels, 10)
        assert result["dispersion"][space]["per_class"] == pytest.approx(truth, rel=1e-2)


def test_only_the_draws_are_made_anew(trained, tmp_path):
    """What evaluation keeps of the averaged network on the test part is used, and the draws are kept in turn."""
    copied = shutil.copytree(trained, tmp_path / "run")
    retrain_run(copied, {"la": METHODS["la"]}, Retrain(epochs=1), quiet=True)
    kept = {file.name for file in (copied / "cache").glob("*.bin")}
    analyze(open_run(copied, quiet=True), samples=2)
    made = {file for file in (copied / "cache").glob("*.bin") if file.name not in kept}
    assert sorted(read_json(file.with_suffix(".json"))["source"] for file in made) == [
        "draw 0 of epoch 0",
        "draw 1 of epoch 0",
    ]
    times = {file: file.stat().st_mtime_ns for file in made}
    analyze(open_run(copied, quiet=True), samples=2)
    assert {file: file.stat().st_mtime_ns for file in made} == times


def test_chunks_do_not_show(run, found, monkeypatch):
    monkeypatch.setattr("srepr.run.analyze.CELLS", 3 * 10 * 50)
    again = analyze(run, classifier="swa", samples=3)
    for space in ("feature", "probability"):
        truth, other = found["dispersion"][space], again["dispersion"][space]
        assert other["pearson"] == pytest.approx(truth["pearson"], rel=1e-9)
        assert other["per_class"] == pytest.approx(truth["per_class"], rel=1e-9)
    assert again["ensemble"] == [pytest.approx(point, rel=1e-6) for point in found["ensemble"]]


def test_before_and_after_are_what_the_run_says_of_them(folder, found):
    results = read_json(folder / "results.json")
    assert (found["before"], found["head"], found["classifier"], found["part"]) == ("swa", "srepr", "swa", "test")
    for when, name in (("before", "swa"), ("after", "srepr")):
        metrics = found["metrics"][when]
        assert metrics.keys() == {*COLUMNS, "tested"}
        assert metrics["tested"] == results[name]["tested"]
        assert [metrics[key] for key in COLUMNS] == pytest.approx([results[name][key] for key in COLUMNS], abs=1e-5)
        assert found["per_class"][when] == pytest.approx(results[name]["per_class"], abs=0.02)
        assert sum(bin_["count"] for bin_ in found["reliability"][when]) == 597
        assert sum(found["marginal"][when]) == pytest.approx(1)
    assert found["single"] == pytest.approx({name: results["swa"][name] for name in ("acc", "nll", "ece")}, abs=1e-3)
    assert plain(found) == found


def test_the_marginal_is_the_mean_probability(run, found):
    outputs = run.networks["swa"].outputs(run.classifiers["srepr"].head, run.part)
    total = sum(logits.double().softmax(1).sum(0) for logits, _ in outputs)
    assert found["marginal"]["after"] == pytest.approx((total / 597).tolist())


def test_the_draws_are_read_by_crt_as_in_the_paper(folder, run):
    results = read_json(folder / "results.json")
    result = analyze(run, samples=1)
    assert result["classifier"] == "crt"
    assert result["single"] == pytest.approx({name: results["crt"][name] for name in ("acc", "nll", "ece")}, abs=1e-5)
    assert result["metrics"]["before"]["nll"] == pytest.approx(results["swa"]["nll"], abs=1e-5)


def test_weight_norms_are_of_the_weight_that_acts(run):
    lws = run.classifiers["lws"].head
    norms = analyze(run, head="lws", samples=1)["weight_norms"]
    assert norms["after"] == pytest.approx(np.linalg.norm(lws.scaled_weight().detach().double(), axis=1).tolist())
    assert norms["before"] == pytest.approx(np.linalg.norm(lws.weight.double(), axis=1).tolist())
    assert analyze(run, head="disalign", samples=1)["weight_norms"]["after"] == [None] * 10


@pytest.mark.parametrize("options", [{"head": "sgd-la", "samples": 3}, {"samples": 1}], ids=["sgd", "one draw"])
def test_without_a_spread_there_is_no_dispersion_and_no_correlation(run, options):
    result = analyze(run, **options)
    assert result["before"] == ("sgd" if "head" in options else "swa")
    for space in ("feature", "probability"):
        spread = result["dispersion"][space]
        assert spread == {
            "pearson": None,
            "quartiles": [dict.fromkeys(("low", "q1", "median", "q3", "high"), 0.0)] * 4,
            "per_class": [0.0] * 10,
        }
    first, *others = result["ensemble"]
    assert others == [pytest.approx({**first, "samples": m}) for m in range(2, len(result["ensemble"]) + 1)]


def test_what_was_held_out_stands_in_for_a_test_part(run, found):
    data = dataclasses.replace(run.data, test=None, validation=run.data.test)
    result = analyze(dataclasses.replace(run, data=data), classifier="swa", samples=3)
    assert result == {**found, "part": "validation"}


def test_a_run_on_other_data_is_measured_anew(run):
    half = run.data.test.subset(np.arange(100))
    other = dataclasses.replace(run, data=dataclasses.replace(run.data, test=half))
    assert (run.measure("swa").metrics["n"], other.measure("swa").metrics["n"]) == (597, 100)


def test_the_head_is_srepr_or_the_newest_on_the_averaged_network(run):
    without = {name: classifier for name, classifier in run.classifiers.items() if name != "srepr"}
    assert analyze(dataclasses.replace(run, classifiers=without), samples=1)["head"] == "disalign"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"head": "mine"}, r"unknown head 'mine'.* Known: sgd, swa, srepr, "),
        ({"classifier": "mine"}, r"unknown head 'mine'.* Known: sgd, swa, srepr, "),
        ({"samples": 0}, "^`samples` is 0: at least 1 is needed"),
    ],
)
def test_what_is_not_there_is_named(run, options, complaint):
    with pytest.raises(InputError, match=complaint):
        analyze(run, **options)
