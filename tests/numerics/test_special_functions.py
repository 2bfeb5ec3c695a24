"""Gamma ratios, the incomplete beta function, the radial law and the root finder, against mpmath and scipy."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats
from torch.autograd import gradcheck, gradgradcheck

from contmax.numerics import (
    betainc,
    betainc_pair,
    betaincinv,
    implicit_root,
    log_gamma_ratio,
    log_gamma_ratio_slope,
    monotone_root,
    radial_density,
    radial_quantile,
    radial_shares,
)

D = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=D)


def gamma_ratio_oracle(gap: mpmath.mpf, dim: int) -> mpmath.mpf:
    half = mpmath.mpf(dim) / 2
    if gap > 0:
        k = 1 / gap
        return mpmath.loggamma(k + 1 + half) - mpmath.loggamma(k + 1) - half * mpmath.log(k)
    k = -1 / gap
    return mpmath.loggamma(k) - mpmath.loggamma(k - half) - half * mpmath.log(k)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 9])
def test_gamma_ratio(dim):
    gaps = [1e9, 1e3, 9.0, 1.0, 0.5, 0.1, 1e-3, 1e-6, 1e-9, -1e-9, -1e-4, -0.1, -1.98 / (dim + 2)]
    with mpmath.workdps(60):
        for gap in gaps:
            exact = gamma_ratio_oracle(mpmath.mpf(gap), dim)
            step = mpmath.mpf(abs(gap)) * mpmath.mpf("1e-20")
            slope = mpmath.diff(lambda g: gamma_ratio_oracle(g, dim), mpmath.mpf(gap), h=step)
            assert math.isclose(log_gamma_ratio(gap, dim), exact, rel_tol=5e-15)
            assert math.isclose(log_gamma_ratio_slope(gap, dim), slope, rel_tol=5e-14)
            x = torch.tensor(gap, dtype=D, requires_grad=True)
            value = log_gamma_ratio(x, dim)
            (grad,) = torch.autograd.grad(value, x)
            assert math.isclose(float(value.detach()), exact, rel_tol=5e-15)
            assert math.isclose(float(grad), slope, rel_tol=5e-14)


def test_gamma_ratio_at_the_gaussian():
    for dim in (1, 2, 3, 5):
        s = dim / 2
        gap = torch.zeros((), dtype=D, requires_grad=True)
        (slope,) = torch.autograd.grad(log_gamma_ratio(gap, dim), gap, create_graph=True)
        (bend,) = torch.autograd.grad(slope, gap)
        assert math.isclose(float(slope.detach()), s * (s + 1) / 2, rel_tol=1e-14)
        assert math.isclose(float(bend), -s * (s + 1) * (2 * s + 1) / 6, rel_tol=1e-13)
        assert math.isclose(log_gamma_ratio_slope(0.0, dim), s * (s + 1) / 2, rel_tol=1e-14)


def test_incomplete_beta_against_scipy():
    generator = np.random.default_rng(0)
    a, b = 10 ** generator.uniform(-1, 2.5, 2000), 10 ** generator.uniform(-1, 7, 2000)
    x = np.where(generator.random(2000) < 0.8, generator.beta(a, b), generator.uniform(size=2000))
    keep = (x > 0) & (x < 1)
    a, b, x = a[keep], b[keep], x[keep]
    lower, upper = (value.numpy() for value in betainc_pair(*map(torch.from_numpy, (x, a, b))))
    wanted, rest = special.betainc(a, b, x), special.betaincc(a, b, x)
    np.testing.assert_allclose(lower + upper, 1, rtol=1e-15)
    share = np.maximum(np.minimum(wanted, rest), 1e-290)
    error = np.where(wanted < rest, np.abs(lower - wanted), np.abs(upper - rest)) / share
    assert np.median(error) < 5e-15
    assert error.max() < 5e-10, "scipy itself errs by 1e-11 where b is large"
    assert np.abs(lower - wanted).max() < 1e-11


def test_incomplete_beta_against_mpmath():
    with mpmath.workdps(30):
        for a, b, x in [(0.5, 3.3, 0.2), (2.5, 0.5, 0.99), (0.5, 1e6, 3e-7), (30.0, 7.5, 0.7), (0.1, 0.2, 0.5)]:
            exact = mpmath.quad(lambda t, a=a, b=b: t ** (a - 1) * (1 - t) ** (b - 1), [0, mpmath.mpf(x) / 2, x])
            exact = mpmath.betainc(a, b, 0, x, regularized=True) if b < 1e5 else exact / mpmath.beta(a, b)
            assert math.isclose(float(betainc(tensor(x), a, b)), exact, rel_tol=2e-13)


def test_incomplete_beta_float32_and_ends():
    x = torch.tensor([-0.5, 0.0, 1e-20, 0.3, 1.0, 1.5])
    got = betainc(x, 0.5, 2.0)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), special.betainc(0.5, 2.0, x.clamp(0, 1).double().numpy()), rtol=1e-6)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(betainc(x, 2.0, 3.0).sum(), x)
    assert (grad[[0, 5]] == 0).all()
    assert torch.isfinite(grad).all()


def test_incomplete_beta_derivatives():
    x = tensor(0.1, 0.5, 0.93, 0.5).requires_grad_()
    a, b = tensor(0.5, 2.0, 7.0, 2.0).requires_grad_(), tensor(3.0, 0.7, 20.0, 2.0).requires_grad_()
    assert gradcheck(betainc, (x, a, b), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(betainc, (x, a, b))
    (slope,) = torch.autograd.grad(betainc(x, a, b).sum(), x)
    np.testing.assert_allclose(slope, stats.beta.pdf(x.detach(), a.detach(), b.detach()), rtol=1e-12)


def test_inverse_of_incomplete_beta():
    q = tensor(0.0, 1e-12, 1e-5, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0)
    for a, b in [(0.5, 3.3), (30.0, 2.0), (0.1, 0.2), (5.0, 1e5), (1.0, 1.0)]:
        np.testing.assert_allclose(betaincinv(q, a, b), special.betaincinv(a, b, q.numpy()), rtol=1e-12)
    assert betaincinv(tensor(-0.1, 1.1), 2.0, 2.0).isnan().all()
    a, b = tensor(0.5, 2.0).requires_grad_(), tensor(3.0, 0.7).requires_grad_()
    assert gradcheck(betaincinv, (tensor(0.2, 0.7).requires_grad_(), a, b))


@given(st.floats(0.001, 0.999), st.floats(0.2, 200.0), st.floats(0.2, 1e4))
def test_incomplete_beta_is_a_distribution_function(x, a, b):
    below, above = betainc(tensor(x), a, b), betainc(tensor(1 - x), b, a)
    torch.testing.assert_close(below + above, tensor(1.0), rtol=1e-12, atol=1e-12)
    assert float(betainc(tensor(x * 0.99), a, b)) <= float(below) + 1e-15


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_radial_law(dim):
    r = tensor(0.0, 1e-9, 1e-3, 0.0199, 0.0201, 0.3, 1.0, 2.0, 3.0, 6.0, 12.0)
    for alpha in (1.000001, 1.001, 1.5, 2.0, 3.0, 10.0):
        gap, k = alpha - 1, 1 / (alpha - 1)
        inner, outer = radial_shares(r, tensor(gap), dim)
        x = np.minimum((0.5 * gap * r.square()).numpy(), 1)
        np.testing.assert_allclose(inner, special.betainc(dim / 2, k + 1, x), rtol=5e-14)
        np.testing.assert_allclose(outer, special.betaincc(dim / 2, k + 1, x), rtol=5e-13, atol=1e-300)
    inner, outer = radial_shares(r, tensor(0.0), dim)
    np.testing.assert_allclose(inner, stats.chi(dim).cdf(r), rtol=1e-12)
    np.testing.assert_allclose(outer, stats.chi(dim).sf(r), rtol=1e-12)
    for alpha in (0.8, 0.999999):
        gap, kappa = alpha - 1, 1 / (1 - alpha)
        dof = 2 * kappa - dim
        f = (r.square() / (2 * kappa) * dof / dim).numpy()
        np.testing.assert_allclose(radial_shares(r, tensor(gap), dim)[1], stats.f(dim, dof).sf(f), rtol=1e-11)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_radial_law_is_smooth_in_everything(dim):
    r = tensor(1e-3, 0.01, 0.5, 1.3, 0.9).requires_grad_()
    gap = tensor(0.3, -0.2, 0.0, 1e-7, 1.0).requires_grad_()
    assert gradcheck(lambda r, g: radial_shares(r, g, dim), (r, gap), check_forward_ad=True)
    assert gradgradcheck(lambda r, g: radial_shares(r, g, dim)[0], (r, gap))
    start = torch.zeros(5, dtype=D, requires_grad=True)
    (slope,) = torch.autograd.grad(radial_shares(start, gap, dim)[0].sum(), start)
    torch.testing.assert_close(slope, radial_density(start, gap, dim))


def test_radial_quantile():
    gap = tensor(-0.6, -0.4, -0.1, 0.0, 1e-9, 0.1, 0.5, 1.0, 3.0)
    for tail in (1.0, 0.999, 0.5, 0.05, 1e-5, 1e-8):
        r = radial_quantile(tensor(tail), gap)
        np.testing.assert_allclose(radial_shares(r, gap, 1)[1], tail, rtol=1e-7)
    assert math.isclose(float(radial_quantile(tensor(1e-30), tensor(0.0))), stats.norm.isf(5e-31), rel_tol=1e-14)
    edge = radial_quantile(tensor(1e-200), tensor(1.0))
    assert math.isclose(float(edge), math.sqrt(2.0), rel_tol=1e-15), "it rounds to the edge of the support"
    tail = tensor(0.9, 0.5, 0.1, 0.3).requires_grad_()
    gap = tensor(0.3, -0.2, 0.0, 1.0).requires_grad_()
    assert gradcheck(radial_quantile, (tail, gap))
    assert gradgradcheck(radial_quantile, (tail, gap))


def cubic(shift: torch.Tensor):
    return lambda x: (x**3 + x - shift, 3 * x**2 + 1)


def test_root_and_its_derivatives():
    shift = tensor(-3.0, 0.0, 2.0, 1e6).requires_grad_()

    def root(shift: torch.Tensor) -> torch.Tensor:
        bound = torch.full_like(shift, 1e3)
        return implicit_root(monotone_root(cubic(shift), -bound, bound), cubic(shift))

    x = root(shift)
    torch.testing.assert_close(x**3 + x, shift, rtol=1e-13, atol=1e-15)
    assert gradcheck(root, (shift,))
    assert gradgradcheck(root, (shift,))


def test_root_without_looking():
    """Under vmap no value may be read: the bracket is cut a fixed number of times."""
    shift = tensor(-3.0, 0.1, 2.0, 50.0)

    def root(shift: torch.Tensor) -> torch.Tensor:
        start = monotone_root(cubic(shift), torch.full_like(shift, -10.0), torch.full_like(shift, 10.0))
        return implicit_root(start, cubic(shift))

    torch.testing.assert_close(torch.func.vmap(root)(shift), root(shift), rtol=1e-13, atol=1e-14)


def test_root_where_newton_fails():
    """|x|^⅓ sends Newton's method away from the root with every step."""

    def residual(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x - 0.3
        return y.sign() * y.abs() ** (1 / 3), y.abs() ** (-2 / 3) / 3

    root = monotone_root(residual, tensor(-5.0), tensor(7.0), tolerance=1e-14)
    torch.testing.assert_close(root, tensor(0.3), rtol=1e-12, atol=0)


@pytest.mark.graph
def test_special_functions_compile():
    torch._dynamo.reset()
    x = tensor(0.1, 0.6).requires_grad_()
    compiled = torch.compile(lambda x: betainc(x, 1.5, 2.5), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), betainc(x, 1.5, 2.5))
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(betainc(x, 1.5, 2.5).sum(), x)
    torch.testing.assert_close(got, expected)
    gap = tensor(0.0, 0.5)
    compiled = torch.compile(radial_quantile, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tensor(0.2, 0.3), gap), radial_quantile(tensor(0.2, 0.3), gap))
