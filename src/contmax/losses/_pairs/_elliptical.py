r"""The loss of a quadratic score against every target whose mean, covariance and Ω_α are known.

Let q be the member of the prediction's family with mean and covariance of the target p. The score is quadratic, so
:math:`E_p[f] = E_q[f]`, and the loss splits into two parts that are not negative:

.. math:: L(f; p) = L(f; q) + \big(\Omega_\alpha(p) - \Omega_\alpha(q)\big).

The first compares two members of one family. With Σ = LLᵀ, :math:`\Sigma_q = L_qL_q^\top` and the lower triangular
:math:`K = L^{-1}(L_q - L)`, which is small where they nearly agree and has then all its digits,

.. math:: L(f; q) = \tfrac12\|\mu-\mu_p\|^2_{\Sigma^{-1}} + \tfrac{v}{2}\Big[\|K\|_F^2 + 2\sum_i\phi(K_{ii})
          - \tfrac1c\chi(c\ell)\Big], \qquad \ell = 2\sum_i \ln(1+K_{ii}), \quad c = \frac1{2k+N}

where :math:`\operatorname{Cov}_q = v\Sigma_q`, φ(x) = x − ln(1+x) and χ(x) = eˣ − 1 − x. At α = 1 it is half of
:math:`\|\cdot\|^2 + \sum_i \phi(d_i)`, d the eigenvalues of :math:`L^{-1}\Sigma_qL^{-\top} - I`, which
:math:`\|K\|_F^2 + 2\sum_i\phi(K_{ii})` is without an eigendecomposition. The second part, what the shape of the target
costs whatever its width, is zero if p is a member itself.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.deformed import expm1_over
from contmax.densities._elliptical import Elliptical
from contmax.densities._scale import DiagonalScale, Scale
from contmax.losses._fenchel_young import register_fenchel_young
from contmax.losses._pairs import _renyi
from contmax.losses._pairs._differences import (
    EXPONENT_MAX,
    HEIGHT_SLACK,
    expm1_excess_over,
    log_ratio_and_excess,
    not_negative,
    tsallis_rate,
)
from contmax.losses._pairs._renyi import Number
from contmax.losses._pairs._target_moments import SUMMARIES, Summary, deviations, points_of, scale_of, summary_of

# Beyond this |ln τ| the member with the covariance of the target is too unlike it to help.
_STRETCH_MAX = 16.0


def elliptical_loss(prediction: Elliptical, target: Distribution) -> Float[Tensor, "*batch"]:
    """The loss of a β-Gaussian against a target with a summary, in float64."""
    summary = summary_of(target)
    scale = scale_of(prediction)
    misplaced = scale.mahalanobis_sq(summary.mean - points_of(prediction, prediction.loc))
    is_uniform = isinstance(prediction.alpha, float) and math.isinf(prediction.alpha)
    misshapen = _misshapen_uniform if is_uniform else _misshapen
    loss = 0.5 * misplaced + misshapen(prediction, scale, summary)
    return loss if summary.finite is None else torch.where(summary.finite, loss, math.inf)


def _misshapen(prediction: Elliptical, scale: Scale, target: Summary) -> Tensor:
    """What the loss adds to the distance of the means, for finite α."""
    profile, dim = prediction._profile, scale.dim
    half_log_det = target.factor.half_log_det()
    gap, _, weight = profile.coefficients(half_log_det)
    shape = target.shape(gap)
    # By the same arithmetic, a number or a tensor, so that nothing is left between equals.
    like = torch.full_like(shape, gap) if isinstance(shape, Tensor) and not isinstance(gap, Tensor) else gap
    own = _renyi.beta_gaussian(like, gap, dim)
    # Σ_q = τFFᵀ. The difference is exactly zero where the target is of the same index.
    log_stretch = (target.log_spread - profile.variance_factor(half_log_det).log()) / weight
    if not isinstance(shape, Tensor) and not isinstance(own, Tensor) and shape == own:
        return _member_part(gap, scale, target, log_stretch)
    half_log_cov = half_log_det + 0.5 * dim * target.log_spread
    far = log_stretch.abs() > _STRETCH_MAX
    near_part = _member_part(gap, scale, target, torch.where(far, 0.0, log_stretch))
    near_part = near_part + _shape_part(gap, shape - own, torch.where(far, 0.0, own - half_log_cov))
    # Where no member of the family is like the target, there is nothing to cancel in the definition itself.
    excess, log_det = _relative(scale, target.factor)
    scatter = 0.5 * (excess + log_det + dim) * _exp(target.log_spread)
    direct = profile.conjugate(scale.half_log_det()) + scatter + tsallis_rate(shape - half_log_cov, gap)
    return torch.where(far, not_negative(direct), near_part)


def _member_part(gap: Number, scale: Scale, target: Summary, log_stretch: Tensor) -> Tensor:
    """L(f; q) without the distance of the means."""
    excess, log_det = _relative(scale, target.factor.stretched((0.5 * log_stretch).exp()))
    curvature = gap / (2 + scale.dim * gap)
    excess = excess - curvature * log_det.square() * expm1_excess_over(curvature * log_det)
    return 0.5 * (target.log_spread - log_stretch).exp() * excess


def _shape_part(gap: Number, delta: Number, log_peak: Tensor) -> Tensor:
    r"""Ω_α(p) − Ω_α(q) = ∫q^α·(e^{εδ} − 1)/(αε), δ the difference of Rényi negentropies, ln∫q^α = ε·log_peak.

    +∞ with zero gradient where it overflows.
    """
    delta = not_negative(delta if isinstance(delta, Tensor) else torch.full_like(log_peak, delta))
    # Only the product of the two factors has to be in range: a large e^{εδ} goes with the first.
    grows = gap * delta > 0
    exponent = gap * log_peak + torch.where(grows, gap * delta, 0.0)
    over = exponent > EXPONENT_MAX
    inner = torch.where(over, 0.0, delta)
    rate = inner * expm1_over(torch.where(grows, -gap * inner, gap * inner)) / (1 + gap)
    return torch.where(over & (delta > 0), math.inf, torch.where(over, 0.0, exponent).exp() * rate)


def _misshapen_uniform(prediction: Elliptical, scale: Scale, target: Summary) -> Tensor:
    """The limit α = ∞, where members have one volume and Ω is 0 for densities up to 1, else +∞."""
    dim = scale.dim
    half_log_det = target.factor.half_log_det()
    excess, log_det = _relative(scale, target.factor)
    # N·ln of the ratio of variances that is due to the volume of the target, exactly zero for a member.
    swelling = dim * (target.log_spread - prediction._profile.variance_factor(half_log_det).log())
    shrinking = (log_det - swelling) / dim
    excess = excess + swelling - dim * shrinking.square() * expm1_excess_over(shrinking)
    log_height = target.shape(math.inf) - half_log_det - 0.5 * dim * target.log_spread
    return torch.where(log_height > HEIGHT_SLACK, math.inf, not_negative(0.5 * _exp(target.log_spread) * excess))


def _relative(scale: Scale, other: Scale) -> tuple[Tensor, Tensor]:
    """Σφ(d) and Σln(1+d) over the eigenvalues 1 + d of one scale relative to another."""
    if isinstance(scale, DiagonalScale) and isinstance(other, DiagonalScale):
        own, diagonal = deviations(scale), deviations(other)
        squares = ((diagonal - own) / own).square().sum(-1)
    else:
        tril, other_tril = scale.tril(), other.tril()
        squares = torch.linalg.solve_triangular(tril, other_tril - tril, upper=False).square().sum((-2, -1))
        own, diagonal = (factor.diagonal(dim1=-2, dim2=-1) for factor in (tril, other_tril))
    log_ratio, excess = log_ratio_and_excess(diagonal, own)
    return squares + 2 * excess.sum(-1), 2 * log_ratio.sum(-1)


def _exp(x: Number) -> Number:
    return x.exp() if isinstance(x, Tensor) else math.exp(x)


for _family in SUMMARIES:
    register_fenchel_young(Elliptical, _family)(elliptical_loss)
