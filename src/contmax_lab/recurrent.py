"""Recurrent networks that train in bfloat16 on every processor, and read padded sequences without their lengths."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

# Kind → its layer is made with one more input, which at padding has this value in this gate: the input gates of an LSTM
# close, the update gates of a GRU open, so that the sigmoid is 0 or 1, exactly, in every precision.
_AT_PADDING = {"lstm": (0, -1e4), "gru": (1, 1e4)}


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


class Bidirectional(nn.Module):
    """A bidirectional recurrent network that reads every sequence as if it were alone in the batch.

    Padding is marked by one more input, which keeps the state as it is. So the direction that begins at the padding
    keeps its state at zero until it meets the last value. The result is that of packed sequences, without the lengths
    on the host, which would make it wait for the device at every step. The weights of that input have no gradient.

    Args:
        kind: ``lstm`` or ``gru``.
        input_dim: of the values.
        hidden_dim: of each direction.
    """

    def __init__(self, kind: Literal["lstm", "gru"], input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.kind = kind
        layer = LSTM if kind == "lstm" else nn.GRU
        # Named by its kind, as the weights of stored models are.
        self.add_module(kind, layer(input_dim + 1, hidden_dim, batch_first=True, bidirectional=True))
        gate, value = _AT_PADDING[kind]
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if ".weight_ih" in name:
                    weight[:, -1] = 0.0
                    weight[gate * hidden_dim : (gate + 1) * hidden_dim, -1] = value

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """States (B, L, 2·hidden_dim) of values (B, L, D); states at padding are undefined."""
        marked = torch.cat([values, (~mask).unsqueeze(-1).to(values.dtype)], -1)
        states: Tensor = self.get_submodule(self.kind)(marked)[0]
        return states
