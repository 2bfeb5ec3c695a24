r"""The loss of a quadratic score against every target whose mean, covariance and Ω_α are known.

The prediction has location μ and scale matrix Σ in N dimensions, and k = 1/(α−1). Let q be the member of its family
with the mean μ_p and the covariance of the target p. The score f is quadratic, so :math:`E_p[f] = E_q[f]`, and the loss
splits into two parts that are not negative:

.. math:: L(f; p) = L(f; q) + \big(\Omega_\alpha(p) - \Omega_\alpha(q)\big).

The first compares two members of one family,

.. math:: L(f; q) = \tfrac12\|\mu-\mu_p\|^2_{\Sigma^{-1}} + \tfrac{v}{2}\Big[\sum_i\phi(d_i)
          - \tfrac1c\chi(c\ell)\Big], \qquad \ell = \sum_i \ln(1+d_i), \quad c = \frac1{2k+N}

where 1 + d are the eigenvalues of :math:`\Sigma^{-1}\Sigma_q`, :math:`\operatorname{Cov}_q = v\Sigma_q`,
φ(x) = x − ln(1+x) and χ(x) = eˣ − 1 − x. The second part is the cost of the target's shape; it is zero if p = q.
"""

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
from contmax.deformed import expm1_over
from contmax.densities import Empirical, Triangular
from contmax.densities._divergence import gaussian
from contmax.densities._elliptical import Elliptical
from contmax.densities._scale import DiagonalScale, Scale, relative_excess
from contmax.losses._fenchel_young import register_fenchel_young
from contmax.losses._pairs import _negentropy
from contmax.losses._pairs._negentropy import Number

# With Σ_q = τFFᵀ, F of `Summary`: where |ln τ| is larger, the loss is computed directly, as Ω*(f) + Ω(p) − E_p[f].
_STRETCH_MAX = 16.0


@dataclass(frozen=True)
class Summary:
    """The moments and the shape of a target, in float64; its covariance is v·FFᵀ.

    Attributes:
        mean: ``(*batch, N)``.
        factor: F, diagonal or triangular.
        log_spread: ln v, broadcastable to ``(*batch)``.
        shape: function from ε = α − 1 to η, the negentropy of the shape, see :mod:`._negentropy`.
        finite: where the covariance is finite, ``(*batch)``; None if it is finite everywhere.
    """

    mean: Float[Tensor, "*batch N"]
    factor: Scale
    log_spread: Float[Tensor, "..."]
    shape: Callable[[Number], Number]
    finite: Tensor | None = None


def elliptical_loss(prediction: Elliptical, target: Distribution) -> Float[Tensor, "*batch"]:
    """The loss of a β-Gaussian against a target whose `Summary` has a closed form, in float64."""
    summary = summary_of(target)
    scale = prediction._sigma.to(torch.float64)
    misplaced = scale.mahalanobis_sq(summary.mean - points_of(prediction, prediction.loc))
    misshapen = _misshapen_uniform if _negentropy.is_infinite(_negentropy.order_of(prediction.alpha)) else _misshapen
    loss = 0.5 * misplaced + misshapen(prediction, scale, summary)
    return loss if summary.finite is None else torch.where(summary.finite, loss, math.inf)


def _misshapen(prediction: Elliptical, scale: Scale, target: Summary) -> Tensor:
    """The loss without its first term, ½(μ−μ_p)ᵀΣ⁻¹(μ−μ_p), for finite α."""
    profile, dim = prediction._profile, scale.dim
    half_log_det = target.factor.half_log_det()
    gap, _, weight = profile.coefficients(half_log_det)
    shape = target.shape(gap)
    # Compute η of p and of q both as floats or both as tensors, so that equal η differ by exactly 0.
    like = torch.full_like(shape, gap) if isinstance(shape, Tensor) and not isinstance(gap, Tensor) else gap
    own = _negentropy.beta_gaussian(like, gap, dim)
    # ln τ in Σ_q = τFFᵀ, exactly 0 for a target with the α of the prediction.
    log_stretch = (target.log_spread - profile.variance_factor(half_log_det).log()) / weight
    if not isinstance(shape, Tensor) and not isinstance(own, Tensor) and shape == own:
        return _member_part(gap, scale, target, log_stretch)
    half_log_cov = half_log_det + 0.5 * dim * target.log_spread
    far = log_stretch.abs() > _STRETCH_MAX
    near_part = _member_part(gap, scale, target, torch.where(far, 0.0, log_stretch))
    near_part = near_part + _shape_part(gap, shape - own, torch.where(far, 0.0, own - half_log_cov))
    # For a target far from every member of the family, the terms of Ω*(f) + Ω(p) − E_p[f] do not cancel.
    excess, log_det = relative_excess(scale, target.factor)
    scatter = 0.5 * (excess + log_det + dim) * target.log_spread.exp()
    direct = profile.conjugate(scale.half_log_det()) + scatter + _negentropy.tsallis_rate(shape - half_log_cov, gap)
    return torch.where(far, _negentropy.not_negative(direct), near_part)


