"""Compiled expectations for every α on the line against the torch reference, with all first derivatives."""

import math

import numpy as np
import pytest
import torch

import contmax
from contmax import _backend
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian

numba = pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

from contmax.expectations._line_scales import _has_no_heavy_tails  # noqa: E402
from contmax.kernels.means import _cpu_means  # noqa: E402
from contmax.kernels.means._cpu_scale_path import angle, sin_cos  # noqa: E402

F64 = torch.float64
RULE = (40.0, 3.9, 1.4, 0.85, 0.9)


def drawn(dtype, count, functions):
    generator = torch.Generator().manual_seed(3)

    def uniform(*shape, low, high):
        return low + (high - low) * torch.rand(*shape, dtype=F64, generator=generator)

    loc, scale = uniform(count, low=-0.3, high=1.3), 10 ** uniform(count, low=-3, high=0.5)
    centre, width = uniform(functions, low=0, high=1), 10 ** uniform(functions, low=-2, high=0)
    return tuple(x.to(dtype) for x in (loc, scale, centre, width))


def value_and_gradients(alpha, loc, scale, centre, width):
    """r, and the gradients of a fixed mixture of its entries in everything, α included if it is a tensor."""
    basis = GaussianBasis(centre, width, learnable=True)
    loc, scale = loc.clone().requires_grad_(), scale.clone().requires_grad_()
    inputs = [loc, scale, *basis.parameters()]
    if isinstance(alpha, torch.Tensor):
        alpha = alpha.clone().requires_grad_()
        inputs.append(alpha)
    r = contmax.expectation(BetaGaussian(loc, scale, alpha), basis)
    weights = torch.linspace(0.5, 1.5, r.shape[-1], dtype=r.dtype) / r.detach().amax(-1, keepdim=True).clamp(min=1e-30)
    return r.detach(), torch.autograd.grad(r, inputs, weights)


COUNT = 23
ALPHAS = {
    "learned": lambda dtype: torch.full((), 1.5, dtype=dtype),
    "one for each": lambda dtype: torch.linspace(1.0, 2.0, COUNT, dtype=dtype),
    "through one and far": lambda dtype: 1 + torch.logspace(-7, 1.5, COUNT, dtype=dtype),
    "1.37": lambda dtype: 1.37,
    "1.003, near one": lambda dtype: 1.003,
    "1.01, just not near": lambda dtype: 1.01,
    "3.7": lambda dtype: 3.7,
}


# How functions are shared out among lanes does not know of α beyond its being one number or one for each.
@pytest.mark.parametrize(
    ("functions", "alpha"),
    [(77, name) for name in ALPHAS] + [(n, name) for n in (1, 31, 32) for name in ("one for each", "1.37")],
)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_kernel_is_the_reference(dtype, functions, alpha, monkeypatch):
    inputs, index = drawn(dtype, COUNT, functions), ALPHAS[alpha](dtype)
    r, gradients = value_and_gradients(index, *inputs)
    monkeypatch.setattr(_backend.NUMBA, "works", False)
    expected, wanted = value_and_gradients(index, *inputs)
    assert r.dtype == dtype
    tolerance, gradient_tolerance = (1e-6, 1e-5) if dtype == torch.float32 else (1e-13, 1e-11)
    assert ((r - expected).abs() / expected.amax(-1, keepdim=True)).max() < tolerance
    for gradient, reference in zip(gradients, wanted, strict=True):
        assert gradient.dtype == reference.dtype
        assert gradient.shape == reference.shape
        assert (gradient - reference).abs().max() < gradient_tolerance * reference.abs().max().clamp(min=1.0)


def test_a_learned_alpha_takes_the_kernel():
    loc, scale, centre, width = drawn(torch.float32, 5, 7)
    for alpha in (1.37, torch.tensor(1.5, requires_grad=True).expand(5), torch.full((5,), 1.5, dtype=torch.bfloat16)):
        r, by = _cpu_means.line_scale_means(loc, scale, alpha, centre, width, RULE)
        assert r.shape == (5, 7)
        assert by.shape == (5, 4, 7)
    # Heavy tails have a law of another kind, and NaN none.
    for alpha in (torch.tensor([1.5, 1.5, 0.9, 2.0, 2.0]), torch.full((5,), math.nan)):
        assert not _has_no_heavy_tails(alpha, 0.0)
    assert not _has_no_heavy_tails(None, 0.9)


