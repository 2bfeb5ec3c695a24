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

:math:`\Omega_\alpha(p)` follows from the Rényi negentropy :math:`y = \ln(\int p^\alpha)/(\alpha-1)`. Rescaling p
changes y and −½ ln|Cov_p| by equal amounts. The rest of y,

.. math:: \eta_\alpha(p) = \frac{\ln\int p^\alpha}{\alpha-1} + \tfrac12\ln|\operatorname{Cov}_p|,

depends on the shape of p only, is a sum over independent coordinates, and is smooth in the order ε = α − 1 through 0,
where it is the Shannon negentropy. In the code ε is a float, ∞ included, or a float64 tensor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
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
from contmax.deformed import expm1_over, mean_u_exp
from contmax.densities import Empirical, Triangular
from contmax.densities._divergence import gaussian
from contmax.densities._elliptical import Elliptical
from contmax.densities._profile import log1p_quotient
from contmax.densities._scale import DiagonalScale, Scale, relative_excess
from contmax.losses._fenchel_young import register_fenchel_young
from contmax.losses._row_losses import not_negative
from contmax.numerics import float64_of, log1p, log_gamma_ratio, log_gamma_ratio_slope

Number = float | Tensor

#: eˣ counts as infinite for larger x, because derivatives multiply eˣ by further factors.
EXPONENT_MAX = 600.0
#: A density counts as bounded by 1 if its logarithm, which may be rounded, is at most this.
HEIGHT_SLACK = 1e-6
_LOG_2PI = math.log(2 * math.pi)
# Below this |ε| the quotient in `_eta_of_beta_gaussian` would lose digits: `_mean_slope` computes it as the mean of its
# numerator's derivative over [0, ε], at the eight nodes of `_GAUSS`.
_ORDER_NEAR = 0.02
_GAUSS = tuple((0.5 + 0.5 * float(x), 0.5 * float(w)) for x, w in zip(*np.polynomial.legendre.leggauss(8), strict=True))
# η of the uniform density on an interval, for every ε.
_ETA_OF_UNIFORM = -0.5 * math.log(12.0)
# The member q of the prediction's family with the moments of the target has Σ_q = τFFᵀ, F of `Summary`. Where |ln τ|
# exceeds this, the loss is computed as Ω*(f) + Ω(p) − E_p[f], not from its two parts.
_STRETCH_MAX = 16.0


@dataclass(frozen=True)
class Summary:
    """The moments and the shape of a target, in float64; its covariance is v·FFᵀ."""

    mean: Float[Tensor, "*batch N"]  # ``(*batch, N)``
    factor: Scale  # F, diagonal or triangular
    log_spread: Float[Tensor, "..."]  # ln v, broadcastable to ``(*batch)``
    shape: Callable[[Number], Number]  # function from ε = α − 1 to η, the negentropy of the shape
    finite: Tensor | None = None  # where the covariance is finite, ``(*batch)``; None if it is finite everywhere


def elliptical_loss(prediction: Elliptical, target: Distribution) -> Float[Tensor, "*batch"]:
    """The loss of a β-Gaussian against a target whose `Summary` has a closed form, in float64."""
    summary = summary_of(target)
    scale = prediction._sigma.to(torch.float64)
    misplaced = scale.mahalanobis_sq(summary.mean - points_of(prediction, prediction.loc))
    misshapen = _misshapen_uniform if is_infinite(order_of(prediction.alpha)) else _misshapen
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
    own = _eta_of_beta_gaussian(like, gap, dim)
    # ln τ in Σ_q = τFFᵀ, exactly 0 for a β-Gaussian target with the α of the prediction.
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
    direct = profile.conjugate(scale.half_log_det()) + scatter + tsallis_rate(shape - half_log_cov, gap)
    return torch.where(far, not_negative(direct), near_part)


def _member_part(gap: Number, scale: Scale, target: Summary, log_stretch: Tensor) -> Tensor:
    """L(f; q) without its first term, ½(μ−μ_p)ᵀΣ⁻¹(μ−μ_p)."""
    excess, log_det = relative_excess(scale, target.factor.stretched((0.5 * log_stretch).exp()))
    curvature = gap / (2 + scale.dim * gap)
    excess = excess - curvature * log_det.square() * expm1_excess_over(curvature * log_det)
    return 0.5 * (target.log_spread - log_stretch).exp() * excess


