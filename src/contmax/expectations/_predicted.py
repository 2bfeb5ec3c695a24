"""Predictions against any basis: by their own rule where functions are as wide as its pieces, by windows where not.

Accuracy in float64: 1e-9 on the line; elsewhere that of the prediction, exact on points, 1e-5 on the plane and 1e-3 in
space for functions no narrower than a cell.
"""

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.expectations._expectation import register_expectation
from contmax.expectations._line_quadrature import by_panels
from contmax.numerics import graded_rule
from contmax.prediction import IntervalPrediction, KnotsPrediction, Prediction

# Standard deviations beyond which a function is negligible, and nodes across twice as many, graded towards the ends.
_REACH, _NODES = 7.0, 64
# Least width of a function in pieces for which the nodes of the prediction, 20 in a piece, resolve it.
_WIDE = 0.5


@register_expectation(Prediction, Basis)
@register_expectation(Prediction, GaussianBasis)
@register_expectation(Prediction, MultivariateGaussianBasis)
def by_own_rule(density: Prediction, basis: Basis) -> Tensor:
    """At the nodes of the prediction, which lie where its mass does."""
    if basis.breakpoints is not None and isinstance(density, IntervalPrediction | KnotsPrediction):
        return by_panels(density, basis)
    return density.expectation(basis)


@register_expectation(IntervalPrediction, GaussianBasis)
@register_expectation(KnotsPrediction, GaussianBasis)
def by_pieces(density: IntervalPrediction | KnotsPrediction, basis: GaussianBasis) -> Tensor:
    """On each piece, the window in which a function is not negligible, so that none falls between the nodes."""
    start, stop = density.pieces.unbind(-1)
    if is_eager_cpu(start, basis.scale):
        if bool(basis.scale.min() >= _WIDE * (stop - start).max()):
            return density.expectation(basis)
        live = (stop > start).flatten(0, -2).any(0) if start.dim() > 1 else stop > start
        start, stop = start[..., live], stop[..., live]
    start, stop = start[..., None], stop[..., None]
    with torch.no_grad():
        # As shares of the piece: what moves with the density is its ends, not the window.
        size = (stop - start).clamp(min=torch.finfo(start.dtype).tiny)
        first, last = (((basis.loc + side * _REACH * basis.scale - start) / size).clamp(0, 1) for side in (-1, 1))
    position, weight = graded_rule(_NODES, start.device)
    share = first[..., None] + (last - first)[..., None] * position
    t = start[..., None] + (stop - start)[..., None] * share
    z = (t - basis.loc[:, None]) / basis.scale[:, None]
    gaussian = torch.exp(-0.5 * z * z) / ((2 * torch.pi) ** 0.5 * basis.scale[:, None])
    points = t.flatten(-3).movedim(-1, 0)
    values = density.density(points).movedim(0, -1).reshape(t.shape) * gaussian
    total: Tensor = ((stop - start) * (last - first) * (values * weight).sum(-1)).sum(-2)
    return total.to(torch.promote_types(density.dtype, basis.loc.dtype))
