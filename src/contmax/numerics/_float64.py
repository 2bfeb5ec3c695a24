"""Numbers as tensors, without waiting for a device."""

import torch
from torch import Tensor


def float64_of(value: Tensor | float, like: Tensor) -> Tensor:
    """A tensor in float64, or a number as one of shape () where `like` is.

    A full tensor is filled on its device; one made of a number by ``torch.tensor`` is copied to it and waited for.

    Example:
        >>> float64_of(0.5, torch.zeros(3))
        tensor(0.5000, dtype=torch.float64)
    """
    if isinstance(value, Tensor):
        return value if value.dtype == torch.float64 else value.double()
    return torch.full((), value, dtype=torch.float64, device=like.device)
