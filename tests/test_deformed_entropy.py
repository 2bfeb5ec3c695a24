"""Tsallis negentropies and escorts against their definitions, in many digits and off the simplex."""

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from contmax.deformed import escort, tsallis_negentropy

DIGITS = 80
DTYPES = [torch.float32, torch.float64]


# ------------------------------------------------------------------------------------------- Tsallis negentropy


def exact_log(u: mpmath.mpf, beta: mpmath.mpf) -> mpmath.mpf:
    return mpmath.log(u) if beta == 1 else (u ** (1 - beta) - 1) / (1 - beta)


def relative_error(got: float, want: mpmath.mpf) -> float:
    return float(abs(got - want) / abs(want))


def exact_negentropy(p: list[float], alpha: float) -> float:
    with mpmath.workdps(DIGITS):
        masses = [mpmath.mpf(x) / mpmath.fsum(p) for x in p if x > 0]
        if alpha == 1:
            return float(mpmath.fsum(x * mpmath.log(x) for x in masses))
        order = mpmath.mpf(alpha)
        return float((mpmath.fsum(x**order for x in masses) - 1) / (order * (order - 1)))


ALPHAS = [0.3, 0.99, 0.9999, 1 - 1e-7, 1.0, 1 + 1e-12, 1 + 1e-7, 1.0001, 1.01, 1.5, 2.0, 4.0]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_negentropy_of_a_distribution(alpha, as_tensor, dtype, rtol):
    p = torch.softmax(3 * torch.randn(5, 40, dtype=dtype), -1)
    p = torch.where(p < 1e-3, 0.0, p)
    p = p / p.sum(-1, keepdim=True)
    index = torch.tensor(alpha, dtype=dtype) if as_tensor else alpha
    want = [exact_negentropy(row, float(index)) for row in p.tolist()]
    torch.testing.assert_close(tsallis_negentropy(p, index), torch.tensor(want, dtype=dtype), rtol=rtol, atol=0.0)


@pytest.mark.parametrize("alpha", [0.5, 0.99995, 1.001, 1.5, 2.0, 3.0])
def test_negentropy_follows_its_definition_off_the_simplex(alpha):
    p, w = torch.rand(3, 7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    want = ((w * p**alpha).sum(-1) - 1) / (alpha * (alpha - 1))
    torch.testing.assert_close(tsallis_negentropy(p, alpha, weights=w), want, rtol=1e-11, atol=0.0)
    shannon = (w * p * p.log()).sum(-1)
    torch.testing.assert_close(tsallis_negentropy(p, 1, weights=w), shannon, rtol=1e-14, atol=0.0)


def test_negentropy_of_a_density_at_nodes():
    # The truncated parabola ¾(1 − t²): Ω₂ = −½ + 3/10.
    t = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    w = torch.full_like(t, 2 / 20000)
    torch.testing.assert_close(
        tsallis_negentropy(0.75 * (1 - t * t), 2.0, weights=w),
        torch.tensor(-0.2, dtype=torch.float64),
        atol=1e-7,
        rtol=0,
    )


@pytest.mark.parametrize("alpha", [0.9999, 1 - 1e-6, 1.0, 1 + 1e-6, 1.0001, 1.3, 2.0])
def test_negentropy_gradient_in_single_precision(alpha):
    scores, direction, index = 2 * torch.randn(16), torch.randn(16), torch.tensor(alpha)

    def of_scores(scores: Tensor, index: Tensor) -> Tensor:
        return tsallis_negentropy(torch.softmax(scores, -1), index)

    def shifted(step: mpmath.mpf, index: mpmath.mpf) -> mpmath.mpf:
        """Ω after the scores moved by step along a fixed direction, in many digits."""
        moved = [mpmath.exp(mpmath.mpf(s) + step * d) for s, d in zip(scores.tolist(), direction.tolist(), strict=True)]
        masses = [x / mpmath.fsum(moved) for x in moved]
        return mpmath.fsum(x * exact_log(x, 2 - mpmath.mpf(index)) for x in masses) / mpmath.mpf(index)

    along, by_index = torch.func.grad(of_scores, argnums=(0, 1))(scores, index)
    with mpmath.workdps(DIGITS):
        want = mpmath.diff(lambda step: shifted(step, index.item()), 0, h=mpmath.mpf(10) ** -20)
        want_index = mpmath.diff(lambda a: shifted(0, a), index.item(), h=mpmath.mpf(10) ** -20)
    assert abs(float(along @ direction) - float(want)) < 1e-5 * float(along.norm() * direction.norm())
    assert relative_error(by_index.item(), want_index) < 2e-5


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.01, 1.5, 2.0, 3.0])
def test_negentropy_gradcheck(alpha):
    index = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    p = torch.softmax(torch.randn(2, 5, dtype=torch.float64), -1).requires_grad_()
    assert gradcheck(lambda p: tsallis_negentropy(p, alpha), (p,), check_forward_ad=True, check_batched_grad=True)
    assert gradcheck(lambda index: tsallis_negentropy(p.detach(), index), (index,))
    assert gradgradcheck(lambda p: tsallis_negentropy(p, alpha), (p,), fast_mode=True)


