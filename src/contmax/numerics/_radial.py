r"""The normaliser of the standard β-Gaussian and the law of its radius, by formulas valid for every α, also α = 1.

The standard β-Gaussian in N dimensions has density ∝ :math:`[1-\varepsilon u]_+^{1/\varepsilon}`, u = r²/2, ε = α − 1:
normal at ε = 0. The coordinate :math:`y = -\frac\alpha\varepsilon\,\mathrm{log1p}(-\varepsilon u)` maps any support
to a half line, on which the law of the radius is an integral from 0 to y, or from y to ∞, of

.. math:: \int \Big(\frac{1-e^{-cy}}{c}\Big)^{a-1} e^{-y}\,dy = \int e^{h}\,d\ln y, \qquad
          h(y) = a\ln y + (a-1)\ln\frac{1-e^{-cy}}{cy} - y, \qquad a = \tfrac N2, \quad c = \tfrac\varepsilon\alpha

With x = 1 − e^{−cy} this is the incomplete beta integral with parameters a and b = 1/c. c = 0 gives the incomplete
gamma integral, c < 0 the Student-t and F families. The integral is smooth in c through 0, so one double-exponential
rule serves all families: 53 nodes for every a and c, no iteration and no test of convergence. If y is below the mode of
e^h, the integral from 0 to y is computed, else that from y to ∞; the other is the total minus the computed one.

With ε = α − 1 and k = 1/ε the normaliser of a β-Gaussian in N dimensions needs

.. math:: G_N(\varepsilon) = \ln\Gamma(k+1+\tfrac N2) - \ln\Gamma(k+1) - \tfrac N2 \ln k   \qquad (\varepsilon > 0)

and, for ε < 0 with κ = −k, :math:`\ln\Gamma(\kappa) - \ln\Gamma(\kappa-\tfrac N2) - \tfrac N2\ln\kappa`. Together
they define one smooth function with G(0) = 0. Subtracting log-gammas would lose digits for large k. Instead, N/2 is
divided into steps of one, for each of which Γ(x+1) = xΓ(x) adds a logarithm, and, if N is odd, a step of one half, for
which a short series in a shifted argument is used.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._eager import is_one_node
from contmax._operator import operator
from contmax._smooth import polynomial
from contmax._typing import Float
from contmax.deformed import expm1_over, log1p_over, mean_u_exp
from contmax.numerics._solvers import implicit_root

_Function = Callable[[Tensor, Tensor], Tensor]
Scalar = TypeVar("Scalar", bound=float | Tensor)

# ln Γ(w+¾)/Γ(w+¼) = ½ ln w + Σ cⱼ w⁻²ʲ with cⱼ = (−1)ʲ⁺¹ |E₂ⱼ| / (j 4²ʲ⁺¹), E the Euler numbers. With w shifted up by
# _SHIFT, the first neglected term is below 2e-16.
_SHIFT = 8
_EULER = (1, 5, 61, 1385, 50521, 2702765, 199360981)
_HALF_STEP = tuple((-1) ** j * euler / ((j + 1) * 4 ** (2 * j + 3)) for j, euler in enumerate(_EULER))
_HALF_STEP_SLOPE = tuple(2 * j * coefficient for j, coefficient in enumerate(_HALF_STEP, 1))

# Below the radius _CENTRE/√(1+|ε|) a few terms of a power series give the law to the last digit.
_CENTRE = 0.02
_TAIL_MIN, _TAIL_Y_MAX, _RADIUS_MAX = 1e-300, 700.0, 1e150
_NEWTON_STEPS = 4
# The double-exponential rule: step and first value of z in `_rule`, and the number of nodes.
_STEP, _FIRST, _COUNT = 0.15, -3.6, 53
# Largest y and |cy|: beyond them the integrand is zero in float64, but some of its factors overflow.
_Y_MAX, _EXPONENT_MAX = 1e8, 600.0
# Number of elements of a temporary tensor that fits in the CPU cache. The sum over nodes runs in blocks of nodes, whose
# tensors have at most this number of elements; a block has at least one node.
_BLOCK = 1 << 17
_SERIES_MAX = 0.05


def radial_shares(
    radius: Float[Tensor, "..."], gap: Float[Tensor, "..."], dim: int, *, log_gamma: Tensor | None = None
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """P(‖t‖ ≤ r) and P(‖t‖ > r) for the standard β-Gaussian in N dimensions.

    The two probabilities sum to one, and the smaller one has full relative accuracy. Both are differentiable in r and
    ε, also at ε = 0 and r = 0. For r outside the support they are 1 and 0 with zero gradient.

    Args:
        radius: r ≥ 0, float64.
        gap: ε = α − 1 > −2/(N+2), float64.
        dim: N.
        log_gamma: ``log_gamma_ratio(gap, dim)``, if already computed.

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
    outside = outside | (y > _TAIL_Y_MAX)
    y = torch.where(outside, 1.0, y)
    log_total = math.lgamma(dim / 2) - log_gamma + dim / 2 * torch.log1p(gap)
    inner, outer = _half_line_shares(y, dim / 2, gap / alpha, log_total)
    core = _central_share(torch.where(centre, radius, 0.0), gap, dim, _log_height(log_gamma, dim))
    inner = torch.where(centre, core, torch.where(outside, 1.0, inner))
    outer = torch.where(centre, 1 - core, torch.where(outside, 0.0, outer))
    return inner, outer


