"""Expectations by many nodes in float64: slow, and simple enough to be believed."""

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from contmax.basis import MultivariateGaussianBasis

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
