"""Gates on the positions of a line: from logits to weights, and to the mean and variance of a density over open gates.

One program per row. The references are in contmax.nn._gates.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import cached
from contmax.kernels import power_of_two
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.gpu._launch import laid_out, resolved


@triton.jit
def _place(may_ptr, row, queries, length, columns, inside, HAS_MASK: tl.constexpr):
    """Whether each position may be attended; the centre of its cell; and the length of a cell, in float32.

    The cells are equal parts of [0, 1], one for each position that may be attended.
    """
    if HAS_MASK:
        may = tl.load(may_ptr + (row // queries) * length + columns, mask=inside, other=0) != 0
        counted = may.to(tl.int32)
        rank = (tl.cumsum(counted, axis=0) - counted).to(tl.float32)
        count = tl.maximum(tl.sum(counted, axis=0), 1).to(tl.float32)
    else:
        may = inside
        rank = columns.to(tl.float32)
        count = tl.sum(inside.to(tl.int32), axis=0).to(tl.float32)
    return may, (rank + 0.5) / count, 1.0 / count


@triton.jit
def _excess(offset, side):
    """The mean of |x − offset| over x in [−side/2, side/2], a cell, less side/4, its value at offset 0."""
    near = tl.minimum(tl.maximum(offset, -0.5 * side), 0.5 * side)
    return near * near / side + tl.maximum(tl.abs(offset) - 0.5 * side, 0.0)


@triton.jit
def gate_moments_fwd_kernel(
    logits_ptr, may_ptr, weights_ptr, mean_ptr, variance_ptr,
    queries, length, shift, least,
    HAS_MASK: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the weights of a row of gates, and the mean and the variance of its density; see `gate_moments`.

    With a = 2 E|t − mean| the variance is (a² + `least`)/5, that of a truncated parabola of half-width √(a² + `least`).
    Before that, `ROUNDS` times, gates more than a from the mean are closed in part, those beyond 2a altogether.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < length
    may, centre, side = _place(may_ptr, row, queries, length, columns, inside, HAS_MASK)
    logit = tl.load(logits_ptr + row * length + columns, mask=inside, other=0.0) + shift
    log_gate = tl.minimum(logit, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(logit)))
    log_gate = tl.where(may, log_gate, -float("inf"))
    largest = tl.max(log_gate, axis=0)
    largest = tl.where(largest == -float("inf"), 0.0, largest)
    mass = tl.where(may, tl.exp(log_gate - largest), 0.0)
    total = tl.sum(mass, axis=0)
    p = mass / tl.where(total > 0, total, 1.0)
    mean = tl.sum(p * centre, axis=0)
    half_width = 0.5 * side + 2.0 * tl.sum(p * _excess(centre - mean, side), axis=0)
    for _ in tl.static_range(ROUNDS):
        near = mass * tl.minimum(tl.maximum(2.0 - tl.abs(centre - mean) / half_width, 0.0), 1.0)
        total = tl.sum(near, axis=0)
        p = near / tl.where(total > 0, total, 1.0)
        mean = tl.sum(p * centre, axis=0)
        half_width = 0.5 * side + 2.0 * tl.sum(p * _excess(centre - mean, side), axis=0)
    tl.store(weights_ptr + row * length + columns, p, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(variance_ptr + row, (half_width * half_width + least) / 5.0)


@triton.jit
def gate_moments_bwd_kernel(
    logits_ptr, may_ptr, weights_ptr, mean_ptr, by_weights_ptr, by_mean_ptr, by_variance_ptr, grad_ptr,
    queries, length, shift,
    HAS_MASK: tl.constexpr, HAS_WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradient of a row of logits, with weights and mean as the forward pass computed them."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < length
    _, centre, side = _place(may_ptr, row, queries, length, columns, inside, HAS_MASK)
    p = tl.load(weights_ptr + row * length + columns, mask=inside, other=0.0)
    offset = centre - tl.load(mean_ptr + row)
    excess = _excess(offset, side)
    half_width = 0.5 * side + 2.0 * tl.sum(p * excess, axis=0)
    by_half_width = tl.load(by_variance_ptr + row) * 0.4 * half_width
    sign = tl.where(offset > 0, 1.0, -1.0)
    slope = tl.where(tl.abs(offset) < 0.5 * side, 2.0 * offset / side, sign)
    by_mean = tl.load(by_mean_ptr + row) - 2.0 * by_half_width * tl.sum(p * slope, axis=0)
    by_p = by_mean * centre + 2.0 * by_half_width * excess
    if HAS_WEIGHTS:
        by_p += tl.load(by_weights_ptr + row * length + columns, mask=inside, other=0.0)
    # Where a weight is zero, its cotangent may be NaN, and adds nothing.
    by_p = tl.where(p > 0, by_p, 0.0)
    by_log_gate = p * (by_p - tl.sum(p * by_p, axis=0))
    logit = tl.load(logits_ptr + row * length + columns, mask=inside, other=0.0) + shift
    # 1 − sigmoid without overflow on either side.
    small = tl.exp(-tl.abs(logit))
    shut = tl.where(logit > 0, small, 1.0) / (1.0 + small)
    tl.store(grad_ptr + row * length + columns, by_log_gate * shut, mask=inside)


def gate_moments(
    logits: Tensor, may: Tensor | None, shift: float, least: float, rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (*rows, L), means and variances (*rows) of gates sigmoid(logits + shift), one for each cell of [0, 1].

    Args:
        logits: (B, L) or (B, Q, L), float32, contiguous.
        may: True where a position may be attended, (B, L), contiguous; or None.
        shift: added to the logits.
        least: added to the square of the half-width.
        rounds: how often gates far from the mean are closed.
    """
    logits = resolved(logits)
    length, weights = logits.shape[-1], torch.empty_like(logits)
    mean, variance = (logits.new_empty(logits.shape[:-1]) for _ in range(2))
    numbers = (mean.numel() // logits.shape[0], length, shift, least)
    moments = _launch(gate_moments_fwd_kernel, mean.numel(), numbers, HAS_MASK=may is not None, ROUNDS=rounds)
    moments(logits, _bytes(may), weights, mean, variance)
    return weights, mean, variance


def gate_moments_backward(
    logits: Tensor,
    may: Tensor | None,
    weights: Tensor,
    mean: Tensor,
    cotangents: tuple[Tensor | None, Tensor, Tensor],
    shift: float,
) -> Tensor:
    """The gradient of the logits from cotangents of weights (or None), means and variances; see `gate_moments`."""
    logits = resolved(logits)
    length, gradient = logits.shape[-1], torch.empty_like(logits)
    by_weights, by_mean, by_variance = (None if c is None else laid_out(c) for c in cotangents)
    numbers = (mean.numel() // logits.shape[0], length, shift)
    kinds = {"HAS_MASK": may is not None, "HAS_WEIGHTS": by_weights is not None}
    pull_back = _launch(gate_moments_bwd_kernel, mean.numel(), numbers, **kinds)
    pull_back(logits, _bytes(may), weights, mean, by_weights, by_mean, by_variance, gradient)
    return gradient


def _bytes(may: Tensor | None) -> Tensor | None:
    return None if may is None else may.view(torch.uint8)


@cached
def _launch(kernel: Any, rows: int, numbers: tuple[int | float, ...], **kinds: int) -> Launch:
    """The launch of one program per row; numbers[1] is the length of a row."""
    block = power_of_two(int(numbers[1]))
    return Launch(kernel, (rows,), numbers, kinds | {"BLOCK": block}, min(max(block // 256, 1), 16), contracts=True)
