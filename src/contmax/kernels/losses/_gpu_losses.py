"""Fenchel–Young losses over rows of logits, against class ids or soft targets, for fixed α ≤ 2.

`rows._gpu_row_loss` has the equations and symbols. The forward pass stores statistics per row, from which the backward
pass recomputes p̂:

* the maximum; t = 1 − εA with ε = α − 1 and the normaliser A; 1/Σ weights; the smoothing per allowed class;
* for rows of several tiles of CHUNK logits, the maximum of each tile: tiles without mass are not read again;
* for soft targets, their factor (1−s)/S.
"""

import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import cached
from contmax.kernels import blocks_of, power_of_two
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.gpu._launch import CHUNK, Rows, as_rows, byte_mask, forward_block, laid_out, resolved, side_by_side
from contmax.kernels.rows._gpu_maps import Kind, solve_by_lists
from contmax.kernels.rows._gpu_row_loss import (
    chunk_has_mass,
    class_cost,
    probabilities,
    slope_of_negentropy,
    soft_sums,
    soft_terms,
    store_loss,
    store_statistics,
)
from contmax.kernels.rows._gpu_rows import load_rows, row_offsets, saturated
from contmax.kernels.rows._gpu_solve import below, conjugate, solved_weights

# The longest rows that fit on the chip. For a longer row several programs each list the few logits of a slice that may
# have mass.
LONGEST_ON_CHIP = 4096
# A program of the backward pass takes this many tiles of a row.
_TILES_OF_GRADIENT = 32


def statistics_width(columns: int, is_soft: bool) -> int:
    """The number of statistics of a row of `columns` logits."""
    return 4 + (blocks_of(columns, CHUNK) if columns > CHUNK else 0) + is_soft


def write_losses(
    z: Tensor, target: Tensor, mask: Tensor | None, losses: Tensor, statistics: Tensor, alpha: float, smoothing: float
) -> None:
    """Write the losses (*batch) of logits (*batch, n), and the statistics of the rows.

    Targets are class ids (*batch), or weights ≥ 0 (*batch, n) of any floating-point dtype, to be divided by their sum.
    `in_parts` calls this function, for parts of the rows if there are too many for one launch.
    """
    z, target = side_by_side(z), laid_out(target)
    tensors, rows = as_rows(z, byte_mask(mask, z))
    kind = _kind(alpha, mask, target, smoothing)
    if rows.columns <= LONGEST_ON_CHIP:
        _short_losses(rows, kind)(*tensors, target, statistics, losses)
    else:
        solve_by_lists(z, tensors, rows, kind, (statistics, target, statistics, statistics, losses))


def _kind(alpha: float, mask: Tensor | None, target: Tensor, smoothing: float) -> Kind:
    """The kind of a loss, which with the shape of its logits selects the launches of both passes."""
    return Kind(alpha, mask is not None, is_map=False, is_soft=target.is_floating_point(), smoothing=smoothing)


def write_gradients(
    z: Tensor,
    target: Tensor,
    mask: Tensor | None,
    statistics: Tensor,
    g: Tensor,
    grad: Tensor,
    grad_target: Tensor | None,
    alpha: float,
    smoothing: float,
) -> None:
    """Write the gradients of logits and, if `grad_target` is given, of soft targets; g (*batch) are the cotangents.

    `in_parts` calls this function. `grad` may be z itself if z is contiguous. For class ids the first four statistics
    are enough. If only these are passed, z may be a block of the columns, with class ids counted from its first column.
    """
    z, target, statistics, g = side_by_side(z), laid_out(target), statistics.contiguous(), resolved(g)
    tensors, rows = as_rows(z, byte_mask(mask, z))
    # The mean of losses has one cotangent for all rows, expanded with stride 0.
    shared = all(stride == 0 for stride, size in zip(g.stride(), g.shape, strict=True) if size > 1)
    kind = _kind(alpha, mask, target, smoothing)
    launch = _gradient(rows, kind, statistics.shape[-1], 0 if shared else 1, grad_target is not None)
    grads = (grad, grad if grad_target is None else grad_target)
    launch(*tensors, target, statistics, g if shared else g.contiguous(), *grads)


def _constants(kind: Kind) -> dict[str, int]:
    """The constants that all kernels of losses take."""
    return {"K": kind.order, "HAS_MASK": kind.has_mask, "SMOOTHS": kind.smoothing > 0, "IS_SOFT": kind.is_soft}


