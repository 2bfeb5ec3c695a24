r"""Gaussian bases on the line: the closed form under a Gaussian, and windows of Gauss–Legendre rules under β-Gaussians.

With t = μ + a y and k = 1/(α−1) in {0, 1, 2, 3, 4}, the expectation is one integral over the support [−1, 1],

    r_j = C_k ∫ (1 − y²)ᵏ N(μ + a y; μ_j, σ_j²) dy,      C_k = Γ(k + 3/2)/(√π Γ(k + 1)),

of a polynomial times a Gaussian, both positive. The erf forms of Martins et al. 2020 expand it into large terms of both
signs, and lose all digits in float32. The rule has its nodes in a window around the point of the support nearest to
μ_j, in which the exponent of the Gaussian falls by up to c²/2 (c = 5.6 in float32, 8.5 in float64). Nodes are placed in
units of the narrower of density and function, measured from the ends of the support.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal, Uniform

from contmax._backend import Backend, backend_of
from contmax._eager import in_dtype, is_eager_cpu
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.expectations._chunks import Fewest, in_chunks
from contmax.expectations._expectation import FORMULAS, Formula, expectation_by, register_expectation, working_dtype
from contmax.expectations._line_scales import scale_mean_expectation
from contmax.kernels import means
from contmax.numerics import unit_gauss_legendre

# The k = 1/(α−1) for which windows of nodes suffice in float32 too, because (1 − y²)ᵏ is a polynomial of low degree.
_WINDOWED = (0.0, 1.0, 2.0, 3.0, 4.0)
# While gradients are computed, torch operations take about 2 kB per pair of a density and a basis function; they save
# nothing per pair from the forward pass for the backward pass.
_FEWEST_PAIRS = Fewest(on_cpu=2**13, elsewhere=2**17, saved=0)


@register_expectation(Uniform, GaussianBasis)
def uniform(density: Uniform, basis: GaussianBasis) -> Tensor:
    """E_p[ψ] under a uniform density, by the windowed rule with k = 0."""
    middle, half = (density.low + density.high) / 2, (density.high - density.low) / 2
    loc, half, centre, width = _in_one_dtype(middle, half, basis)
    return _windowed_expectation(loc, half, centre, width, 0.0, backend_of(loc, half, centre, width))


@register_expectation(Normal, GaussianBasis)
@register_expectation(BetaGaussian, GaussianBasis)
def beta_gaussian(density: BetaGaussian | Normal, basis: GaussianBasis) -> Tensor:
    """E_p[ψ]: closed form at α = 1, windows for α = 1 + 1/k (k ≤ 4) and α = ∞, the mean over scales for other α."""
    alpha = getattr(density, "alpha", 1.0)
    k = None if isinstance(alpha, Tensor) else line_order(alpha)
    loc, scale, centre, width = _in_one_dtype(density.loc, density.scale, basis)
    backend = backend_of(loc, scale, centre, width)
    if k is None:
        return scale_mean_expectation(loc, scale, alpha, centre, width, backend)
    if backend is Backend.TRITON:
        return expectation_by(means.LINE, k, loc, scale, None, centre, width)
    if isinstance(density, Normal) or math.isinf(k):
        return _closed_form(loc, scale, centre, width)
    return _windowed_expectation(*_in_one_dtype(density.loc, density.half_width, basis), k, backend)


def line_order(alpha: float) -> float | None:
    """k = 1/(α−1) if windows resolve this α, ∞ for the Gaussian; None if the rule is the mean over scales."""
    if alpha == 1:
        return math.inf
    # Round 1/(α−1), because floats near 4/3 stand for k = 3.
    k = round(1 / (alpha - 1), 12)
    return k if k in _WINDOWED else None


def _in_one_dtype(loc: Tensor, scale: Tensor, basis: GaussianBasis) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    centre, width = basis.loc, basis.scale
    dtype = working_dtype(loc, scale, centre, width)
    return in_dtype(loc, dtype), in_dtype(scale, dtype), in_dtype(centre, dtype), in_dtype(width, dtype)


def _closed_form(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    """N(μ; μ_j, σ² + σ_j²)."""
    loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    inverse = (scale * scale + width * width).rsqrt()
    z = (loc - centre) * inverse
    return torch.exp(-0.5 * z * z) * (inverse / math.sqrt(2 * math.pi))


class Nodes(NamedTuple):
    """The nodes of the integrand, (*batch, K, q) unless noted; `factor` and `narrow` are (*batch, K)."""

    y: Tensor  # position in the support, in [−1, 1]
    room: Tensor  # 1 − y², the product of the distances to both ends
    z: Tensor  # position in the basis function, (t − μ_j)/σ_j
    weights: Tensor  # Gauss–Legendre weights on [0, 1], (q,)
    factor: Tensor  # length of the window in y, over √(2π) σ_j
    narrow: Tensor  # whether the density counts as narrow: a/σ_j is at most 2, for k > 1 up to 3


def _windowed_expectation(
    loc: Tensor, half: Tensor, centre: Tensor, width: Tensor, k: float, backend: Backend
) -> Tensor:
    """r from (μ, a, μ_j, σ_j): (*batch), (*batch), (K,), (K,) → (*batch, K), for k = 0, …, 4 (Triton: only 0)."""
    if backend is Backend.TRITON:
        return expectation_by(means.INTERVAL, k, loc, half, None, centre, width)
    if backend is Backend.TORCH or not is_eager_cpu(loc, half, centre, width):
        return in_chunks(
            partial(expectation_by, "window", k), (loc, half, None), (centre, width), loc.dim(), _FEWEST_PAIRS
        )
    from contmax.kernels.means import _cpu_means

    # The kernel computes slopes along with values, at little cost.
    known = _cpu_means.window_values(loc, half, centre, width, k, _constant(k), _rule(loc))
    return expectation_by("window", k, loc, half, None, centre, width, known=known)


def _window_values(loc: Tensor, half: Tensor, _: None, centre: Tensor, width: Tensor, k: float) -> Tensor:
    nodes = _place(loc, half, centre, width, k)
    return _constant(k) * nodes.factor * (_mass(nodes.z, nodes.room, k) * nodes.weights).sum(-1)


def _window_reference(loc: Tensor, half: Tensor, _: None, centre: Tensor, width: Tensor, number: float) -> Tensor:
    """r by nodes t = μ + a y, where y is constant in derivatives; differentiable to every order."""
    with torch.no_grad():
        nodes = _place(loc, half, centre, width, number)
        # Remove σ_j from `factor`, so that the division by σ_j below is differentiated.
        length = _constant(number) * nodes.factor * width
    t = loc[..., None, None] + half[..., None, None] * nodes.y
    z = (t - centre.unsqueeze(-1)) / width.unsqueeze(-1)
    return length / width * (_mass(z, nodes.room, number) * nodes.weights).sum(-1)


def _place(loc: Tensor, half: Tensor, centre: Tensor, width: Tensor, k: float) -> Nodes:
    """Windows and nodes, which are constants in derivatives."""
    loc, half = loc.unsqueeze(-1), half.unsqueeze(-1)
    position, weights = _rule(loc)
    reach = 5.6 if loc.dtype == torch.float32 else 8.5
    offset, ratio = centre - loc, width / half
    narrow = half <= 2 * width * max(1.0, ((2 * k + 3) / 5) ** 0.5)
    # The coordinate is (t − μ)/a for narrow densities, where the support ends at ±1, else (t − μ_j)/σ_j, where it ends
    # at (±a − δ)/σ_j with δ = μ_j − μ.
    end = torch.where(narrow, 1.0, (half - offset) / width)
    start = torch.where(narrow, -1.0, (-half - offset) / width)
    middle = torch.where(narrow, offset / half, 0.0)
    spread = torch.where(narrow, ratio, 1.0)
    # In the window ψ_j's exponent is within c²/2 of its maximum on the support; `cut` is c standard deviations of ψ_j.
    cut = reach * spread
    nearest = middle.maximum(start).minimum(end)
    distance = (middle - nearest).abs()
    extent = cut * cut / ((distance * distance + cut * cut).sqrt() + distance)
    low, high = (nearest - extent).maximum(start), (nearest + extent).minimum(end)
    length = (high - low).unsqueeze(-1)
    unit = torch.where(narrow, 1.0, ratio).unsqueeze(-1)
    right = ((end - high).unsqueeze(-1) + length * (1 - position)) * unit
    left = ((low - start).unsqueeze(-1) + length * position) * unit
    x = low.unsqueeze(-1) + length * position
    z = (x - middle.unsqueeze(-1)) / spread.unsqueeze(-1)
    factor = length.squeeze(-1) * unit.squeeze(-1) / (math.sqrt(2 * math.pi) * width)
    return Nodes((left - right) / 2, left * right, z, weights, factor, narrow)


def _rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss–Legendre nodes and weights on [0, 1], (q,) each."""
    nodes, weights = unit_gauss_legendre(20 if like.dtype == torch.float32 else 40, like.device)
    return nodes.to(like.dtype), weights.to(like.dtype)


