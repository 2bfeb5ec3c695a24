"""Gaussian bases on the line under the densities that have a rule of their own."""

import math

import torch
from torch import Tensor
from torch.distributions import Normal, Uniform

from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.expectations._expectation import register_expectation, working_dtype
from contmax.expectations._line_compiled import compiled_line_expectation
from contmax.expectations._line_normal import normal_expectation
from contmax.expectations._line_scales import scale_mean_expectation
from contmax.expectations._line_window import windowed_expectation

# k for which windows are accurate in float32 too: (1 − y²)ᵏ is a polynomial, and of a low degree.
_WINDOWED = (0.0, 1.0, 2.0, 3.0, 4.0)
_WIDE = (torch.float32, torch.float64)


@register_expectation(Normal, GaussianBasis)
def gaussian(density: Normal, basis: GaussianBasis) -> Tensor:
    """r_j = N(μ; μ_j, σ² + σ_j²)."""
    return _gaussian(density.loc, density.scale, basis)


@register_expectation(Uniform, GaussianBasis)
def uniform(density: Uniform, basis: GaussianBasis) -> Tensor:
    """The windowed rule at k = 0."""
    loc, half = (density.low + density.high) / 2, (density.high - density.low) / 2
    compiled = compiled_line_expectation(*_in_one_dtype(loc, half, basis), k=0.0, raised=False)
    return _windowed(loc, half, 0.0, basis) if compiled is None else compiled


@register_expectation(BetaGaussian, GaussianBasis)
def beta_gaussian(density: BetaGaussian, basis: GaussianBasis) -> Tensor:
    """Closed form at α = 1, windows for the common α = 1 + 1/k and ∞, the mean over scales for every other α."""
    alpha = density.alpha
    if isinstance(alpha, Tensor):
        return _over_scales(density, basis)
    k = line_order(alpha)
    if k is None:
        return _over_scales(density, basis)
    if math.isinf(k):
        return _gaussian(density.loc, density.scale, basis)
    compiled = compiled_line_expectation(*_in_one_dtype(density.loc, density.scale, basis), k=k, raised=True)
    return _windowed(density.loc, density.half_width, k, basis) if compiled is None else compiled


def line_order(alpha: float) -> float | None:
    """k = 1/(α−1) of windows, ∞ for the Gaussian; None where the mean over scales is to be taken."""
    if alpha == 1:
        return math.inf
    # 4/3 is not a float, and its k is an integer all the same.
    k = round(1 / (alpha - 1), 12)
    return k if k in _WINDOWED else None


def _gaussian(loc: Tensor, scale: Tensor, basis: GaussianBasis) -> Tensor:
    loc, scale, centre, width = _in_one_dtype(loc, scale, basis)
    compiled = compiled_line_expectation(loc, scale, centre, width, k=math.inf, raised=False)
    if compiled is not None:
        return compiled
    return normal_expectation(loc.unsqueeze(-1), scale.unsqueeze(-1), centre, width)


def _windowed(loc: Tensor, half: Tensor, k: float, basis: GaussianBasis) -> Tensor:
    loc, half, centre, width = _in_one_dtype(loc, half, basis)
    return windowed_expectation(loc.unsqueeze(-1), half.unsqueeze(-1), k, centre, width)


def _in_one_dtype(loc: Tensor, scale: Tensor, basis: GaussianBasis) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    centre, width, dtype = basis.loc, basis.scale, loc.dtype
    if dtype in _WIDE and scale.dtype == dtype and centre.dtype == dtype and width.dtype == dtype:
        return loc, scale, centre, width
    dtype = working_dtype(loc, scale, centre, width)
    return loc.to(dtype), scale.to(dtype), centre.to(dtype), width.to(dtype)


def _over_scales(density: BetaGaussian, basis: GaussianBasis) -> Tensor:
    dtype = working_dtype(density.loc, density.scale, basis.loc, basis.scale)
    return scale_mean_expectation(density.loc, density.scale, density.alpha, basis.loc, basis.scale, dtype)
