r"""Targets without a density: observations and samples.

Their Ω_α is infinite for α ≥ 1 and does not depend on the prediction, so it is dropped: the loss is
:math:`\Omega_\alpha^*(f) - E_p[f]`, with the same gradient, and may be negative.
"""

import math
from typing import cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.densities import Density, Empirical
from contmax.densities._elliptical import Elliptical
from contmax.densities._scale import DiagonalScale, Scale
from contmax.densities._unchecked import unchecked
from contmax.losses._fenchel_young import register_fenchel_young
from contmax.losses._pairs._scores import finite_scores
from contmax.losses._pairs._target_moments import points_of, scale_of


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


@register_fenchel_young(Density, Tensor)
def observed(prediction: Density, target: Tensor) -> Float[Tensor, "..."]:
    """Ω_α*(f) − f(t) for any density with a score, in float64."""
    points = _in_front(target.double().unsqueeze(0), prediction)
    return _mean_cost(prediction, points, torch.ones((), dtype=torch.float64, device=points.device))


@register_fenchel_young(Density, Empirical)
def sampled(prediction: Density, target: Empirical) -> Float[Tensor, "..."]:
    """Ω_α*(f) − Σ w f(t) for any density with a score, in float64."""
    samples = target.samples.double().movedim(-1 - len(prediction.event_shape), 0)
    weights = target.weights.double().movedim(-1, 0)
    weights = weights.reshape(len(weights), *(1,) * _missing(weights, prediction, events=0), *weights.shape[1:])
    return _mean_cost(prediction, _in_front(samples, prediction), weights / weights.sum(0))


def _in_front(points: Float[Tensor, "n ..."], prediction: Distribution) -> Float[Tensor, "n ..."]:
    """Points of a target with their axis before the batch of the prediction, which may be the longer one."""
    missing = _missing(points, prediction, len(prediction.event_shape))
    return points.reshape(len(points), *(1,) * missing, *points.shape[1:])


def _missing(values: Tensor, prediction: Distribution, events: int) -> int:
    """How many dimensions the batch of the prediction has in excess of that of the values."""
    return max(0, len(prediction.batch_shape) - values.dim() + 1 + events)


def _mean_cost(prediction: Density, points: Float[Tensor, "n ..."], shares: Float[Tensor, "..."]) -> Tensor:
    """Ω*_α(f) − Σ w f(t) over the first dimension; +∞ with zero gradient where a score that counts overflows."""
    prediction.required_alpha()
    wide = cast(Density, unchecked(prediction, torch.float64))
    values, counts = finite_scores(wide, points, torch.ones((), dtype=torch.bool, device=points.device))
    infinite = (~counts & (shares > 0)).any(0)
    mean = (shares * values).sum(0)
    return torch.where(infinite, math.inf, wide.conjugate() - torch.where(infinite, 0.0, mean))