def _mass(z: Tensor, room: Tensor, k: float) -> Tensor:
    """(1 − y²)ᵏ exp(−z²/2)."""
    gaussian = torch.exp(-0.5 * z * z)
    return gaussian if k == 0 else gaussian * (room if k == 1 else room**k)


def _constant(k: float) -> float:
    """C_k = Γ(k + 3/2)/(√π Γ(k + 1)), ½ at k = 0."""
    return math.gamma(k + 1.5) / (math.sqrt(math.pi) * math.gamma(k + 1))


def _window_slopes(
    loc: Tensor, half: Tensor, _: None, centre: Tensor, width: Tensor, k: float
) -> tuple[Tensor, Tensor, Tensor]:
    """∂r/∂(μ, a, σ_j), not differentiable again.

    The slopes in μ and a are means of ψ′ for a narrow density or k = 0, else integrals over p^{2−α} ∝ (1 − y²)^{k−1}.
    A mean of ψ′ loses digits where ψ is much narrower than p, the other integral where p is much narrower than ψ.
    """
    nodes = _place(loc, half, centre, width, k)
    scale, half = _constant(k) * nodes.factor, half.unsqueeze(-1)
    mass = _mass(nodes.z, nodes.room, k) * nodes.weights
    by_loc = -(mass * nodes.z).sum(-1) / width
    by_half = -(mass * nodes.z * nodes.y).sum(-1) / width
    # Escort integrals need k ≥ 1, because their integrand has the power k − 1 of 1 − y².
    if k >= 1:
        escort = _mass(nodes.z, nodes.room, k - 1) * nodes.weights
        wide_loc = 2 * k / half * (escort * nodes.y).sum(-1)
        wide_half = (escort * ((2 * k + 1) * nodes.y * nodes.y - 1)).sum(-1) / half
        by_loc, by_half = torch.where(nodes.narrow, by_loc, wide_loc), torch.where(nodes.narrow, by_half, wide_half)
    by_width = (mass * (nodes.z * nodes.z - 1)).sum(-1) / width
    return scale * by_loc, scale * by_half, scale * by_width


def _reference(loc: Tensor, scale: Tensor, _: None, centre: Tensor, width: Tensor, number: float) -> Tensor:
    """r from (μ, σ, μ_j, σ_j) for k = `number`: the reference of the family LINE of Triton's kernels."""
    if math.isinf(number):
        return _closed_form(loc, scale, centre, width)
    density = BetaGaussian(loc, scale, 1 + 1 / number if number else math.inf, validate_args=False)
    return _window_reference(loc, density.half_width, None, centre, width, number)


FORMULAS[means.LINE] = Formula(_reference)
FORMULAS["window"] = Formula(_window_reference, _window_values, _window_slopes)
FORMULAS[means.INTERVAL] = Formula(_window_reference)
