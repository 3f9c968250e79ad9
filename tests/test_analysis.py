"""Dispersion, correlation and the analysis of a run, against float64 numpy, scipy and a plain loop over networks."""

import copy
import dataclasses
import math
import shutil

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matplotlib.cbook import boxplot_stats

from srepr import InputError, analysis
from srepr.analysis import class_means, feature_dispersion, jensen_shannon, pearson, quartile_boxes
from srepr.config import Retrain
from srepr.data.inputs import ExampleInputs
from srepr.methods import METHODS
from srepr.metrics import evaluate
from srepr.models.batchnorm import update_batchnorm
from srepr.posterior import Posterior
from srepr.run.analyze import analyze
from srepr.run.classifiers import open_run
from srepr.run.retrain import retrain_run
from srepr.storage.files import plain, read_json

CHANCE = np.random.default_rng(0)
SHAPES = arrays.array_shapes(min_dims=3, max_dims=3, max_side=5)
FEATURES = arrays.arrays(np.int64, SHAPES, elements=st.integers(-999, 999)).map(lambda whole: whole / 7)


def normalised(weights):
    """Whole numbers as probabilities; nothing but zeros as equal ones."""
    weights = np.where(weights.sum(-1, keepdims=True) == 0, 1, weights)
    return weights / weights.sum(-1, keepdims=True)


PROBS = arrays.arrays(np.int64, SHAPES, elements=st.integers(0, 9)).map(normalised)


# Dispersion in feature space


