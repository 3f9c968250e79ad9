"""The edges of the formulas: every input gives the documented result or an InputError, never a wrong number."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import srepr
from srepr import analysis, balance, dirichlet, heads, metrics, objective
from srepr.data import exponential_counts
from srepr.errors import InputError
from srepr.posterior import Posterior

NAN, INF = math.nan, math.inf
HALVES = torch.full((2, 3, 2), math.log(0.5))
ALPHA, LOGITS, Y = torch.ones(3, 2), torch.zeros(2, 3, 2), torch.zeros(3, dtype=torch.int64)
MEAN, PRECISION = torch.full((3, 2), 0.5), torch.ones(3)


def put(tensor, value):
    """The tensor with one other number."""
    tensor = tensor.clone()
    tensor.view(-1)[1] = value
    return tensor


REFUSED = {
    "retrain: one class": lambda: srepr.retrain(nn.Linear(2, 1), (torch.zeros(3, 2), Y)),
    "retrain: tiny features": lambda: srepr.retrain(nn.Linear(2, 2), (torch.eye(2) * 1e-40, Y[:2]), "la"),
    "fit, both stages: one class": lambda: srepr.fit(nn.Linear(2, 1), (torch.zeros(3, 2), Y), epochs=1),
    "fit, both stages: a huge label": lambda: srepr.fit(nn.Linear(2, 2), (torch.eye(2), [0, 2**62]), epochs=1),
    "fit, both stages: nothing": lambda: srepr.fit(nn.Linear(2, 2), (torch.zeros(0, 2), Y[:0]), epochs=1),
    "collect: nothing": lambda: srepr.collect(nn.Linear(2, 2), (torch.zeros(0, 2), Y[:0]), lr=0.1),
    "counts: nan": lambda: exponential_counts(NAN, 3),
    "counts: infinity": lambda: exponential_counts(INF, 3),
    "counts: beyond float": lambda: exponential_counts(10**400, 3),
    "counts: classes": lambda: exponential_counts(5, 10**12),
    "fit: nan": lambda: dirichlet.fit(put(HALVES, NAN)),
    "fit: infinity": lambda: dirichlet.fit(put(HALVES, INF)),
    "fit: probabilities": lambda: dirichlet.fit(HALVES.exp()),
    "fit: impossible": lambda: dirichlet.fit(torch.full((2, 3, 2), -INF)),
    "fit: one class": lambda: dirichlet.fit(torch.zeros(2, 3, 1)),
    "fit: no class": lambda: dirichlet.fit(torch.zeros(2, 3, 0)),
    "fit: no teacher": lambda: dirichlet.fit(torch.zeros(0, 3, 2)),
    "fit: one dimension less": lambda: dirichlet.fit(HALVES[0]),
    "fit: integers": lambda: dirichlet.fit(torch.zeros(2, 3, 2, dtype=torch.int64)),
    **{
        f"{function.__name__}: {value}": lambda function=function, value=value: function(put(ALPHA, value))
        for function in (
            dirichlet.kl_to_uniform,
            dirichlet.entropy_of_mean,
            dirichlet.expected_entropy,
            dirichlet.mutual_information,
        )
        for value in (0.0, -1.0, NAN, INF)
    },
    "kl: integers": lambda: dirichlet.kl_to_uniform(torch.ones(3, 2, dtype=torch.int64)),
    "kl: no class": lambda: dirichlet.kl_to_uniform(torch.ones(3, 0)),
    "kl: a number": lambda: dirichlet.kl_to_uniform(torch.tensor(1.0)),
    "ce: no example": lambda: objective.cross_entropy(torch.zeros(2, 0, 2), Y[:0]),
    "ce: no teacher": lambda: objective.cross_entropy(torch.zeros(0, 3, 2), Y),
    "ce: no class": lambda: objective.cross_entropy(torch.zeros(2, 3, 0), Y),
    "ce: four dimensions": lambda: objective.cross_entropy(torch.zeros(1, 2, 3, 2), Y),
    "ce: integers": lambda: objective.cross_entropy(LOGITS.long(), Y),
    "ce: labels of floats": lambda: objective.cross_entropy(LOGITS, Y.float()),
    "ce: label K": lambda: objective.cross_entropy(LOGITS, Y + 2),
    "ce: label -1": lambda: objective.cross_entropy(LOGITS, Y - 1),
    "ce: label -100": lambda: objective.cross_entropy(LOGITS, Y - 100),
    "ce: weight": lambda: objective.cross_entropy(LOGITS, Y, weight=torch.ones(3)),
    "ce: offset": lambda: objective.cross_entropy(LOGITS, Y, offset=torch.ones(1)),
    "kd: one class": lambda: objective.self_distillation(torch.zeros(3, 1), torch.zeros(2, 3, 1)),
    "kd: no teacher": lambda: objective.self_distillation(LOGITS[0], LOGITS[:0]),
    "kd: no example": lambda: objective.self_distillation(LOGITS[0, :0], LOGITS[:, :0]),
    "kd: integers": lambda: objective.self_distillation(LOGITS[0].long(), LOGITS),
    "kd: mean": lambda: objective.distillation(LOGITS[0], MEAN[:1], PRECISION),
    "kd: nothing": lambda: objective.distillation(LOGITS[0, :0], MEAN[:0], PRECISION[:0]),
    **{
        f"kd: temperature {t}": lambda t=t: objective.self_distillation(LOGITS[0], LOGITS, t)
        for t in (0, -1, NAN, INF)
    },
    **{
        f"kd: temperature {t} of a summary": lambda t=t: objective.distillation(LOGITS[0], MEAN, PRECISION, t)
        for t in (0, -1, NAN, INF)
    },
    **{
        f"loss: share {w}": lambda w=w: objective.srepr_loss(LOGITS, LOGITS[0], Y, distill_weight=w)
        for w in (-0.1, 1.1, NAN)
    },
    **{
        f"{function.__name__}: {counts}": lambda function=function, counts=counts: function(counts)
        for function in (balance.grw_weights, balance.logit_offset)
        for counts in (
            [], 3, [[1, 2]], [3, 0],
            [3, -1], [3, NAN], [3, INF], [1e308, 1e308], ["a", "b"], [3, [1]], None, [3, 10**400]
        )
    },
    **{
        f"{function.__name__}: rho {rho}": lambda function=function, rho=rho: function([3, 1], rho)
        for function in (balance.grw_weights, balance.logit_offset, lambda c, r: balance.balancing("cbs", c, r))
        for rho in (-1.0, NAN, INF, 10**400)
    },
    "offset: a huge rho": lambda: balance.logit_offset([3, 1], 1e300),
    "mean one: shape": lambda: balance.mean_one(torch.ones(3), [3, 1]),
    "mean one: negative": lambda: balance.mean_one(torch.tensor([-1.0, 2.0]), [3, 1]),
    "mean one: nothing": lambda: balance.mean_one(torch.zeros(2), [3, 1]),
    "mean one: nan": lambda: balance.mean_one(torch.tensor([NAN, 2.0]), [3, 1]),
    "mean one: infinity": lambda: balance.mean_one(torch.tensor([INF, 2.0]), [3, 1]),
    "prior: nan": lambda: balance.adjust_to_prior(torch.zeros(2), [1, 1], [NAN, 1]),
    "prior: infinity": lambda: balance.adjust_to_prior(torch.zeros(2), [1, 1], [INF, 1]),
    "prior: a number": lambda: balance.adjust_to_prior(torch.tensor(0.0), [1], [1]),
    "prior: texts": lambda: balance.adjust_to_prior(torch.zeros(2), [1, 1], ["a", "b"]),
    **{f"ece: {bins} bins": lambda bins=bins: metrics.expected_calibration_error([[1.0, 0.0]], [0], bins)
       for bins in (0, -1, NAN, 2.5, 10**9)},
    "metrics: no bins": lambda: metrics.LongTailMetrics([1, 1], bins=0),
    "ece: texts": lambda: metrics.expected_calibration_error([["a", "b"]], [0]),
    "ece: rows of two lengths": lambda: metrics.expected_calibration_error([[1.0], [0.5, 0.5]], [0, 0]),
    "ece: infinity": lambda: metrics.expected_calibration_error([[INF, 0.0]], [0]),
    "groups: rows of two lengths": lambda: metrics.shot_groups([[1], [1, 2]]),
    "groups: huge": lambda: metrics.shot_groups([2**70, 1]),
    "head: nan": lambda: heads.build("linear", weight=put(torch.eye(2), NAN), bias=None),
    "head: bias of nan": lambda: heads.build("linear", weight=torch.eye(2), bias=torch.tensor([NAN, 0])),
    "head: no class": lambda: heads.build("linear", weight=torch.zeros(0, 2), bias=None),
    "head: a vector": lambda: heads.build("lws", weight=torch.zeros(2), bias=None),
    "head: bias": lambda: heads.build("disalign", weight=torch.eye(2), bias=torch.zeros(3)),
    "head: tau": lambda: heads.tau_norm(torch.eye(2), NAN),
    "head: tau of nan": lambda: heads.tau_norm(put(torch.eye(2), NAN)),
    "head: no tensors": lambda: heads.from_tensors({}),
    "head: other tensors": lambda: heads.from_tensors({"weight": torch.eye(2), "tau": torch.zeros(3)}),
    "ncm: label": lambda: heads.nearest_class_mean([(torch.eye(2), torch.tensor([0, 2]))], 2),
    "ncm: number of labels": lambda: heads.nearest_class_mean([(torch.eye(2), torch.tensor([0]))], 2),
    "ncm: nan": lambda: heads.nearest_class_mean([(put(torch.eye(2), NAN), torch.tensor([0, 1]))], 2),
    "dispersion: nan": lambda: analysis.feature_dispersion(put(LOGITS, NAN)),
    "dispersion: no draw": lambda: analysis.feature_dispersion(LOGITS[:0]),
    "dispersion: texts": lambda: analysis.feature_dispersion([[["a"]]]),
    "dispersion: rows of two lengths": lambda: analysis.feature_dispersion([[[1.0], [1.0, 2.0]]]),
    "divergence: nan": lambda: analysis.jensen_shannon(put(HALVES.exp(), NAN)),
    "divergence: negative": lambda: analysis.jensen_shannon(torch.tensor([[[-1.0, 2.0]]])),
    "divergence: no class": lambda: analysis.jensen_shannon(torch.zeros(2, 3, 0)),
    "pearson: lengths": lambda: analysis.pearson([1.0, 2.0], [1.0]),
    "boxes: lengths": lambda: analysis.quartile_boxes([1.0, 2.0], by=[1]),
    "boxes: nan": lambda: analysis.quartile_boxes([1.0, NAN], by=[1, 2]),
    "boxes: infinity": lambda: analysis.quartile_boxes([1.0, INF], by=[1, 2]),
    "means: labels": lambda: analysis.class_means([1.0, 2.0], np.array([0, 3]), 3),
    "means: negative labels": lambda: analysis.class_means([1.0, 2.0], np.array([0, -1]), 3),
    "means: lengths": lambda: analysis.class_means([1.0, 2.0], np.array([0]), 3),
    "moments: count of nan": lambda: Posterior.from_moments(
        nn.Linear(1, 1, bias=False), *[{"weight": torch.zeros(1, 1)}] * 2, count=NAN
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_answer_is_refused_in_one_line(case):
    with pytest.raises(InputError) as refusal:
        REFUSED[case]()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [NAN, INF])
def test_the_inner_fit_of_nan_is_nan_and_never_sure(value):
    _, precision = dirichlet.fit_unchecked(put(HALVES, value))
    assert precision.isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("value", [NAN, INF])
def test_logits_of_nan_give_a_loss_of_nan(value):
    assert objective.cross_entropy(put(LOGITS, value), Y).isnan()
    assert objective.self_distillation(LOGITS[0], put(LOGITS, value)).isnan()


def test_an_empty_batch_has_an_empty_fit():
    mean, precision = dirichlet.fit(HALVES[:, :0])
    assert mean.shape == (0, 2)
    assert precision.shape == (0,)
    assert dirichlet.kl_to_uniform(ALPHA[:0]).shape == (0,)
    assert analysis.feature_dispersion(LOGITS[:, :0]).shape == (0,)


def test_a_single_class_is_certain():
    assert dirichlet.kl_to_uniform(torch.tensor([[5.0], [0.1]])).tolist() == pytest.approx([0, 0], abs=1e-7)
    assert objective.cross_entropy(torch.randn(2, 3, 1), Y).item() == 0
    assert balance.grw_weights([7]).tolist() == [1]
    assert balance.logit_offset([7]).tolist() == [0]
    assert metrics.expected_calibration_error([[1.0], [1.0]], [0, 0]) == 0
    assert analysis.jensen_shannon(torch.ones(3, 2, 1)).tolist() == [0, 0]


def test_counts_may_be_shares_and_of_any_size():
    for scale in (1e-300, 1e-9, 1.0, 10**15, 1e300):
        torch.testing.assert_close(balance.grw_weights([3 * scale, scale]), torch.tensor([0.25, 0.75]))


def test_a_correlation_with_infinity_is_none():
    assert analysis.pearson([0.0, 1.0, 2.0], [1.0, INF, 3.0]) is None
    assert analysis.pearson([0.0, NAN, 2.0], [1.0, 2.0, 3.0]) is None
    assert analysis.pearson([], []) is None


@pytest.mark.parametrize(
    "change", [{"m2.weight": -1.0}, {"mean.weight": NAN}, {"m2.weight": INF}, {"count": -1}, {"count": NAN}]
)
def test_a_damaged_state_is_refused_and_changes_nothing(change):
    layer = nn.Linear(1, 1, bias=False)
    posterior = Posterior(layer)
    posterior.update(layer)
    before = posterior.state_dict()
    ((name, value),) = change.items()
    with pytest.raises(InputError, match="it is damaged"):
        posterior.load_state_dict({**before, name: torch.full(before[name].shape, value)})
    assert all(torch.equal(tensor, before[name]) for name, tensor in posterior.state_dict().items())
