"""Gaussian bases on the line under the densities that have a rule of their own."""

import math

import torch
from torch import Tensor
from torch.distributions import Normal, Uniform

from contmax._backend import Backend, backend_of
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.expectations._derivatives import (
    RULES,
    Rule,
    expectation_by,
)
from contmax.expectations._expectation import register_expectation, working_dtype
from contmax.expectations._line_scales import scale_mean_expectation
from contmax.expectations._line_window import window_reference, windowed_expectation
from contmax.kernels import means

# k for which windows are accurate in float32 too: (1 − y²)ᵏ is a polynomial, and of a low degree.
_WINDOWED = (0.0, 1.0, 2.0, 3.0, 4.0)
_WIDE = (torch.float32, torch.float64)


@register_expectation(Normal, GaussianBasis)
def gaussian(density: Normal, basis: GaussianBasis) -> Tensor:
    """r_j = N(μ; μ_j, σ² + σ_j²)."""
    inputs = _in_one_dtype(density.loc, density.scale, basis)
    return _of_order(math.inf, *inputs, backend_of(*inputs))


@register_expectation(Uniform, GaussianBasis)
def uniform(density: Uniform, basis: GaussianBasis) -> Tensor:
    """The windowed rule at k = 0."""
    middle, half = (density.low + density.high) / 2, (density.high - density.low) / 2
    loc, half, centre, width = _in_one_dtype(middle, half, basis)
    return windowed_expectation(loc, half, centre, width, 0.0, backend_of(loc, half, centre, width))


@register_expectation(BetaGaussian, GaussianBasis)
def beta_gaussian(density: BetaGaussian, basis: GaussianBasis) -> Tensor:
    """Closed form at α = 1, windows for the common α = 1 + 1/k and ∞, the mean over scales for every other α."""
    alpha = density.alpha
    k = None if isinstance(alpha, Tensor) else line_order(alpha)
    loc, scale, centre, width = _in_one_dtype(density.loc, density.scale, basis)
    backend = backend_of(loc, scale, centre, width)
    if k is None:
        return scale_mean_expectation(loc, scale, alpha, centre, width, backend)
    if backend is Backend.TRITON or math.isinf(k):
        return _of_order(k, loc, scale, centre, width, backend)
    return windowed_expectation(*_in_one_dtype(density.loc, density.half_width, basis), k, backend)


def _of_order(k: float, loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, backend: Backend) -> Tensor:
    """By Triton's kernels, or a Gaussian by torch."""
    if backend is Backend.TRITON:
        return expectation_by(means.LINE, k, loc, scale, None, centre, width)
    return _closed_form(loc, scale, centre, width)


def line_order(alpha: float) -> float | None:
    """k = 1/(α−1) of windows, ∞ for the Gaussian; None where the mean over scales is to be taken."""
    if alpha == 1:
        return math.inf
    # 4/3 is not a float, and its k is an integer all the same.
    k = round(1 / (alpha - 1), 12)
    return k if k in _WINDOWED else None


def _in_one_dtype(loc: Tensor, scale: Tensor, basis: GaussianBasis) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    centre, width, dtype = basis.loc, basis.scale, loc.dtype
    if dtype in _WIDE and scale.dtype == dtype and centre.dtype == dtype and width.dtype == dtype:
        return loc, scale, centre, width
    dtype = working_dtype(loc, scale, centre, width)
    return loc.to(dtype), scale.to(dtype), centre.to(dtype), width.to(dtype)


def _closed_form(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    """N(μ; μ_j, σ² + σ_j²)."""
    loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    inverse = (scale * scale + width * width).rsqrt()
    z = (loc - centre) * inverse
    return torch.exp(-0.5 * z * z) * (inverse / math.sqrt(2 * math.pi))


def _reference(loc: Tensor, scale: Tensor, _: None, centre: Tensor, width: Tensor, number: float) -> Tensor:
    """r of the families of Triton's kernels with a fixed k, from σ."""
    if math.isinf(number):
        return _closed_form(loc, scale, centre, width)
    density = BetaGaussian(loc, scale, 1 + 1 / number if number else math.inf, validate_args=False)
    return window_reference(loc, density.half_width, None, centre, width, number)


RULES[means.LINE] = Rule(_reference)