def radial_density(
    radius: Float[Tensor, "..."], gap: Float[Tensor, "..."], dim: int, *, log_gamma: Tensor | None = None
) -> Float[Tensor, "..."]:
    r"""Density of the radius, :math:`\propto r^{N-1}[1-\varepsilon r^2/2]_+^{1/\varepsilon}`; see `radial_shares`."""
    log_gamma = log_gamma_ratio(gap, dim) if log_gamma is None else log_gamma
    u = 0.5 * radius.square()
    outside = gap * u >= 1
    inner = torch.where(outside, 0.0, u)
    power = radius ** (dim - 1) if dim > 1 else torch.ones_like(radius)
    log_profile = _log_height(log_gamma, dim) - inner * log1p_over(-gap * inner)
    return torch.where(outside, 0.0, power * torch.exp(log_profile))


def radial_quantile(tail: Float[Tensor, "..."], gap: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The radius r with P(|t| > r) ∈ (0, 1] equal to ``tail`` for the standard β-Gaussian on the line, ε > −2/3.

    Example:
        >>> round(radial_quantile(torch.tensor(0.05).double(), torch.tensor(0.0).double()).item(), 4)
        1.96
    """
    log_gamma = log_gamma_ratio(gap, 1)
    tail, gap = torch.broadcast_tensors(tail, gap)
    with torch.no_grad():
        start = _quantile_without_gradient(tail.detach(), gap.detach(), log_gamma.detach())

    def residual(radius: Tensor) -> tuple[Tensor, Tensor]:
        outer = radial_shares(radius, gap, 1, log_gamma=log_gamma)[1]
        return tail - outer, radial_density(radius, gap, 1, log_gamma=log_gamma)

    return implicit_root(start, residual)


def _quantile_without_gradient(tail: Tensor, gap: Tensor, log_gamma: Tensor) -> Tensor:
    """The r of :func:`radial_quantile`, by Newton's method for ln P(|t| > r) as a function of ξ = √(2y).

    y is the coordinate of the module docstring. As a function of ξ, the law of every α is close to the normal law.
    """
    alpha = 1 + gap
    log_total = 0.5 * math.log(math.pi) - log_gamma + 0.5 * torch.log1p(gap)
    goal = torch.log(tail)
    xi = -torch.special.ndtri(0.5 * tail)
    for _ in range(_NEWTON_STEPS):
        y = (0.5 * xi.square()).clamp(_TAIL_MIN, _TAIL_Y_MAX)
        outer = _half_line_shares(y, 0.5, gap / alpha, log_total)[1].clamp(min=_TAIL_MIN)
        log_height = -0.5 * _log_ratio(y, gap / alpha) - y - log_total + 0.5 * math.log(2)
        xi = (xi + (torch.log(outer) - goal) * outer / torch.exp(log_height)).clamp(min=0)
    y = 0.5 * xi.square() / alpha
    return torch.sqrt(2 * y * expm1_over(-gap * y))


def _log_height(log_gamma: Tensor, dim: int) -> Tensor:
    """ln of the constant factor of :func:`radial_density`."""
    return log_gamma - math.lgamma(dim / 2) - (dim / 2 - 1) * math.log(2)


def _central_share(radius: Tensor, gap: Tensor, dim: int, log_height: Tensor) -> Tensor:
    """P(‖t‖ ≤ r) for small r, from the binomial series of (1 − εu)^{1/ε}."""
    u = 0.5 * radius.square()
    term = radius**dim * torch.exp(log_height)
    total = term / dim
    for j in range(4):
        term = term * u * (j * gap - 1) / (j + 1)
        total = total + term / (dim + 2 * j + 2)
    return total


def _log_mass(y: Tensor, a: float, c: Tensor) -> Tensor:
    """h(y), the logarithm of the integrand in ln y."""
    return a * torch.log(y) + (a - 1) * _log_ratio(y, c) - y


def _log_ratio(y: Tensor, c: Tensor) -> Tensor:
    """ln((1−e^{−x})/x) with x = cy, without overflow for either sign of c, and with correct derivatives at x = 0."""
    x = c * y
    near = x.abs() < _SERIES_MAX
    small = torch.where(near, x, 0.0)
    square = small * small
    series = square * (1 / 24 - square * (1 / 2880 - square * (1 / 181440 - square / 9676800))) - 0.5 * small
    size = torch.where(near, 1.0, x.abs())
    return torch.where(near, series, torch.log(-torch.expm1(-size) / size) - x.clamp(max=0))


def _log_ratio_value(y: Tensor, c: Tensor) -> Tensor:
    """The value of :func:`_log_ratio` in two thirds of the time, but with wrong derivatives at x = 0."""
    x = c * y
    size = x.abs() + _TAIL_MIN
    return torch.log(torch.expm1(-size) / -size) - x.clamp(max=0)


def _smaller_tail(
    y: Tensor, a: float, c: Tensor, ratio: _Function = _log_ratio, factor: _Function | None = None
) -> tuple[Tensor, Tensor]:
    """Whether y lies below the mode of e^h, and ∫ factor·e^{h(z) − h(y)} d ln z over z < y if so, over z > y if not.

    The tail over which the integral runs does not contain the mode; it is called the smaller tail.
    ``ratio`` is :func:`_log_ratio` or its faster variant; ``factor`` is a function of (z, c), None for 1. The integral
    is differentiable in y > 0 and in c with c(a−1) > −1.
    """
    is_lower, width, reach = _extent(y.detach(), a, c.detach())
    shape = torch.broadcast_shapes(y.shape, c.shape)
    block = _COUNT if torch.compiler.is_compiling() else max(1, min(_COUNT, _BLOCK // max(1, shape.numel())))
    total = torch.zeros((), dtype=y.dtype, device=y.device)
    y, c, lower, scale, reach = (part.unsqueeze(-1) for part in (y, c, is_lower, width, reach))
    end = (a - 1) * ratio(y, c) - y
    for first in range(0, _COUNT, block):
        nodes, weights = _rule(first, min(first + block, _COUNT), y)
        offset = torch.minimum(scale * nodes, reach)
        ahead = 1 + offset
        log_step = torch.where(lower, -offset, torch.log(ahead))
        at = y * torch.where(lower, torch.exp(-offset), ahead)
        mass = weights * torch.exp(a * log_step + (a - 1) * ratio(at, c) - at - end)
        mass = mass if factor is None else mass * factor(at, c)
        total = total + torch.where(lower, mass, mass / ahead).sum(-1)
    return is_lower, width * total


def _extent(y: Tensor, a: float, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether y lies below the mode of e^h, the width of e^h near y, and the largest distance of a node from y.

    The distance is ln(y/node) for nodes below y, and node/y − 1 for nodes above y. The results need no gradient,
    because the integral does not depend on the choice of nodes.
    """
    x = (c * y).clamp(-_EXPONENT_MAX, _EXPONENT_MAX)
    ratio = torch.where(x == 0, 1.0, x / torch.expm1(x))
    slope = 1 + (a - 1) * ratio - y
    bend = (y - (a - 1) * ratio * (1 - x - ratio)).abs().sqrt()
    is_lower = slope > 0
    rate = torch.maximum(slope.abs(), bend)
    # For nodes below y, bound the rate by a, the rate at which the integrand decays in ln y as y → 0.
    width = 1 / torch.where(is_lower, rate.clamp(max=a), rate)
    # For c < 0 no node lies beyond |cy| = _EXPONENT_MAX, where the integrand is zero, but its factors overflow.
    last = torch.where(c < 0, _EXPONENT_MAX / c.abs().clamp(min=_EXPONENT_MAX / _Y_MAX), _Y_MAX)
    return is_lower, width, torch.where(is_lower, _Y_MAX, (last / y - 1).clamp(0, _Y_MAX))


def _rule(first: int, last: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes w and weights ``first`` to ``last − 1`` for ∫₀^∞ f(w) dw: trapezoidal rule in z, w = exp(z − e^{−z})."""
    z = _FIRST + _STEP * torch.arange(first, last, dtype=like.dtype, device=like.device)
    back = torch.exp(-z)
    nodes = torch.exp(z - back)
    return nodes, _STEP * nodes * (1 + back)


def _half_line_shares(y: Tensor, a: float, c: Tensor, log_total: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of ∫e^h d ln z over z < y and over z > y, for y > 0; the smaller has full relative accuracy.

    ``log_total`` is the logarithm of the integral from 0 to ∞; if it is differentiable in c, the shares are
    differentiable to any order in y and c.
    """
    if a == 1:
        # In the plane (N = 2) the integrand in y is e^{−y} for every c, and its integral from 0 to ∞ is one.
        y = y.expand(torch.broadcast_shapes(y.shape, c.shape, log_total.shape))
        above = torch.exp(-y)
        # Avoid expm1(−y) for large y: torch computes its derivative as expm1(−y) + 1, which has no digits left there.
        return torch.where(y > 0.5, 1 - above, -torch.expm1(-y)), above
    y, c, log_total = torch.broadcast_tensors(y, c, log_total)
    lower, upper = apply(_Shares, y, a, c, log_total)
    return lower, upper


class _Shares(torch.autograd.Function):
    """:func:`_half_line_shares` for a ≠ 1, with derivatives by :func:`_slopes`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, a: float, c: Tensor, log_total: Tensor) -> tuple[Tensor, Tensor]:
        return _shares_op(y, a, c, log_total) if is_one_node(y) else _shares(y, a, c, log_total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        y, ctx.exponent, c, log_total = inputs
        ctx.save_for_backward(y, c, log_total, *output)
        ctx.save_for_forward(y, c, log_total, *output)

    @staticmethod
    def backward(ctx: Any, grad_lower: Tensor, grad_upper: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad_lower - grad_upper
        slopes = _slopes(ctx.needs_input_grad, ctx.exponent, *ctx.saved_tensors)
        return tuple(None if slope is None else grad * slope for slope in slopes)

    @staticmethod
    def tangent(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        slopes = _slopes(tuple(tangent is not None for tangent in tangents), ctx.exponent, *ctx.saved_tensors)
        terms = [s * t for s, t in zip(slopes, tangents, strict=True) if s is not None and t is not None]
        change = torch.stack(terms).sum(0)
        return change, -change


def _shares(y: Tensor, a: float, c: Tensor, log_total: Tensor) -> tuple[Tensor, Tensor]:
    """The two shares of :func:`_half_line_shares` without derivatives, for tensors of equal shape."""
    is_lower, integral = _smaller_tail(y, a, c, _log_ratio_value)
    share = torch.exp(_log_mass(y, a, c) - log_total) * integral
    return torch.where(is_lower, share, 1 - share), torch.where(is_lower, 1 - share, share)


_shares_op = operator("half_line_shares", like=lambda y, a, c, log_total: (torch.empty_like(y), torch.empty_like(y)))(
    _shares
)


def _slopes(
    wanted: tuple[bool, ...], a: float, y: Tensor, c: Tensor, log_total: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor | None, ...]:
    """Derivatives of the lower share in y, a, c and ``log_total``; None in a, and for inputs not ``wanted``."""
    end = torch.exp(_log_mass(y, a, c) - log_total)
    in_y = end / y if wanted[0] else None
    if not any(wanted[1:]):
        return in_y, None, None, None
    # The factor is the derivative of `_log_ratio` in c.
    is_lower, integral = _smaller_tail(y, a, c, factor=lambda y, c: -y * mean_u_exp(-c * y) / expm1_over(-c * y))
    in_c = torch.where(is_lower, end, -end) * (a - 1) * integral
    return in_y, None, in_c, torch.where(is_lower, -lower, upper)


def log_gamma_ratio(gap: Scalar, dim: int) -> Scalar:
    """G_N(ε) for a finite ε = α − 1 > −2/N, a number or a float64 tensor; differentiable to any order, also at ε = 0.

    Example:
        >>> log_gamma_ratio(1.0, dim=2) == math.log(2)
        True
    """
    start: Any = _half_step(gap) if dim % 2 else gap * 0.0
    value: Scalar = start + sum([log1p(step * gap) for step in _whole_steps(dim)])
    return value


def log_gamma_ratio_slope(gap: Scalar, dim: int) -> Scalar:
    r"""Derivative of :func:`log_gamma_ratio`, :math:`G_N' = k[\tfrac N2 - k(\psi(k+1+\tfrac N2) - \psi(k+1))]`.

    Example:
        >>> log_gamma_ratio_slope(0.0, dim=2)
        1.0
    """
    start: Any = _half_step_slope(gap) if dim % 2 else gap * 0.0
    slope: Scalar = start + sum([step / (1 + step * gap) for step in _whole_steps(dim)])
    return slope


def _whole_steps(dim: int) -> list[float]:
    """The steps j with Γ(k+1+N/2)/Γ(k+1) = ∏(k+j) for even N, and Γ(k+1+N/2)/Γ(k+3/2) = ∏(k+j) for odd N."""
    return [step + dim % 2 / 2 for step in range(1, dim // 2 + 1)]


def _half_step(gap: Any) -> Any:
    """G₁(ε): the series at |1/ε| shifted up by `_SHIFT`, away from the poles of Γ, minus a logarithm for each step."""
    sign = _sign(gap)
    size = sign * gap
    offset = _SHIFT + 0.75 * sign
    inverse = size / (1 + offset * size)
    square = inverse * inverse
    value = square * polynomial(square, _HALF_STEP) + 0.5 * log1p(offset * size)
    return value - sign * _over_the_shift(
        lambda j, sign, size: log1p(0.5 * sign * size / (1 + (j - (1 - sign) / 2) * size)), sign, size
    )


def _half_step_slope(gap: Any) -> Any:
    """dG₁/dε, the derivative of each term of :func:`_half_step`."""
    sign = _sign(gap)
    size = sign * gap
    offset = _SHIFT + 0.75 * sign
    scale = 1 / (1 + offset * size)
    inverse = size * scale
    series = polynomial(inverse * inverse, _HALF_STEP_SLOPE)
    slope = series * inverse * scale * scale + 0.5 * offset * scale
    return sign * slope - sign * _over_the_shift(
        lambda j, sign, size: 0.5 / ((1 + (j - (1 - sign) / 2) * size) * (1 + (j + sign - 0.5) * size)), sign, size
    )


def _over_the_shift(term: Callable[..., Any], sign: Any, size: Any) -> Any:
    """Σⱼ term(j, sign, size) over the steps j = 1 … 8 of the shift; vectorised over j for tensors."""
    if not isinstance(size, Tensor):
        return sum(term(j, sign, size) for j in range(1, _SHIFT + 1))
    steps = torch.arange(1, _SHIFT + 1, dtype=size.dtype, device=size.device)
    return term(steps, sign.unsqueeze(-1), size.unsqueeze(-1)).sum(-1)


def log1p(x: float | Tensor) -> float | Tensor:
    """ln(1 + x) of a number or a tensor."""
    return torch.log1p(x) if isinstance(x, Tensor) else math.log1p(x)


def _sign(x: Any) -> Any:
    """The sign of x, but +1 at zero, so that |x| = sign·x has the derivative 1 there."""
    if isinstance(x, Tensor):
        return torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    return -1.0 if x < 0 else 1.0
