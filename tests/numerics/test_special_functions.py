"""Gamma ratios, the radial law and the root finder, against mpmath and scipy."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.autograd import gradcheck, gradgradcheck

from contmax.numerics import (
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
    assert gradcheck(lambda r, g: radial_shares(r, g, dim), (r, gap), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(lambda r, g: radial_shares(r, g, dim)[0], (r, gap), fast_mode=True)
    start = torch.zeros(5, dtype=D, requires_grad=True)
    (slope,) = torch.autograd.grad(radial_shares(start, gap, dim)[0].sum(), start)
    torch.testing.assert_close(slope, radial_density(start, gap, dim))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_slopes_of_the_radial_law_keep_their_digits_far_out(dim):
    r, gap = tensor(0.2, 0.9, 1.1, 6.0, 8.5).requires_grad_(), tensor(0.0)
    for share, sign in zip(radial_shares(r, gap, dim), (1, -1), strict=True):
        (slope,) = torch.autograd.grad(share.sum(), r, retain_graph=True)
        torch.testing.assert_close(slope, sign * radial_density(r, gap, dim), rtol=1e-12, atol=0)


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
    assert gradgradcheck(radial_quantile, (tail, gap), fast_mode=True)


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
    assert gradgradcheck(root, (shift,), fast_mode=True)


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
def test_shares_compile_with_their_derivatives(monkeypatch):
    # On a plane they are elementary. The quantile compiles inside those of densities, in test_density_graphs. There
    # they are one node each, and here traced through, as on accelerators.
    monkeypatch.setattr("contmax._eager._ONE_NODE_DEVICES", ())
    torch._dynamo.reset()
    r = tensor(0.1, 0.6).requires_grad_()
    gap = tensor(0.0, 0.5)
    compiled = torch.compile(
        lambda r: radial_shares(r, gap, 3)[0], fullgraph=True, backend="aot_eager_default_partitioner"
    )
    torch.testing.assert_close(compiled(r), radial_shares(r, gap, 3)[0])
    (got,) = torch.autograd.grad(compiled(r).sum(), r)
    torch.testing.assert_close(got, radial_density(r, gap, 3))