def _shape_part(gap: Number, delta: Number, log_peak: Tensor) -> Tensor:
    r"""Ω_α(p) − Ω_α(q) = ∫q^α·(e^{εδ} − 1)/(αε), δ = η(p) − η(q) the argument `delta`, ln∫q^α = ε·log_peak.

    The result is +∞ with zero gradient where it overflows.
    """
    delta = not_negative(delta if isinstance(delta, Tensor) else torch.full_like(log_peak, delta))
    # ∫q^α·(e^{εδ} − 1) may be finite where e^{εδ} alone overflows. So where εδ > 0, compute it as
    # ∫q^α e^{εδ}·(1 − e^{−εδ}), with one exponential, of `exponent`, for the first two factors.
    grows = gap * delta > 0
    exponent = gap * log_peak + torch.where(grows, gap * delta, 0.0)
    over = exponent > EXPONENT_MAX
    inner = torch.where(over, 0.0, delta)
    rate = inner * expm1_over(torch.where(grows, -gap * inner, gap * inner)) / (1 + gap)
    return torch.where(over & (delta > 0), math.inf, torch.where(over, 0.0, exponent).exp() * rate)


def _misshapen_uniform(prediction: Elliptical, scale: Scale, target: Summary) -> Tensor:
    """`_misshapen` for α = ∞: predictions are uniform with volume 1, and Ω(p) is 0 if p ≤ 1, else +∞."""
    dim = scale.dim
    half_log_det = target.factor.half_log_det()
    excess, log_det = relative_excess(scale, target.factor)
    # `swelling` compares p with u, the uniform density of volume 1 on an ellipsoid of shape F: the covariance of p is
    # e^{swelling/N} times that of u. It is exactly 0 if p = u.
    swelling = dim * (target.log_spread - prediction._profile.variance_factor(half_log_det).log())
    shrinking = (log_det - swelling) / dim
    excess = excess + swelling - dim * shrinking.square() * expm1_excess_over(shrinking)
    log_height = target.shape(math.inf) - half_log_det - 0.5 * dim * target.log_spread
    loss = not_negative(0.5 * target.log_spread.exp() * excess)
    return torch.where(log_height > HEIGHT_SLACK, math.inf, loss)


@register_fenchel_young(Elliptical, Tensor)
def elliptical_observed(prediction: Elliptical, target: Tensor) -> Float[Tensor, "..."]:
    """Ω_α*(f) + ½Δ(t) for observations t, in float64; Δ(t) = (t−μ)ᵀΣ⁻¹(t−μ)."""
    scale = prediction._sigma.to(torch.float64)
    offset = points_of(prediction, target) - points_of(prediction, prediction.loc)
    return prediction._profile.conjugate(scale.half_log_det()) + 0.5 * scale.mahalanobis_sq(offset)


@register_fenchel_young(Elliptical, Empirical)
def elliptical_sampled(prediction: Elliptical, target: Empirical) -> Float[Tensor, "..."]:
    """Ω_α*(f) + ½tr(Σ⁻¹C) + ½(m−μ)ᵀΣ⁻¹(m−μ) for samples with mean m and covariance C, in float64.

    A batch of predictions for the same samples computes m and C only once.
    """
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
    log_spread, gap = profile.variance_factor(scale.half_log_det()).log(), order_of(target.alpha)
    points = points_of(target, target.loc)
    return Summary(points, scale, log_spread, lambda order: _eta_of_beta_gaussian(gap, order, dim))


def _of_student(target: StudentT) -> Summary:
    """The summary of Student's t, the β-Gaussian of α = 1 − 2/(ν+1); its covariance is infinite for ν ≤ 2."""
    finite = target.df > 2
    freedom = torch.where(finite, target.df.double(), 3.0)
    gap = -2 / (freedom + 1)
    deviation = target.scale.double() * (freedom / (freedom - 2)).sqrt()
    return _of_line(target.loc.double(), deviation, lambda order: _eta_of_beta_gaussian(gap, order, 1), finite)


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


def order_of(alpha: float | Tensor) -> Number:
    """ε = α − 1."""
    return alpha.double() - 1 if isinstance(alpha, Tensor) else alpha - 1


def is_infinite(order: Number) -> bool:
    """Whether ε is the float ∞; a tensor holds finite numbers."""
    return not isinstance(order, Tensor) and math.isinf(order)


def _eta_of_beta_gaussian(gap: Number, order: Number, dim: int) -> Number:
    r"""η of the β-Gaussian of index 1 + ε′ in N dimensions; G is `log_gamma_ratio`.

    .. math:: \eta = G(\varepsilon') - s\ln 2\pi - s\ln(1+(s+1)\varepsilon')
              + \frac{G(\varepsilon') - G(\frac{\varepsilon'}{1+\varepsilon}) - s\ln(1+\varepsilon)}{\varepsilon}

    Args:
        gap: ε′, the index of the density less one; ∞ for the uniform density on an ellipsoid.
        order: ε = α − 1 of η, which need not be the α of the density.
        dim: N = 2s.

    Returns:
        A number for two numbers, else a tensor.
    """
    half = dim / 2
    if is_infinite(gap):
        return math.lgamma(1 + half) - half * math.log(math.pi * (dim + 2))
    ratio = log_gamma_ratio(gap, dim)
    if is_infinite(order):
        quotient: Number = 0.0
    elif isinstance(gap, Tensor) or isinstance(order, Tensor):
        like = next(x for x in (gap, order) if isinstance(x, Tensor))
        wide: tuple[Tensor, ...] = torch.broadcast_tensors(float64_of(gap, like), float64_of(order, like))
        gap, order = wide
        near = order.abs() < _ORDER_NEAR
        slope = _mean_slope(gap, torch.where(near, order, 0.0), dim)
        quotient = torch.where(near, slope, _secant(ratio, gap, torch.where(near, 1.0, order), dim))
    else:
        quotient = _mean_slope(gap, order, dim) if abs(order) < _ORDER_NEAR else _secant(ratio, gap, order, dim)
    return ratio - half * (_LOG_2PI + log1p((half + 1) * gap)) + quotient


