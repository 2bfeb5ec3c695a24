r"""β-Gaussians against Gaussian bases on the line, by Gauss–Legendre rules on windows.

With t = μ + a y and k = 1/(α−1), every α > 1 is one integral over the support [−1, 1],

    r_j = C_k ∫ (1 − y²)ᵏ N(μ + a y; μ_j, σ_j²) dy,      C_k = Γ(k + 3/2)/(√π Γ(k + 1)),

of positive terms. The printed erf forms expand it into large terms of both signs and lose all digits in float32. The
rule puts its nodes where the integrand is: the window around the point of the support nearest to the basis function
in which the Gaussian exponent falls by c²/2, or for k ≥ 5, where the density itself is narrow, around the peak of the
product. Nodes are placed in units of the narrower of the two, measured from the ends of the support.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax.numerics import graded_rule, log_gamma_ratio, log_gamma_ratio_slope, unit_gauss_legendre

# From here on the density is narrower than its support by so much that the product decides where the mass is.
_NARROW = 5.0


class Nodes(NamedTuple):
    """Where the integrand is looked at, each (*batch, K, q) but for `factor` and `narrow`, (*batch, K)."""

    y: Tensor  # position in the support, in [−1, 1]
    room: Tensor  # 1 − y², from the distances to the ends
    z: Tensor  # position in the basis function, (t − μ_j)/σ_j
    weights: Tensor  # of the rule on [0, 1], (q,) or (*batch, 1, q)
    factor: Tensor  # length of the window over √(2π) σ_j, in units of the support
    narrow: Tensor  # whether the density is the narrower of the two


def windowed_expectation(loc: Tensor, half: Tensor, k: float | Tensor, centre: Tensor, width: Tensor) -> Tensor:
    """r from (μ, a, k, μ_j, σ_j): (*batch, 1), (*batch, 1), a float or (*batch, 1), (K,), (K,) → (*batch, K)."""
    known = None
    if torch.is_grad_enabled() and any(x.requires_grad for x in (loc, half, centre, width)):
        # Slopes cost little beside the value they come with.
        known = kernels.window_values_and_slopes(loc, half, k, _constant(k, loc), centre, width, _rule(k, loc))
    result: Tensor = apply(WindowedExpectation, loc, half, k, centre, width, known)
    return result


class WindowedExpectation(torch.autograd.Function):
    """The same; `known` holds r and ∂r/∂(μ, a, σ_j) where a compiled kernel has computed both at once, else None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loc: Tensor, half: Tensor, k: float | Tensor, centre: Tensor, width: Tensor, known: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        if known is not None:
            return known[0]
        constant = _constant(k, loc)
        compiled = kernels.window_values(loc, half, k, constant, centre, width, _rule(k, loc))
        if compiled is not None:
            return compiled
        nodes = _place(loc, half, k, centre, width)
        return constant * nodes.factor * (_mass(nodes, k) * nodes.weights).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        loc, half, k, centre, width, known = inputs
        ctx.fixed_k = None if isinstance(k, Tensor) else k
        slopes = None if known is None else known[1]
        saved = (loc, half, k if isinstance(k, Tensor) else None, centre, width, slopes)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        loc, half, k, centre, width, known_slopes = ctx.saved_tensors
        order = ctx.fixed_k if k is None else k
        by_k = None
        if torch.is_grad_enabled():
            by_loc, by_half, by_k, by_width = _moving_slopes(loc, half, order, centre, width)
        elif known_slopes is not None:
            by_loc, by_half, by_width = known_slopes
        else:
            by_loc, by_half, by_k, by_width = _stable_slopes(loc, half, order, centre, width)
        pairs = ((loc, by_loc), (half, by_half), (k, by_k), (centre, by_loc), (width, by_width))
        gradients = [
            (cotangent * slope).sum_to_size(argument.shape) if needed and slope is not None else None
            for (argument, slope), needed in zip(pairs, ctx.needs_input_grad, strict=False)
        ]
        by_centre = None if gradients[3] is None else -gradients[3]
        return *gradients[:3], by_centre, gradients[4], None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        loc, half, k, centre, width, _ = ctx.saved_tensors
        order = ctx.fixed_k if k is None else k
        by_loc, by_half, by_k, by_width = _moving_slopes(loc, half, order, centre, width)
        total = torch.zeros_like(by_loc)
        for slope, move in zip((by_loc, by_half, by_k, -by_loc, by_width), tangents[:5], strict=True):
            if slope is not None and move is not None:
                total = total + slope * move
        return total


