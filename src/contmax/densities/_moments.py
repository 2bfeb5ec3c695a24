"""Moments of samples, and the members of a family that can be matched to moments or to a support."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contmax._precision import wide_dtype
from contmax._typing import Float
from contmax.densities._profile import Profile
from contmax.densities._validation import as_index, checks_values, require_finite, require_index

Samples = Tensor | np.ndarray | Sequence[Any]
# The largest α − 1 of a fit: densities of larger α are uniform but for a hundredth of their width.
_LARGEST_GAP = 100.0


def as_samples(samples: Samples) -> Tensor:
    """Observations along the first dimension as a floating-point tensor.

    Raises:
        ValueError: if there are none, or one is not finite.
    """
    tensor = torch.as_tensor(samples)
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    if tensor.ndim < 1 or not tensor.shape[0]:
        raise ValueError(
            f"samples must have observations along their first dimension; got shape {tuple(tensor.shape)}."
        )
    if checks_values(None, tensor):
        require_finite("samples", tensor)
    return tensor


def require_spread(samples: Tensor) -> None:
    """Refuse numbers that are all equal, to which rounding may give a variance; reads values on the CPU only.

    Raises:
        ValueError: if those of one density are.
    """
    if checks_values(None, samples):
        equal = (samples == samples[:1]).all(0)
        if bool(equal.any()):
            raise ValueError(
                f"samples must differ from each other; got {len(samples)} that are all "
                f"{float(samples[0][equal].reshape(-1)[0]):g}, and no density is so narrow. Pass more samples, or make "
                "the density with from_support(low, high)."
            )


def index_of_moments(samples: Float[Tensor, "n *batch"], weights: Tensor | None) -> Float[Tensor, "*batch"]:
    r"""α of the β-Gaussian on the line with the kurtosis κ of the samples.

    .. math:: \kappa = \frac{3(2k+3)}{2k+5},\ k = \frac1{\alpha-1}
              \quad\Rightarrow\quad \alpha = 1 + \frac{2(3-\kappa)}{5\kappa-9}

    between 0.6 for infinite κ and ∞ for κ = 9/5; flatter samples have the largest α that is returned, 101.
    """
    wide = samples.to(wide_dtype(samples.dtype))
    share = torch.ones_like(wide) if weights is None else weights.to(wide.dtype).expand(wide.shape)
    share = share / share.sum(0)
    squares = (wide - (share * wide).sum(0)).square()
    kurtosis = (share * squares.square()).sum(0) / (share * squares).sum(0).square()
    kurtosis = kurtosis.clamp(min=9 / 5 + 2.4 / (5 * _LARGEST_GAP))
    return (1 + 2 * (3 - kurtosis) / (5 * kurtosis - 9)).to(samples.dtype)


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
    if samples.ndim < 2:
        raise ValueError(f"samples in N dimensions must have shape (n, *batch, N); got {tuple(samples.shape)}.")
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
