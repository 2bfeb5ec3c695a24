"""Copies of distributions that are defined off their support too, and compute in a dtype of choice."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from contmax.densities._density import Density

_HALF = frozenset((torch.float16, torch.bfloat16))


def unchecked(distribution: Distribution, dtype: torch.dtype | None = None) -> Distribution:
    """A deep copy whose log-probability off the support is −inf instead of an error.

    It computes in ``dtype`` unless its parameters are in a wider one. In float64 the ends of its support do not suffer
    from the rounding of a narrower dtype.

    Example:
        >>> uniform = torch.distributions.Uniform(0.0, 1.0)
        >>> unchecked(uniform, torch.float64).log_prob(torch.tensor([0.5, 2.0]))
        tensor([0., -inf], dtype=torch.float64)
    """
    if dtype is None and isinstance(distribution, Density):
        return distribution
    if dtype is not None and isinstance(distribution, Categorical):
        # The constructor normalises again: the sum of weights in half precision is one only to a few digits.
        logits = distribution.logits
        return Categorical(logits=logits.to(torch.promote_types(logits.dtype, dtype)), validate_args=False)
    new = copy.copy(distribution)
    for name, value in vars(distribution).items():
        if isinstance(value, Distribution):
            setattr(new, name, unchecked(value, dtype))
        elif dtype is not None and isinstance(value, Tensor) and value.is_floating_point():
            setattr(new, name, value.to(torch.promote_types(value.dtype, dtype)))
        elif dtype is not None and isinstance(value, torch.dtype):
            setattr(new, name, torch.promote_types(value, dtype))
    new._validate_args = False
    if isinstance(new, Density):
        new._rebind()
    return new


def widened(distribution: Distribution) -> Distribution:
    """The distribution itself, or a copy with its parameters in float32 if some are in half precision.

    Quantities derived from the parameters, such as the half-width, are then not rounded before they are used.
    """
    return distribution if _HALF.isdisjoint(parameter_dtypes(distribution)) else unchecked(distribution, torch.float32)


def parameter_dtypes(source: object) -> Iterator[torch.dtype]:
    """The floating-point dtypes of the parameters of a distribution, or of a tensor itself."""
    if isinstance(source, Tensor):
        if source.is_floating_point():
            yield source.dtype
    elif isinstance(source, Density):
        yield source.dtype
    elif isinstance(source, Distribution):
        for value in vars(source).values():
            yield from parameter_dtypes(value)
