r"""One integral behind the incomplete beta and gamma functions, by double-exponential quadrature.

.. math:: \int \Big(\frac{1-e^{-cy}}{c}\Big)^{a-1} e^{-y}\,dy = \int e^{h}\,d\ln y, \qquad
          h(y) = a\ln y + (a-1)\ln\frac{1-e^{-cy}}{cy} - y

from 0 to y, or from y to ∞. With x = 1 − e^{−cy} it is the incomplete beta integral for b = 1/c; c = 0 gives the
incomplete gamma integral; c < 0 belongs to the Student-t and F families. It is smooth in c through 0, so one rule
serves them all: 53 nodes for every a and c, no iteration and no test of convergence. The side of the mode on which y
lies decides which of the two integrals is computed; the other is its complement.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._eager import is_one_node
from contmax._vmapped import Places, batch_first
from contmax.deformed import expm1_over, mean_u_exp

_Function = Callable[[Tensor, Tensor], Tensor]

_STEP, _FIRST, _COUNT = 0.15, -3.6, 53
# Beyond these the integrand is zero in float64, and exponentials of its parts would overflow.
_Y_MAX, _EXPONENT_MAX = 1e8, 600.0
# A temporary holds at most this many numbers, to stay in the cache, or one node for each point.
_BLOCK = 1 << 17
_SERIES_MAX, _SMALLEST = 0.05, 1e-300


def log_mass(y: Tensor, a: float, c: Tensor) -> Tensor:
    """h(y), the logarithm of the integrand in ln y."""
    return a * torch.log(y) + (a - 1) * log_ratio(y, c) - y


def log_ratio(y: Tensor, c: Tensor) -> Tensor:
    """ln (1−e^{−x})/x with x = cy; no sign of c makes it overflow, and its derivatives are right at x = 0."""
    x = c * y
    near = x.abs() < _SERIES_MAX
    small = torch.where(near, x, 0.0)
    square = small * small
    series = square * (1 / 24 - square * (1 / 2880 - square * (1 / 181440 - square / 9676800))) - 0.5 * small
    size = torch.where(near, 1.0, x.abs())
    return torch.where(near, series, torch.log(-torch.expm1(-size) / size) - x.clamp(max=0))


def _log_ratio_value(y: Tensor, c: Tensor) -> Tensor:
    """The value of :func:`log_ratio` at half its cost; its derivatives at x = 0 are not right."""
    x = c * y
    size = x.abs() + _SMALLEST
    return torch.log(torch.expm1(-size) / -size) - x.clamp(max=0)


def log_ratio_slope(y: Tensor, c: Tensor) -> Tensor:
    """d/dc of :func:`log_ratio`."""
    return -y * mean_u_exp(-c * y) / expm1_over(-c * y)


class Tail:
    """The smaller of the two integrals that end at y: which it is, and nodes that resolve it.

    Args:
        y: end of the interval, y > 0, float64.
        a: exponent a > 0.
        c: curvature c, with c(a−1) > −1.
    """

    def __init__(self, y: Tensor, a: float, c: Tensor) -> None:
        # The value of an integral does not depend on its nodes: derivatives never pass through their placement.
        y, c = y.detach(), c.detach()
        x = (c * y).clamp(-_EXPONENT_MAX, _EXPONENT_MAX)
        ratio = torch.where(x == 0, 1.0, x / torch.expm1(x))
        slope = 1 + (a - 1) * ratio - y
        bend = (y - (a - 1) * ratio * (1 - x - ratio)).abs().sqrt()
        self.is_lower = slope > 0
        # The width of the integrand near its end; to the left the decay settles at rate a, however fast it began.
        rate = torch.maximum(slope.abs(), bend)
        self.width = 1 / torch.where(self.is_lower, rate.clamp(max=a), rate)
        # Where c < 0 the parts of the integrand overflow long after it has vanished: no node lies beyond that.
        last = torch.where(c < 0, _EXPONENT_MAX / c.abs().clamp(min=_EXPONENT_MAX / _Y_MAX), _Y_MAX)
        self.reach = torch.where(self.is_lower, _Y_MAX, (last / y - 1).clamp(0, _Y_MAX))

    def integral(
        self, y: Tensor, a: float, c: Tensor, ratio: _Function = log_ratio, factor: _Function | None = None
    ) -> Tensor:
        """∫ factor·e^{h − h(y)} d ln y over the tail, differentiable in y and c.

        Args:
            y: end of the interval.
            a: exponent.
            c: curvature.
            ratio: how to compute :func:`log_ratio`.
            factor: a function of node and c to weigh the integrand with; 1 by default.
        """
        shape = torch.broadcast_shapes(y.shape, c.shape)
        block = _COUNT if torch.compiler.is_compiling() else max(1, min(_COUNT, _BLOCK // max(1, shape.numel())))
        total = torch.zeros((), dtype=y.dtype, device=y.device)
        y, c, lower, width, reach = (part.unsqueeze(-1) for part in (y, c, self.is_lower, self.width, self.reach))
        end = (a - 1) * ratio(y, c) - y
        for first in range(0, _COUNT, block):
            nodes, weights = _rule(first, min(first + block, _COUNT), y)
            offset = torch.minimum(width * nodes, reach)
            ahead = 1 + offset
            log_step = torch.where(lower, -offset, torch.log(ahead))
            at = y * torch.where(lower, torch.exp(-offset), ahead)
            mass = weights * torch.exp(a * log_step + (a - 1) * ratio(at, c) - at - end)
            if factor is not None:
                mass = mass * factor(at, c)
            total = total + torch.where(lower, mass, mass / ahead).sum(-1)
        return self.width * total


def _rule(first: int, last: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of ∫₀^∞ f(w) dw by the trapezoidal rule in z, w = exp(z − e^{−z})."""
    z = _FIRST + _STEP * torch.arange(first, last, dtype=like.dtype, device=like.device)
    back = torch.exp(-z)
    nodes = torch.exp(z - back)
    return nodes, _STEP * nodes * (1 + back)


