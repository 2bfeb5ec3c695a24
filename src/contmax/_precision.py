"""Products that must not be rounded on the way, whatever autocast says."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which operations on tensors of this device keep their dtypes; autocast knows no meta device."""
    return contextlib.nullcontext() if like.is_meta else torch.autocast(like.device.type, enabled=False)