@cached
def _short_losses(rows: Rows, kind: Kind) -> Launch:
    """The launch of `loss_rows`, for rows that fit on the chip."""
    block, width = forward_block(rows.columns, kind.order), statistics_width(rows.columns, kind.is_soft)
    constants = _constants(kind) | {"SPAN": CHUNK if rows.columns > CHUNK else 0, "R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, kind.epsilon, kind.smoothing, width, *rows.places)
    return Launch(loss_rows, (blocks_of(rows.total, block.rows),), numbers, constants, block.warps)


@cached
def _gradient(rows: Rows, kind: Kind, width: int, step: int, needs_target: bool) -> Launch:
    """The launch of `loss_gradient`: `width` statistics per row, cotangents of stride `step` (0 if rows share one)."""
    chunk = min(CHUNK, max(power_of_two(rows.columns), 16))
    constants = _constants(kind) | {"NEEDS_TARGET": needs_target, "HAS_MAXIMA": width > 4 + kind.is_soft}
    constants |= {"CHUNKS": _TILES_OF_GRADIENT, "CHUNK": chunk}
    grid = (rows.total, blocks_of(rows.columns, chunk * _TILES_OF_GRADIENT))
    numbers = (rows.columns, kind.epsilon, kind.smoothing, step, width, *rows.places)
    return Launch(loss_gradient, grid, numbers, constants, max(1, chunk // 128))


@triton.jit
def loss_rows(
    X, M, Y, STATISTICS, LOSS, rows, n, fixed_epsilon, smoothing, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr, IS_SOFT: tl.constexpr,
    SPAN: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Store losses and statistics of rows that fit on the chip, against class ids, or soft targets if IS_SOFT."""
    r = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, B)
    exists = r < rows
    inside = exists[:, None] & (columns < n)[None, :]
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    x = load_rows(X, M, at, mask_at, inside, columns, HAS_MASK)
    top = tl.max(x, 1)
    y = below(x, top)
    distance = x - tl.where(top == -float("inf"), 0.0, top)[:, None]
    epsilon = tl.zeros([R], tl.float32) + fixed_epsilon
    if IS_SOFT:
        target = tl.load(Y + r.to(tl.int64)[:, None] * n + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        mass, bits, product, impossible = soft_sums(target, distance, epsilon, K)
        cost, scale = soft_terms(mass, bits, product, impossible, epsilon, smoothing, K)
        tl.store(STATISTICS + r.to(tl.int64) * width + width - 1, scale, mask=exists)
    else:
        cost = class_cost(X, M, Y, r, at, mask_at, exists, n, top, smoothing, HAS_MASK)
    share = tl.zeros([R], tl.float32)
    if SMOOTHS:
        allowed = inside
        if HAS_MASK:
            allowed = inside & (tl.load(M + mask_at[:, None] + columns[None, :], mask=inside, other=0) != 0)
        share = smoothing / tl.maximum(tl.sum(allowed.to(tl.float32), 1), 1.0)
        cost -= share * tl.sum(tl.where(allowed, distance, 0.0), 1)
    normaliser, t, weight, total, slope = solved_weights(y, epsilon, K, False, B)
    product = tl.sum(tl.where(weight > 0.0, weight * y, 0.0), 1)
    store_statistics(STATISTICS, r, exists, width, top, t, total, share)
    if SPAN > 0:  # one row per program, in several tiles of SPAN columns
        span = tl.arange(0, B // SPAN)
        maxima = tl.max(tl.reshape(x, [B // SPAN, SPAN]), 1)
        tl.store(STATISTICS + tl.program_id(0).to(tl.int64) * width + 4 + span, maxima, mask=span * SPAN < n)
    store_loss(LOSS, r, exists, top, conjugate(product, total, slope, normaliser, t, epsilon, K) + cost)


@triton.jit
def loss_gradient(
    X, M, Y, STATISTICS, G, DX, DY, n, fixed_epsilon, smoothing, g_stride, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr, IS_SOFT: tl.constexpr, NEEDS_TARGET: tl.constexpr,
    HAS_MAXIMA: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store g (p̂ − (1−s) q − s u), and if NEEDS_TARGET the gradient of soft targets, g (1−s) (∂Ω/∂q − z)/S.

    The smoothing is s, u is uniform on the allowed classes, and S is the sum of a row's soft targets.
    The kernel skips rows with g = 0 and, unless NEEDS_TARGET, the logits of tiles without mass.
    """
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    g = tl.load(G + row.to(tl.int64) * g_stride).to(tl.float32)
    statistics = STATISTICS + row.to(tl.int64) * width
    top, t, inverse = tl.load(statistics), tl.load(statistics + 1), tl.load(statistics + 2)
    share = tl.load(statistics + 3)
    if IS_SOFT:
        scale = tl.load(statistics + width - 1)
        # A fully masked row has no gradient.
        g = tl.where(top == -float("inf"), 0.0, g)
    else:
        target_class = tl.load(Y + r)
    top = tl.where(top == -float("inf"), 0.0, top)
    epsilon = tl.zeros([1], tl.float32) + fixed_epsilon
    begin = tl.program_id(1) * CHUNK * CHUNKS
    for start in range(begin, tl.minimum(begin + CHUNK * CHUNKS, n), CHUNK):
        columns = start + tl.arange(0, CHUNK)
        here = r.to(tl.int64) * n + columns
        inside = columns < n
        wanted = inside & (g != 0.0)
        allowed = wanted
        if HAS_MASK:  # a masked class has no gradient, not even as a target
            allowed = wanted & (tl.load(M + mask_at + columns, mask=wanted, other=0) != 0)
        if IS_SOFT:
            target = tl.load(Y + here, mask=wanted, other=0.0).to(tl.float32)
        has_mass = True
        if HAS_MAXIMA and not NEEDS_TARGET:
            has_mass = chunk_has_mass(tl.load(statistics + 4 + start // CHUNK), top, t, epsilon)
        residual = tl.zeros([CHUNK], tl.float32) + t * 0.0
        if has_mass:
            x = tl.load(X + at + columns, mask=allowed, other=-float("inf")).to(tl.float32)
            residual += tl.sum(probabilities(x[None, :], top, t, inverse, epsilon, K), 0)
            if NEEDS_TARGET:
                # If a target > 0 has score −inf, the loss is +inf for any other scores z: omit z, the slope of ⟨z, q⟩.
                score = tl.where((scale > 0.0) & (x > -float("inf")), x - top, 0.0)
                slope = tl.sum(slope_of_negentropy(target[None, :], scale, smoothing, epsilon, K), 0) - score
                tl.store(DY + here, saturated(tl.where(wanted, g * tl.abs(scale) * slope, 0.0), DY), mask=inside)
        if IS_SOFT:
            residual -= target * tl.where(scale < 0.0, 0.0, scale)
        else:
            residual -= tl.where(columns == target_class, 1.0 - smoothing, 0.0)
        if SMOOTHS:
            residual -= share
        tl.store(DX + here, saturated(tl.where(allowed, g * residual, 0.0), DX), mask=inside)