def half_line_shares(y: Tensor, a: float, c: Tensor, log_total: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of the integral below and above y, each accurate where it is the smaller one.

    Args:
        y: where to cut, y > 0, float64.
        a: exponent a > 0.
        c: curvature c, with c(a−1) > −1.
        log_total: logarithm of the integral from 0 to ∞.

    Returns:
        Two tensors that sum to one; differentiable to any order in y and c, if ``log_total`` is the function of c that
        it claims to be.
    """
    if a == 1:
        # The integrand is e^{−y} whatever c is, and its integral is one: so it is on every plane.
        y = y.expand(torch.broadcast_shapes(y.shape, c.shape, log_total.shape))
        above = torch.exp(-y)
        # The slope of expm1 is torch's expm1 + 1, which has no digits left where it is small.
        return torch.where(y > 0.5, 1 - above, -torch.expm1(-y)), above
    y, c, log_total = torch.broadcast_tensors(y, c, log_total)
    lower, upper = apply(_Shares, y, a, c, log_total)
    return lower, upper


class _Shares(torch.autograd.Function):
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
    """The shares without derivatives, of tensors of one shape."""
    tail = Tail(y, a, c)
    share = torch.exp(log_mass(y, a, c) - log_total) * tail.integral(y, a, c, _log_ratio_value)
    return torch.where(tail.is_lower, share, 1 - share), torch.where(tail.is_lower, 1 - share, share)


@torch.library.custom_op("contmax::half_line_shares", mutates_args=())
def _shares_op(y: Tensor, a: float, c: Tensor, log_total: Tensor) -> tuple[Tensor, Tensor]:
    """`_shares` as one opaque node."""
    lower, upper = _shares(y, a, c, log_total)
    return lower.contiguous(), upper.contiguous()


@_shares_op.register_fake
def _(y: Tensor, a: float, c: Tensor, log_total: Tensor) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty(y.shape)


@_shares_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    return _shares_op(*batch_first(info, in_dims, arguments)), (0, 0)


def _slopes(
    wanted: tuple[bool, ...], a: float, y: Tensor, c: Tensor, log_total: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor | None, ...]:
    """Derivatives of the lower share in y, c and ``log_total``, none in a: in c, an integral over the same tail."""
    end = torch.exp(log_mass(y, a, c) - log_total)
    in_y = end / y if wanted[0] else None
    if not any(wanted[1:]):
        return in_y, None, None, None
    tail = Tail(y, a, c)
    scale = torch.where(tail.is_lower, end, -end)
    in_c = scale * (a - 1) * tail.integral(y, a, c, factor=log_ratio_slope) if wanted[2] else None
    return in_y, None, in_c, torch.where(tail.is_lower, -lower, upper) if wanted[3] else None
