"""Kullback–Leibler divergences, registered with ``torch.distributions.kl_divergence``."""

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
    register_kl,
)

from contmax._eager import common_dtype, is_eager_cpu, wide_dtype
from contmax.densities._beta_gaussian import BetaGaussian
from contmax.densities._density import unchecked
from contmax.densities._elliptical import Elliptical
from contmax.densities._line import LineDensity
from contmax.densities._line_rule import LineRule, landmarks_of
from contmax.densities._mixture import Mixture
from contmax.densities._multivariate import MultivariateBetaGaussian
from contmax.densities._scale import relative_excess

_ASCENT_STEPS = 50
_SLACK_MAX = 1e-4


def kl_line(p: Distribution, q: Distribution) -> Tensor:
    """∫p ln(p/q) on the line by quadrature: +∞ unless supp p ⊂ supp q."""
    if p.event_shape or q.event_shape:
        raise NotImplementedError(
            "the divergence of mixtures is implemented on the line only. In several dimensions average "
            "p.log_prob(t) - q.log_prob(t) over draws t of p."
        )
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    dtype = torch.promote_types(p.mean.dtype, q.mean.dtype)
    p, q = (unchecked(d.expand(shape), torch.float64) for d in (p, q))
    inner, outer = landmarks_of(p), landmarks_of(q)
    low, high = inner.low, inner.high
    # Ends of the supports that differ only by rounding count as equal. `slack` is at most 1e-4 of the length of supp p.
    slack = torch.minimum(8 * torch.finfo(dtype).eps * (high - low + p.mean.abs()), _SLACK_MAX * (high - low))
    slack = torch.where(torch.isfinite(slack), slack, 0.0)
    nested = (low >= outer.low - slack) & (high <= outer.high + slack)
    rule = LineRule(inner, shape, outer.cuts)
    log_p, alive = rule.log_density(p)
    log_q = q.log_prob(torch.where(alive, rule.beside_bends, inner.centre.detach()))
    known = alive & ~torch.isinf(log_q)
    terms = rule.shares * log_p.exp() * (log_p - torch.where(known, log_q, 0.0))
    return torch.where(nested, torch.where(known, terms, 0.0).sum(0), math.inf).to(dtype)


def gaussian(distribution: Normal | MultivariateNormal | LowRankMultivariateNormal) -> Elliptical:
    """The β-Gaussian with α = 1 that equals a normal density of torch."""
    if isinstance(distribution, Normal):
        return BetaGaussian(distribution.loc, distribution.scale, 1.0, validate_args=False)
    tril = distribution.scale_tril
    return MultivariateBetaGaussian(distribution.loc, scale_tril=tril, alpha=1.0, validate_args=False)


def _kl_beta_gaussians(p: Any, q: Any) -> Tensor:
    """∫p ln(p/q): in closed form for Gaussians, else by quadrature on the line.

    In several dimensions the result is +∞ where supp p leaves supp q; otherwise this raises NotImplementedError.
    """
    p, q = (gaussian(x) if isinstance(x, MultivariateNormal) else x for x in (p, q))
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"both densities must live in the same space; got one in {p.event_shape[0]} dimensions and one in "
            f"{q.event_shape[0]}. Pass densities of the same dimension."
        )
    dtype = common_dtype(p.dtype, q.dtype)
    if _index(p) == _index(q) == 1:
        scale, offset = q._sigma.to(torch.float64), p.loc.double() - q.loc.double()
        excess = relative_excess(scale, p._sigma.to(torch.float64))[0]
        distance = scale.mahalanobis_sq(offset if p.event_shape else offset.unsqueeze(-1))
        divergence: Tensor = 0.5 * (excess + distance)
        return divergence.to(dtype)
    if not p.event_shape:
        return kl_line(p, q)
    # If q has a tensor α, its support may be bounded: `_index(q)` is NaN, so that `not _index(q) <= 1` is true.
    if not _index(q) <= 1 and (_index(p) <= 1 or _leaves(p, q, 64 * torch.finfo(wide_dtype(dtype)).eps)):
        shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
        return torch.full(shape, math.inf, dtype=dtype, device=p.loc.device)
    raise NotImplementedError(
        "the Kullback–Leibler divergence of nested β-Gaussians in several dimensions has no closed form. Average "
        "p.log_prob(t) - q.log_prob(t) over draws t of p, or use contmax.losses.fenchel_young."
    )


def _leaves(p: Any, q: Any, slack: float) -> bool:
    """Whether in every batch element supp p provably leaves supp q, by more than ``slack`` times the radius of supp q.

    Maximises the distance from the centre of q over supp p, in coordinates in which supp q is the unit ball.

    Raises:
        NotImplementedError: on an accelerator or in a trace, where values cannot be read.
    """
    inner, outer = p._region(), q._region()
    if not is_eager_cpu(inner.center, inner.factor, outer.center, outer.factor):
        raise NotImplementedError(
            "the Kullback–Leibler divergence of β-Gaussians in several dimensions is infinite or has no closed form; "
            "which of the two depends on values on an accelerator or in a trace. Move both densities to the CPU to "
            "find out, or use contmax.losses.fenchel_young."
        )
    if not bool(outer.bounded.all()):
        return False
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    axes = torch.linalg.solve_triangular(outer.factor, inner.factor.expand(*shape, -1, -1), upper=False)
    centre = torch.linalg.solve_triangular(outer.factor, (inner.center - outer.center).unsqueeze(-1), upper=False)
    # Maximise ‖axes·u + centre‖ over ‖u‖ = 1 by monotone ascent from each right singular vector of `axes`, with the
    # sign that gives the larger norm.
    u = torch.linalg.svd(axes).Vh.mT
    u = u * torch.where((axes @ u * centre).sum(-2, keepdim=True) < 0, -1.0, 1.0)
    for _ in range(_ASCENT_STEPS):
        u = axes.mT @ (axes @ u + centre)
        u = u / torch.linalg.vector_norm(u, dim=-2, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    farthest = torch.linalg.vector_norm(axes @ u + centre, dim=-2).amax(-1)
    return bool(((farthest > 1 + slack) | ~inner.bounded).all())


def _index(density: Elliptical) -> float:
    """α, or NaN for a tensor α, whose values are not read."""
    return math.nan if isinstance(density.alpha, Tensor) else density.alpha


_OURS, _THEIRS = (LineDensity, Mixture), (Normal, Laplace, StudentT, Uniform)
for _pair in (*product(_OURS, _OURS), *product(_OURS, _THEIRS), *product(_THEIRS, _OURS)):
    register_kl(*_pair)(kl_line)
register_kl(BetaGaussian, BetaGaussian)(_kl_beta_gaussians)
register_kl(MultivariateBetaGaussian, MultivariateBetaGaussian)(_kl_beta_gaussians)
register_kl(MultivariateBetaGaussian, MultivariateNormal)(_kl_beta_gaussians)
register_kl(MultivariateNormal, MultivariateBetaGaussian)(_kl_beta_gaussians)
