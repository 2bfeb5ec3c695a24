r"""Targets without a density: observations and samples.

Their Ω_α is infinite for α ≥ 1 and does not depend on the prediction, so it is dropped: the loss is
:math:`\Omega_\alpha^*(f) - E_p[f]`, with the same gradient, and may be negative.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Laplace

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
    points = target.double().unsqueeze(0)
    return score.conjugate - _mean_score(score, points, torch.ones_like(points))


@register_fenchel_young(Laplace, Empirical)
@register_fenchel_young(Density, Empirical)
def sampled(prediction: Density | Laplace, target: Empirical) -> Float[Tensor, "..."]:
    """Ω_α*(f) − Σ w f(t) for any score on the line, in float64."""
    score = score_of(prediction)
    weights = target.weights.double().movedim(-1, 0)
    # Samples come before the batch of the target, which may be shorter than that of the prediction.
    lead = (-1,) + (1,) * max(0, len(prediction.batch_shape) - len(target.batch_shape)) + target.batch_shape
    samples = target.samples.double().movedim(-1, 0).reshape(lead)
    return score.conjugate - _mean_score(score, samples, weights.reshape(lead) / weights.sum(0))


def _mean_score(score: Score, points: Float[Tensor, "n ..."], shares: Float[Tensor, "n ..."]) -> Float[Tensor, "..."]:
    """Σ w f(t) over the first dimension; −∞ with zero gradient where a score that counts overflows."""
    counts = score.in_range(points)
    values = torch.where(counts, score.at(torch.where(counts, points, score.loc)), 0.0)
    return torch.where((~counts & (shares > 0)).any(0), -math.inf, (shares * values).sum(0))
