"""Distributions in float64, whatever their parameters came in."""

import copy

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
    if isinstance(distribution, Categorical):
        # Normalised again: weights in half precision add up to one only to its few digits.
        return Categorical(logits=distribution.logits.double(), validate_args=False)
    new = copy.copy(distribution)
    for name, value in vars(distribution).items():
        if isinstance(value, Distribution):
            setattr(new, name, in_float64(value))
        elif isinstance(value, Tensor) and value.is_floating_point():
            setattr(new, name, value.double())
    new._validate_args = False
    if isinstance(new, Density):
        new._rebind()
    return new
