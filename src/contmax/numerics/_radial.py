r"""The law of the radius of the standard β-Gaussian, for every α at once.

The standard β-Gaussian has density ∝ :math:`[1-\varepsilon u]_+^{1/\varepsilon}` with u = r²/2 and ε = α − 1: the
normal law at ε = 0. In the coordinate :math:`y = -\frac\alpha\varepsilon\,\mathrm{log1p}(-\varepsilon u)`, which
stretches any support to a half line, the law of the radius is the half-line integral with a = N/2 and c = ε/α. Hence

.. math:: P(r) = I_{\varepsilon r^2/2}(\tfrac N2, k+1) \quad (\varepsilon > 0), \qquad
          P(r) = \gamma(\tfrac N2, \tfrac{r^2}2)/\Gamma(\tfrac N2) \quad (\varepsilon = 0)

and a law of the F family for ε < 0, all smooth in ε.
"""

import math
from typing import Any

import torch
from torch import Tensor

from contmax._eager import is_one_node
from contmax._typing import Float
from contmax._vmapped import Places, batch_first
from contmax.deformed import expm1_over, log1p_over
from contmax.numerics._gamma_ratio import log_gamma_ratio
from contmax.numerics._half_line import half_line_shares, log_ratio
from contmax.numerics._root import implicit_root

# Below this radius (in units of the smaller of the bulk and the support) the law is a polynomial to the last digit.
_CENTRE = 0.02
_Y_MIN, _Y_MAX, _RADIUS_MAX = 1e-300, 700.0, 1e150
_NEWTON_STEPS = 4


