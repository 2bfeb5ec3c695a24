"""Where a kernel is launched."""

import contextlib

import torch
from torch import Tensor


def device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device: in this context it is that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
