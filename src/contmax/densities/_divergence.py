"""Kullback–Leibler divergences, registered with ``torch.distributions.kl_divergence``."""

import itertools
import math
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, Laplace, MultivariateNormal, Normal, StudentT, Uniform, register_kl

from contmax._eager import is_eager_cpu
from contmax._precision import common_dtype, in_dtype, wide_dtype
from contmax._smooth import ARTANH_EXCESS
from contmax.densities._beta_gaussian import BetaGaussian
from contmax.densities._density import Density
from contmax.densities._landmarks import landmarks_of
from contmax.densities._line import LineDensity
from contmax.densities._line_rule import LineRule
from contmax.densities._mixture import Mixture
from contmax.densities._multivariate import MultivariateBetaGaussian
from contmax.densities._unchecked import unchecked

D = TypeVar("D", bound=Density)

_ASCENT_STEPS = 50
_SLACK_MAX = 1e-4


def kl_line(p: Distribution, q: Distribution) -> Tensor:
    r""":math:`\int p \ln(p/q)` on the line: +∞ unless supp p ⊂ supp q; by quadrature unless both are Gaussian.

    Args:
        p: a density on the line.
        q: another, whose batch shape broadcasts with that of p.

    Returns:
        Shape of the broadcast batch.

    Raises:
        NotImplementedError: for mixtures in several dimensions.
    """
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
    # Ends that agree up to rounding are taken to agree, as long as that leaves most of the density inside.
    slack = torch.minimum(8 * torch.finfo(dtype).eps * (high - low + p.mean.abs()), _SLACK_MAX * (high - low))
    slack = torch.where(torch.isfinite(slack), slack, 0.0)
    nested = (low >= outer.low - slack) & (high <= outer.high + slack)
    rule = LineRule(inner, shape, outer.cuts)
    log_p, alive = rule.log_density(p)
    log_q = q.log_prob(torch.where(alive, rule.beside_bends, inner.centre.detach()))
    known = alive & ~torch.isinf(log_q)
    terms = rule.shares * log_p.exp() * (log_p - torch.where(known, log_q, 0.0))
    return torch.where(nested, torch.where(known, terms, 0.0).sum(0), math.inf).to(dtype)


def _kl_beta_gaussians(p: BetaGaussian, q: BetaGaussian) -> Tensor:
    if not (_is_gaussian(p) and _is_gaussian(q)):
        return kl_line(p, q)
    dtype = common_dtype(p.dtype, q.dtype)
    p, q = _computing_in(wide_dtype(dtype), p, q)
    return in_dtype(0.5 * (_excess(p.scale / q.scale) + q.mahalanobis_sq(p.loc)), dtype)


def _kl_multivariate(p: MultivariateBetaGaussian, q: MultivariateBetaGaussian) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"both densities must live in the same space; got one in {p.event_shape[0]} dimensions and one in "
            f"{q.event_shape[0]}. Pass densities of the same dimension."
        )
    dtype = common_dtype(p.dtype, q.dtype)
    p, q = _computing_in(wide_dtype(dtype), p, q)
    if _is_gaussian(p) and _is_gaussian(q):
        relative = torch.linalg.solve_triangular(q.scale_tril, p.scale_tril, upper=False)
        diagonal = relative.diagonal(dim1=-2, dim2=-1)
        mixed = relative.tril(-1).square().sum((-2, -1))
        divergence: Tensor = _excess(diagonal).sum(-1) + mixed + q.mahalanobis_sq(p.loc)
        return in_dtype(0.5 * divergence, dtype)
    if not _is_endless(q) and (_is_endless(p) or _leaves(p, q)):
        shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
        return torch.full(shape, math.inf, dtype=dtype, device=p.loc.device)
    raise NotImplementedError(
        "the Kullback–Leibler divergence of nested β-Gaussians in several dimensions has no closed form. Average "
        "p.log_prob(t) - q.log_prob(t) over draws t of p, or use contmax.losses.fenchel_young."
    )


def _computing_in(dtype: torch.dtype, *densities: D) -> list[D]:
    return [cast(D, unchecked(density, dtype)) for density in densities]


