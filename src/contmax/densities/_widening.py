"""Distributions in the dtype to compute in, whatever their parameters came in."""

import copy

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from ._density import Density


def in_float64(distribution: Distribution) -> Distribution:
    """A copy of a distribution with its parameters in float64, which answers off its support without raising.

    Args:
        distribution: from this library or from torch, on the line.

    Returns:
        A distribution of the same type. Its support has ends that are not rounded to the precision of the parameters.
    """
    return in_precision(distribution, torch.float64)


def widened(distribution: Distribution) -> Distribution:
    """The distribution itself, or a copy with its parameters in float32 if they are in half precision.

    Quantities derived from the parameters, such as the half-width, are then not rounded before they are used.
    """
    parts = vars(distribution).values()
    half = any(isinstance(part, Tensor) and part.dtype in (torch.float16, torch.bfloat16) for part in parts)
    half = half or any(isinstance(part, Distribution) and widened(part) is not part for part in parts)
    return in_precision(distribution, torch.float32) if half else distribution


def in_precision(distribution: Distribution, least: torch.dtype) -> Distribution:
    """As :func:`in_float64`, with parameters of this dtype or a wider one."""
    if isinstance(distribution, Categorical):
        # Normalised again: weights in half precision add up to one only to its few digits.
        logits = distribution.logits
        return Categorical(logits=logits.to(torch.promote_types(logits.dtype, least)), validate_args=False)
    new = copy.copy(distribution)
    for name, value in vars(distribution).items():
        if isinstance(value, Distribution):
            setattr(new, name, in_precision(value, least))
        elif isinstance(value, Tensor) and value.is_floating_point():
            setattr(new, name, value.to(torch.promote_types(value.dtype, least)))
    new._validate_args = False
    if isinstance(new, Density):
        new._rebind()
    return new
