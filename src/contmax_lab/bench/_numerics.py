"""The suite `numerics`: errors of densities and expectations against brute force in float64. Nothing is timed."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax_lab.bench._figure import Figure, Suite
from contmax_lab.bench._measuring import Effort

_WIDTHS = "expectation on the line, α = 2: largest error / largest value, by half-width of p / width of ψ"
_LINE = "expectation on the line: largest error / largest value"
_PLANE = "expectation in the plane, 10 × 10 functions: largest error / largest value"
_DENSITIES = "densities on the line: largest relative error"

_EDGES = (0.0, 0.1, 1.0, 10.0, math.inf)
_ALPHAS = {"1": 1.0, "5/4": 1.25, "4/3": 4 / 3, "3/2": 1.5, "1.7": 1.7, "2": 2.0}
# Relative to the largest value; docstrings of expectations promise the target of float32.
_TARGETS = {torch.float32: 2e-6, torch.float64: 1e-12}
_MATRICES = {
    "Σ = 10⁻⁴ I": [[1e-4, 0.0], [0.0, 1e-4]],
    "Σ = 10⁻² I": [[1e-2, 0.0], [0.0, 1e-2]],
    "Σ = I": [[1.0, 0.0], [0.0, 1.0]],
    "axes 1 : 5, at 45°": [[0.026, 0.024], [0.024, 0.026]],
}

# Panels of the quadrature on the line, and Gauss–Legendre nodes of each.
_PANELS, _NODES = 400, 16
_SQRT_TWO_PI = math.sqrt(2 * math.pi)


@dataclasses.dataclass(frozen=True)
class LineValues:
    """Expectations of K Gaussian functions under n densities, each (n, K) in float64.

    Args:
        value: r.
        by_loc: ∂r/∂μ.
        by_scale: ∂r/∂σ.
        largest: the largest r that a function of that width can have anywhere.
    """

    value: Tensor
    by_loc: Tensor
    by_scale: Tensor
    largest: Tensor


def line_values(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, alpha: float) -> LineValues:
    r"""E_p[ψ] and its derivatives for β-Gaussians on the line, by quadrature over the support.

    .. math:: \partial_\mu r = E_p[\psi'], \qquad \partial_\sigma r = \frac{2k}{(2k+1)\sigma} E_p[(t-\mu)\psi'], \qquad
              k = 1/(\alpha-1)

    Args:
        loc, scale: μ and σ, (n,).
        centre, width: means and standard deviations of the functions, (K,).
        alpha: α ≥ 1.

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> line_values(zero, one, zero, one, 1.0).value  # 1/√(4π)
        tensor([[0.2821]], dtype=torch.float64)
    """
    mean, sigma = loc.double(), scale.double()
    if alpha == 1:
        return _gaussian_values(mean, sigma, centre.double(), width.double())
    points, masses = line_quadrature(mean, _half_width(sigma, alpha))
    masses = masses * _density(points - mean, sigma, alpha)
    share = 2 / (2 + (alpha - 1))
    columns = [
        _column(points, masses, mean, share / sigma, m, s) for m, s in zip(centre.double(), width.double(), strict=True)
    ]
    return LineValues(*(torch.stack(parts, -1) for parts in zip(*columns, strict=True)))


def _gaussian_values(mean: Tensor, sigma: Tensor, centre: Tensor, width: Tensor) -> LineValues:
    """α = 1, where the integral is the density of a Gaussian."""
    shift, spread = mean[:, None] - centre, sigma[:, None] ** 2 + width**2
    largest = 1 / (_SQRT_TWO_PI * spread.sqrt())
    value = largest * torch.exp(-(shift**2) / spread / 2)
    by_scale = sigma[:, None] * value * (shift**2 / spread - 1) / spread
    return LineValues(value, -value * shift / spread, by_scale, largest)


def _column(
    points: Tensor, masses: Tensor, mean: Tensor, share: Tensor, centre: Tensor, width: Tensor
) -> tuple[Tensor, ...]:
    z = (points - centre) / width
    psi = torch.exp(-(z**2) / 2) / (_SQRT_TWO_PI * width)
    slope = -z / width * psi
    top = torch.exp(-(((points - mean) / width) ** 2) / 2) / (_SQRT_TWO_PI * width)
    return (
        (masses * psi).sum(0),
        (masses * slope).sum(0),
        share * (masses * (points - mean) * slope).sum(0),
        (masses * top).sum(0),
    )


def line_quadrature(centre: Tensor, half_width: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights (n, *batch) of a rule for [centre − half_width, centre + half_width], dense at the ends."""
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(_NODES))
    step = math.pi / _PANELS
    angles = (-math.pi / 2 + step * (torch.arange(_PANELS)[:, None] + (nodes + 1) / 2)).flatten()
    weights = (step / 2 * weights).repeat(_PANELS) * angles.cos()
    shape = (-1, *[1] * centre.dim())
    return centre + half_width * angles.sin().view(shape), half_width * weights.view(shape)


