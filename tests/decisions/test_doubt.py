"""Doubt: against matrix inverses, exchangeability, and what must not change it."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from srepr import heads
from srepr.classifier import Classifier
from srepr.data.about import About
from srepr.decisions.doubt import ENTROPY, STEEPNESS, WEIGHT, WITHIN, Familiar, Relative, doubt, fit, fit_relative
from srepr.decisions.held import Held
from srepr.errors import InputError
from srepr.run.checkpoints import build_network, load_classifier, load_head_and_held, save_classifier, save_head
from srepr.storage.tensors import load_tensors, save_tensors


def photos(examples, length=6, seed=0):
    """Features of known inputs: of any length, around one direction, with a spread of their own along each axis."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.05, 0.4, length, dtype=torch.float64)
    x = torch.randn(examples, length, generator=generator, dtype=torch.float64) * spread + 1
    return x * torch.rand(examples, 1, generator=generator, dtype=torch.float64) * 9


@pytest.mark.parametrize("length", [6, 90])
def test_the_distance_is_that_of_the_inverse_of_the_covariance(length):
    """Up to 64 directions of their own variance, and the mean of the other variances for all others."""
    x = photos(4000, length)
    familiar = fit(x)
    rows = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[::2]
    unit = nn.functional.normalize(x[rows]).numpy()
    variances, axes = np.linalg.eigh(np.cov(unit.T))
    if length > 64:
        variances[: length - 64] = variances[: length - 64].mean()
    inverse = axes / variances @ axes.T
    new = photos(50, length, seed=1)
    away = nn.functional.normalize(new).numpy() - unit.mean(0)
    expected = np.sqrt(np.einsum("ni,ij,nj->n", away, inverse, away) / length)
    np.testing.assert_allclose(familiar.distance(new), expected, rtol=1e-3)
    assert len(familiar.scaled) == min(length, 64)


def test_one_known_input_in_500_is_beyond_the_limit():
    familiar = fit(photos(20_000))
    beyond = (familiar.excess(photos(50_000, seed=2)) > 1).double().mean().item()
    assert beyond == pytest.approx(1 / 500, rel=0.5)


def test_few_known_inputs_are_enough_for_a_limit():
    """With 20 of them, 19 of 20 new ones are still within it on average."""
    beyond = [(fit(photos(20, seed=s)).excess(photos(200, seed=s + 99)) > 1).double().mean().item() for s in range(40)]
    assert np.mean(beyond) < 0.15


def test_the_length_of_the_features_does_not_matter():
    familiar, new = fit(photos(500)), photos(20, seed=1)
    torch.testing.assert_close(familiar.excess(new * 1e-30), familiar.excess(new * 1e30))
    torch.testing.assert_close(fit(photos(500) * 1e-20).excess(new), familiar.excess(new), rtol=1e-4, atol=0)


def test_without_features_doubt_is_one_minus_the_largest_probability():
    p = torch.rand(100, 7, dtype=torch.float64).softmax(1)
    assert torch.equal(doubt(p), 1 - p.max(1).values)


def test_within_the_limit_doubt_is_the_formula_and_beyond_it_grows_to_one():
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    entropy = -sum(q * math.log(q) for q in (0.7, 0.2, 0.1)) / math.log(3)
    inside = (0.3 + ENTROPY * entropy) / (1 + ENTROPY)
    for excess in (0.0, 0.5, 1.0):
        assert doubt(p, torch.tensor([excess])).item() == pytest.approx(inside)
    beyond = [doubt(p, torch.tensor([excess])).item() for excess in (1.01, 1.1, 2.0, 1e6, math.inf, math.nan)]
    assert beyond[1] == pytest.approx(1 - (1 - inside) / 1.1**STEEPNESS, rel=1e-5)
    assert inside < beyond[0] < beyond[1] < beyond[2] <= beyond[3] == beyond[4] == beyond[5] == 1