def _member_part(gap: Number, scale: Scale, target: Summary, log_stretch: Tensor) -> Tensor:
    """L(f; q) without its first term, ½(μ−μ_p)ᵀΣ⁻¹(μ−μ_p)."""
    excess, log_det = relative_excess(scale, target.factor.stretched((0.5 * log_stretch).exp()))
    curvature = gap / (2 + scale.dim * gap)
    excess = excess - curvature * log_det.square() * _negentropy.expm1_excess_over(curvature * log_det)
    return 0.5 * (target.log_spread - log_stretch).exp() * excess


def _shape_part(gap: Number, delta: Number, log_peak: Tensor) -> Tensor:
    r"""Ω_α(p) − Ω_α(q) = ∫q^α·(e^{εδ} − 1)/(αε), δ = η(p) − η(q) the argument `delta`, ln∫q^α = ε·log_peak.

    The result is +∞ with zero gradient where it overflows.
    """
    delta = _negentropy.not_negative(delta if isinstance(delta, Tensor) else torch.full_like(log_peak, delta))
    # The product may be finite where a factor overflows: add a large εδ to the exponent of ∫q^α.
    grows = gap * delta > 0
    exponent = gap * log_peak + torch.where(grows, gap * delta, 0.0)
    over = exponent > _negentropy.EXPONENT_MAX
    inner = torch.where(over, 0.0, delta)
    rate = inner * expm1_over(torch.where(grows, -gap * inner, gap * inner)) / (1 + gap)
    return torch.where(over & (delta > 0), math.inf, torch.where(over, 0.0, exponent).exp() * rate)


def _misshapen_uniform(prediction: Elliptical, scale: Scale, target: Summary) -> Tensor:
    """`_misshapen` for α = ∞: predictions are uniform with volume 1, and Ω(p) is 0 if p ≤ 1, else +∞."""
    dim = scale.dim
    half_log_det = target.factor.half_log_det()
    excess, log_det = relative_excess(scale, target.factor)
    # N·ln of p's variances over those of the uniform density of volume 1 and shape F; exactly 0 if p is that density.
    swelling = dim * (target.log_spread - prediction._profile.variance_factor(half_log_det).log())
    shrinking = (log_det - swelling) / dim
    excess = excess + swelling - dim * shrinking.square() * _negentropy.expm1_excess_over(shrinking)
    log_height = target.shape(math.inf) - half_log_det - 0.5 * dim * target.log_spread
    loss = _negentropy.not_negative(0.5 * target.log_spread.exp() * excess)
    return torch.where(log_height > _negentropy.HEIGHT_SLACK, math.inf, loss)


@register_fenchel_young(Elliptical, Tensor)
def elliptical_observed(prediction: Elliptical, target: Tensor) -> Float[Tensor, "..."]:
    """Ω_α*(f) + ½Δ(t) for observations t, in float64; Δ(t) = (t−μ)ᵀΣ⁻¹(t−μ)."""
    scale = prediction._sigma.to(torch.float64)
    offset = points_of(prediction, target) - points_of(prediction, prediction.loc)
    return prediction._profile.conjugate(scale.half_log_det()) + 0.5 * scale.mahalanobis_sq(offset)


@register_fenchel_young(Elliptical, Empirical)
def elliptical_sampled(prediction: Elliptical, target: Empirical) -> Float[Tensor, "..."]:
    """Ω_α*(f) + ½tr(Σ⁻¹C) + ½Δ(mean), C the covariance of the samples, which are read once for all predictions."""
    scale = prediction._sigma.to(torch.float64)
    weights = target.weights.double()
    weights = (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)
    samples = points_of(target, target.samples)
    mean = (weights * samples).sum(-2)
    centred = samples - mean.unsqueeze(-2)
    # tr(Σ⁻¹C), for which only variances are needed where Σ is diagonal.
    if isinstance(scale, DiagonalScale):
        trace = ((weights * centred.square()).sum(-2) / scale.diagonal()).sum(-1)
    else:
        covariance = (weights * centred).mT @ centred
        half = torch.linalg.solve_triangular(scale.tril(), covariance, upper=False)
        whitened = torch.linalg.solve_triangular(scale.tril(), half.mT, upper=False)
        trace = whitened.diagonal(dim1=-2, dim2=-1).sum(-1)
    misplaced = scale.mahalanobis_sq(mean - points_of(prediction, prediction.loc))
    return prediction._profile.conjugate(scale.half_log_det()) + 0.5 * (misplaced + trace)


