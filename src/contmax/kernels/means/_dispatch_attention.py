"""Gates and masked means by one kernel each, on real CUDA tensors; tracers fuse the torch references themselves."""

import torch
from torch import Tensor

from contmax._backend import triton_takes
from contmax._eager import is_eager

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


def masked_means_are_compiled(weights: Tensor, values: Tensor) -> bool:
    """Whether a kernel takes these weights and values."""
    return (
        weights.dtype == torch.float32
        and values.numel() > 0
        and is_eager(weights)
        and is_eager(values)
        and triton_takes(values)
    )


def masked_mean_compiled(weights: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Σ_ℓ w_ℓ h_ℓ; see contmax.kernels.triton.masked_mean."""
    from contmax.kernels import triton

    return triton.masked_mean(weights, values, mask)


def masked_mean_pulled_back(
    weights: Tensor, values: Tensor, mask: Tensor, cotangent: Tensor, needs_values: bool
) -> tuple[Tensor, Tensor | None]:
    """Its gradients; see contmax.kernels.triton.masked_mean_backward."""
    from contmax.kernels import triton

    return triton.masked_mean_backward(weights, values, mask, cotangent, needs_values)
