"""From numbers that a network produced to the density they mean; nothing here looks at values."""

from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.maps import moments
from contmax.signal import observation_positions

Matching = Literal["exact", "paper"]
MATCHINGS = ("exact", "paper")


def density_of_scale(loc: Tensor, scale: Tensor, alpha: float | Tensor, dim: int) -> Distribution:
    """The β-Gaussian of (μ, σ) on the line, of (μ, Σ) in N dimensions."""
    if dim == 1:
        return BetaGaussian(loc, scale, alpha, validate_args=False)
    return MultivariateBetaGaussian(loc, scale, alpha, validate_args=False)


def density_of_moments(
    mean: Tensor, covariance: Tensor, alpha: float | Tensor, dim: int, matching: Matching
) -> Distribution:
    """The β-Gaussian with these moments; or, as the paper has it, with the covariance as its shape parameter."""
    if matching == "paper":
        return density_of_scale(mean, covariance.sqrt() if dim == 1 else covariance, alpha, dim)
    if dim == 1:
        return BetaGaussian.from_moments(mean, covariance, alpha, validate_args=False)
    return MultivariateBetaGaussian.from_moments(mean, covariance, alpha, validate_args=False)


def density_of_weights(
    weights: Tensor,
    alpha: float | Tensor,
    dim: int,
    matching: Matching,
    *,
    positions: Tensor | None,
    grid: tuple[int, ...] | None,
    mask: Tensor | None,
) -> Distribution:
    """The β-Gaussian with the moments of weights (B, L) or (B, Q, L) over the positions of L observations."""
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    where = observation_positions(weights.shape[-1], positions, grid, mask, wide).to(wide.dtype)
    if weights.dim() == 3:
        # Positions and mask belong to a sequence, and are shared by its queries.
        where = where.unsqueeze(1) if where.dim() == (2 if dim == 1 else 3) else where
        mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 2 else mask
    with torch.autocast(weights.device.type, enabled=False):
        mean, covariance = moments(wide, where, grid=grid, mask=mask)
    return density_of_moments(mean, covariance, alpha, dim, matching)


def checked_matching(matching: Matching) -> Matching:
    """The matching itself, if it is one."""
    if matching not in MATCHINGS:
        raise ValueError(f'matching must be "exact" or "paper"; got {matching!r}.')
    return matching


def wide_linear(linear: torch.nn.Linear, x: Tensor) -> Tensor:
    """An affine map in at least float32, under autocast too: three digits are too few to say where to look."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    bias = None if linear.bias is None else linear.bias.to(dtype)
    with torch.autocast(x.device.type, enabled=False):
        return torch.nn.functional.linear(x.to(dtype), linear.weight.to(dtype), bias)