def _secant(ratio: Number, gap: Number, order: Number, dim: int) -> Number:
    """The fraction in :func:`_eta_of_beta_gaussian`; `ratio` is G(ε′)."""
    return (ratio - log_gamma_ratio(gap / (1 + order), dim) - dim / 2 * log1p(order)) / order


def _mean_slope(gap: Number, order: Number, dim: int) -> Number:
    """The fraction in :func:`_eta_of_beta_gaussian` for small ε: the mean of its numerator's derivative over [0, ε]."""
    if isinstance(order, Tensor):
        rates: Any = _slope(gap, torch.stack([1 + x * order for x, _ in _GAUSS]), dim)
    else:
        rates = [_slope(gap, 1 + x * order, dim) for x, _ in _GAUSS]
    return sum((weight * rate for (_, weight), rate in zip(_GAUSS, rates, strict=True)), 0.0 * gap)


def _slope(gap: Number, step: Number, dim: int) -> Number:
    """The derivative in ε of the numerator in :func:`_eta_of_beta_gaussian`, at 1 + ε = `step`."""
    inner = gap / step
    return (log_gamma_ratio_slope(inner, dim) * inner - dim / 2) / step


def expm1_excess_over(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""(eˣ − 1 − x)/x², smooth at 0: :math:`\int_0^1 (1-s)\,e^{sx}\,ds = e^x \int_0^1 s\,e^{-sx}\,ds`.

    Example:
        >>> expm1_excess_over(torch.tensor([0.0, 1.0]))
        tensor([0.5000, 0.7183])
    """
    grows = x > 0
    up, down = torch.where(grows, x, 0.0), torch.where(grows, 0.0, x)
    return torch.where(grows, torch.exp(up) * mean_u_exp(-up), expm1_over(down) - mean_u_exp(down))


def tsallis_rate(y: Float[Tensor, "..."], gap: float | Tensor) -> Float[Tensor, "..."]:
    """(e^{εy} − 1)/(αε) with ε = `gap`: Ω_α(p) for the Rényi negentropy y of p, and log_{2−α}(p)/α for y = ln p.

    Overflow gives +∞ with zero gradient. The rate is 0 for α = ∞.

    Example:
        >>> tsallis_rate(torch.tensor([0.0, 1.0, 1e4]).double(), 1.0)
        tensor([0.0000, 0.8591,    inf], dtype=torch.float64)
    """
    if is_infinite(gap):
        return torch.zeros_like(y)
    over = gap * y > EXPONENT_MAX
    inner = torch.where(over, 0.0, y)
    return torch.where(over, torch.inf, inner * expm1_over(gap * inner) / (1 + gap))


#: Families of targets, each with the function that computes its summary in closed form.
_SUMMARIES: dict[type, Callable[[Any], Summary]] = {
    Elliptical: _of_elliptical,
    Normal: lambda p: _of_elliptical(gaussian(p)),
    MultivariateNormal: lambda p: _of_elliptical(gaussian(p)),
    LowRankMultivariateNormal: lambda p: _of_elliptical(gaussian(p)),
    Uniform: lambda p: _of_line(
        0.5 * (p.low.double() + p.high.double()),
        (p.high.double() - p.low.double()) / math.sqrt(12.0),
        lambda order: _ETA_OF_UNIFORM,
    ),
    # At half-width a, ∫p^α = 2a^{1−α}/(α+1).
    Triangular: lambda p: _of_line(
        p.loc.double(),
        (p.scale.double() / 6).sqrt(),
        lambda order: -0.5 * math.log(6.0) - 0.5 * log1p_quotient(0.5 * order),
    ),
    # At scale b, ∫p^α = (2b)^{1−α}/α.
    Laplace: lambda p: _of_line(
        p.loc.double(), math.sqrt(2.0) * p.scale.double(), lambda order: -0.5 * math.log(2.0) - log1p_quotient(order)
    ),
    StudentT: _of_student,
    Independent: _of_independent,
}

for _family in _SUMMARIES:
    register_fenchel_young(Elliptical, _family)(elliptical_loss)