def summary_of(target: Distribution) -> Summary:
    """The `Summary` of a target of the families in `_SUMMARIES`; raises NotImplementedError for others."""
    for kind in type(target).__mro__:
        if kind in _SUMMARIES:
            return _SUMMARIES[kind](target)
    raise NotImplementedError(
        f"the Tsallis negentropy of {type(target).__name__} has no closed form here. Pass samples as Empirical, or "
        "register the pair with contmax.losses.register_fenchel_young."
    )


def points_of(density: Distribution, value: Tensor) -> Tensor:
    """`value` in float64, with a last dimension for coordinates, which points on the line lack."""
    return value.double() if density.event_shape else value.double().unsqueeze(-1)


def _of_elliptical(target: Elliptical) -> Summary:
    scale, profile, dim = target._sigma.to(torch.float64), target._profile, target._dim
    log_spread, gap = profile.variance_factor(scale.half_log_det()).log(), _negentropy.order_of(target.alpha)
    points = points_of(target, target.loc)
    return Summary(points, scale, log_spread, lambda order: _negentropy.beta_gaussian(gap, order, dim))


def _of_student(target: StudentT) -> Summary:
    """The summary of Student's t, the β-Gaussian of α = 1 − 2/(ν+1); its covariance is infinite for ν ≤ 2."""
    finite = target.df > 2
    freedom = torch.where(finite, target.df.double(), 3.0)
    gap = -2 / (freedom + 1)
    deviation = target.scale.double() * (freedom / (freedom - 2)).sqrt()
    return _of_line(target.loc.double(), deviation, lambda order: _negentropy.beta_gaussian(gap, order, 1), finite)


def _of_line(
    mean: Tensor, deviation: Tensor, shape: Callable[[Number], Number], finite: Tensor | None = None
) -> Summary:
    return Summary(mean.unsqueeze(-1), DiagonalScale(deviation.unsqueeze(-1)), mean.new_zeros(()), shape, finite)


def _of_independent(target: Independent) -> Summary:
    """The summary of independent coordinates: F is diagonal, and η is a sum over coordinates."""
    base = summary_of(target.base_dist)
    if target.reinterpreted_batch_ndims == 0:
        return base
    if target.reinterpreted_batch_ndims != 1 or target.base_dist.event_shape:
        raise NotImplementedError(
            f"Independent with event shape {tuple(target.event_shape)} is not a vector of numbers. Pass "
            "Independent(base, 1) with a base of event shape ()."
        )
    dim = target.event_shape[0]
    deviation = base.factor.tril().squeeze((-2, -1)) * (0.5 * base.log_spread).exp()

    def shape(order: Number) -> Number:
        each = base.shape(order.unsqueeze(-1) if isinstance(order, Tensor) else order)
        if not isinstance(each, Tensor):
            return dim * each
        return each.expand(torch.broadcast_shapes(each.shape, (dim,))).sum(-1)

    finite = None if base.finite is None else base.finite.expand((*target.batch_shape, dim)).all(-1)
    return Summary(base.mean.squeeze(-1), DiagonalScale(deviation), deviation.new_zeros(()), shape, finite)


#: Families of targets, each with the function that computes its summary in closed form.
_SUMMARIES: dict[type, Callable[[Any], Summary]] = {
    Elliptical: _of_elliptical,
    Normal: lambda p: _of_elliptical(gaussian(p)),
    MultivariateNormal: lambda p: _of_elliptical(gaussian(p)),
    LowRankMultivariateNormal: lambda p: _of_elliptical(gaussian(p)),
    Uniform: lambda p: _of_line(
        0.5 * (p.low.double() + p.high.double()),
        (p.high.double() - p.low.double()) / math.sqrt(12.0),
        lambda order: _negentropy.UNIFORM,
    ),
    Triangular: lambda p: _of_line(p.loc.double(), (p.scale.double() / 6).sqrt(), _negentropy.triangular),
    Laplace: lambda p: _of_line(p.loc.double(), math.sqrt(2.0) * p.scale.double(), _negentropy.laplace),
    StudentT: _of_student,
    Independent: _of_independent,
}

for _family in _SUMMARIES:
    register_fenchel_young(Elliptical, _family)(elliptical_loss)
