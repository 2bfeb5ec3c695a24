"""Fenchel–Young losses over rows of logits, against class ids or soft targets, for fixed α ≤ 2.

The loss of a row against q = (1−s)·e_y + s·(uniform on the allowed classes) is Ω*(z) − ⟨z, q⟩ with gradient p̂ − q; soft
targets are in `rows._gpu_soft_rows`. The forward pass stores a few statistics per row, from which the backward pass
computes p̂ again:

* the maximum, t = 1 − εA, 1/Σ weights, and the share that smoothing gives to each allowed class;
* the maxima of tiles of CHUNK logits, for rows of several tiles: tiles without mass are not read again;
* the factor of the targets, if they are soft.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import cached
from contmax.kernels._counting import blocks_of, power_of_two
from contmax.kernels.gpu._cached_launch import LAUNCHES, Launch
from contmax.kernels.gpu._launch import (
    CHUNK,
    Rows,
    Sizes,
    as_rows,
    byte_mask,
    forward_block,
    in_parts,
    laid_out,
    lists_of,
    order_of,
    resolved,
    side_by_side,
)
from contmax.kernels.rows._gpu_lists import list_scores
from contmax.kernels.rows._gpu_long_rows import solve_long_rows
from contmax.kernels.rows._gpu_row_loss import chunk_has_mass, smoothed, store_cut, store_loss, store_tops, target_score
from contmax.kernels.rows._gpu_rows import below_maximum, load_rows, row_offsets, saturated
from contmax.kernels.rows._gpu_soft_rows import soft_gradient, soft_loss_rows
from contmax.kernels.rows._gpu_solve import NOTHING, newton_step, relative_weights, solved_weights

# Longer rows are read in slices, which list the few logits that may have mass.
LONGEST_ON_CHIP = 4096
# Registers of a thread that lists: with more, too few warps fit to hide the latency of reading.
_REGISTERS, _REGISTERS_WITH_SOFT_TARGETS = 80, 96
# Sums over the targets of a slice: `list_scores`.
_SUMS_OF_SLICE = 5
# Tiles of a row that one program of the backward pass takes.
_TILES_OF_GRADIENT = 32


class Kind(NamedTuple):
    """The properties of a loss, beside shapes, that select its kernels."""

    alpha: float
    smoothing: float
    has_mask: bool
    is_soft: bool

    @property
    def constants(self) -> dict[str, int]:
        """The constants that all kernels of losses have."""
        return {"K": order_of(self.alpha), "HAS_MASK": self.has_mask, "SMOOTHS": self.smoothing > 0}


def statistics_width(columns: int, is_soft: bool) -> int:
    """The number of statistics of a row of this length."""
    return 4 + (blocks_of(columns, CHUNK) if columns > CHUNK else 0) + is_soft


def write_losses(
    z: Tensor, target: Tensor, mask: Tensor | None, alpha: float, smoothing: float, losses: Tensor, statistics: Tensor
) -> None:
    """Write the losses (*batch) of logits (*batch, n), and the statistics of the rows.

    Targets are class ids (*batch), or weights ≥ 0 (*batch, n) of any floating-point dtype, which count over their sum.
    """
    mask = None if mask is None else mask.expand(z.shape)
    in_parts(_forward, (z, target, mask, losses, statistics), alpha, smoothing)


def _forward(
    z: Tensor, target: Tensor, mask: Tensor | None, losses: Tensor, statistics: Tensor, alpha: float, smoothing: float
) -> None:
    z, target = side_by_side(z), laid_out(target)
    tensors, rows = as_rows(z, byte_mask(mask, z))
    kind, unused = Kind(alpha, smoothing, mask is not None, target.is_floating_point()), statistics
    if rows.columns <= LONGEST_ON_CHIP:
        _short_losses(rows, kind)(*tensors, target, statistics, losses)
        return
    lists = lists_of(z, rows, keeps_places=False)
    count = rows.total * lists.sizes.slices
    peaks = statistics.new_empty(2 * count)
    sums = statistics.new_empty(_SUMS_OF_SLICE * count) if kind.is_soft else unused
    listed = (lists.values, lists.places, lists.counts, peaks, sums, statistics)
    list_them, solve = _long_losses(rows, lists.sizes, kind)
    list_them(*tensors, unused, unused, target, *listed)
    solve(*tensors, unused, target, unused, *listed, losses)


def write_gradients(
    z: Tensor,
    target: Tensor,
    mask: Tensor | None,
    alpha: float,
    smoothing: float,
    statistics: Tensor,
    g: Tensor,
    grad: Tensor,
    grad_target: Tensor | None = None,
) -> None:
    """Write the gradients of logits and of soft targets, from the cotangents g of the losses, (*batch).

    `grad` may be the logits, if they are contiguous. For class ids the first four statistics are enough, and the logits
    may be some columns of the rows only.
    """
    mask = None if mask is None else mask.expand(z.shape)
    in_parts(_backward, (z, target, mask, statistics, g, grad, grad_target), alpha, smoothing)


def _backward(
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
    z, target, statistics, g = side_by_side(z), laid_out(target), statistics.contiguous(), resolved(g)
    tensors, rows = as_rows(z, byte_mask(mask, z))
    # A mean has one cotangent for all rows.
    shared = all(stride == 0 for stride, size in zip(g.stride(), g.shape, strict=True) if size > 1)
    kind = Kind(alpha, smoothing, mask is not None, target.is_floating_point())
    launch = _gradient(rows, kind, statistics.shape[-1], 0 if shared else 1, grad_target is not None)
    results = (grad, grad if grad_target is None else grad_target)[: 1 + kind.is_soft]
    launch(*tensors, target, statistics, g if shared else g.contiguous(), *results)


@cached(LAUNCHES)
def _short_losses(rows: Rows, kind: Kind) -> Launch:
    """Rows that fit on the chip."""
    constants, width = kind.constants, statistics_width(rows.columns, kind.is_soft)
    block = forward_block(rows.columns, constants["K"])
    constants |= {"SPAN": CHUNK if rows.columns > CHUNK else 0, "R": block.rows, "B": block.columns}
    numbers = (rows.total, rows.columns, kind.alpha - 1, kind.smoothing, width, *rows.places)
    kernel = soft_loss_rows if kind.is_soft else loss_rows
    return Launch(kernel, block.programs(rows.total), numbers, constants, block.warps)


@cached(LAUNCHES)
def _long_losses(rows: Rows, sizes: Sizes, kind: Kind) -> tuple[Launch, Launch]:
    """List the logits that may have mass, and solve the lists."""
    epsilon, width = kind.alpha - 1, statistics_width(rows.columns, kind.is_soft)
    first = {"K": kind.constants["K"], "PER_ROW": False, "HAS_MASK": kind.has_mask}
    maps = {"IS_MAP": False, "IS_SOFT": kind.is_soft}
    list_them = Launch(
        list_scores,
        (rows.total, sizes.slices),
        (rows.columns, epsilon, width, *rows.places),
        {**first, **maps, **sizes.when_listing},
        1,
        _REGISTERS_WITH_SOFT_TARGETS if kind.is_soft else _REGISTERS,
    )
    targets = {"HAS_TARGET": not kind.is_soft, "SMOOTHS": kind.smoothing > 0}
    solve = Launch(
        solve_long_rows,
        (rows.total,),
        (rows.columns, sizes.slices, epsilon, kind.smoothing, width, *rows.places),
        {**first, **targets, **maps, "NEEDS_LOSS": True, **sizes.when_solving},
        8,
    )
    return list_them, solve


@cached(LAUNCHES)
def _gradient(rows: Rows, kind: Kind, width: int, step: int, needs_target: bool) -> Launch:
    """Rows with `width` statistics; `step` is the stride of the cotangents, 0 if all rows share one."""
    chunk = min(CHUNK, max(power_of_two(rows.columns), 16))
    constants = kind.constants | ({"NEEDS_TARGET": needs_target} if kind.is_soft else {})
    constants |= {"HAS_TOPS": width > 4 + kind.is_soft, "CHUNKS": _TILES_OF_GRADIENT, "CHUNK": chunk}
    grid = (rows.total, blocks_of(rows.columns, chunk * _TILES_OF_GRADIENT))
    numbers = (rows.columns, kind.alpha - 1, kind.smoothing, step, width, *rows.places)
    return Launch(soft_gradient if kind.is_soft else loss_gradient, grid, numbers, constants, max(1, chunk // 128))


@triton.jit
def loss_rows(
    X, M, Y, STATISTICS, LOSS, rows, n, fixed_epsilon, smoothing, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr,
    SPAN: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Losses and statistics of rows that fit on the chip, against class ids."""
    r = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, B)
    exists = r < rows
    inside = exists[:, None] & (columns < n)[None, :]
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    x = load_rows(X, M, at, mask_at, inside, columns, HAS_MASK)
    y, top = below_maximum(x)
    epsilon = tl.zeros([R], tl.float32) + fixed_epsilon
    normaliser, t, weight, total, slope = solved_weights(y, epsilon, K, False, B)
    normaliser += newton_step(total, slope, normaliser, t, epsilon, K)
    p = weight / tl.where(total > 0.0, total, 1.0)[:, None]
    gain = (epsilon * tl.sum(tl.where(p > 0.0, p * y, 0.0), 1) + normaliser) / (1.0 + epsilon)
    share = tl.zeros([R], tl.float32)
    linear = target_score(X, M, Y, r, at, mask_at, exists, n, top, HAS_MASK)
    if SMOOTHS:
        allowed = inside
        if HAS_MASK:
            allowed = inside & (tl.load(M + mask_at[:, None] + columns[None, :], mask=inside, other=0) != 0)
        spread = tl.sum(tl.where(allowed, x - tl.where(top == -float("inf"), 0.0, top)[:, None], 0.0), 1)
        share = smoothing / tl.maximum(tl.sum(allowed.to(tl.float32), 1), 1.0)
        linear = smoothed(smoothing, linear, share, spread)
    store_cut(STATISTICS, r, exists, width, top, t, total, share)
    if SPAN > 0:  # one row a program
        store_tops(STATISTICS + tl.program_id(0).to(tl.int64) * width, x, 0, n, B // SPAN, SPAN)
    store_loss(LOSS, r, exists, top, gain, linear, True)


@triton.jit
def loss_gradient(
    X, M, Y, STATISTICS, G, DX, n, fixed_epsilon, smoothing, g_stride, width,
    size_b, size_c, xa, xb, xc, ma, mb, mc,
    K: tl.constexpr, HAS_MASK: tl.constexpr, SMOOTHS: tl.constexpr, HAS_TOPS: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """g (p̂ − q) against class ids; rows with g = 0 are not read, nor are tiles without mass."""
    r = tl.program_id(0)
    row = r + tl.arange(0, 1)
    at = row_offsets(r, size_b, size_c, xa, xb, xc)
    mask_at = row_offsets(r, size_b, size_c, ma, mb, mc)
    g = tl.load(G + row.to(tl.int64) * g_stride).to(tl.float32)
    statistics = STATISTICS + row.to(tl.int64) * width
    top, t, inverse = tl.load(statistics), tl.load(statistics + 1), tl.load(statistics + 2)
    top = tl.where(top == -float("inf"), 0.0, top)
    share = tl.sum(tl.load(statistics + 3), 0)
    broken = tl.sum(t * 0.0, 0)
    epsilon = tl.zeros([1], tl.float32) + fixed_epsilon
    target = tl.load(Y + r)
    begin = tl.program_id(1) * CHUNK * CHUNKS
    for start in range(begin, tl.minimum(begin + CHUNK * CHUNKS, n), CHUNK):
        columns = start + tl.arange(0, CHUNK)
        inside = columns < n
        wanted = inside & (g != 0.0)
        if HAS_MASK:  # a masked class has no gradient, not even as a target
            wanted = wanted & (tl.load(M + mask_at + columns, mask=wanted, other=0) != 0)
        has_mass = True
        if HAS_TOPS:
            has_mass = chunk_has_mass(tl.load(statistics + 4 + start // CHUNK), top, t, epsilon)
        residual = tl.zeros([CHUNK], tl.float32) + broken
        if has_mass:
            x = tl.load(X + at + columns, mask=wanted, other=-float("inf")).to(tl.float32)
            y = x[None, :] - top[:, None]
            weight, _ = relative_weights(tl.where(y < NOTHING, NOTHING, y), t, epsilon, K)
            residual += tl.sum(weight * inverse[:, None], 0)
        residual -= tl.where(columns == target, 1.0 - smoothing, 0.0)
        if SMOOTHS:
            residual -= tl.where(wanted, share, 0.0)
        here = r.to(tl.int64) * n + columns
        tl.store(DX + here, saturated(tl.where(wanted, g * residual, 0.0), DX), mask=inside)