def _place(loc: Tensor, half: Tensor, k: float | Tensor, centre: Tensor, width: Tensor) -> Nodes:
    """Windows and nodes; nothing here is differentiated."""
    position, weights = _rule(k, loc)
    reach = 5.6 if loc.dtype == torch.float32 else 8.5
    offset, ratio = centre - loc, width / half
    narrow = half <= 2 * width * (max(1.0, ((2 * k + 3) / 5) ** 0.5) if not isinstance(k, Tensor) else 1.0)
    # In units of the support its ends are ±1; in units of the basis function they are (±a − δ)/σ_j.
    end = torch.where(narrow, 1.0, (half - offset) / width)
    start = torch.where(narrow, -1.0, (-half - offset) / width)
    middle = torch.where(narrow, offset / half, 0.0)
    spread = torch.where(narrow, ratio, 1.0)
    low, high = _nearest_window(start, end, middle, reach * spread)
    if isinstance(k, Tensor) or k >= _NARROW:
        peak_low, peak_high = _peak_window(offset / half, ratio, k, reach)
        peak_low = torch.where(narrow, peak_low, (peak_low - offset / half) / ratio).maximum(start)
        peak_high = torch.where(narrow, peak_high, (peak_high - offset / half) / ratio).minimum(end)
        by_peak = k >= _NARROW if isinstance(k, Tensor) else torch.ones_like(narrow)
        low, high = torch.where(by_peak, peak_low, low), torch.where(by_peak, peak_high, high)
    length = (high - low).unsqueeze(-1)
    unit = torch.where(narrow, 1.0, ratio).unsqueeze(-1)
    right = ((end - high).unsqueeze(-1) + length * (1 - position)) * unit
    left = ((low - start).unsqueeze(-1) + length * position) * unit
    x = low.unsqueeze(-1) + length * position
    z = (x - middle.unsqueeze(-1)) / spread.unsqueeze(-1)
    factor = length.squeeze(-1) * unit.squeeze(-1) / (math.sqrt(2 * math.pi) * width)
    return Nodes((left - right) / 2, left * right, z, weights, factor, narrow)


def _rule(k: float | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1], (q,), or (*batch, 1, q) for a tensor k.

    (1 − y²)ᵏ is smooth to the ends of the support for integer k, and flat enough there for a large one. Otherwise the
    nodes are graded towards the ends of the window.
    """
    if not isinstance(k, Tensor):
        if k < _NARROW and k != round(k):
            nodes, weights = graded_rule(64, like.device)
        else:
            nodes, weights = unit_gauss_legendre(20 if like.dtype == torch.float32 else 40, like.device)
        return nodes.to(like.dtype), weights.to(like.dtype)
    smooth = (k >= _NARROW).unsqueeze(-1)
    nodes, weights = unit_gauss_legendre(64, like.device)
    graded_nodes, graded_weights = graded_rule(64, like.device)
    return torch.where(smooth, nodes, graded_nodes), torch.where(smooth, weights, graded_weights)


def _nearest_window(start: Tensor, end: Tensor, middle: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """The part of the support in which the Gaussian exponent is within c²/2 of its best value there."""
    nearest = middle.maximum(start).minimum(end)
    distance = (middle - nearest).abs()
    extent = reach * reach / ((distance * distance + reach * reach).sqrt() + distance)
    return (nearest - extent).maximum(start), (nearest + extent).minimum(end)


def _peak_window(middle: Tensor, ratio: Tensor, k: float | Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Around the peak of k ln(1 − y²) − (y − d)²/2w², whose curvature is at least 2k + 1/w² everywhere."""
    low, high = torch.full_like(middle + 0 * ratio, -1.0), torch.ones_like(middle + 0 * ratio)
    for _ in range(30):
        y = (low + high) / 2
        # The sign of the slope, cleared of its denominators.
        rising = (middle - y) * (1 - y) * (1 + y) > 2 * k * ratio * ratio * y
        low, high = torch.where(rising, y, low), torch.where(rising, high, y)
    peak = (low + high) / 2
    extent = reach * ratio / (1 + 2 * k * ratio * ratio) ** 0.5
    return (peak - extent).clamp(min=-1), (peak + extent).clamp(max=1)