def test_slopes_are_those_of_differences():
    loc, scale, centre, width = drawn(F64, 9, 20)
    alpha = 1 + torch.logspace(-4, 0.5, 9, dtype=F64)
    arguments = {"loc": loc, "scale": scale, "alpha": alpha, "centre": centre, "width": width}

    def r(**changed):
        return _cpu_means.line_scale_means(**{**arguments, **changed}, rule=(80.0, *RULE[1:]))[0]

    by = _cpu_means.line_scale_means(**arguments, rule=(80.0, *RULE[1:]))[1]
    for slope, (name, size) in zip(
        by.unbind(-2), (("loc", 1.0), ("scale", scale), ("width", width), ("alpha", 1.0)), strict=True
    ):
        step = 1e-6 * size
        moved = [r(**{name: arguments[name] + sign * step}) for sign in (1, -1)]
        unit = 2e-6 * (size[:, None] if name == "scale" else size)
        difference = (moved[0] - moved[1]) / unit
        peak = slope.abs().amax(-1, keepdim=True).clamp(min=1e-3)
        assert ((difference - slope) / peak).abs().max() < 1e-5, name


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_no_nan_over_the_whole_range(dtype):
    exponent = 35 if dtype == torch.float32 else 150
    sizes = 10.0 ** torch.linspace(-exponent, exponent, 13, dtype=F64)
    loc = torch.cat([-sizes, torch.zeros(1, dtype=F64), sizes]).to(dtype)
    grid = torch.cartesian_prod(loc, sizes.to(dtype))
    centre = torch.tensor([0.0, 1.0, -1e30, 1e-30], dtype=dtype)
    for width in (1e-30, 1e-3, 1.0, 1e30):
        basis = GaussianBasis(centre, torch.full((4,), width, dtype=dtype))
        for alpha in (1.0 + 1e-6, 1.2, 1.99, 7.0):
            mu, sigma = grid[:, 0].clone().requires_grad_(), grid[:, 1].clone().requires_grad_()
            index = torch.full((len(grid),), alpha, dtype=dtype, requires_grad=True)
            r = contmax.expectation(BetaGaussian(mu, sigma, index), basis)
            assert not r.isnan().any()
            assert (r >= -1e-6 * r.amax(-1, keepdim=True)).all()
            if r.isfinite().all():
                gradients = torch.autograd.grad(r.sum(), (mu, sigma, index))
                assert not any(gradient.isnan().any() for gradient in gradients)


@pytest.mark.parametrize("alpha", [1.0001, 1.3, 1.9, 3.5])
def test_a_function_without_width_reads_the_density(alpha):
    density = BetaGaussian(torch.zeros(1, dtype=F64), 1.0, torch.full((1,), alpha, dtype=F64))
    points = torch.linspace(-0.9, 0.9, 19, dtype=F64) * density.half_width.clamp(max=5)
    for width in (1e-5, 1e-8, 1e-12, 1e-20):
        r = contmax.expectation(density, GaussianBasis(points, torch.full_like(points, width)))
        torch.testing.assert_close(r[0], density.density(points), rtol=1e-5, atol=1e-9)


def test_nan_stays_in_its_row():
    loc = torch.tensor([0.3, math.nan, 0.3], requires_grad=True)
    alpha = torch.tensor(1.5, requires_grad=True)
    basis = GaussianBasis.linspace(5, scale=0.1)
    r = contmax.expectation(BetaGaussian(loc, 0.1, alpha, validate_args=False), basis)
    assert r[1].isnan().all()
    assert r[[0, 2]].isfinite().all()


def test_derivatives_of_second_order():
    loc, scale, centre, width = drawn(F64, 3, 4)
    alpha = torch.tensor([1.2, 1.6, 2.4], dtype=F64)
    inputs = [x.clone().requires_grad_() for x in (loc, scale + 0.1, alpha)]
    basis = GaussianBasis(centre, width + 0.05)

    def r(loc, scale, alpha):
        return contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis)

    assert torch.autograd.gradcheck(r, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(r, inputs, fast_mode=True)


def test_two_threads_give_the_same():
    loc, scale, centre, width = drawn(torch.float32, 301, 33)
    alpha = torch.full((301,), 1.5)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = _cpu_means.line_scale_means(loc, scale, alpha, centre, width, RULE)
        torch.set_num_threads(2)
        shared = _cpu_means.line_scale_means(loc, scale, alpha, centre, width, RULE)
    finally:
        torch.set_num_threads(threads)
    for first, second in zip(alone, shared, strict=True):
        assert torch.equal(first, second)


@numba.njit
def _angles(x, y, angles):
    for i in range(x.size):
        angles[i] = angle(x[i], y[i], np.sqrt(x[i] ** 2 + y[i] ** 2), np.float64)


@numba.njit
def _turns(x, sines, cosines):
    for i in range(x.size):
        sines[i], cosines[i] = sin_cos(x[i], np.float64)


def test_angles_sines_and_cosines():
    theta = np.linspace(-0.74 * math.pi, 0.74 * math.pi, 20_001)
    found = np.empty_like(theta)
    for size in (1e-8, 1.0, 1e8):
        x, y = size * np.cos(theta), size * np.sin(theta)
        _angles(x, y, found)
        np.testing.assert_allclose(found, np.arctan2(y, x), rtol=1e-15, atol=1e-15)
    x = np.concatenate([np.linspace(-20, 20, 20_001), np.linspace(-1e5, 1e5, 20_001)])
    sines, cosines = np.empty_like(x), np.empty_like(x)
    _turns(x, sines, cosines)
    np.testing.assert_allclose(sines, np.sin(x), rtol=0, atol=4e-16)
    np.testing.assert_allclose(cosines, np.cos(x), rtol=0, atol=4e-16)