def printed_form(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    r"""E_p[ψ] for α = 2 by the closed form of the paper (corrected), in the dtype of its arguments, (n, K).

    Terms that nearly cancel make it unfit for float32, which is what the suite shows.
    """
    mu, sigma = loc[:, None], scale[:, None]
    half = (1.5 * sigma**2) ** (1 / 3)
    threshold = -0.5 * (1.5 / sigma) ** (2 / 3)
    u, v, shift = (mu - centre - half) / width, (mu - centre + half) / width, centre - mu
    phi_u, phi_v = (torch.exp(-(x**2) / 2) / _SQRT_TWO_PI for x in (u, v))
    zeroth = 0.5 * (torch.erf(v / math.sqrt(2)) - torch.erf(u / math.sqrt(2)))
    first, second = phi_u - phi_v, zeroth - v * phi_v + u * phi_u
    return -threshold * zeroth - (shift**2 * zeroth + 2 * shift * width * first + width**2 * second) / (2 * sigma**2)


def disk_values(
    loc: Tensor, matrix: Tensor, basis: MultivariateGaussianBasis, alpha: float, nodes: tuple[int, int]
) -> Tensor:
    """E_p[ψ] for β-Gaussians of one shape Σ in the plane, (n, K): rings × angles on the support, α > 1."""
    rings, angles = nodes
    k = 1 / (alpha - 1)
    sigma = matrix.double()
    root = torch.linalg.cholesky(sigma)
    # ln ρ of p = ρᵏ (1 − |u|²)ᵏ with t = μ + R L u and R² = 2kρ.
    log_rho = (math.log(k + 1) - math.log(k) - math.log(2 * math.pi) - 0.5 * float(torch.logdet(sigma))) / (k + 1)
    rho = math.exp(log_rho)
    radius = math.sqrt(2 * k * rho)
    raw, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(rings))
    r, w = (raw + 1) / 2, weights / 2
    angle = torch.arange(angles, dtype=torch.float64) * (2 * math.pi / angles)
    u = (r[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)).flatten(0, 1)
    area = radius**2 * math.exp(0.5 * float(torch.logdet(sigma)))
    mass = (w * r * rho**k * (1 - r**2) ** k * area * (2 * math.pi / angles)).repeat_interleave(angles)
    wide = basis.moved(loc.device, torch.float64)
    return torch.stack([mass @ wide(centre + radius * u @ root.T) for centre in loc.double()])


def _half_width(sigma: Tensor, alpha: float) -> Tensor:
    return (2 / (alpha - 1) * _rho(sigma, alpha)).sqrt() * sigma


def _density(offset: Tensor, sigma: Tensor, alpha: float) -> Tensor:
    k, reach = 1 / (alpha - 1), _half_width(sigma, alpha)
    return _rho(sigma, alpha) ** k * ((1 - offset / reach) * (1 + offset / reach)).clamp(min=0) ** k


def _rho(sigma: Tensor, alpha: float) -> Tensor:
    k = 1 / (alpha - 1)
    constant = math.lgamma(k + 1.5) - math.lgamma(k + 1) - 0.5 * math.log(k) - 0.5 * math.log(2 * math.pi)
    return torch.exp((constant - sigma.log()) / (k + 0.5))


def _figures(effort: Effort) -> Iterator[Figure]:
    count = 20 if effort.small else 300
    yield from _by_width(count)
    yield from _by_alpha(count)
    yield from _in_the_plane(effort)
    yield from _of_densities(count)