def _mass(nodes: Nodes, k: float | Tensor) -> Tensor:
    """(1 − y²)ᵏ exp(−z²/2)."""
    gaussian = torch.exp(-0.5 * nodes.z * nodes.z)
    return gaussian * _power(nodes.room, k)


def _power(room: Tensor, k: float | Tensor) -> Tensor:
    if isinstance(k, Tensor):
        return room ** k.unsqueeze(-1)
    if k == 0:
        return torch.ones_like(room)
    return room if k == 1 else room**k


def _constant(k: float | Tensor, like: Tensor) -> float | Tensor:
    """C_k = Γ(k + 3/2)/(√π Γ(k + 1)), ½ at k = 0."""
    if isinstance(k, Tensor):
        wide = k.double()
        return (torch.exp(log_gamma_ratio(1 / wide, 1)) * (wide / math.pi).sqrt()).to(like.dtype)
    if k < 100:
        return math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))
    return math.exp(log_gamma_ratio(1 / k, 1)) * math.sqrt(k / math.pi)


def _log_constant_slope(k: Tensor) -> Tensor:
    """d ln C_k/dk."""
    inverse = 1 / k.double()
    return (inverse * (0.5 - inverse * log_gamma_ratio_slope(inverse, 1))).to(k.dtype)


def _stable_slopes(
    loc: Tensor, half: Tensor, k: float | Tensor, centre: Tensor, width: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """∂r/∂(μ, a, k, σ_j) where they are only values: E[ψ′] forms for a narrow density, escort forms for a wide one.

    E[ψ′] cancels where ψ is much narrower than p, and the escort integral where p is much narrower than ψ.
    """
    nodes = _place(loc, half, k, centre, width)
    scale = _constant(k, loc) * nodes.factor
    mass = _mass(nodes, k) * nodes.weights
    by_loc = -(mass * nodes.z).sum(-1) / width
    by_half = -(mass * nodes.z * nodes.y).sum(-1) / width
    # The escort integrand has exponent k − 1: smooth to the ends of the support only for integer k ≥ 1.
    if not isinstance(k, Tensor) and k >= 1 and (k == round(k) or k >= _NARROW):
        escort = _power(nodes.room, k - 1) * torch.exp(-0.5 * nodes.z * nodes.z) * nodes.weights
        squared = nodes.y * nodes.y
        wide_loc = 2 * k / half * (escort * nodes.y).sum(-1)
        wide_half = (escort * ((2 * k + 1) * squared - 1)).sum(-1) / half
        by_loc, by_half = torch.where(nodes.narrow, by_loc, wide_loc), torch.where(nodes.narrow, by_half, wide_half)
    by_width = (mass * (nodes.z * nodes.z - 1)).sum(-1) / width
    by_k = None
    if isinstance(k, Tensor):
        by_k = scale * (mass * (_log_constant_slope(k).unsqueeze(-1) + _safe_log(nodes.room))).sum(-1)
    return scale * by_loc, scale * by_half, by_k, scale * by_width


def _moving_slopes(
    loc: Tensor, half: Tensor, k: float | Tensor, centre: Tensor, width: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The same by t = μ + a y with y held fixed: made of differentiable operations, to every order."""
    with torch.no_grad():
        nodes = _place(loc, half, k, centre, width)
    room = nodes.room
    z = (loc.unsqueeze(-1) + half.unsqueeze(-1) * nodes.y - centre.unsqueeze(-1)) / width.unsqueeze(-1)
    # `factor` holds the window over √(2π) σ_j, of which only σ_j is a variable.
    length = nodes.factor * width.detach()
    mass = torch.exp(-0.5 * z * z) * _power(room, k) * nodes.weights
    scale = _constant(k, loc) * length / width
    by_loc = -scale / width * (mass * z).sum(-1)
    by_half = -scale / width * (mass * z * nodes.y).sum(-1)
    by_width = scale / width * (mass * (z * z - 1)).sum(-1)
    by_k = None
    if isinstance(k, Tensor):
        by_k = scale * (mass * (_log_constant_slope(k).unsqueeze(-1) + _safe_log(room))).sum(-1)
    return by_loc, by_half, by_k, by_width


def _safe_log(room: Tensor) -> Tensor:
    """ln(1 − y²), 0 where the mass vanishes with it."""
    return torch.where(room > 0, room, 1).log()
