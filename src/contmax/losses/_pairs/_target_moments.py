"""All that the loss of a quadratic score asks of its target: mean, covariance, and how its shape counts in Ω_α."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
)

from contmax._typing import Float
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, Triangular
from contmax.densities._elliptical import Elliptical
from contmax.densities._scale import DiagonalScale, Scale, TriangularScale
from contmax.losses._pairs import _renyi
from contmax.losses._pairs._renyi import Number


@dataclass(frozen=True)
class Summary:
    """A target as a quadratic score sees it, in float64; its covariance is v·FFᵀ.

    Attributes:
        mean: ``(*batch, N)``.
        factor: F, diagonal or triangular.
        log_spread: ln v, ``(*batch)``.
        shape: the order ε = α − 1 ↦ η, see :mod:`._renyi`.
        finite: where the covariance is finite, ``(*batch)``; None if it always is.
    """

    mean: Float[Tensor, "*batch N"]
    factor: Scale
    log_spread: Number
    shape: Callable[[Number], Number]
    finite: Tensor | None = None


def summary_of(target: Distribution) -> Summary:
    """The summary, for the families that have one in closed form."""
    for kind in type(target).__mro__:
        if kind in SUMMARIES:
            return SUMMARIES[kind](target)
    raise NotImplementedError(
        f"the Tsallis negentropy of {type(target).__name__} has no closed form here. Pass samples as Empirical, or "
        "register the pair with contmax.losses.register_fenchel_young."
    )


def scale_of(density: Elliptical) -> Scale:
    """Σ of a β-Gaussian in float64; on the line a 1×1 diagonal."""
    if isinstance(density, BetaGaussian):
        return DiagonalScale(density.scale.double().unsqueeze(-1))
    scale: Scale = density._scale  # type: ignore[attr-defined]
    if isinstance(scale, DiagonalScale):
        return DiagonalScale(deviations(scale).double())
    return TriangularScale(scale.tril().double())


def deviations(scale: DiagonalScale) -> Tensor:
    """σ of a diagonal scale; not the root of σ², which would round twice."""
    return scale.apply(torch.ones_like(scale.diagonal()))


def points_of(density: Distribution, value: Tensor) -> Tensor:
    """Points in float64 with a last dimension for coordinates."""
    return value.double() if density.event_shape else value.double().unsqueeze(-1)


def _of_elliptical(target: Elliptical) -> Summary:
    scale, profile, dim = scale_of(target), target._profile, target._dim
    log_spread = profile.variance_factor(scale.half_log_det()).log()
    if isinstance(target.alpha, float) and math.isinf(target.alpha):
        constant = _renyi.uniform_ball(dim)
        return Summary(points_of(target, target.loc), scale, log_spread, lambda order: constant)
    gap = target.alpha.double() - 1 if isinstance(target.alpha, Tensor) else target.alpha - 1
    return Summary(
        points_of(target, target.loc), scale, log_spread, lambda order: _renyi.beta_gaussian(gap, order, dim)
    )


def _of_normal(target: Normal) -> Summary:
    return _of_elliptical(BetaGaussian(target.loc, target.scale, 1.0, validate_args=False))


def _of_multivariate_normal(target: MultivariateNormal | LowRankMultivariateNormal) -> Summary:
    tril = target.scale_tril
    return _of_elliptical(MultivariateBetaGaussian(target.loc, scale_tril=tril, alpha=1.0, validate_args=False))


def _of_uniform(target: Uniform) -> Summary:
    low, high = target.low.double(), target.high.double()
    return _of_line(0.5 * (low + high), (high - low) / math.sqrt(12.0), lambda order: _renyi.UNIFORM)


def _of_triangular(target: Triangular) -> Summary:
    return _of_line(target.loc.double(), (target.scale.double() / 6).sqrt(), _renyi.triangular)


def _of_laplace(target: Laplace) -> Summary:
    return _of_line(target.loc.double(), math.sqrt(2.0) * target.scale.double(), _renyi.laplace)


def _of_student(target: StudentT) -> Summary:
    """The β-Gaussian of index 1 − 2/(ν+1), whose covariance is infinite for ν ≤ 2."""
    finite = target.df > 2
    freedom = torch.where(finite, target.df.double(), 3.0)
    gap = -2 / (freedom + 1)
    deviation = target.scale.double() * (freedom / (freedom - 2)).sqrt()
    return _of_line(target.loc.double(), deviation, lambda order: _renyi.beta_gaussian(gap, order, 1), finite)


def _of_line(
    mean: Tensor, deviation: Tensor, shape: Callable[[Number], Number], finite: Tensor | None = None
) -> Summary:
    return Summary(mean.unsqueeze(-1), DiagonalScale(deviation.unsqueeze(-1)), 0.0, shape, finite)


def _of_independent(target: Independent) -> Summary:
    """Independent coordinates: variances line up and η adds up."""
    base = summary_of(target.base_dist)
    if target.reinterpreted_batch_ndims == 0:
        return base
    if target.reinterpreted_batch_ndims != 1 or target.base_dist.event_shape:
        raise NotImplementedError(
            f"Independent with event shape {tuple(target.event_shape)} is not a vector of numbers. Pass "
            "Independent(base, 1) with a base of event shape ()."
        )
    dim = target.event_shape[0]
    deviation = base.factor.tril().squeeze((-2, -1))
    if isinstance(base.log_spread, Tensor):
        deviation = deviation * (0.5 * base.log_spread).exp()

    def shape(order: Number) -> Number:
        each = base.shape(order.unsqueeze(-1) if isinstance(order, Tensor) else order)
        return (
            each.expand(torch.broadcast_shapes(each.shape, (dim,))).sum(-1) if isinstance(each, Tensor) else dim * each
        )

    finite = None if base.finite is None else base.finite.expand((*target.batch_shape, dim)).all(-1)
    return Summary(base.mean.squeeze(-1), DiagonalScale(deviation), 0.0, shape, finite)


#: The families with a summary in closed form.
SUMMARIES: dict[type, Callable[[Any], Summary]] = {
    Elliptical: _of_elliptical,
    Normal: _of_normal,
    MultivariateNormal: _of_multivariate_normal,
    LowRankMultivariateNormal: _of_multivariate_normal,
    Uniform: _of_uniform,
    Triangular: _of_triangular,
    Laplace: _of_laplace,
    StudentT: _of_student,
    Independent: _of_independent,
}
