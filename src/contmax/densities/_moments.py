"""Moments of samples, and the members of a family that can be matched to moments or to a support."""

import math

import torch
from torch import Tensor

from contmax._precision import wide_dtype
from contmax._typing import Float
from contmax.densities._profile import Profile
from contmax.densities._validation import as_index, checks_values, require_index


def weighted_moments(
    samples: Float[Tensor, "n *batch N"], weights: Tensor | None
) -> tuple[Float[Tensor, "*batch N"], Float[Tensor, "*batch N N"]]:
    """Mean and biased covariance of samples along the first dimension.

    Args:
        samples: observations, ``(n, *batch, N)``.
        weights: weights ≥ 0, broadcastable to ``(n, *batch)``; None for equal weights.

    Returns:
        Mean ``(*batch, N)`` and covariance ``(*batch, N, N)``.
    """
    if samples.ndim < 2 or not samples.shape[0]:
        raise ValueError(
            f"samples must have observations along their first dimension; got shape {tuple(samples.shape)}."
        )
    wide = samples.to(wide_dtype(samples.dtype))
    share = torch.ones_like(wide[..., 0]) if weights is None else weights.to(wide.dtype).expand(wide.shape[:-1])
    share = (share / share.sum(0)).unsqueeze(-1)
    mean = (share * wide).sum(0)
    centred = wide - mean
    covariance = ((share * centred).unsqueeze(-1) * centred.unsqueeze(-2)).sum(0)
    return mean.to(samples.dtype), covariance.to(samples.dtype)


def adjustable_profile(alpha: float | Tensor, dim: int, of: str, validate_args: bool | None) -> Profile:
    """The profile for an α whose members have every width: not α = ∞, and α > 1 if it is the support that is given."""
    index = as_index(alpha, dim)
    if isinstance(index, Tensor):
        if checks_values(validate_args, index):
            require_index(index, dim)
        low = float(index.detach().min()) if index.numel() and checks_values(validate_args, index) else math.inf
    else:
        low = index
        if math.isinf(index):
            raise ValueError(
                f"alpha must be finite here; alpha=inf fixes the volume of the support at 1, so {of} cannot be chosen. "
                "Pass a finite alpha."
            )
    if of == "support" and low <= 1:
        raise ValueError(f"alpha must exceed 1; got {low:.6g}, whose support is unbounded. Pass alpha > 1.")
    return Profile(index, dim)
