r"""The deformed calculus behind sparse attention: β-logarithms, β-exponentials, Tsallis negentropies, escorts.

Everything else in the library is built on these. They are smooth in β *through* β = 1, where the textbook formulas are
0/0: values and first and second derivatives, in the argument and in the index, stay accurate. :func:`log1p_over`,
:func:`expm1_over` and :func:`mean_u_exp` are the building blocks that make this so.
"""

import math

import torch
from torch import Tensor

from contmax._eager import carries_gradient, is_eager_cpu, wide_dtype
from contmax._smooth import (
    expm1_over,
    expm1_over_series,
    exponent_range,
    log1p_over,
    log1p_over_series,
    mean_u_exp,
    near_log1p,
    promote,
    split_exp,
)
from contmax._typing import Float

__all__ = ["escort", "exp_beta", "expm1_over", "log1p_over", "log_beta", "mean_u_exp", "tsallis_negentropy"]


def exp_beta(u: Float[Tensor, "..."], beta: float | int | Tensor) -> Float[Tensor, "..."]:
    r"""β-exponential, the inverse of the β-logarithm.

    .. math:: \exp_\beta(u) = [1 + (1-\beta)u]_+^{1/(1-\beta)}, \qquad \exp_1(u) = e^u, \qquad
              \frac{d}{du}\exp_\beta(u) = \exp_\beta(u)^\beta

    Where :math:`1 + (1-\beta)u \le 0` it is 0 for β < 1 and +∞ for β > 1; there, and where the value over- or
    underflows, the derivatives are 0. (The derivative in β is 0 already where the value is above about 10⁻⁶ of the
    largest number.)

    Args:
        u: argument, any shape.
        beta: index β, any finite number, or a tensor that broadcasts with ``u``.

    Returns:
        A tensor of the broadcast shape; NaN only where an input is NaN.

    Raises:
        TypeError: if ``u`` is not a floating-point tensor.
        ValueError: if ``beta`` is a number and not finite.

    Example:
        >>> exp_beta(torch.tensor([-2.0, 0.0, 0.5]), beta=0)
        tensor([0.0000, 1.0000, 1.5000])

    References:
        Tsallis 1988; Martins et al. 2020, Sec. 2.3.
    """
    (u,), dtype = promote(beta, u)
    gap = _distance_from_one(beta, u)
    y = gap * u
    if not carries_gradient(u, gap):
        return _over_gap(y.clamp(min=-1).log1p(), u, gap).exp().to(dtype)
    outside = torch.isinf(u) | torch.isinf(y) | (y <= -1)
    inner = torch.where(outside, 0.0, u)
    y = gap * inner
    lowest, highest = exponent_range(u.dtype)
    if isinstance(beta, Tensor) and carries_gradient(beta):
        # Near y = 0 use u·log1p(y)/y, smooth in β; elsewhere log1p(y)/(1−β), whose derivative in u is simple and exact.
        near = near_log1p(y)
        exponent = torch.where(
            near,
            inner * log1p_over_series(torch.where(near, y, 0.0)),
            torch.log1p(torch.where(near, 0.0, y)) / torch.where(near, 1.0, gap),
        )
        # Where the derivative in β would overflow, drop it; the derivative of the exponent in u is 1/(1+y).
        tangent = exponent.detach() + (inner - inner.detach()) / (1 + y.detach())
        exponent = torch.where(exponent > highest - 2 * math.log(highest) - 4, tangent, exponent)
    else:
        exponent = _over_gap(torch.log1p(y), inner, gap)
    outside = outside | (exponent < lowest) | (exponent > highest)
    value = torch.exp(torch.where(outside, 0.0, exponent))
    # The exponent has the sign of u: out of range, u > 0 means +∞ and u < 0 means 0.
    value = torch.where(outside & (u > 0), math.inf, value)
    return torch.where(outside & (u < 0), 0.0, value).to(dtype)


def log_beta(u: Float[Tensor, "..."], beta: float | int | Tensor) -> Float[Tensor, "..."]:
    r"""β-logarithm, the inverse of the β-exponential.

    .. math:: \log_\beta(u) = \frac{u^{1-\beta} - 1}{1-\beta}, \qquad \log_1(u) = \ln u, \qquad
              \frac{d}{du}\log_\beta(u) = u^{-\beta}

    At u = 0 it is :math:`-1/(1-\beta)` for β < 1 and −∞ otherwise; at u = +∞ it is :math:`1/(\beta-1)` for β > 1
    and +∞ otherwise; for u < 0 it is −∞. There, and where :math:`u^{1-\beta}` overflows and the value is infinite, the
    derivative in u is 0.

    Args:
        u, beta: as for :func:`exp_beta`, which also has what is returned and raised.

    Example:
        >>> log_beta(torch.tensor([0.0, 1.0, 4.0]), beta=0.5)
        tensor([-2.,  0.,  2.])

    References:
        Tsallis 1988; Martins et al. 2020, Sec. 2.3.
    """
    (u,), dtype = promote(beta, u)
    return _log_with_gap(u, _distance_from_one(beta, u)).to(dtype)


