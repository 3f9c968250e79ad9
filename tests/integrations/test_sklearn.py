"""LongTailClassifier against scikit-learn's own checks, closed forms, and the tools people put around an estimator."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from srepr.data.inputs import seeded
from srepr.errors import InputError
from srepr.integrations.ensemble import Training, train
from srepr.integrations.sklearn import LongTailClassifier
from srepr.integrations.stack import Candidate, combine
from srepr.models.members import Members, cut

X, Y = load_iris(return_X_y=True)
FAST = {"epochs": 8, "hidden": 32, "samples": 2}


@parametrize_with_checks([LongTailClassifier(**FAST)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_the_boundary_between_two_gaussians_is_that_of_equal_classes():
    """Of N(0, 1) and N(2, 1) the balanced optimum has an accuracy of Phi(1); that for shares 20 : 1 has 0.65."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [1000, 50])
    x = rng.normal(size=(1050, 1)) + 2 * y[:, None]
    model = LongTailClassifier(**{**FAST, "epochs": 15}).fit(x, y)
    truth = np.repeat([0, 1], 4000)
    test = norm.ppf((np.tile(np.arange(4000), 2) + 0.5) / 4000)[:, None] + 2 * truth[:, None]
    assert balanced_accuracy_score(truth, model.predict(test)) > norm.cdf(1) - 0.03


def test_the_probabilities_are_the_softmax_of_the_network_on_standardized_rows():
    """Standardized by numpy in float64."""
    model = LongTailClassifier(**FAST).fit(X, Y)
    rows = torch.from_numpy((X - X.mean(0)) / X.std(0))
    logits = model.network_(rows).detach().numpy()
    np.testing.assert_allclose(model.predict_proba(X), softmax(logits, axis=1), atol=1e-12)
    assert (model.predict(X) == logits.argmax(1)).all()


def test_units_of_the_columns_do_not_matter():
    """Powers of two only move the exponents: the same bits come out."""
    scale = 2.0 ** np.array([3, -5, 10, 0])
    expected = LongTailClassifier(**FAST).fit(X, Y).predict_proba(X)
    assert (LongTailClassifier(**FAST).fit(X * scale, Y).predict_proba(X * scale) == expected).all()
    raw = LongTailClassifier(**FAST, standardize=False)
    assert not np.allclose(raw.fit(X * scale, Y).predict_proba(X * scale), raw.fit(X, Y).predict_proba(X))


def test_names_of_the_classes_do_not_matter():
    names = np.array(["setosa", "versicolor", "virginica"])
    numbered, named = (LongTailClassifier(**FAST).fit(X, y) for y in (Y, names[Y]))
    assert (named.predict_proba(X) == numbered.predict_proba(X)).all()
    assert (named.predict(X) == names[numbered.predict(X)]).all()


def test_copies_predict_the_same_and_the_seed_decides():
    model = LongTailClassifier(**FAST, random_state=1).fit(X, Y)
    expected = model.predict_proba(X)
    assert (pickle.loads(pickle.dumps(model)).predict_proba(X) == expected).all()
    assert (clone(model).fit(X, Y).predict_proba(X) == expected).all()
    assert (clone(model).set_params(random_state=2).fit(X, Y).predict_proba(X) != expected).any()


def test_no_global_generator_moves():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    LongTailClassifier(**FAST).fit(X, Y).predict(X)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_a_grid_over_a_pipeline():
    """The scores of the grid are those of each setting by itself."""
    pipeline = make_pipeline(MinMaxScaler(), LongTailClassifier(**FAST))
    options = {"cv": 2, "scoring": "balanced_accuracy", "error_score": "raise"}
    search = GridSearchCV(pipeline, {"longtailclassifier__method": ["srepr", "crt"]}, **options).fit(X, Y)
    alone = [
        cross_val_score(clone(pipeline).set_params(longtailclassifier__method=method), X, Y, **options).mean()
        for method in ("srepr", "crt")
    ]
    assert search.cv_results_["mean_test_score"].tolist() == alone
    assert (search.predict(X) == search.best_estimator_.predict(X)).all()


