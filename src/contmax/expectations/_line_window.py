r"""β-Gaussians against Gaussian bases on the line, by Gauss–Legendre rules on windows.

With t = μ + a y and k = 1/(α−1) in {0, 1, 2, 3, 4}, the expectation is one integral over the support [−1, 1],

    r_j = C_k ∫ (1 − y²)ᵏ N(μ + a y; μ_j, σ_j²) dy,      C_k = Γ(k + 3/2)/(√π Γ(k + 1)),

of a polynomial times a Gaussian, all positive. The printed erf forms expand it into large terms of both signs and lose
all digits in float32. The rule puts its nodes where the integrand is: the window around the point of the support
nearest to the basis function in which the Gaussian exponent falls by c²/2. Nodes are placed in units of the narrower of
the two, measured from the ends of the support.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import may_be_differentiated
from contmax.expectations._chunks import Fewest, in_chunks
from contmax.numerics import unit_gauss_legendre

# A pair takes about 2 kB while gradients are computed.
_FEWEST_PAIRS = Fewest(on_cpu=2**13, elsewhere=2**17, kept=0)


class Nodes(NamedTuple):
    """Where the integrand is looked at, each (*batch, K, q), except `factor` and `narrow`, (*batch, K)."""

    y: Tensor  # position in the support, in [−1, 1]
    room: Tensor  # 1 − y², from the distances to the ends
    z: Tensor  # position in the basis function, (t − μ_j)/σ_j
    weights: Tensor  # of the rule on [0, 1], (q,)
    factor: Tensor  # length of the window over √(2π) σ_j, in units of the support
    narrow: Tensor  # whether the density is the narrower of the two


def windowed_expectation(loc: Tensor, half: Tensor, k: float, centre: Tensor, width: Tensor) -> Tensor:
    """r from (μ, a, k, μ_j, σ_j): (*batch, 1), (*batch, 1), 0 to 4, (K,), (K,) → (*batch, K)."""
    if centre.dim() == 1 and not kernels.windows_are_compiled(loc, half, centre, width):
        densities = torch.broadcast_tensors(loc.squeeze(-1), half.squeeze(-1))
        return in_chunks(partial(_by_torch, k=k), densities, (centre, width), densities[0].dim(), _FEWEST_PAIRS)
    known = None
    if torch.is_grad_enabled() and any(x.requires_grad for x in (loc, half, centre, width)):
        # Slopes cost little beside the value they come with.
        known = kernels.window_values_and_slopes(loc, half, k, _constant(k), centre, width, _rule(loc))
    result: Tensor = apply(WindowedExpectation, loc, half, k, centre, width, known)
    return result


def _by_torch(loc: Tensor, half: Tensor, centre: Tensor, width: Tensor, k: float) -> Tensor:
    result: Tensor = apply(WindowedExpectation, loc.unsqueeze(-1), half.unsqueeze(-1), k, centre, width, None)
    return result


class WindowedExpectation(torch.autograd.Function):
    """The same; `known` holds r and ∂r/∂(μ, a, σ_j) where a compiled kernel has computed both at once, else None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loc: Tensor, half: Tensor, k: float, centre: Tensor, width: Tensor, known: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        if known is not None:
            return known[0]
        constant = _constant(k)
        compiled = kernels.window_values(loc, half, k, constant, centre, width, _rule(loc))
        if compiled is not None:
            return compiled
        nodes = _place(loc, half, k, centre, width)
        return constant * nodes.factor * (_mass(nodes, k) * nodes.weights).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        loc, half, k, centre, width, known = inputs
        ctx.k = k
        # Slopes are saved with the arguments, so that hooks on saved tensors see them too. Under vmap torch takes what
        # is saved for one mode to be what is saved for the other.
        saved = (loc, half, centre, width, None if known is None else known[1])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        loc, half, centre, width, known = ctx.saved_tensors
        if may_be_differentiated():
            by_loc, by_half, by_width = _moving_slopes(loc, half, ctx.k, centre, width)
        elif known is not None:
            by_loc, by_half, by_width = known
        else:
            by_loc, by_half, by_width = _stable_slopes(loc, half, ctx.k, centre, width)
        needed = (*ctx.needs_input_grad[:2], *ctx.needs_input_grad[3:5])
        pairs = ((loc, by_loc), (half, by_half), (centre, -by_loc), (width, by_width))
        gradients = [
            (cotangent * slope).sum_to_size(argument.shape) if wanted else None
            for (argument, slope), wanted in zip(pairs, needed, strict=True)
        ]
        return *gradients[:2], None, *gradients[2:], None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        loc, half, centre, width = ctx.saved_tensors[:4]
        by_loc, by_half, by_width = _moving_slopes(loc, half, ctx.k, centre, width)
        by_loc_half, by_basis = (by_loc, by_half), (-by_loc, by_width)
        total = torch.zeros_like(by_loc)
        for slope, move in zip(by_loc_half + by_basis, tangents[:2] + tangents[3:5], strict=True):
            if move is not None:
                total = total + slope * move
        return total


