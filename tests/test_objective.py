"""Laws of the stage-2 loss, against numpy in float64 and mpmath (50 digits and more)."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from srepr.errors import InputError
from srepr.objective import cross_entropy, distillation, self_distillation, srepr_loss


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def numpy_distillation(student, teachers, temperature):
    """L_KD as the paper writes it, in float64."""
    log_p = special.log_softmax(teachers.double().numpy() / temperature, axis=-1)
    classes = log_p.shape[-1]
    p = np.exp(log_p).mean(0)
    beta_0 = (classes - 1) / 2 / (p * (np.log(p) - log_p.mean(0))).sum(-1)
    a = np.exp(student.detach().double().numpy() / temperature) + 1
    a_0 = a.sum(-1, keepdims=True)
    kl = (
        special.gammaln(a_0[:, 0])
        - special.gammaln(a).sum(-1)
        - special.gammaln(classes)
        + ((a - 1) * (special.digamma(a) - special.digamma(a_0))).sum(-1)
    )
    return ((p * (special.digamma(a_0) - special.digamma(a))).sum(-1) + kl / beta_0).mean()


def exact_distillation(student, teachers, temperature):
    """The same for one example, student [K] and teachers [M, K], with as many digits as exp(500) needs."""
    with mpmath.workdps(300):
        classes, temperature = len(student), mpmath.mpf(temperature)
        log_p = []
        for z in teachers:
            z = [mpmath.mpf(float(v)) / temperature for v in z]
            total = mpmath.log(mpmath.fsum(map(mpmath.exp, z)))
            log_p.append([v - total for v in z])
        p = [mpmath.fsum(mpmath.exp(row[k]) for row in log_p) / len(log_p) for k in range(classes)]
        gap = mpmath.fsum(
            p[k] * (mpmath.log(p[k]) - mpmath.fsum(row[k] for row in log_p) / len(log_p)) for k in range(classes)
        )
        a = [mpmath.exp(mpmath.mpf(float(v)) / temperature) + 1 for v in student]
        a_0 = mpmath.fsum(a)
        psi_0, psi = mpmath.digamma(a_0), [mpmath.digamma(v) for v in a]
        kl = mpmath.loggamma(a_0) - mpmath.loggamma(classes)
        kl += mpmath.fsum((v - 1) * (f - psi_0) - mpmath.loggamma(v) for v, f in zip(a, psi, strict=True))
        expected = mpmath.fsum(q * (psi_0 - f) for q, f in zip(p, psi, strict=True))
        return float(expected + 2 * gap / (classes - 1) * kl)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("adjusted", [False, True])
def test_cross_entropy_is_the_mean_over_teachers_and_batch(weighted, adjusted):
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(4, 6, 5, generator=generator), torch.tensor([0, 1, 2, 3, 4, 0])
    weight, offset = torch.rand(5, generator=generator), torch.randn(5, generator=generator)
    loss = cross_entropy(logits, y, weight=weight if weighted else None, offset=offset if adjusted else None)
    z = logits.double().numpy() + (offset.double().numpy() if adjusted else 0)
    nll = -special.log_softmax(z, axis=-1)[:, np.arange(6), y.numpy()].mean(0)
    assert loss.item() == pytest.approx((nll * (weight.numpy()[y] if weighted else 1)).mean(), rel=1e-5)


def test_two_dimensional_logits_are_one_representation():
    logits, y = torch.randn(3, 4), torch.tensor([0, 3, 1])
    assert torch.equal(cross_entropy(logits, y), cross_entropy(logits.unsqueeze(0), y))


@pytest.mark.parametrize("logits", [torch.zeros(2, 4, 3), torch.zeros(4, 3)])
def test_labels_of_another_batch_are_refused(logits):
    with pytest.raises(InputError, match=r"labels \[4\]"):
        cross_entropy(logits, torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("teachers", [2, 10])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000, 8142])
def test_self_distillation_is_the_papers_equation(teachers, classes):
    generator = torch.Generator().manual_seed(classes + teachers)
    student = 5 * torch.randn(3, classes, generator=generator)
    logits = student + torch.randn(teachers, 3, classes, generator=generator)
    loss = self_distillation(student, logits)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(numpy_distillation(student, logits, 20.0), rel=1e-5)


@settings(max_examples=25)
@given(st.data(), st.integers(2, 5), st.sampled_from([1.0, 100.0, 1e4]))
def test_self_distillation_holds_for_huge_logits(data, classes, size):
    numbers = st.lists(st.floats(-size, size, width=32), min_size=classes, max_size=classes)
    student = torch.tensor(data.draw(numbers)).requires_grad_()
    teachers = torch.tensor([data.draw(numbers) for _ in range(2)])
    loss = self_distillation(student.unsqueeze(0), teachers.unsqueeze(1))
    assert loss.item() == pytest.approx(exact_distillation(student.detach(), teachers, 20.0), rel=1e-5)
    loss.backward()
    assert student.grad.isfinite().all()


def test_gradients_at_huge_logits_are_those_of_finite_differences():
    student = torch.tensor([[1e4, 9990.0, -1e4, 0.0]], dtype=torch.float64, requires_grad=True)
    teachers = torch.tensor([[[40.0, 0.0, 3.0, -5.0]], [[30.0, 10.0, 0.0, 5.0]]], dtype=torch.float64)
    torch.autograd.gradcheck(lambda z: self_distillation(z, teachers), student, eps=1e-3, atol=1e-7)


@pytest.mark.parametrize(("classes", "temperature"), [(2, 20.0), (7, 20.0), (7, 1.0)])
def test_gradients_are_those_of_finite_differences(classes, temperature):
    student = torch.randn(3, classes, dtype=torch.float64, requires_grad=True)
    teachers = torch.randn(4, 3, classes, dtype=torch.float64)
    torch.autograd.gradcheck(lambda z: self_distillation(z, teachers, temperature), student)


def test_student_beyond_the_largest_number_stays_finite():
    student = torch.tensor([[1e5, 0.0, -1e5]], requires_grad=True)
    loss = self_distillation(student, torch.randn(3, 1, 3), temperature=1.0)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()


@pytest.mark.parametrize(
    "teachers",
    [
        pytest.param(torch.tensor([[1.0, 2.0, 3.0]]).expand(10, 1, 3), id="identical"),
        pytest.param(torch.tensor([[[0.0, -math.inf, -math.inf]]] * 2), id="one-hot, agreeing"),
        pytest.param(
            torch.tensor([[[0.0, -math.inf, -math.inf]], [[-math.inf, 0.0, -math.inf]]]), id="one-hot, disagreeing"
        ),
        pytest.param(torch.tensor([[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]]]), id="opposite"),
    ],
)
def test_degenerate_teachers_give_finite_values_and_gradients(teachers):
    student = torch.tensor([[3.0, -50.0, 0.0]], requires_grad=True)
    loss = self_distillation(student, teachers)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()
    assert student.grad.abs().max() > 0


def test_identical_teachers_leave_the_expected_cross_entropy():
    student, teacher = torch.tensor([[3.0, -50.0, 0.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    a = np.exp(student.double().numpy() / 20) + 1
    p = special.softmax(teacher.double().numpy() / 20, axis=-1)
    expected = (p * (special.digamma(a.sum()) - special.digamma(a))).sum()
    assert self_distillation(student, teacher.expand(10, 1, 3)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_teachers_get_no_gradient_and_are_left_alone(dtype):
    student = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    teachers = torch.randn(4, 2, 3, dtype=dtype, requires_grad=True)
    before = teachers.detach().clone()
    self_distillation(student, teachers).backward()
    assert teachers.grad is None
    assert torch.equal(teachers.detach(), before)
    assert student.grad.abs().max() > 0


def test_teachers_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"must be \[M, B, K\]"):
        self_distillation(torch.zeros(4, 3), torch.zeros(2, 1, 3))
    with pytest.raises(InputError, match=r"must be \[M, B, K\]"):
        self_distillation(torch.zeros(3), torch.zeros(2, 3))


def test_the_whole_loss_weighs_its_two_terms():
    student, logits, y = torch.randn(3, 4), torch.randn(5, 3, 4), torch.tensor([0, 1, 3])
    weight, offset = torch.rand(4), torch.randn(4)
    ce, kd = cross_entropy(logits, y, weight=weight, offset=offset), self_distillation(student, logits, 10.0)
    loss = srepr_loss(logits, student, y, weight=weight, offset=offset, distill_weight=0.3, temperature=10.0)
    torch.testing.assert_close(loss, 0.7 * ce + 0.3 * kd)
    assert torch.equal(srepr_loss(logits, None, y, weight=weight, offset=offset), ce)
    for share, alone in ((0.0, cross_entropy(logits, y)), (1.0, self_distillation(student, logits))):
        assert torch.equal(srepr_loss(logits, student, y, distill_weight=share), alone)


def test_a_weight_repeats_the_examples_of_the_distillation():
    """Over the same number of examples: the loss is divided by B, not by the sum of the weights."""
    generator = torch.Generator().manual_seed(3)
    student, mean = torch.randn(2, 3, generator=generator), torch.rand(2, 3, generator=generator).softmax(-1)
    precision, repeated = torch.tensor([3.0, 40.0]), torch.tensor([0, 0, 0, 1])
    weighted = distillation(student, mean, precision, weight=torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(weighted, 2 * distillation(student[repeated], mean[repeated], precision[repeated]))
