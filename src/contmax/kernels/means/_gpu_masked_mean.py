"""Σ_ℓ w_ℓ h_ℓ over the positions that a mask allows. Masked values are never read, so they may be NaN.

The references are in contmax.signal._signal.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import cached
from contmax.kernels import blocks_of, power_of_two
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.gpu._launch import resolved

_ROWS = 32


@triton.jit
def masked_mean_fwd_kernel(
    weights_ptr, values_ptr, mask_ptr, result_ptr, length, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Store Σ_ℓ w_ℓ h_ℓ of one sequence for a block of channels."""
    sequence = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for start in range(0, length, ROWS):
        rows = start + tl.arange(0, ROWS)
        place = sequence * length + rows
        counts = tl.load(mask_ptr + place, mask=rows < length, other=0) != 0
        weights = tl.load(weights_ptr + place, mask=counts, other=0.0)
        inside = counts[:, None] & (columns < channels)[None, :]
        values = tl.load(values_ptr + place[:, None] * channels + columns[None, :], mask=inside, other=0.0)
        total += tl.sum(weights[:, None] * values.to(tl.float32), axis=0)
    tl.store(result_ptr + sequence * channels + columns, total, mask=columns < channels)


@triton.jit
def masked_mean_bwd_kernel(
    weights_ptr, values_ptr, mask_ptr, cotangent_ptr, by_weights_ptr, by_values_ptr,
    length, channels,
    NEEDS_VALUES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of weights at a block of positions of one sequence, and of values if NEEDS_VALUES."""
    sequence = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    place = sequence * length + rows
    counts = tl.load(mask_ptr + place, mask=rows < length, other=0) != 0
    weights = tl.load(weights_ptr + place, mask=counts, other=0.0)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, channels, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = counts[:, None] & (columns < channels)[None, :]
        where = place[:, None] * channels + columns[None, :]
        cotangent = tl.load(cotangent_ptr + sequence * channels + columns, mask=columns < channels, other=0.0)
        values = tl.load(values_ptr + where, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(values * cotangent[None, :], axis=1)
        if NEEDS_VALUES:
            by_values = tl.where(inside, weights[:, None] * cotangent[None, :], 0.0)
            exists = (rows < length)[:, None] & (columns < channels)[None, :]
            tl.store(by_values_ptr + where, by_values.to(by_values_ptr.dtype.element_ty), mask=exists)
    tl.store(by_weights_ptr + place, total, mask=rows < length)


def masked_mean(weights: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Σ_ℓ w_ℓ h_ℓ, (B, D) in float32.

    Args:
        weights: (B, L), float32, contiguous.
        values: (B, L, D), float32 or half precision, contiguous.
        mask: (B, L), boolean, contiguous.
    """
    weights, values = resolved(weights), resolved(values)
    result = weights.new_empty(values.shape[0], values.shape[2])
    _launch(masked_mean_fwd_kernel, values.shape)(weights, values, mask.view(torch.uint8), result)
    return result


def masked_mean_backward(
    weights: Tensor, values: Tensor, mask: Tensor, cotangent: Tensor, needs_values: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of weights and, if needed, of values, from a cotangent (B, D), float32, contiguous."""
    weights, values, cotangent = resolved(weights), resolved(values), resolved(cotangent)
    by_weights, by_values = torch.empty_like(weights), torch.empty_like(values) if needs_values else None
    pull_back = _launch(masked_mean_bwd_kernel, values.shape, NEEDS_VALUES=needs_values)
    pull_back(weights, values, mask.view(torch.uint8), cotangent, by_weights, by_values)
    return by_weights, by_values


@cached
def _launch(kernel: Any, shape: tuple[int, ...], **kinds: bool) -> Launch:
    """The launch of a kernel on values of this shape, (B, L, D)."""
    batch, length, channels = shape
    columns = min(power_of_two(channels), 128)
    blocks = blocks_of(channels, columns) if kernel is masked_mean_fwd_kernel else blocks_of(length, _ROWS)
    sizes = {"ROWS": _ROWS, "COLUMNS": columns}
    return Launch(kernel, (batch, blocks), (length, channels), kinds | sizes, contracts=True)