def test_feature_dispersion_is_the_mean_cosine_distance_to_the_centroid():
    features = CHANCE.normal(size=(5, 40, 7))
    centroids = features.mean(0)
    expected = [
        np.mean([scipy.spatial.distance.cosine(draw[b], centroids[b]) for draw in features]) for b in range(40)
    ]
    for given_ in (features, torch.from_numpy(features), features.tolist()):
        found = feature_dispersion(given_)
        assert (found.dtype, found.shape) == (torch.float64, (40,))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_small_dispersion_keeps_its_digits():
    """Directions 2e apart are e off their centroid: 1 - cos e = e^2 / 2, far below what 1 - cos resolves."""
    e = 1e-7
    found = feature_dispersion([[[math.cos(e), math.sin(e)]], [[math.cos(e), -math.sin(e)]]])
    assert found.item() == pytest.approx(e**2 / 2, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(FEATURES, st.integers(0, 4), st.sampled_from([1e-150, 1e-3, 7.0, 1e150]))
def test_feature_dispersion_is_bounded_and_forgets_order_and_length(features, shift, factor):
    found = feature_dispersion(features)
    assert ((found >= 0) & (found <= 2 + 1e-12)).all()
    near_zero = np.linalg.norm(features.mean(0), axis=-1) < 1e-6 * np.abs(features).max(initial=1)
    kept = ~near_zero  # the direction of a centroid that is 0 but for rounding means nothing
    np.testing.assert_allclose(feature_dispersion(np.roll(features, shift, 0))[kept], found[kept], atol=1e-9)
    np.testing.assert_allclose(feature_dispersion(factor * features)[kept], found[kept], atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(FEATURES, st.integers(1, 12))
def test_draws_that_agree_have_no_feature_dispersion_at_all(features, samples):
    assert torch.equal(
        feature_dispersion(np.repeat(features[:1], samples, 0)), torch.zeros(features.shape[1]).double()
    )


def test_vectors_of_length_zero_have_no_direction():
    away, nothing = [3.0, 4.0], [0.0, 0.0]
    found = feature_dispersion([[nothing, nothing, away], [nothing, away, [-3.0, -4.0]]])
    assert found.tolist() == [0.0, 0.5, 1.0]  # agreement; one of two without a direction; a centroid without one


# Dispersion in probability space


def test_jensen_shannon_is_what_scipy_says():
    probs = CHANCE.dirichlet(np.full(6, 0.3), size=(4, 50))
    expected = scipy.stats.entropy(probs.mean(0), axis=-1) - scipy.stats.entropy(probs, axis=-1).mean(0)
    for given_ in (probs, torch.from_numpy(probs), probs.tolist()):
        np.testing.assert_allclose(jensen_shannon(given_), expected, rtol=1e-9, atol=1e-15)
    pairs = scipy.spatial.distance.jensenshannon(probs[0], probs[1], axis=1) ** 2
    np.testing.assert_allclose(jensen_shannon(probs[:2]), pairs, rtol=1e-9, atol=1e-15)


@settings(max_examples=60, deadline=None)
@given(PROBS, st.integers(0, 4))
def test_jensen_shannon_is_bounded_and_forgets_the_order(probs, shift):
    found = jensen_shannon(probs)
    samples, _, classes = probs.shape
    assert ((found >= 0) & (found <= math.log(min(samples, classes)) + 1e-12)).all()
    np.testing.assert_allclose(jensen_shannon(np.roll(probs, shift, 0)), found, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(PROBS, st.integers(1, 12))
def test_draws_that_agree_have_no_divergence_at_all(probs, samples):
    assert torch.equal(jensen_shannon(np.repeat(probs[:1], samples, 0)), torch.zeros(probs.shape[1]).double())


@pytest.mark.parametrize("samples", [2, 3, 10])
def test_certain_draws_that_all_disagree_reach_the_bound(samples):
    assert jensen_shannon(np.eye(samples)[:, None]).item() == pytest.approx(math.log(samples), rel=1e-12)


def test_the_smallest_probabilities_do_not_make_it_infinite():
    smallest = math.ulp(0.0)
    assert jensen_shannon([[[1.0, smallest]], *[[[1.0, 0.0]]] * 9]).item() == pytest.approx(0, abs=1e-300)


@pytest.mark.parametrize(
    ("measure", "values", "complaint"),
    [
        (feature_dispersion, np.zeros((2, 3)), r"features have shape \[2, 3\]: pass \[M, B, L\]"),
        (feature_dispersion, np.zeros((0, 2, 3)), "with one draw at least"),
        (feature_dispersion, [[[np.nan]]], "the features contain NaN or infinity"),
        (jensen_shannon, np.zeros((2, 3)), r"probabilities have shape \[2, 3\]: pass \[M, B, K\]"),
        (jensen_shannon, [[[2.0, -1.0]]], "pass logits through softmax first"),
        (jensen_shannon, [[[0.5, 0.4]]], "sum to 1 over the classes"),
    ],
)
def test_what_is_not_a_set_of_draws_is_refused(measure, values, complaint):
    with pytest.raises(InputError, match=complaint):
        measure(values)


@pytest.mark.parametrize("measure", [feature_dispersion, jensen_shannon])
def test_no_examples_have_no_dispersion(measure):
    assert measure(np.zeros((2, 0, 3))).shape == (0,)


# Correlation, boxes, means


def test_pearson_is_what_scipy_says():
    x = CHANCE.normal(size=100)
    for y in (x + CHANCE.normal(size=100), -x, 1e6 + 1e-3 * x**2):
        assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, rel=1e-9)
    assert pearson(x, -3 * x + 1) == pytest.approx(-1)


@pytest.mark.parametrize("x", [[], [1.0], [0.1, 0.1, 0.1]])
def test_what_does_not_vary_has_no_correlation(x):
    y = np.arange(float(len(x)))
    assert pearson(x, y) is None
    assert pearson(y, x) is None


@pytest.mark.parametrize("n", [4, 5, 7, 101, 400])
def test_the_boxes_are_those_of_matplotlib_over_the_quartiles(n):
    values, by = CHANCE.lognormal(size=n), CHANCE.permutation(n)
    sizes = [len(part) for part in np.array_split(np.arange(n), 4)]
    groups = np.split(values[np.argsort(by)], np.cumsum(sizes)[:-1])
    for box, group in zip(quartile_boxes(values, by), groups, strict=True):
        (truth,) = boxplot_stats(group)
        names = {"low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "high": "whishi"}
        assert box == pytest.approx({name: truth[theirs] for name, theirs in names.items()})


def test_fewer_than_four_examples_leave_quartiles_empty():
    boxes = quartile_boxes([5.0, 6.0], by=[2, 1])
    assert [box["median"] for box in boxes] == [6.0, 5.0, None, None]


def test_class_means_are_those_of_a_loop():
    labels, values = CHANCE.integers(0, 4, 60), CHANCE.normal(size=60)
    found = class_means(values, labels, classes=6)
    assert found == [pytest.approx(values[labels == k].mean()) for k in range(4)] + [None, None]


# The analysis of a run


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """A run with four heads on the averaged network, and one on the SGD baseline."""
    run = shutil.copytree(trained, tmp_path_factory.mktemp("analysis") / "run")
    quick = Retrain(epochs=2, samples=2)
    retrain_run(run, {name: METHODS[name] for name in ("srepr", "crt", "lws", "disalign")}, quick, quiet=True)
    retrain_run(run, {"sgd-la": METHODS["la"]}, quick, stage1="sgd", quiet=True)
    return run


@pytest.fixture(scope="module")
def opened(run):
    return open_run(run, quiet=True)


@pytest.fixture(scope="module")
def found(opened):
    return analyze(opened, classifier="swa", samples=3)


def test_the_ensemble_is_that_of_networks_drawn_and_run_one_after_the_other(opened, run, monkeypatch):
    """Each draw with BatchNorm statistics of the training part; the averaged prediction as one plain model."""
    draws, draw = [], Posterior.draw
    monkeypatch.setattr(Posterior, "draw", lambda self, generator: draws.append(draw(self, generator)) or draws[-1])
    fresh = open_run(run, quiet=True)
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


def test_chunks_do_not_show(opened, found, monkeypatch):
    monkeypatch.setattr(analysis, "CELLS", 3 * 10 * 50)
    again = analyze(opened, classifier="swa", samples=3)
    for space in ("feature", "probability"):
        truth, other = found["dispersion"][space], again["dispersion"][space]
        assert other["pearson"] == pytest.approx(truth["pearson"], rel=1e-9)
        assert other["per_class"] == pytest.approx(truth["per_class"], rel=1e-9)
    assert again["ensemble"] == [pytest.approx(point, rel=1e-6) for point in found["ensemble"]]


def test_before_and_after_are_what_the_run_says_of_them(run, found):
    results = read_json(run / "results.json")
    assert (found["before"], found["head"], found["classifier"], found["part"]) == ("swa", "srepr", "swa", "test")
    for when, name in (("before", "swa"), ("after", "srepr")):
        metrics = {key: results[name][key] for key in ("acc", "many", "medium", "few", "nll", "ece")}
        assert found["metrics"][when] == pytest.approx(metrics, abs=1e-5)
        assert found["per_class"][when] == pytest.approx(results[name]["per_class"], abs=0.02)
        assert sum(bin_["count"] for bin_ in found["reliability"][when]) == 597
        assert sum(found["marginal"][when]) == pytest.approx(1)
    assert found["single"] == pytest.approx({name: results["swa"][name] for name in ("acc", "nll", "ece")}, abs=1e-3)
    assert plain(found) == found


def test_the_marginal_is_the_mean_probability(opened, found):
    total = sum(logits.double().softmax(1).sum(0) for _, logits in opened.outputs("srepr"))
    assert found["marginal"]["after"] == pytest.approx((total / 597).tolist())


def test_the_draws_are_read_by_crt_as_in_the_paper(opened, run):
    results = read_json(run / "results.json")
    result = analyze(opened, samples=1)
    assert result["classifier"] == "crt"
    assert result["single"] == pytest.approx({name: results["crt"][name] for name in ("acc", "nll", "ece")}, abs=1e-5)
    assert result["metrics"]["before"]["nll"] == pytest.approx(results["swa"]["nll"], abs=1e-5)


def test_weight_norms_are_of_the_weight_that_acts(opened):
    lws = opened.classifiers["lws"].head
    norms = analyze(opened, head="lws", samples=1)["weight_norms"]
    assert norms["after"] == pytest.approx(np.linalg.norm(lws.scaled_weight().detach().double(), axis=1).tolist())
    assert norms["before"] == pytest.approx(np.linalg.norm(lws.weight.double(), axis=1).tolist())
    assert analyze(opened, head="disalign", samples=1)["weight_norms"]["after"] == [None] * 10


@pytest.mark.parametrize("options", [{"head": "sgd-la", "samples": 3}, {"samples": 1}], ids=["sgd", "one draw"])
def test_without_a_spread_there_is_no_dispersion_and_no_correlation(opened, options):
    result = analyze(opened, **options)
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


def test_what_was_held_out_stands_in_for_a_test_part(opened, found):
    data = dataclasses.replace(opened.data, test=None, validation=opened.data.test)
    result = analyze(dataclasses.replace(opened, data=data), classifier="swa", samples=3)
    assert result == {**found, "part": "validation"}


def test_the_head_is_srepr_or_the_newest(opened):
    without = dict(opened.classifiers)
    del without["srepr"]
    assert analyze(dataclasses.replace(opened, classifiers=without), samples=1)["head"] == "disalign"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"head": "mine"}, "has no head 'mine'. Known: sgd, swa, srepr"),
        ({"classifier": "mine"}, "has no head 'mine'. Known: sgd, swa, srepr"),
        ({"samples": 0}, "--samples is 0: at least 1 is needed"),
    ],
)
def test_what_is_not_there_is_named(opened, options, complaint):
    with pytest.raises(InputError, match=complaint):
        analyze(opened, **options)
