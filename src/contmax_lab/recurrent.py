"""A recurrent network that can be trained in bfloat16 on every processor."""

from typing import Any

import torch
from torch import nn


class LSTM(nn.LSTM):
    """`torch.nn.LSTM`, except under autocast on a CPU, where it computes in the precision of its weights.

    There torch rounds what it hands to oneDNN without asking whether oneDNN has such an LSTM for this processor. It has
    none in bfloat16 for ARM without bfloat16 instructions and for x86 without AVX-512, and says "could not create a
    primitive descriptor for the LSTM forward propagation primitive". What follows the LSTM is rounded as usual. On a
    GPU nothing changes, and a `torch.nn.GRU` needs no such care: torch does not hand it to oneDNN.

    Example:
        >>> lstm = LSTM(5, 3, batch_first=True)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     states, _ = lstm(torch.randn(2, 7, 5))
        >>> states.shape, states.dtype
        (torch.Size([2, 7, 3]), torch.float32)
    """

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As `torch.nn.LSTM`: (states, (last hidden state, last cell state))."""
        kind = self.weight_ih_l0.device.type
        if kind != "cpu" or not torch.is_autocast_enabled(kind):
            return super().forward(input, hx)
        dtype = self.weight_ih_l0.dtype
        with torch.autocast(kind, enabled=False):
            return super().forward(input.to(dtype), None if hx is None else tuple(state.to(dtype) for state in hx))
