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
from typing import NamedTuple

import torch
from torch import Tensor

from contmax._backend import Backend
from contmax._eager import is_eager_cpu
from contmax.expectations._chunks import Fewest, in_chunks
from contmax.expectations._derivatives import RULES, Rule, expectation_by
from contmax.kernels import means
from contmax.numerics import unit_gauss_legendre

# A pair takes about 2 kB while gradients are computed.
_FEWEST_PAIRS = Fewest(on_cpu=2**13, elsewhere=2**17, saved=0)


class Nodes(NamedTuple):
    """The nodes of the integrand, each (*batch, K, q), except `factor` and `narrow`, (*batch, K)."""

    y: Tensor  # position in the support, in [−1, 1]
    room: Tensor  # 1 − y², from the distances to the ends
    z: Tensor  # position in the basis function, (t − μ_j)/σ_j
    weights: Tensor  # of the rule on [0, 1], (q,)
    factor: Tensor  # length of the window over √(2π) σ_j, in units of the support
    narrow: Tensor  # whether the density is the narrower of the two


def windowed_expectation(
    loc: Tensor, half: Tensor, centre: Tensor, width: Tensor, k: float, backend: Backend
) -> Tensor:
    """r from (μ, a, μ_j, σ_j): (*batch), (*batch), (K,), (K,) → (*batch, K), with k from 0 to 4; on a GPU k = 0."""
    if backend is Backend.TRITON:
        return expectation_by(means.INTERVAL, k, loc, half, None, centre, width)
    if backend is Backend.TORCH or not is_eager_cpu(loc, half, centre, width):
        reference = partial(_by_torch, k=k)
        return in_chunks(reference, (loc, half), (centre, width), loc.dim(), _FEWEST_PAIRS)
    from contmax.kernels.means import _cpu_means

    # Slopes cost little beside the value they come with.
    with_slopes = torch.is_grad_enabled() and any(x.requires_grad for x in (loc, half, centre, width))
    known = _cpu_means.window_values(loc, half, centre, width, k, _constant(k), _rule(loc), with_slopes)
    return expectation_by("window", k, loc, half, None, centre, width, known)


def _by_torch(loc: Tensor, half: Tensor, centre: Tensor, width: Tensor, k: float) -> Tensor:
    return expectation_by("window", k, loc, half, None, centre, width)


def _values(loc: Tensor, half: Tensor, _: None, centre: Tensor, width: Tensor, k: float) -> Tensor:
    nodes = _place(loc, half, centre, width, k)
    return _constant(k) * nodes.factor * (_mass(nodes.z, nodes.room, k) * nodes.weights).sum(-1)


def window_reference(loc: Tensor, half: Tensor, _: None, centre: Tensor, width: Tensor, number: float) -> Tensor:
    """r with the nodes t = μ + a y held fixed at their y: differentiable to every order."""
    with torch.no_grad():
        nodes = _place(loc, half, centre, width, number)
        # `factor` holds the window over √(2π) σ_j, of which only σ_j is a variable.
        length = _constant(number) * nodes.factor * width
    t = loc[..., None, None] + half[..., None, None] * nodes.y
    z = (t - centre.unsqueeze(-1)) / width.unsqueeze(-1)
    return length / width * (_mass(z, nodes.room, number) * nodes.weights).sum(-1)


def _place(loc: Tensor, half: Tensor, centre: Tensor, width: Tensor, k: float) -> Nodes:
    """Windows and nodes; nothing here is differentiated."""
    loc, half = loc.unsqueeze(-1), half.unsqueeze(-1)
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


def _mass(z: Tensor, room: Tensor, k: float) -> Tensor:
    """(1 − y²)ᵏ exp(−z²/2)."""
    gaussian = torch.exp(-0.5 * z * z)
    return gaussian if k == 0 else gaussian * (room if k == 1 else room**k)


def _constant(k: float) -> float:
    """C_k = Γ(k + 3/2)/(√π Γ(k + 1)), ½ at k = 0."""
    return math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))


def _slopes(
    loc: Tensor, half: Tensor, _: None, centre: Tensor, width: Tensor, k: float
) -> tuple[Tensor, Tensor, Tensor]:
    """∂r/∂(μ, a, σ_j) without derivatives of their own: E[ψ′] forms for a narrow density, escort forms for a wide one.

    E[ψ′] cancels where ψ is much narrower than p, and the escort integral where p is much narrower than ψ.
    """
    nodes = _place(loc, half, centre, width, k)
    scale, half = _constant(k) * nodes.factor, half.unsqueeze(-1)
    mass = _mass(nodes.z, nodes.room, k) * nodes.weights
    by_loc = -(mass * nodes.z).sum(-1) / width
    by_half = -(mass * nodes.z * nodes.y).sum(-1) / width
    # The escort integrand has exponent k − 1.
    if k >= 1:
        escort = _mass(nodes.z, nodes.room, k - 1) * nodes.weights
        wide_loc = 2 * k / half * (escort * nodes.y).sum(-1)
        wide_half = (escort * ((2 * k + 1) * nodes.y * nodes.y - 1)).sum(-1) / half
        by_loc, by_half = torch.where(nodes.narrow, by_loc, wide_loc), torch.where(nodes.narrow, by_half, wide_half)
    by_width = (mass * (nodes.z * nodes.z - 1)).sum(-1) / width
    return scale * by_loc, scale * by_half, scale * by_width


RULES["window"] = Rule(window_reference, _values, _slopes)
RULES[means.INTERVAL] = Rule(window_reference)
