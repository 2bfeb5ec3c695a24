"""Gates on the positions of a line by one kernel, on real CUDA tensors; tracers fuse the torch reference themselves."""

import torch
from torch import Tensor

from contmax._eager import is_eager
from contmax.kernels._backends import triton_takes

# A row is held by one program.
_LONGEST_ROW = 16384


def gates_are_compiled(logits: Tensor) -> bool:
    """Whether a kernel takes these logits."""
    return (
        logits.dtype == torch.float32
        and 0 < logits.shape[-1] <= _LONGEST_ROW
        and logits.numel() > 0
        and is_eager(logits)
        and triton_takes(logits)
    )


def gate_moments_compiled(
    logits: Tensor, may: Tensor | None, noise: Tensor | None, drop: Tensor, shift: float, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and variances; see contmax.kernels.triton.gate_moments."""
    from contmax.kernels import triton

    return triton.gate_moments(logits, may, noise, drop, shift, least)


def gate_moments_pulled_back(
    logits: Tensor,
    may: Tensor | None,
    weights: Tensor,
    mean: Tensor,
    cotangents: tuple[Tensor | None, Tensor, Tensor],
    shift: float,
) -> Tensor:
    """The gradient of the logits; see contmax.kernels.triton.gate_moments_backward."""
    from contmax.kernels import triton

    return triton.gate_moments_backward(logits, may, weights, mean, cotangents, shift)
