"""Any density on the line against any basis, by quadrature between its landmarks; and predictions on any domain.

Accuracy on the line: in float64 1e-10 for bounded densities that are smooth between their landmarks (ends of the
support, mean and mode, of each component of a mixture), and 1e-9 for predictions; in float32 rounding, since the
computation is in float64. Expectations of predictions on other domains are exact on points; errors are 1e-5 on the
plane and 1e-3 in space for functions no narrower than a cell.
"""

import functools
import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._eager import is_eager_cpu
from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.densities._density import parameter_dtypes, unchecked
from contmax.densities._line_rule import LineRule, landmarks_of
from contmax.expectations._expectation import register_expectation
from contmax.prediction import IntervalPrediction, KnotsPrediction, Prediction

# Nodes for functions of any form: in total, and the fewest and most in a piece (see `any_basis`).
_NODES, _LEAST, _MOST = 768, 32, 256
# For a Gaussian function: nodes per piece of its window, and the half-width of this window in standard deviations.
_WINDOW_NODES, _REACH = 96, 8.0
# The 24 nodes of a prediction's piece resolve functions whose standard deviation is at least this share of the piece.
_WIDE = 0.5


def any_basis(density: Distribution, basis: Basis) -> Tensor:
    """E_p[ψ] by common nodes of all functions, in pieces between landmarks of the density and breakpoints of ψ."""
    wide = unchecked(density, torch.float64)
    landmarks, breakpoints = landmarks_of(wide), basis.breakpoints
    pieces = len(landmarks.cuts) + (0 if breakpoints is None else len(breakpoints))
    rule = LineRule(
        landmarks,
        density.batch_shape,
        None if breakpoints is None else breakpoints.double().reshape(-1, *(1 for _ in density.batch_shape)),
        count=min(max(_NODES // pieces, _LEAST), _MOST),
    )
    functions: Tensor = basis(rule.points)
    with torch.autocast(functions.device.type, enabled=False):
        result = torch.einsum("n...,n...k->...k", rule.masses(wide), functions.double())
    return result.to(_result_dtype(density, basis))


@register_expectation(Distribution, GaussianBasis)
def gaussian_basis(density: Distribution, basis: GaussianBasis) -> Tensor:
    """E_p[ψ] by separate nodes for each function, in the window where ψ_j is not negligible, so nodes miss none."""
    wide = unchecked(density, torch.float64)
    batch = density.batch_shape
    centre, width = (x.double().reshape(-1, *(1 for _ in batch)) for x in (basis.loc, basis.scale))
    window = (centre - _REACH * width).detach(), (centre + _REACH * width).detach()
    shape = torch.Size((len(basis.loc), *batch))
    rule = LineRule(landmarks_of(wide), shape, count=_WINDOW_NODES, window=window)
    functions = torch.exp(-0.5 * ((rule.points - centre) / width).square()) / (math.sqrt(2 * math.pi) * width)
    return (rule.masses(wide) * functions).sum(0).movedim(0, -1).to(_result_dtype(density, basis))


def _result_dtype(density: Distribution, basis: Basis) -> torch.dtype:
    dtypes = [x.dtype for x in (*basis.parameters(), *basis.buffers()) if x.is_floating_point()]
    return functools.reduce(torch.promote_types, (*dtypes, *parameter_dtypes(density)), torch.float32)


@register_expectation(Prediction, Basis)
@register_expectation(Prediction, GaussianBasis)
@register_expectation(Prediction, MultivariateGaussianBasis)
def by_own_rule(density: Prediction, basis: Basis) -> Tensor:
    """E_p[ψ] by the prediction's own nodes, or by `any_basis` if ψ has breakpoints and the domain is the line."""
    if basis.breakpoints is not None and isinstance(density, IntervalPrediction | KnotsPrediction):
        return any_basis(density, basis)
    return density.expectation(basis)


@register_expectation(IntervalPrediction, GaussianBasis)
@register_expectation(KnotsPrediction, GaussianBasis)
def by_pieces(density: IntervalPrediction | KnotsPrediction, basis: GaussianBasis) -> Tensor:
    """E_p[ψ] by the prediction's own nodes if they resolve the functions, else by nodes in windows of functions."""
    pieces = density.pieces
    if is_eager_cpu(pieces, basis.scale) and bool(basis.scale.min() >= _WIDE * pieces.diff(dim=-1).max()):
        return density.expectation(basis)
    return gaussian_basis(density, basis)
