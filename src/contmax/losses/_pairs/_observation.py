r"""Targets without a density: observations and samples.

Their Ω_α is infinite for α ≥ 1 and does not depend on the prediction, so it is dropped: the loss is
:math:`\Omega_\alpha^*(f) - E_p[f]`, with the same gradient, and may be negative.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Laplace

from contmax._typing import Float
from contmax.densities import Density, Empirical
from contmax.densities._elliptical import Elliptical
from contmax.densities._scale import DiagonalScale, Scale
from contmax.losses._fenchel_young import register_fenchel_young

from ._score import Score, score_of
from ._summary import points_of, scale_of


@register_fenchel_young(Elliptical, Tensor)
def elliptical_observed(prediction: Elliptical, target: Tensor) -> Float[Tensor, "..."]:
    """Ω_α*(f) + ½Δ(t), in float64."""
    scale = scale_of(prediction)
    offset = points_of(prediction, target) - points_of(prediction, prediction.loc)
    return prediction._profile.conjugate(scale.half_log_det()) + 0.5 * scale.mahalanobis_sq(offset)


@register_fenchel_young(Elliptical, Empirical)
def elliptical_sampled(prediction: Elliptical, target: Empirical) -> Float[Tensor, "..."]:
    """Ω_α*(f) + ½tr(Σ⁻¹C) + ½Δ(mean): samples are read once, whatever the number of predictions."""
    scale = scale_of(prediction)
    weights = target.weights.double()
    weights = (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)
    samples = points_of(target, target.samples)
    mean = (weights * samples).sum(-2)
    centred = samples - mean.unsqueeze(-2)
    misplaced = scale.mahalanobis_sq(mean - points_of(prediction, prediction.loc))
    return prediction._profile.conjugate(scale.half_log_det()) + 0.5 * (misplaced + _trace(scale, centred, weights))


def _trace(scale: Scale, centred: Float[Tensor, "*batch n N"], weights: Float[Tensor, "*batch n 1"]) -> Tensor:
    """tr(Σ⁻¹C) for the covariance C of centred samples; only variances are needed where Σ is diagonal."""
    if isinstance(scale, DiagonalScale):
        return ((weights * centred.square()).sum(-2) / scale.diagonal()).sum(-1)
    covariance = (weights * centred).mT @ centred
    half = torch.linalg.solve_triangular(scale.tril(), covariance, upper=False)
    whitened: Tensor = torch.linalg.solve_triangular(scale.tril(), half.mT, upper=False)
    return whitened.diagonal(dim1=-2, dim2=-1).sum(-1)


@register_fenchel_young(Laplace, Tensor)
@register_fenchel_young(Density, Tensor)
def observed(prediction: Density | Laplace, target: Tensor) -> Float[Tensor, "..."]:
    """Ω_α*(f) − f(t) for any score on the line, in float64."""
    score = score_of(prediction)
    points = _in_front(target.double().unsqueeze(0), prediction)
    return score.conjugate - _mean_score(score, points, torch.ones_like(points))


@register_fenchel_young(Laplace, Empirical)
@register_fenchel_young(Density, Empirical)
def sampled(prediction: Density | Laplace, target: Empirical) -> Float[Tensor, "..."]:
    """Ω_α*(f) − Σ w f(t) for any score on the line, in float64."""
    score = score_of(prediction)
    samples, weights = (_in_front(x.double().movedim(-1, 0), prediction) for x in (target.samples, target.weights))
    return score.conjugate - _mean_score(score, samples, weights / weights.sum(0))


def _in_front(points: Float[Tensor, "n ..."], prediction: Distribution) -> Float[Tensor, "n ..."]:
    """Points of a target with their axis before the batch of the prediction, which may be the longer one."""
    missing = max(0, len(prediction.batch_shape) - points.dim() + 1)
    return points.reshape(len(points), *(1,) * missing, *points.shape[1:])


def _mean_score(score: Score, points: Float[Tensor, "n ..."], shares: Float[Tensor, "n ..."]) -> Float[Tensor, "..."]:
    """Σ w f(t) over the first dimension; −∞ with zero gradient where a score that counts overflows."""
    counts = score.in_range(points)
    values = torch.where(counts, score.at(torch.where(counts, points, score.loc)), 0.0)
    return torch.where((~counts & (shares > 0)).any(0), -math.inf, (shares * values).sum(0))