def _drawn(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Locations and scales of densities, then of functions: numbers of float32, as a model would have them."""
    generator = torch.Generator().manual_seed(0)
    loc, scale, centre, width = (torch.rand(size, generator=generator) for size in (count, count, 48, 48))
    return loc, 10 ** (3.5 * scale - 3), centre, 10 ** (2 * width - 2)


def _by_width(count: int) -> Iterator[Figure]:
    loc, scale, centre, width = _drawn(count)
    exact = line_values(loc, scale, centre, width, 2.0)
    relative_width = BetaGaussian(loc.double(), scale.double()).half_width[:, None] / width.double()
    forms: dict[str, Callable[[torch.dtype], Tensor]] = {
        "printed form": lambda dtype: printed_form(*(x.to(dtype) for x in (loc, scale, centre, width))),
        "contmax": lambda dtype: _expectation(loc, scale, centre, width, 2.0, dtype),
    }
    for low, high in itertools.pairwise(_EDGES):
        chosen = (relative_width >= low) & (relative_width < high)
        row = f"below {high:g}" if low == 0 else f"above {low:g}" if high == math.inf else f"{low:g} to {high:g}"
        for dtype, target in _TARGETS.items():
            for name, form in forms.items():
                error = ((form(dtype).double() - exact.value).abs() / exact.largest)[chosen].max()
                limit = target if name == "contmax" else None
                yield Figure(_WIDTHS, row, f"{name}, {_name(dtype)}", float(error), at_most=limit)


def _by_alpha(count: int) -> Iterator[Figure]:
    loc, scale, centre, width = _drawn(count)
    for name, alpha in _ALPHAS.items():
        exact = line_values(loc, scale, centre, width, alpha)
        # Natural units of the derivatives: r per width of ψ, and r per σ.
        by_loc, by_scale = exact.largest / width, exact.largest / scale[:, None]
        for dtype, target in _TARGETS.items():
            places, scales = (x.to(dtype, copy=True).requires_grad_() for x in (loc, scale))
            r = _expectation(places, scales, centre, width, alpha, dtype)
            errors = {
                "r": (r.detach().double() - exact.value).abs() / exact.largest,
                "∂r/∂μ": (_slopes(r, places).double() - exact.by_loc).abs() / by_loc,
                "∂r/∂σ": (_slopes(r, scales).double() - exact.by_scale).abs() / by_scale,
            }
            for what, error in errors.items():
                limit = target if what == "r" else 5 * target
                yield Figure(_LINE, f"α = {name}", f"{what}, {_name(dtype)}", float(error.max()), at_most=limit)


def _in_the_plane(effort: Effort) -> Iterator[Figure]:
    loc = torch.tensor([[0.47, 0.56], [0.05, 0.9]])
    nodes = (40, 200) if effort.small else (120, 800)
    for row, matrix in _MATRICES.items():
        for alpha in (1.5, 2.0):
            basis = MultivariateGaussianBasis.covering(10)
            exact = disk_values(loc, torch.tensor(matrix), basis, alpha, nodes)
            for dtype, target in _TARGETS.items():
                p = MultivariateBetaGaussian(loc.to(dtype), torch.tensor(matrix).to(dtype), alpha)
                r = contmax.expectation(p, basis.moved(loc.device, dtype)).double()
                error = (r - exact).abs().amax(-1) / exact.amax(-1)
                column = f"α = {alpha:g}, {_name(dtype)}"
                yield Figure(_PLANE, row, column, float(error.max()), at_most=target)


def _of_densities(count: int) -> Iterator[Figure]:
    loc, scale, _, _ = _drawn(count)
    for alpha in (1.001, 1.05, 1.5, 2.0, 3.0):
        for dtype in _TARGETS:
            p = BetaGaussian(loc.to(dtype), scale.to(dtype), alpha)
            exact = BetaGaussian(loc.double(), scale.double(), alpha)
            points, weights = line_quadrature(exact.loc, exact.half_width)
            heights = p.density(points.to(dtype)).double()
            mass = (weights * heights).sum(0)
            variance = (weights * exact.density(points) * (points - exact.loc) ** 2).sum(0)
            negentropy = ((weights * exact.density(points) ** alpha).sum(0) - 1) / (alpha * (alpha - 1))
            errors = {
                "mass": mass - 1,
                "variance": p.variance.double() / variance - 1,
                "negentropy": (p.tsallis_negentropy().double() - negentropy) / negentropy.abs().clamp(min=1),
            }
            for what, error in errors.items():
                limit = 1e-5 if dtype == torch.float32 else 1e-11
                value = float(error.abs().max())
                yield Figure(_DENSITIES, f"α = {alpha:g}", f"{what}, {_name(dtype)}", value, at_most=limit)


def _expectation(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    p = BetaGaussian(loc.to(dtype), scale.to(dtype), alpha)
    return contmax.expectation(p, GaussianBasis(centre.to(dtype), width.to(dtype)))


def _slopes(r: Tensor, parameter: Tensor) -> Tensor:
    """The derivatives of r (n, K) in the parameter (n,) of its row, by reverse mode."""
    columns = [torch.autograd.grad(column.sum(), parameter, retain_graph=True)[0] for column in r.unbind(-1)]
    return torch.stack(columns, -1)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


NUMERICS = Suite("numerics", _figures)