def _leaves(p: MultivariateBetaGaussian, q: MultivariateBetaGaussian) -> bool:
    """Whether the support of p provably leaves that of q, in every batch element.

    Maximises the distance from the centre of q over the ellipsoid of p, in coordinates where that of q is a ball.

    Raises:
        NotImplementedError: if that could not be told without waiting for a device, or in a trace not at all.
    """
    inner, outer = p.radius, q.radius
    if not is_eager_cpu(p.loc, p.scale_tril, q.loc, q.scale_tril, inner, outer):
        raise NotImplementedError(
            "the Kullback–Leibler divergence of β-Gaussians in several dimensions is infinite or has no closed form; "
            "which of the two depends on values on an accelerator or in a trace. Move both densities to the CPU to "
            "find out, or use contmax.losses.fenchel_young."
        )
    if bool(torch.isinf(outer).any()):
        return False
    if bool(torch.isinf(inner).all()):
        return True
    factor = q.scale_tril
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    axes = torch.linalg.solve_triangular(factor, p.scale_tril.expand(*shape, -1, -1), upper=False)
    axes = axes * (inner / outer)[..., None, None]
    centre = torch.linalg.solve_triangular(factor, (p.loc - q.loc).unsqueeze(-1), upper=False) / outer[..., None, None]
    # Every right singular vector, in the direction of the centre, is a start of a monotone ascent.
    u = torch.linalg.svd(axes).Vh.mT
    u = u * torch.where((axes @ u * centre).sum(-2, keepdim=True) < 0, -1.0, 1.0)
    for _ in range(_ASCENT_STEPS):
        u = axes.mT @ (axes @ u + centre)
        u = u / torch.linalg.vector_norm(u, dim=-2, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    farthest = torch.linalg.vector_norm(axes @ u + centre, dim=-2).amax(-1)
    return bool((farthest > 1 + 64 * torch.finfo(u.dtype).eps).all())


def _is_endless(density: MultivariateBetaGaussian) -> bool:
    """Whether the support is known to be all of space."""
    return not isinstance(density.alpha, Tensor) and density.alpha <= 1


def _is_gaussian(density: BetaGaussian | MultivariateBetaGaussian) -> bool:
    return not isinstance(density.alpha, Tensor) and density.alpha == 1


def _excess(ratio: Tensor) -> Tensor:
    """x − ln(1+x) for x = r² − 1, without cancellation at r near 1, from ln(1+x) = 2 artanh(x/(2+x))."""
    x = (ratio - 1) * (ratio + 1)
    near = x.abs() < 0.5
    w = torch.where(near, x / (2 + torch.where(near, x, 0.0)), 0.0)
    square = w * w
    series = torch.zeros_like(w)
    for coefficient in reversed(ARTANH_EXCESS):
        series = (series + coefficient) * square
    # Not log1p(x): a small ratio leaves x = −1.
    return torch.where(near, 2 * w * (w / (1 - w) - series), x - 2 * torch.where(near, 1.0, ratio).log())


def _kl_multivariate_normal(p: MultivariateBetaGaussian, q: MultivariateNormal) -> Tensor:
    return _kl_multivariate(p, MultivariateBetaGaussian(q.loc, scale_tril=q.scale_tril, alpha=1.0, validate_args=False))


def _kl_normal_multivariate(p: MultivariateNormal, q: MultivariateBetaGaussian) -> Tensor:
    return _kl_multivariate(MultivariateBetaGaussian(p.loc, scale_tril=p.scale_tril, alpha=1.0, validate_args=False), q)


def _register() -> None:
    ours = (LineDensity, Mixture)
    theirs = (Normal, Laplace, StudentT, Uniform)
    for pair in itertools.chain(
        itertools.product(ours, ours), itertools.product(ours, theirs), itertools.product(theirs, ours)
    ):
        register_kl(*pair)(kl_line)
    register_kl(BetaGaussian, BetaGaussian)(_kl_beta_gaussians)
    register_kl(MultivariateBetaGaussian, MultivariateBetaGaussian)(_kl_multivariate)
    register_kl(MultivariateBetaGaussian, MultivariateNormal)(_kl_multivariate_normal)
    register_kl(MultivariateNormal, MultivariateBetaGaussian)(_kl_normal_multivariate)


_register()