def classes_of(examples, classes, length=6, seed=0):
    """Features around one direction for each class, their labels, and probabilities that are sometimes wrong."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (examples,), generator=generator)
    centres = torch.randn(classes, length, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    x = centres[labels] + 0.5 * torch.randn(examples, length, generator=generator, dtype=torch.float64)
    return x, labels, (x @ centres.T).softmax(1)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_the_relative_distance_is_that_of_inverses_and_a_line(classes):
    """Computed again with matrices, class by class, from the same halves."""
    (x, y, _), (known, labels, p), (new, _, p_new) = (
        classes_of(n, classes, seed=s) for s, n in enumerate((900, 600, 40))
    )
    found = fit_relative(x, y, known, labels, p)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0)).numpy()
    unit, known_unit, new_unit = (nn.functional.normalize(part).numpy() for part in (x, known, new))
    total = np.cov(unit.T)
    root = np.linalg.cholesky(np.linalg.inv(total))  # any square root of the inverse scales the whole to variance 1

    def components(part):
        return (part - unit.mean(0)) @ root

    means = np.stack([components(unit)[y.numpy() == k].mean(0) for k in range(classes)])
    around = components(known_unit)[order[::2]] - means[labels.numpy()[order[::2]]]
    within = around.T @ around / 300
    within = (300 * within + 6 * np.trace(within) / 6 * np.eye(6)) / 306
    values, axes = np.linalg.eigh(within)
    inverse = axes / values.clip(1e-3, WITHIN) @ axes.T

    def distance(part):
        v = components(part)
        each = [np.einsum("ni,ij,nj->n", v - mu, inverse, v - mu) for mu in means]
        return np.min(each, axis=0) - (v**2).sum(1)

    np.testing.assert_allclose(found.distance(new), distance(new_unit), rtol=1e-3, atol=1e-3)
    if classes == 1:
        return  # 1 - max p is 0 throughout: no line
    wrong = 1 - p.max(1).values.numpy()[order[1::2]]
    sure, r = np.log(wrong / (1 - wrong)).clip(-12, 12), distance(known_unit[order[1::2]])
    slope, start = np.polyfit(sure, r, 1)
    spread = (r - start - slope * sure).std(ddof=1)
    wrong = 1 - p_new.max(1).values.numpy()
    z = ((distance(new_unit) - start - slope * np.log(wrong / (1 - wrong)).clip(-12, 12)) / spread).clip(-3, 3)
    np.testing.assert_allclose(found.unusual(found.distance(new), p_new), z, rtol=1e-2, atol=1e-2)
    odds = wrong / (1 - wrong) * np.exp(WEIGHT * z)
    np.testing.assert_allclose(doubt(p_new, torch.zeros(40), torch.from_numpy(z)), odds / (1 + odds))


def test_laws_of_the_relative_distance():
    (x, y, _), (known, labels, p) = classes_of(300, 3), classes_of(200, 3, seed=1)
    found = fit(known)._replace(relative=fit_relative(x, y, known, labels, p)).checked()
    scaled = fit_relative(x * 1e-20, y, known * 1e20, labels, p)
    distances, same = found.relative.distance(known), scaled.distance(known * 7)
    unusual = found.relative.unusual(distances, p)
    torch.testing.assert_close(scaled.unusual(same, p), unusual, rtol=1e-3, atol=1e-3)
    assert unusual.abs().max() <= 3
    doubts = found.doubt(p, known)
    assert ((doubts >= 0) & (doubts <= 1)).all()
    assert (found.doubt(p[:4], torch.full((4, 6), math.nan)) == 1).all()
    assert torch.equal(found.doubt(torch.eye(3).double(), known[:3] * 0 + found.mean), torch.zeros(3).double())
    torch.testing.assert_close(found.doubt(p), 1 - p.amax(1))
    inside = found.excess(known) <= 1
    torch.testing.assert_close(found.doubt(p, distances=distances)[inside], doubts[inside])
    assert fit_relative(x, y, known[:30], labels[:30], p[:30]) is None  # too few
    assert fit_relative(x, y, known, labels + 3, p) is None  # of other classes
    assert fit_relative(x, y, known, labels, torch.full((200, 3), 1 / 3)).unusual(distances, p).isfinite().all()


@pytest.mark.parametrize("classes", [1, 2, 1000])
def test_doubt_lies_between_0_and_1(classes):
    p = torch.cat([torch.rand(50, classes).mul(30).softmax(1), torch.full((1, classes), 1 / classes)])
    for excess in (None, torch.rand(51) * 3):
        found = doubt(p, excess)
        assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        (torch.ones(3, 2), "pass \\[N, L\\] with at least 4 examples"),
        (torch.ones(9), "pass \\[N, L\\]"),
        (torch.full((9, 2), math.nan), "NaN or infinity"),
        (torch.ones(9, 2), "all have the same direction"),
    ],
)
def test_features_that_say_nothing_are_refused(features, complaint):
    with pytest.raises(InputError, match=complaint):
        fit(features)
    with pytest.raises(InputError, match="pass \\[N, 6\\]"):
        fit(photos(50)).excess(torch.ones(3, 5))


ABOUT = About(
    network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,), mean=(0.0,), std=(1.0,)
)


@pytest.fixture
def watched():
    """A network that knows what its features look like, and inputs of this kind."""
    torch.manual_seed(0)
    network = build_network(ABOUT).eval()
    known = torch.randn(400, 4) + 3
    features = network.features(known).detach()
    labels = torch.arange(400) % 2
    relative = fit_relative(features, labels, features, labels, torch.rand(400, 2).softmax(1))
    return Classifier(network, about=ABOUT, layer="fc", familiar=fit(features)._replace(relative=relative)), known


def test_a_classifier_doubts_inputs_unlike_those_that_it_knows(watched):
    model, known = watched
    plain = Classifier(model.model, about=ABOUT)
    strange = -10 * known
    excess = model.familiar.excess(model.model.features(strange).detach())
    assert (excess > 1).double().mean() > 0.5
    for x in (known, strange):
        p = plain.predict(x).probabilities
        features = model.model.features(x).detach()
        unusual = model.familiar.relative.unusual(model.familiar.relative.distance(features), p)
        expected = doubt(p, model.familiar.excess(features), unusual)
        torch.testing.assert_close(model.predict(x).uncertainty, expected)
        assert torch.equal(model.predict(x).probabilities, p)
    assert model.with_prior([9, 1]).predict(strange).uncertainty.mean() > 0.9
    assert (model.predict(strange).uncertainty > plain.predict(strange).uncertainty).float().mean() > 0.5


def test_what_is_known_about_the_features_is_written_and_read(watched, tmp_path):
    model, known = watched
    save_classifier(tmp_path / "model.safetensors", model, {})
    again = load_classifier(tmp_path / "model.safetensors")
    assert torch.equal(again.predict(-known).uncertainty, model.predict(-known).uncertainty)
    head = heads.linear(torch.eye(2), torch.zeros(2))
    held = Held(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.tensor([-2.5, 0.0, 1e6]))
    save_head(tmp_path / "head.safetensors", head, {}, held, model.familiar)
    _, held_again, familiar = load_head_and_held(tmp_path / "head.safetensors")
    written, read = (
        (*held, *model.familiar[:4], *model.familiar.relative),
        (*held_again, *familiar[:4], *familiar.relative),
    )
    assert all(torch.equal(a, b) for a, b in zip(written, read, strict=True))


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_rejection_is_of_the_share_that_was_asked_for(watched, share):
    """The distances of held-out examples count, as those of inputs do."""
    model, known = watched
    known = known[model.familiar.excess(model.model.features(known).detach()) <= 1]
    features, logits = model.model.features(known).detach(), model.model(known).detach()
    said = model.predict(known)
    model.held = Held(logits, said.label, model.familiar.relative.distance(features))
    model.expects = torch.bincount(said.label).tolist()
    rule = model.rejection(share)
    assert int(rule.rejects(said.uncertainty, said.label).sum()) == math.floor(share * len(known))
    model.held = Held(logits, said.label)
    assert model.rejection(share).thresholds != rule.thresholds


@pytest.mark.parametrize("damage", [[0.0, math.nan, 0.0], [0.0, 0.0], [[0.0, 0.0, 0.0]], [1, 2, 3]])
def test_damaged_distances_are_refused_in_words(tmp_path, damage):
    path = tmp_path / "head.safetensors"
    head, whole = heads.linear(torch.eye(2), torch.zeros(2)), Held(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    save_head(path, head, {}, whole)
    tensors, metadata = load_tensors(path)
    save_tensors(path, {**tensors, "held.distances": torch.tensor(damage)}, metadata)
    with pytest.raises(InputError, match="the distances of the held-out examples are not finite, or not as many"):
        load_head_and_held(path)


def test_files_without_a_relative_distance_keep_the_former_doubt(watched, tmp_path):
    model, known = watched
    model.familiar = model.familiar._replace(relative=None)
    save_classifier(tmp_path / "model.safetensors", model, {})
    again = load_classifier(tmp_path / "model.safetensors")
    assert again.familiar.relative is None
    p, features = again.predict(known).probabilities, model.model.features(known).detach()
    torch.testing.assert_close(again.predict(known).uncertainty, doubt(p, again.familiar.excess(features)))


@pytest.mark.parametrize("field", Relative._fields)
def test_a_damaged_relative_distance_is_refused_in_words(watched, tmp_path, field):
    model, _ = watched
    whole = model.familiar
    for damage in (
        torch.tensor(math.nan),
        torch.zeros(3, 1),
        getattr(whole.relative, field) * math.nan,
        torch.zeros(0),
    ):
        model.familiar = whole._replace(relative=whole.relative._replace(**{field: damage}))
        save_classifier(tmp_path / "model.safetensors", model, {})
        with pytest.raises(InputError, match=r"model\.safetensors: what is known about the features is damaged"):
            load_classifier(tmp_path / "model.safetensors")


@pytest.mark.parametrize("field", Familiar._fields[:4])
def test_damaged_knowledge_is_refused_in_words(watched, tmp_path, field):
    model, _ = watched
    for damage in (torch.tensor(math.nan), torch.zeros(3, 1), torch.tensor(-1.0)):
        model.familiar = fit(photos(50))._replace(**{field: damage})
        save_classifier(tmp_path / "model.safetensors", model, {})
        with pytest.raises(InputError, match=r"model\.safetensors: what is known about the features is damaged"):
            load_classifier(tmp_path / "model.safetensors")