def radial_shares(
    radius: Float[Tensor, "..."], gap: Float[Tensor, "..."], dim: int, *, log_gamma: Tensor | None = None
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""P(‖t‖ ≤ r) and P(‖t‖ > r) for the standard β-Gaussian in N dimensions.

    Args:
        radius: r ≥ 0, float64.
        gap: ε = α − 1 > −2/(N+2), float64.
        dim: N.
        log_gamma: ``log_gamma_ratio(gap, dim)``, where it is known already.

    Returns:
        Two tensors of the broadcast shape that sum to one, each accurate where it is the smaller; differentiable in
        the radius and in ε, through ε = 0 and at r = 0. Outside the support 1 and 0 with zero gradient.

    Example:
        >>> inner, outer = radial_shares(torch.tensor(1.0).double(), torch.tensor(0.0).double(), dim=1)
        >>> round(inner.item(), 4)
        0.6827
    """
    log_gamma = log_gamma_ratio(gap, dim) if log_gamma is None else log_gamma
    radius, gap = torch.broadcast_tensors(radius.clamp(max=_RADIUS_MAX), gap)
    u = 0.5 * radius.square()
    outside = gap * u >= 1
    centre = radius < _CENTRE / (1 + gap.abs()).sqrt()
    alpha = 1 + gap
    y = alpha * torch.where(outside | centre, 0.5, u) * log1p_over(-gap * torch.where(outside | centre, 0.0, u))
    outside = outside | (y > _Y_MAX)
    y = torch.where(outside, 1.0, y)
    log_total = math.lgamma(dim / 2) - log_gamma + dim / 2 * torch.log1p(gap)
    inner, outer = half_line_shares(y, dim / 2, gap / alpha, log_total)
    core = _central_share(torch.where(centre, radius, 0.0), gap, dim, _log_height(log_gamma, dim))
    inner = torch.where(centre, core, torch.where(outside, 1.0, inner))
    outer = torch.where(centre, 1 - core, torch.where(outside, 0.0, outer))
    return inner, outer


def radial_density(
    radius: Float[Tensor, "..."], gap: Float[Tensor, "..."], dim: int, *, log_gamma: Tensor | None = None
) -> Float[Tensor, "..."]:
    r"""Density of the radius, :math:`\propto r^{N-1}[1-\varepsilon r^2/2]_+^{1/\varepsilon}`.

    Arguments as :func:`radial_shares`.
    """
    log_gamma = log_gamma_ratio(gap, dim) if log_gamma is None else log_gamma
    u = 0.5 * radius.square()
    outside = gap * u >= 1
    inner = torch.where(outside, 0.0, u)
    power = radius ** (dim - 1) if dim > 1 else torch.ones_like(radius)
    log_profile = _log_height(log_gamma, dim) - inner * log1p_over(-gap * inner)
    return torch.where(outside, 0.0, power * torch.exp(log_profile))


def radial_quantile(tail: Float[Tensor, "..."], gap: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    r"""The radius beyond which lies a given share of the standard β-Gaussian on the line.

    Args:
        tail: P(|t| > r) in (0, 1], float64.
        gap: ε = α − 1 > −2/3, float64.

    Returns:
        r, differentiable in both.

    Example:
        >>> round(radial_quantile(torch.tensor(0.05).double(), torch.tensor(0.0).double()).item(), 4)
        1.96
    """
    log_gamma = log_gamma_ratio(gap, 1)
    tail, gap = torch.broadcast_tensors(tail, gap)
    with torch.no_grad():
        known = (tail.detach(), gap.detach(), log_gamma.detach())
        if is_one_node(tail):
            start = _quantile_op(*torch.broadcast_tensors(*known))
        else:
            start = _quantile_without_gradient(*known)

    def residual(radius: Tensor) -> tuple[Tensor, Tensor]:
        slope = radial_density(radius, gap, 1, log_gamma=log_gamma)
        outer = radial_shares(radius, gap, 1, log_gamma=log_gamma)[1]
        # A quantile that rounds to the edge of the support, where the density is zero, stays there.
        return tail - outer, torch.where(slope > 0, slope, math.inf)

    return implicit_root(start, residual)


def _quantile_without_gradient(tail: Tensor, gap: Tensor, log_gamma: Tensor) -> Tensor:
    """Newton's method on ln P(|t| > r) in ξ = √(2y): there the law of every α looks like the normal one."""
    alpha = 1 + gap
    log_total = 0.5 * math.log(math.pi) - log_gamma + 0.5 * torch.log1p(gap)
    goal = torch.log(tail)
    xi = -torch.special.ndtri(0.5 * tail)
    for _ in range(_NEWTON_STEPS):
        y = (0.5 * xi.square()).clamp(_Y_MIN, _Y_MAX)
        outer = half_line_shares(y, 0.5, gap / alpha, log_total)[1].clamp(min=_Y_MIN)
        log_height = -0.5 * log_ratio(y, gap / alpha) - y - log_total + 0.5 * math.log(2)
        xi = (xi + (torch.log(outer) - goal) * outer / torch.exp(log_height)).clamp(min=0)
    y = 0.5 * xi.square() / alpha
    return torch.sqrt(2 * y * expm1_over(-gap * y))


@torch.library.custom_op("contmax::radial_quantile", mutates_args=())
def _quantile_op(tail: Tensor, gap: Tensor, log_gamma: Tensor) -> Tensor:
    """`_quantile_without_gradient` of tensors of one shape, as one opaque node."""
    return _quantile_without_gradient(tail, gap, log_gamma).contiguous()


@_quantile_op.register_fake
def _(tail: Tensor, gap: Tensor, log_gamma: Tensor) -> Tensor:
    return tail.new_empty(tail.shape)


@_quantile_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    return _quantile_op(*batch_first(info, in_dims, arguments)), 0


def _log_height(log_gamma: Tensor, dim: int) -> Tensor:
    """ln of the constant in the density of the radius."""
    return log_gamma - math.lgamma(dim / 2) - (dim / 2 - 1) * math.log(2)


def _central_share(radius: Tensor, gap: Tensor, dim: int, log_height: Tensor) -> Tensor:
    """P(‖t‖ ≤ r) for small r, from the binomial series of the profile."""
    u = 0.5 * radius.square()
    term = radius**dim * torch.exp(log_height)
    total = term / dim
    for j in range(4):
        term = term * u * (j * gap - 1) / (j + 1)
        total = total + term / (dim + 2 * j + 2)
    return total