@pytest.mark.parametrize("network", ["resnet8", "mlp"])
def test_images_with_and_without_a_channel_axis_are_the_same(network):
    digits = load_digits()
    images, labels = digits.images[:100], digits.target[:100]
    model = LongTailClassifier(network, **{**FAST, "epochs": 5}).fit(images, labels)
    assert model.predict_proba(images).shape == (100, 10)
    again = clone(model).fit(images[:, None], labels)
    assert (again.predict_proba(images[:, None]) == model.predict_proba(images)).all()


def test_channels_are_standardized_one_by_one():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(20, 3, 4, 4)) * np.array([1.0, 10.0, 100.0])[:, None, None] + 5
    model = LongTailClassifier("resnet8", **{**FAST, "epochs": 5}).fit(images, np.arange(20) % 2)
    np.testing.assert_allclose(model.scaler_.mean_, images.mean((0, 2, 3)))
    np.testing.assert_allclose(model.scaler_.scale_, images.std((0, 2, 3)))


def test_a_straight_line_is_not_lost_to():
    """scikit-learn's balanced logistic regression, on classes that a line separates as well as anything."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [300, 30, 6])
    centres = rng.normal(size=(3, 20))
    train, test = (rng.normal(size=(len(labels), 20)) + centres[labels] for labels in (y, np.arange(3000) % 3))
    line = LogisticRegression(class_weight="balanced").fit(train, y)
    model = LongTailClassifier(epochs=20, samples=5).fit(train, y)
    scores = [balanced_accuracy_score(np.arange(3000) % 3, made.predict(test)) for made in (model, line)]
    assert scores[0] > scores[1]


def test_the_network_learns_what_no_line_can():
    """The sign of a product: each linear candidate is near chance, and the network is not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    y = (x.prod(1) > 0).astype(int)
    model = LongTailClassifier(epochs=30, samples=3).fit(x[:400], y[:400])
    line, pieces, network = model.choice_
    assert [row["candidate"] for row in model.choice_] == ["line", "pieces", "network"]
    assert max(line["balanced_acc"], pieces["balanced_acc"]) < 0.65
    assert network["weight"] > max(line["weight"], pieces["weight"])
    assert model.score(x[400:], y[400:]) > 0.9


def test_columns_that_say_nothing_are_warned_of():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="no model is clearly better than chance"):
        LongTailClassifier(**FAST).fit(rng.normal(size=(200, 3)), rng.integers(2, size=200))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LongTailClassifier(**FAST).fit(X, Y)


class Frame(dict):
    """A DataFrame, as far as the estimator asks for one: columns by name."""

    columns = property(dict.keys)
    shape = property(lambda self: (len(next(iter(self.values()))), len(self.columns)))


def test_categories_of_a_frame_are_columns_of_zeros_and_ones():
    """One-hot encoded by numpy; a value that training has not seen is none of the known ones."""
    rng = np.random.default_rng(0)
    colours = rng.choice(["red", "green", "blue"], size=200)
    size = rng.normal(size=200)
    y = (colours == "red").astype(int) + (size > 1)
    model = LongTailClassifier(**FAST).fit(Frame(size=size, colour=colours.astype(object)), y)
    hot = np.column_stack([size, colours[:, None] == ["blue", "green", "red"]])
    expected = LongTailClassifier(**FAST).fit(hot, y)
    assert model.n_features_in_ == 2
    assert (model.predict_proba(Frame(size=size, colour=colours)) == expected.predict_proba(hot)).all()
    new = model.predict_proba(Frame(size=size[:3], colour=np.array(["pink", "red", None], dtype=object)))
    bare = hot[:3] * [[1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    bare[1, 1:] = [0, 0, 1]
    np.testing.assert_array_equal(new, expected.predict_proba(bare))
    with pytest.raises(InputError, match="pass one with the same columns"):
        model.predict(hot)


def test_a_member_does_not_see_its_fold():
    """Other labels in a fold leave its member where it was, to the bit, and move the others."""
    pieces = cut(X, np.ones(150), 4).float()
    fold = torch.arange(150) % 3
    other = torch.from_numpy(Y).clone()
    other[fold == 0] = other[fold == 0].flip(0)
    found = []
    for labels in (torch.from_numpy(Y), other):
        with seeded((), 0):
            network = Members(3, inputs=4, pieces=pieces, members=3, width=8, depth=1, dropout=0.1)
            trained = train(network, torch.from_numpy(X).float(), labels, fold, Training(epochs=1, batch_size=30))
        found.append(trained.network.weights[0])
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])