def tsallis_negentropy(
    p: Float[Tensor, "..."],
    alpha: float | int | Tensor,
    dim: int = -1,
    *,
    weights: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    r"""Tsallis negentropy of a probability vector, or of a density given at weighted nodes.

    .. math:: \Omega_\alpha(p) = \frac{\sum_\ell w_\ell p_\ell^\alpha - 1}{\alpha(\alpha-1)}, \qquad
              \Omega_1(p) = \sum_\ell w_\ell p_\ell \ln p_\ell

    A zero of p contributes 0, with zero derivative. Close to α = 1 the formula divides the rounding of
    :math:`\sum w p` by α − 1. A p that sums to 1 up to rounding is therefore taken to sum to 1 exactly there, and
    the derivative is that of :math:`\sum w\,p \log_{2-\alpha}(p)/\alpha`, which is equal along the simplex.

    Args:
        p: probabilities (or density values) p ≥ 0, any shape; summed over ``dim``.
        alpha: entropic index α > 0, or a tensor that broadcasts with ``p`` and has size 1 along ``dim``.
        dim: the dimension to sum over.
        weights: measure w ≥ 0 of each node, broadcasts with ``p``; 1 by default.

    Returns:
        A tensor of the broadcast shape without ``dim``.

    Raises:
        TypeError: if ``p`` is not a floating-point tensor.
        ValueError: if ``alpha`` is not positive, or varies along ``dim``.

    Example:
        >>> tsallis_negentropy(torch.tensor([0.5, 0.5, 0.0]), alpha=2.0)
        tensor(-0.2500)

    References:
        Tsallis 1988; Martins et al. 2020, Sec. 2.3.
    """
    if isinstance(alpha, Tensor):
        bad = alpha.detach()[~((alpha > 0) & (alpha < math.inf))].tolist() if is_eager_cpu(alpha) else []
    else:
        bad = [] if 0 < alpha < math.inf else [float(alpha)]
    if bad:
        raise ValueError(
            f"alpha must be positive and finite; got {bad[0]}, where the negentropy is undefined. Pass 0 < alpha < inf."
        )
    given = p
    (p, *measure), dtype = promote(alpha, p, weights)
    axis = _axis(p, dim, alpha)
    gap = -_distance_from_one(alpha, p)
    order = _index(alpha, p)

    zero = p <= 0
    inner = torch.where(zero, 1.0, _without_subnormal_slope(p))
    mass = _weighted_sum(p, measure, axis)
    stable = _weighted_sum(torch.where(zero, 0.0, inner * _log_with_gap(inner, gap)), measure, axis) / order

    # Use `stable` only for |α − 1| < ε^¼, ε the machine epsilon. For other α the definition, `direct`, amplifies
    # rounding of the mass by less than ε^-¼.
    normalised = (mass.detach() - 1).abs() <= 16 * torch.finfo(given.dtype).eps
    use_stable = (gap == 0) | (normalised & (gap.abs() < torch.finfo(p.dtype).eps ** 0.25))
    power = torch.where(zero, 0.0, inner**order)
    direct = (_weighted_sum(power, measure, axis) - 1) / (order * torch.where(use_stable, 1.0, gap))
    return torch.where(use_stable, stable, direct).squeeze(axis).to(dtype)


def escort(
    p: Float[Tensor, "..."],
    beta: float | int | Tensor,
    dim: int = -1,
    *,
    weights: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    r"""β-escort distribution, restricted to the support of p.

    .. math:: \tilde p^\beta_\ell = \frac{p_\ell^\beta}{\sum_m w_m p_m^\beta}, \qquad 0^\beta := 0
              \text{ for every } \beta

    so that β = 1 gives p itself, β = 0 is uniform on the support and β < 0 favours its edge. With β = 2 − α it is the
    distribution under which gradients of α-entmax average.

    Args:
        p, dim, weights: as for :func:`tsallis_negentropy`; p need not be normalised.
        beta: order β, any finite number, or a tensor that broadcasts with ``p`` and has size 1 along ``dim``.

    Returns:
        A tensor of the broadcast shape. A slice of zeros stays zeros.

    Raises:
        TypeError: if ``p`` is not a floating-point tensor.
        ValueError: if ``beta`` is a number and not finite, or varies along ``dim``.

    Example:
        >>> escort(torch.tensor([0.9, 0.1, 0.0]), beta=0)
        tensor([0.5000, 0.5000, 0.0000])

    References:
        Tsallis 1988; Martins et al. 2020, Sec. 2.4.
    """
    (p, *measure), dtype = promote(beta, p, weights)
    axis = _axis(p, dim, beta)
    order = _index(beta, p)
    if p.shape[axis] == 0:
        return (p * order).to(dtype)

    zero = p <= 0
    inner = torch.log(torch.where(zero, 1.0, _without_subnormal_slope(p)).clamp(max=torch.finfo(p.dtype).max))
    # Divide p^β by its largest entry of positive weight, so that the powers neither overflow nor all vanish.
    ignored = zero if not measure else zero | (measure[0] <= 0)
    fixed = inner.detach()
    top = torch.where(ignored, -math.inf, fixed).amax(axis, keepdim=True)
    bottom = torch.where(ignored, math.inf, fixed).amin(axis, keepdim=True)
    pivot = torch.where(order < 0, bottom, top)
    pivot = torch.where(torch.isinf(pivot), 0.0, pivot)
    scaled = (order * torch.where(zero, 0.0, inner - pivot)).clamp(max=exponent_range(p.dtype)[1])
    power = torch.where(zero, 0.0, torch.exp(scaled))
    total = _weighted_sum(power, measure, axis)
    return torch.where(total == 0, 0.0, power / torch.where(total == 0, 1.0, total)).to(dtype)


def _log_with_gap(u: Tensor, gap: Tensor) -> Tensor:
    """log_β(u) from gap = 1 − β, since a β rounded to the dtype of u would lose the digits of a small gap."""
    if not carries_gradient(u, gap):
        log = torch.log(u)
        return torch.where(u < 0, -math.inf, _over_gap(torch.expm1(gap * log), log, gap))
    edge = (u <= 0) | (u == math.inf)
    log = torch.log(torch.where(edge, 1.0, _without_subnormal_slope(u)))
    y = gap * log
    near, far, over = split_exp(y)
    far = torch.where(far < exponent_range(u.dtype)[0], far.detach(), far)
    # Use no expm1: torch computes its derivative as expm1 + 1, which loses all digits at large negative arguments.
    value = torch.where(
        near,
        log * expm1_over_series(torch.where(near, y, 0.0)),
        (torch.exp(far) - 1) / torch.where(near | over, 1.0, gap),
    )
    bounded = ((u == 0) & (gap > 0)) | ((u == math.inf) & (gap < 0))
    outside = edge | over
    value = torch.where(outside & (u > 1), math.inf, value)
    value = torch.where(outside & (u < 1), -math.inf, value)
    return torch.where(bounded, -1 / torch.where(bounded, gap, 1.0), value)


def _over_gap(value: Tensor, limit: Tensor, gap: Tensor) -> Tensor:
    """value/gap, or ``limit`` where the gap 1 − β is zero or nearly so.

    For callers that need no derivative in β: near β = 1 the quotient loses digits in this derivative, but in no other.
    """
    zero = gap.abs() < torch.finfo(gap.dtype).tiny / torch.finfo(gap.dtype).eps
    return torch.where(zero, limit, value / torch.where(zero, 1.0, gap))


def _without_subnormal_slope(u: Tensor) -> Tensor:
    """``u``, detached where it is subnormal, since 1/u, the slope of ln u, overflows at subnormal u."""
    return torch.where(u < torch.finfo(u.dtype).tiny, u.detach(), u)


def _weighted_sum(values: Tensor, measure: list[Tensor], axis: int) -> Tensor:
    """Σ w·values over ``axis``, which stays with size 1; ``measure`` holds w, or is empty for w = 1."""
    for weight in measure:
        values = values * weight
    return values.sum(axis, keepdim=True)


def _index(index: float | int | Tensor, like: Tensor) -> Tensor:
    """α or β as a tensor in the dtype of ``like``; a number becomes a 0-d tensor on the device of ``like``."""
    if isinstance(index, Tensor):
        return index.to(like.dtype)
    if not -math.inf < index < math.inf:
        raise ValueError(f"the index must be finite; got {index}. Pass a finite number, e.g. 1.5.")
    return torch.full((), float(index), dtype=like.dtype, device=like.device)


def _distance_from_one(index: float | int | Tensor, like: Tensor) -> Tensor:
    """1 − index, subtracted before rounding to the dtype of ``like``."""
    if isinstance(index, Tensor):
        return (1 - index.to(wide_dtype(index.dtype))).to(like.dtype)
    return _index(1 - index, like)


def _axis(p: Tensor, dim: int, index: float | int | Tensor) -> int:
    """``dim`` as a negative number, valid also after broadcasting; refuses an index that varies along ``dim``."""
    axis = dim if dim < 0 else dim - p.ndim
    if isinstance(index, Tensor) and index.ndim >= -axis and index.shape[axis] != 1:
        shape = tuple(index.shape)
        raise ValueError(
            f"the index must be constant along dim {dim}; got shape {shape}. Pass a tensor with size 1 there."
        )
    return axis
