"""Products that must not be rounded on the way, whatever autocast says."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which operations on tensors of this device keep their dtypes; autocast knows no meta device."""
    if like.is_meta:
        return contextlib.nullcontext()
    kind = like.device.type
    # A traced program always says so: it may be run under autocast later.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