@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.5, 2.0])
def test_zeros_contribute_nothing(alpha):
    p = torch.tensor([0.6, 0.0, 0.4], requires_grad=True)
    value = tsallis_negentropy(p, alpha)
    torch.testing.assert_close(value, tsallis_negentropy(p[[0, 2]], alpha))
    (slope,) = torch.autograd.grad(value, p)
    assert slope[1] == 0
    assert slope.isfinite().all()


def test_alpha_broadcasts_and_dim_is_free():
    p = torch.softmax(torch.randn(3, 6, 2, dtype=torch.float64), 1)
    alpha = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).view(3, 1, 1)
    for dim in (1, -2):
        both = tsallis_negentropy(p, alpha, dim), escort(p, alpha, dim)
        for row, index in enumerate([0.5, 1.0, 2.0]):
            torch.testing.assert_close(both[0][row], tsallis_negentropy(p[row].T, index))
            torch.testing.assert_close(both[1][row], escort(p[row].T, index).T)


# ------------------------------------------------------------------------------------------------------ escorts


@pytest.mark.parametrize("beta", [-1.5, -1e-9, 0, 1e-9, 0.5, 1, 2.0, 7.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_escort_follows_its_definition(beta, dtype):
    p, w = torch.rand(4, 9, dtype=dtype) + 0.05, torch.rand(9, dtype=dtype)
    p[:, ::3] = 0
    power = torch.where(p > 0, p.double() ** beta, 0.0)
    want = power / (w.double() * power).sum(-1, keepdim=True)
    rtol = 1e-13 if dtype == torch.float64 else 5e-6
    torch.testing.assert_close(escort(p, beta, weights=w), want.to(dtype), rtol=rtol, atol=0.0)
    torch.testing.assert_close((w * escort(p, beta, weights=w)).sum(-1), torch.ones(4, dtype=dtype))


def test_escort_of_nothing_is_nothing():
    p = torch.zeros(2, 3, requires_grad=True)
    for beta in (-1.0, 0.0, 1.0, 2.0):
        value = escort(p, beta)
        assert (value == 0).all()
        assert (torch.autograd.grad(value.sum(), p)[0] == 0).all()
    assert (escort(torch.ones(3), 1.0, weights=torch.zeros(3)) == 0).all()
    assert escort(torch.zeros(4, 0), 0.5).shape == (4, 0)


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=6), st.floats(-50, 50, width=32))
def test_escort_never_overflows_or_vanishes(masses, beta):
    p, index = torch.tensor(masses, requires_grad=True), torch.tensor(beta, requires_grad=True)
    value = escort(p, index)
    expected = 1.0 if any(mass > 0 for mass in masses) else 0.0
    assert abs(value.sum().item() - expected) < 1e-6
    assert (value.detach()[p.detach() == 0] == 0).all()
    slopes = torch.autograd.grad((value * torch.arange(len(masses))).sum(), (p, index))
    assert not any(slope.isnan().any() for slope in slopes)


def test_padding_with_zero_weight_does_not_set_the_scale():
    p, w = torch.tensor([1e-30, 3e-30, 1.0]), torch.tensor([1.0, 1.0, 0.0])
    torch.testing.assert_close(escort(p, 2.0, weights=w)[:2], torch.tensor([0.1, 0.9]))


@pytest.mark.parametrize("beta", [-0.5, 0.0, 0.5, 1.0, 2.0])
def test_escort_gradcheck(beta):
    p = (torch.rand(2, 4, dtype=torch.float64) + 0.1).requires_grad_()
    index = torch.tensor(beta, dtype=torch.float64, requires_grad=True)
    w = torch.rand(4, dtype=torch.float64).requires_grad_()

    def weighted(p: Tensor, index: Tensor, w: Tensor) -> Tensor:
        return escort(p, index, weights=w)

    assert gradcheck(weighted, (p, index, w), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(weighted, (p, index, w), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_near_one_the_rounding_of_half_precision_is_not_divided_by_the_gap(dtype):
    p = torch.softmax(torch.linspace(0, 2, 20), -1).to(dtype)
    wide = p.double()
    assert abs(wide.sum().item() - 1) > 1e-5
    for alpha in (1 - 1e-4, 1 + 1e-4):
        expected = tsallis_negentropy(wide / wide.sum(), alpha)
        assert abs(tsallis_negentropy(p, alpha).item() - expected.item()) <= 4 * torch.finfo(dtype).eps * abs(expected)