def test_the_weights_of_the_candidates_are_the_best():
    """On a grid; one candidate knows the labels, one knows half of them, one knows nothing."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(np.repeat([0, 1, 2], [200, 60, 20]))
    noise = torch.from_numpy(rng.normal(size=(3, 280, 3)))
    one_hot = torch.nn.functional.one_hot(labels, 3)
    logits = [noise[0] + one_hot, noise[1] + one_hot * (torch.arange(280) % 2)[:, None], noise[2]]
    candidates = [
        Candidate(name="made", model=nn.Identity(), logits=z, judged=torch.ones(280, dtype=torch.bool), about={})
        for z in logits
    ]
    table = combine(candidates, labels).choice
    counts = np.bincount(labels)
    shares = 1 / counts[labels] / 3

    def loss(weights):
        log_probs = log_softmax(sum(w * z.numpy() for w, z in zip(weights, logits, strict=True)), axis=1)
        smoothed = (1 - (shares**2).sum()) * one_hot.numpy() + (shares**2).sum() / 3
        return -(shares[:, None] * smoothed * log_probs).sum()

    best = [row["weight"] for row in table]
    assert all(loss(best) <= loss(np.maximum(best + step, 0)) for step in rng.normal(size=(100, 3)) * 0.1)


def test_sets_of_labels_are_calibrated_on_rows_that_the_models_had_not_seen():
    chance = np.random.default_rng(0)

    def rows(examples):
        y = chance.integers(0, 3, size=examples)
        return 1.2 * np.eye(3)[y] + chance.normal(size=(examples, 3)), y

    model = LongTailClassifier(epochs=8, hidden=8, samples=3).fit(*rows(300))
    x, y = rows(2000)
    inside = model.network_.thresholds(0.8, "marginal").sets(model.predict_proba(x)).numpy()
    assert inside[np.arange(2000), y].mean() == pytest.approx(0.8, abs=0.07)


def perceptron(classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))


def test_a_network_of_ones_own_is_trained_from_where_it_stands_and_not_changed():
    torch.manual_seed(0)
    module = perceptron(3)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = LongTailClassifier(module, **FAST).fit(X, Y)
    still = LongTailClassifier(module, **{**FAST, "lr": 1e-30}, weight_decay=0).fit(X, Y)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(still.network_.model[0].weight.float(), module[0].weight)
    assert model.score(X, Y) > 0.8
    assert pickle.loads(pickle.dumps(clone(model))).get_params()["network"] is not module


def test_a_function_that_makes_the_network():
    model = LongTailClassifier(perceptron, **FAST, random_state=3)
    assert (model.fit(X, Y).predict_proba(X) == clone(model).fit(X, Y).predict_proba(X)).all()


def test_one_example_of_each_class_is_enough():
    model = LongTailClassifier(**FAST).fit(X[[0, 60, 120]], ["a", "b", "c"])
    assert model.predict(X[[0, 60, 120]]).tolist() == ["a", "b", "c"]


def test_uncertainty_is_the_chance_of_an_error():
    model = LongTailClassifier(**FAST).fit(X, Y)
    np.testing.assert_allclose(model.predict_uncertainty(X), 1 - model.predict_proba(X).max(1), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "inputs", "labels", "message"),
    [
        ({}, X, np.zeros(150), "only one class"),
        ({"network": perceptron(2)}, X, Y, "2 outputs and y has 3 classes"),
        ({"network": "resnet8"}, X, Y, "use mlp for tables"),
        ({"network": "resnet9"}, X.reshape(150, 2, 2), Y, "^unknown network 'resnet9'"),
        ({"method": "magic"}, X, Y, "^unknown method 'magic'"),
        ({"epochs": 2, "method": "srepr"}, X, Y, "^`epochs` is 2: .* at least 5"),
        ({"epochs": 0}, X, Y, "^`epochs` is 0"),
        ({"samples": 1}, X, Y, "^`samples` is 1"),
        ({}, X.reshape(150, 1, 1, 2, 2), Y, "pass a table"),
    ],
)
def test_what_cannot_work_is_named(options, inputs, labels, message):
    with pytest.raises(InputError, match=message):
        LongTailClassifier(**{**FAST, **options}).fit(inputs, labels)