def _place(loc: Tensor, half: Tensor, k: float, centre: Tensor, width: Tensor) -> Nodes:
    """Windows and nodes; nothing here is differentiated."""
    position, weights = _rule(loc)
    reach = 5.6 if loc.dtype == torch.float32 else 8.5
    offset, ratio = centre - loc, width / half
    narrow = half <= 2 * width * max(1.0, ((2 * k + 3) / 5) ** 0.5)
    # In units of the support its ends are ±1; in units of the basis function they are (±a − δ)/σ_j.
    end = torch.where(narrow, 1.0, (half - offset) / width)
    start = torch.where(narrow, -1.0, (-half - offset) / width)
    middle = torch.where(narrow, offset / half, 0.0)
    spread = torch.where(narrow, ratio, 1.0)
    low, high = _nearest_window(start, end, middle, reach * spread)
    length = (high - low).unsqueeze(-1)
    unit = torch.where(narrow, 1.0, ratio).unsqueeze(-1)
    right = ((end - high).unsqueeze(-1) + length * (1 - position)) * unit
    left = ((low - start).unsqueeze(-1) + length * position) * unit
    x = low.unsqueeze(-1) + length * position
    z = (x - middle.unsqueeze(-1)) / spread.unsqueeze(-1)
    factor = length.squeeze(-1) * unit.squeeze(-1) / (math.sqrt(2 * math.pi) * width)
    return Nodes((left - right) / 2, left * right, z, weights, factor, narrow)


def _rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1], (q,)."""
    nodes, weights = unit_gauss_legendre(20 if like.dtype == torch.float32 else 40, like.device)
    return nodes.to(like.dtype), weights.to(like.dtype)


def _nearest_window(start: Tensor, end: Tensor, middle: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """The part of the support in which the Gaussian exponent is within c²/2 of its best value there."""
    nearest = middle.maximum(start).minimum(end)
    distance = (middle - nearest).abs()
    extent = reach * reach / ((distance * distance + reach * reach).sqrt() + distance)
    return (nearest - extent).maximum(start), (nearest + extent).minimum(end)


def _mass(nodes: Nodes, k: float) -> Tensor:
    """(1 − y²)ᵏ exp(−z²/2)."""
    gaussian = torch.exp(-0.5 * nodes.z * nodes.z)
    return gaussian * _power(nodes.room, k)


def _power(room: Tensor, k: float) -> Tensor:
    if k == 0:
        return torch.ones_like(room)
    return room if k == 1 else room**k


def _constant(k: float) -> float:
    """C_k = Γ(k + 3/2)/(√π Γ(k + 1)), ½ at k = 0."""
    return math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))


def _stable_slopes(loc: Tensor, half: Tensor, k: float, centre: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """∂r/∂(μ, a, σ_j) where they are only values: E[ψ′] forms for a narrow density, escort forms for a wide one.

    E[ψ′] cancels where ψ is much narrower than p, and the escort integral where p is much narrower than ψ.
    """
    nodes = _place(loc, half, k, centre, width)
    scale = _constant(k) * nodes.factor
    mass = _mass(nodes, k) * nodes.weights
    by_loc = -(mass * nodes.z).sum(-1) / width
    by_half = -(mass * nodes.z * nodes.y).sum(-1) / width
    # The escort integrand has exponent k − 1.
    if k >= 1:
        escort = _power(nodes.room, k - 1) * torch.exp(-0.5 * nodes.z * nodes.z) * nodes.weights
        squared = nodes.y * nodes.y
        wide_loc = 2 * k / half * (escort * nodes.y).sum(-1)
        wide_half = (escort * ((2 * k + 1) * squared - 1)).sum(-1) / half
        by_loc, by_half = torch.where(nodes.narrow, by_loc, wide_loc), torch.where(nodes.narrow, by_half, wide_half)
    by_width = (mass * (nodes.z * nodes.z - 1)).sum(-1) / width
    return scale * by_loc, scale * by_half, scale * by_width


def _moving_slopes(loc: Tensor, half: Tensor, k: float, centre: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by t = μ + a y with y held fixed: made of differentiable operations, to every order."""
    with torch.no_grad():
        nodes = _place(loc, half, k, centre, width)
    room = nodes.room
    z = (loc.unsqueeze(-1) + half.unsqueeze(-1) * nodes.y - centre.unsqueeze(-1)) / width.unsqueeze(-1)
    # `factor` holds the window over √(2π) σ_j, of which only σ_j is a variable.
    length = nodes.factor * width.detach()
    mass = torch.exp(-0.5 * z * z) * _power(room, k) * nodes.weights
    scale = _constant(k) * length / width
    by_loc = -scale / width * (mass * z).sum(-1)
    by_half = -scale / width * (mass * z * nodes.y).sum(-1)
    by_width = scale / width * (mass * (z * z - 1)).sum(-1)
    return by_loc, by_half, by_width
