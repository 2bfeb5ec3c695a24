"""The dtypes to compute in, and products that must not be rounded on the way, whatever autocast says."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from contmax._eager import device_type


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which operations on tensors of this device keep their dtypes; autocast knows no meta device."""
    if like.is_meta:
        return contextlib.nullcontext()
    kind = device_type(like)
    # A traced program always switches autocast off: it may run under autocast later.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``tensor.to(dtype)``, but no call for a tensor of that dtype: torch.export would record two nodes for it."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def common_dtype(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """``torch.promote_types``, but no call for two equal dtypes: torch.export would record a node for it."""
    return first if first == second else torch.promote_types(first, second)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: at least float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.promote_types(dtype, torch.float32)
