"""Laws of the Dirichlet, against mpmath (50 digits), scipy and sampling."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch.distributions import Dirichlet

from srepr import dirichlet
from srepr.errors import InputError

mpmath.mp.dps = 50
SIZES = [(2, 2), (10, 10), (2, 100), (10, 1000), (2, 8142)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def exact_fit(log_probs):
    """The definition, in 50 digits, for one example [M, K]: mean and disagreement."""
    columns = [[mpmath.mpf(float(v)) for v in column] for column in log_probs.T]
    mean = [mpmath.fsum(map(mpmath.exp, column)) / len(column) for column in columns]
    gap = mpmath.fsum(
        p * (mpmath.log(p) - mpmath.fsum(column) / len(column)) for p, column in zip(mean, columns, strict=True)
    )
    return np.array(mean, dtype=float), float(gap)


def exact_kl(alpha):
    a = [mpmath.mpf(float(v)) for v in alpha]
    total, classes = mpmath.fsum(a), len(a)
    psi_0 = mpmath.digamma(total)
    return float(
        mpmath.loggamma(total)
        - mpmath.loggamma(classes)
        + mpmath.fsum((v - 1) * (mpmath.digamma(v) - psi_0) - mpmath.loggamma(v) for v in a)
    )


def numpy_kl(a):
    total, classes = a.sum(), len(a)
    terms = (a - 1) * (special.digamma(a) - special.digamma(total)) - special.gammaln(a)
    return math.fsum([special.gammaln(total), -special.gammaln(classes), *terms])


@pytest.mark.parametrize(("teachers", "classes"), SIZES)
@pytest.mark.parametrize("spread", [1.0, 1e-2])
def test_fit_is_minkas_formula(teachers, classes, spread):
    generator = torch.Generator().manual_seed(classes)
    shared = torch.randn(3, classes, generator=generator)
    log_probs = (shared + spread * torch.randn(teachers, 3, classes, generator=generator)).log_softmax(-1)
    mean, precision = dirichlet.fit(log_probs)
    assert mean.dtype == precision.dtype == torch.float32
    p = log_probs.double().numpy()
    p_mean = np.exp(p).mean(0)
    gap = (p_mean * (np.log(p_mean) - p.mean(0))).sum(-1)
    np.testing.assert_allclose(mean, p_mean, rtol=1e-5)
    np.testing.assert_allclose(precision, (classes - 1) / 2 / gap, rtol=1e-5)


@pytest.mark.parametrize("spread", [10.0, 1.0, 1e-4, 1e-7, 1e-10])
def test_fit_keeps_its_digits_when_teachers_nearly_agree(spread):
    generator = torch.Generator().manual_seed(0)
    noise = spread * torch.randn(10, 1, 20, generator=generator, dtype=torch.float64)
    log_probs = (torch.randn(20, generator=generator, dtype=torch.float64) + noise).log_softmax(-1)
    mean, precision = dirichlet.fit(log_probs)
    exact_mean, exact_gap = exact_fit(log_probs[:, 0].numpy())
    np.testing.assert_allclose(mean[0], exact_mean, rtol=1e-12)
    assert precision.item() == pytest.approx(19 / 2 / exact_gap, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_teachers_have_the_largest_precision(dtype):
    log_probs = torch.randn(1, 4, 7, dtype=dtype).log_softmax(-1).expand(10, -1, -1)
    mean, precision = dirichlet.fit(log_probs)
    torch.testing.assert_close(mean, log_probs[0].exp())
    assert (precision == torch.finfo(dtype).max).all()
    assert (1 / precision < torch.finfo(dtype).tiny).all()


def test_rounding_never_turns_the_precision_negative():
    log_probs = torch.tensor([0.3, 0.7], dtype=torch.float64).log() - 1e-15 * torch.rand(
        10, 1000, 2, dtype=torch.float64
    )
    _, precision = dirichlet.fit(log_probs)
    assert (precision > 1e20).all()


def test_probabilities_of_exactly_0_and_1_stay_finite():
    agreeing = torch.tensor([[0.0, 1.0, 0.0]] * 3).unsqueeze(1).log()
    mean, precision = dirichlet.fit(agreeing)
    assert mean.tolist() == [[0.0, 1.0, 0.0]]
    assert precision.item() == torch.finfo(torch.float32).max

    disagreeing = torch.tensor([[[0.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]]]).log()
    mean, precision = dirichlet.fit(disagreeing)
    assert mean.tolist() == [[0.5, 0.5, 0.0]]
    assert 0 < precision.item() < 0.1


def test_a_log_probability_far_below_the_smallest_number_still_counts():
    log_probs = torch.tensor([[[0.0, -1000.0]], [[-1000.0, 0.0]]], dtype=torch.float64)
    _, precision = dirichlet.fit(log_probs)
    assert precision.item() == pytest.approx(0.5 / (500 - math.log(2)), rel=1e-12)


def test_fit_finds_the_precision_that_the_teachers_were_drawn_from():
    alpha = torch.tensor([40.0, 30.0, 20.0, 10.0], dtype=torch.float64)
    log_probs = Dirichlet(alpha).sample((20_000, 1)).log()
    mean, precision = dirichlet.fit(log_probs)
    torch.testing.assert_close(mean[0], alpha / 100, rtol=0.01, atol=0)
    assert precision.item() == pytest.approx(100, rel=0.05)  # Minka's formula is itself an approximation


@pytest.mark.parametrize("total", [0.9, 1.1])
def test_probabilities_that_do_not_sum_to_one_are_refused_and_rounded_ones_are_not(total):
    log_probs = torch.randn(3, 4, 1000).log_softmax(-1)
    with pytest.raises(InputError, match="sum to 1"):
        dirichlet.fit(log_probs + math.log(total))
    for dtype in (torch.float16, torch.bfloat16):
        mean, _ = dirichlet.fit(log_probs.to(dtype))
        torch.testing.assert_close(mean.float().sum(-1), torch.ones(4), rtol=0, atol=0.05)


def test_fit_leaves_its_input_alone():
    log_probs = torch.randn(3, 2, 5, dtype=torch.float64).log_softmax(-1)
    before = log_probs.clone()
    dirichlet.fit(log_probs)
    assert torch.equal(log_probs, before)


@pytest.mark.parametrize("classes", [2, 10, 100, 1000, 8142, 10_000])
def test_kl_to_uniform_is_the_textbook_formula(classes):
    alpha = 1 + torch.randn(2, classes, generator=torch.Generator().manual_seed(classes)).div(3).exp()
    kl = dirichlet.kl_to_uniform(alpha)
    assert kl.dtype == torch.float32
    np.testing.assert_allclose(kl, [numpy_kl(a) for a in alpha.double().numpy()], rtol=1e-5)


@settings(max_examples=60)
@given(st.lists(st.floats(-2, 217), min_size=2, max_size=6))
def test_kl_to_uniform_is_exact_at_every_size_of_alpha(exponents):
    alpha = torch.tensor([exponents], dtype=torch.float64).mul(math.log(10)).exp().requires_grad_()
    kl = dirichlet.kl_to_uniform(alpha)
    with mpmath.workdps(250):
        assert kl.item() == pytest.approx(exact_kl(alpha[0].detach()), rel=1e-5, abs=1e-12)
    kl.backward()
    assert alpha.grad.isfinite().all()


@pytest.mark.parametrize("size", [1e3, 0.99e5, 1.01e5, 3e5, 1e7])
def test_kl_to_uniform_and_its_gradient_keep_their_digits_where_large_terms_cancel(size):
    """The gradient is (a_k - 1) psi'(a_k) - (a_0 - K) psi'(a_0), here in 50 digits."""
    alpha = (size * torch.tensor([[1.0, 1.7, 0.4]], dtype=torch.float64)).requires_grad_()
    kl = dirichlet.kl_to_uniform(alpha)
    kl.backward()
    a = [mpmath.mpf(v) for v in alpha[0].tolist()]
    shared = (mpmath.fsum(a) - 3) * mpmath.psi(1, mpmath.fsum(a))
    gradient = [float((v - 1) * mpmath.psi(1, v) - shared) for v in a]
    assert kl.item() == pytest.approx(exact_kl(alpha[0].detach()), rel=0, abs=1e-9)
    np.testing.assert_allclose(alpha.grad[0], gradient, rtol=1e-8)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (1, 2, 3)])
def test_every_dimension_but_the_last_is_one_of_the_batch(shape):
    classes = 5
    alpha = (torch.rand(*shape, classes, dtype=torch.float64) + 0.5).requires_grad_()
    mean, precision = alpha.detach().flip(-1).softmax(-1), torch.rand(shape, dtype=torch.float64) + 1
    for function in (
        dirichlet.kl_to_uniform,
        dirichlet.entropy_of_mean,
        dirichlet.expected_entropy,
        dirichlet.mutual_information,
        lambda a: dirichlet.reverse_kl(a, mean.view(*a.shape), precision.view(a.shape[:-1])),
    ):
        whole, flat = function(alpha), function(alpha.view(-1, classes))
        assert whole.shape == shape
        torch.testing.assert_close(whole.flatten(), flat)
        torch.testing.assert_close(
            torch.autograd.grad(whole.square().sum(), alpha), torch.autograd.grad(flat.square().sum(), alpha)
        )


@pytest.mark.parametrize("classes", [2, 10_000])
def test_the_uniform_dirichlet_is_its_own(classes):
    alpha = torch.ones(1, classes, requires_grad=True)
    kl = dirichlet.kl_to_uniform(alpha)
    assert kl.item() == 0
    kl.backward()
    assert alpha.grad.abs().max() < 1e-12  # the minimum of the divergence


def test_kl_and_expected_log_probability_are_what_sampling_says():
    alpha = torch.tensor([[2.0, 0.5, 4.0]], dtype=torch.float64)
    draws = Dirichlet(alpha).sample((400_000,))
    sampled = (Dirichlet(alpha).log_prob(draws) - Dirichlet(torch.ones_like(alpha)).log_prob(draws)).mean()
    assert dirichlet.kl_to_uniform(alpha).item() == pytest.approx(sampled.item(), rel=0.01)

    mean = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    expected = -(mean * draws.log()).sum(-1).mean()
    infinite = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert dirichlet.reverse_kl(alpha, mean, infinite).item() == pytest.approx(expected.item(), rel=0.01)


def test_reverse_kl_is_the_divergence_up_to_a_constant():
    mean, precision = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64), torch.tensor([7.0], dtype=torch.float64)
    target = Dirichlet(precision * mean + 1)
    constants = []
    for alpha in ([[1.5, 3.0, 9.0]], [[1.1, 1.2, 1.3]], [[200.0, 30.0, 4.0]]):
        alpha = torch.tensor(alpha, dtype=torch.float64)
        divergence = torch.distributions.kl_divergence(Dirichlet(alpha), target) / precision
        constants.append((dirichlet.reverse_kl(alpha, mean, precision) - divergence).item())
    assert constants == pytest.approx([constants[0]] * 3, abs=1e-12)


@pytest.mark.parametrize("shift", [0.1, 1.0, 9e4, 2e5])
def test_gradients_are_those_of_finite_differences(shift):
    alpha = (shift * (1 + torch.rand(3, 5, dtype=torch.float64))).requires_grad_()
    mean = torch.rand(3, 5, dtype=torch.float64).softmax(-1)
    precision = torch.tensor([1e-3, 1.0, 1e3], dtype=torch.float64)
    torch.autograd.gradcheck(lambda log_a: dirichlet.kl_to_uniform(log_a.exp()), alpha.log().detach().requires_grad_())
    torch.autograd.gradcheck(
        lambda log_a: dirichlet.reverse_kl(log_a.exp(), mean, precision), alpha.log().detach().requires_grad_()
    )


@settings(max_examples=30)
@given(st.lists(st.floats(1e-2, 1e4), min_size=2, max_size=8))
def test_uncertainty_splits_into_data_and_model(alpha):
    parameters = torch.tensor([alpha], dtype=torch.float64)
    total, data, model = (
        f(parameters).item()
        for f in (dirichlet.entropy_of_mean, dirichlet.expected_entropy, dirichlet.mutual_information)
    )
    p = np.array(alpha) / np.sum(alpha)
    assert total == pytest.approx(stats.entropy(p), rel=1e-9)
    assert model >= 0
    assert total == pytest.approx(data + model, rel=1e-9)


def test_expected_entropy_is_what_sampling_says():
    alpha = torch.tensor([[2.0, 0.5, 4.0]])
    draws = Dirichlet(alpha[0].double()).sample((200_000,))
    sampled = -torch.xlogy(draws, draws).sum(-1).mean()
    assert dirichlet.expected_entropy(alpha).item() == pytest.approx(sampled.item(), rel=0.01)


def test_rounding_never_turns_the_model_uncertainty_negative():
    assert (dirichlet.mutual_information(1e16 * torch.rand(1000, 5, dtype=torch.float64)) >= 0).all()


@pytest.mark.parametrize("classes", [2, 10_000])
def test_a_sharper_dirichlet_holds_less_model_uncertainty(classes):
    shape = torch.rand(1, classes) + 0.5
    model = [dirichlet.mutual_information(scale * shape).item() for scale in (1, 10, 1e3, 1e30)]
    assert model == sorted(model, reverse=True)
    assert model[-1] == pytest.approx(0, abs=1e-9)
