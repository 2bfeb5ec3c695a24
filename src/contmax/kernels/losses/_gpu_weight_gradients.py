"""Σ_t g_t (p̂_t − q_t) h_tᵀ over tokens t: the gradient of a loss with respect to the weight of a linear layer.

g_t is the cotangent of a token's loss, q_t its target. Its prediction p̂_t mostly has mass on a few classes, which are
listed. The pairs (token, class) are sorted by class, so that pairs of neighbouring classes lie side by side. A program
sums the hidden vectors h_t of the pairs of a block of classes in float32, by products with a matrix that has one entry
per pair, the coefficient of h_t.

Tokens with mass on more classes than a list holds are *long*. The host does not know which tokens are long, so the
device sorts them to the front: programs without a long token end at once, the others recompute logits and multiply
densely. The sums over pairs and over long tokens are added before the gradient is rounded.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels import blocks_of, power_of_two
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.gpu._launch import laid_out, order_of, side_by_side
from contmax.kernels.losses._operators import LinearLoss, Supports
from contmax.kernels.rows._gpu_row_loss import probabilities
from contmax.kernels.rows._gpu_rows import saturated

# `_sum_rows`: classes and channels per program, and pipeline stages, which are many because loads of hidden vectors
# wait for loads of their indices.
_CLASSES, _CHANNELS, _STAGES = 128, 128, 6
# The number of blocks of classes. Residuals of long tokens are in memory for one block at a time.
_BLOCKS_OF_CLASSES = 32
# Tokens and classes of a tile of residuals g (p̂ − q); and the number of tiles of the same classes that are computed one
# after the other, while the rows of the weight of these classes are in the cache.
_TILE_TOKENS, _TILE_CLASSES, _TILES_IN_GROUP = 128, 128, 16
# The number of hidden vectors that are converted to float32 at a time.
_WIDE_TOKENS = 1024
# The longest array that torch sorts on a GPU.
_MOST_PAIRS = 2**31 - 1


def write_weight_gradients(
    loss: LinearLoss, statistics: Tensor, supports: Supports, g: Tensor, grad_weight: Tensor, grad_bias: Tensor
) -> None:
    """Write Σ_t g_t (p̂_t − q_t) h_tᵀ to grad_weight, (C, D), and Σ_t g_t (p̂_t − q_t) to grad_bias, (C,) or empty.

    `grad_bias` is empty without a bias. Sums are in float32. The statistics, (T, 4 or more), belong to unmasked logits,
    and α > 1.
    """
    hidden, weight, target = side_by_side(loss.hidden), side_by_side(loss.weight), loss.target.contiguous()
    loss, g = loss._replace(hidden=hidden, weight=weight, target=target), laid_out(g)
    most = _MOST_PAIRS // (supports.places.shape[1] + 1)
    if hidden.shape[0] <= most:
        _write_sums(loss, statistics, supports, g, grad_weight, grad_bias)
        return
    totals = [torch.zeros_like(x, dtype=torch.float32) for x in (grad_weight, grad_bias)]
    parts = [torch.empty_like(x) for x in totals]
    for start in range(0, hidden.shape[0], most):
        tokens = slice(start, start + most)
        _write_sums(loss.of(tokens), statistics[tokens], supports.of(tokens), g[tokens], parts[0], parts[1])
        for total, part in zip(totals, parts, strict=True):
            total.add_(part)
    grad_weight.copy_(totals[0])
    grad_bias.copy_(totals[1])


def _write_sums(
    loss: LinearLoss, statistics: Tensor, supports: Supports, g: Tensor, grad_weight: Tensor, grad_bias: Tensor
) -> None:
    """`write_weight_gradients` for at most _MOST_PAIRS pairs, which are sorted at once."""
    hidden, (classes, channels) = loss.hidden, loss.weight.shape
    every = _every_class(hidden, statistics, g, loss.smoothing / classes)
    is_long = (supports.counts > supports.places.shape[1]) & (g != 0)
    order, total = torch.argsort((~is_long).byte(), stable=True), is_long.sum(0, keepdim=True, dtype=torch.int32)
    pairs = _sorted_pairs(loss, supports, g)
    width = blocks_of(blocks_of(classes, _BLOCKS_OF_CLASSES), _CLASSES) * _CLASSES
    # Row i has the residuals of the i-th long token; rows after the last long token are not written.
    residual, tokens = hidden.new_empty(len(hidden), width), blocks_of(len(hidden), _TILE_TOKENS)
    sizes, is_wide = {"CLASSES": _CLASSES, "CHANNELS": _CHANNELS}, hidden.dtype == torch.float32
    tiles = {"K": order_of(loss.alpha), "HAS_BIAS": loss.bias is not None, "ROWS": _TILE_TOKENS}
    tiles |= {"CLASSES": _TILE_CLASSES, "GROUP": _TILES_IN_GROUP, "DEPTH": 32 if is_wide else 64}
    strides = (hidden.stride(0), loss.weight.stride(0), statistics.stride(0), width)
    for start in range(0, classes, width):
        stop = min(start + width, classes)
        programs, count = tokens * blocks_of(stop - start, _TILE_CLASSES), blocks_of(stop - start, _CLASSES)
        numbers = (len(hidden), start, stop, channels, *strides, loss.alpha - 1, loss.smoothing)
        make = Launch(_make_residuals, (programs,), numbers, tiles, 8, stages=3)
        bias = loss.weight if loss.bias is None else loss.bias
        make(hidden, loss.weight, bias, loss.target, statistics, g, order, total, residual)
        grid, places = (count, blocks_of(channels, _CHANNELS)), (start, classes, channels, width, hidden.stride(0))
        sum_rows = Launch(_sum_rows, grid, places, sizes | {"ROWS": 32 if is_wide else 64}, 8, stages=_STAGES)
        sum_rows(*pairs, residual, order, total, hidden, every, grad_weight)
        if loss.bias is not None:
            kinds = {"TILE": _CLASSES, "CLASSES": _CLASSES // 4, "ROWS": 128}
            programs = blocks_of(stop - start, _CLASSES // 4)
            sum_coefficients = Launch(_sum_coefficients, (programs,), (start, classes, width), kinds)
            sum_coefficients(*pairs, residual, total, every[channels:], grad_bias)


def _every_class(hidden: Tensor, statistics: Tensor, g: Tensor, share: float) -> Tensor:
    """−s/C Σ_t g_t (h_t, 1), (D + 1,) in float32, which smoothing adds to the gradient of each class's weight and bias.

    `share` is s/C. The term is NaN if a cotangent is not finite, or if a token with g ≠ 0 has a NaN logit, and so a NaN
    in column 1 of the statistics.
    """
    broken = torch.where(g == 0, 0, (statistics[:, 1] + g) * 0).sum()
    if share == 0:
        return broken.expand(hidden.shape[1] + 1).contiguous()
    spread = torch.zeros(hidden.shape[1], dtype=torch.float32, device=g.device)
    for h, weights in zip(hidden.split(_WIDE_TOKENS), g.split(_WIDE_TOKENS), strict=True):
        # Hidden vectors of tokens with g = 0 may be NaN: replace them by zeros.
        spread.addmv_(torch.where(weights.unsqueeze(-1) == 0, 0, h).mT.to(torch.float32), weights)
    return torch.cat([spread, g.sum().unsqueeze(0)]).mul_(-share).add_(broken)


def _sorted_pairs(loss: LinearLoss, supports: Supports, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs sorted by class: classes, tokens, coefficients, and the index where each block of _CLASSES classes begins.

    A token with a short list has a pair with coefficient g p̂ for each listed class, and a pair with −g (1−s) for its
    target. The host does not know the number of pairs, so every token has a slot for each place of its list and one for
    its target. Slots without a pair have the class C, and come last.
    """
    (tokens, capacity), classes, device = supports.places.shape, loss.weight.shape[0], g.device
    keys = supports.places.new_empty(tokens * (capacity + 1))
    sizes = {"CAPACITY": capacity, "SLOTS": power_of_two(capacity)}
    name = Launch(_name_pairs, (tokens,), (tokens * capacity, classes), sizes)
    name(supports.places, supports.counts, loss.target, g, keys)
    # The sort is stable: sums over the pairs of a class have one order, and so are equal from run to run.
    keys, order = torch.sort(keys, stable=True)
    names, coefficients = torch.empty_like(keys), torch.empty_like(keys, dtype=torch.float32)
    block, numbers = 1024, (tokens * capacity, keys.numel(), classes, loss.smoothing)
    kinds = {"CAPACITY": capacity, "BLOCK": block}
    weigh = Launch(_weigh_pairs, (blocks_of(keys.numel(), block),), numbers, kinds)
    weigh(keys, order, supports.masses, g, names, coefficients)
    edges = torch.arange(0, classes + _CLASSES, _CLASSES, dtype=torch.int32, device=device).clamp_(max=classes)
    return keys, names, coefficients, torch.searchsorted(keys, edges)


@triton.jit
def _name_pairs(PLACES, COUNTS, Y, G, KEYS, slots, n, CAPACITY: tl.constexpr, SLOTS: tl.constexpr):
    """Store the classes of a token's pairs in KEYS: T·CAPACITY slots for lists, then T slots for targets.

    A slot without a pair gets n, the number of classes.
    """
    r = tl.program_id(0).to(tl.int64)
    count = tl.load(COUNTS + r)
    counts = (count <= CAPACITY) & (tl.load(G + r) != 0.0)
    j = tl.arange(0, SLOTS)
    listed = (j < count) & counts
    place = tl.load(PLACES + r * CAPACITY + j, mask=listed & (j < CAPACITY), other=0)
    tl.store(KEYS + r * CAPACITY + j, tl.where(listed, place, n), mask=j < CAPACITY)
    y = tl.load(Y + r)
    known = counts & (y >= 0) & (y < n)
    tl.store(KEYS + slots + r, tl.where(known, y.to(tl.int32), n))


@triton.jit
def _weigh_pairs(
    KEYS, ORDER, MASSES, G, NAMES, COEFFICIENTS, slots, size, n, smoothing,
    CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store tokens (NAMES) and coefficients of sorted pairs; ORDER has their indices before sorting."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = (i < size) & (tl.load(KEYS + i, mask=i < size, other=n) < n)
    at = tl.load(ORDER + i, mask=used, other=0)
    listed = at < slots
    token = tl.where(listed, at // CAPACITY, at - slots)
    mass = tl.load(MASSES + at, mask=used & listed, other=0.0)
    coefficient = tl.load(G + token, mask=used, other=0.0) * tl.where(listed, mass, smoothing - 1.0)
    tl.store(NAMES + i, token.to(tl.int32), mask=used)
    tl.store(COEFFICIENTS + i, coefficient, mask=used)


@triton.jit
def _sum_rows(
    KEYS, NAMES, COEFFICIENTS, EDGES, RESIDUAL, ORDER, LONG, HIDDEN, EVERY, GW,
    first_class, n, channels, width, h_stride,
    CLASSES: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store a (CLASSES, CHANNELS) tile of the gradient of W: sums over pairs and long tokens plus EVERY (smoothing)."""
    tile = first_class // CLASSES + tl.program_id(0)
    c = tile * CLASSES + tl.arange(0, CLASSES)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d < channels
    total = tl.zeros([CLASSES, CHANNELS], tl.float32)
    begin, end = tl.load(EDGES + tile), tl.load(EDGES + tile + 1)
    for start in range(begin, end, ROWS):
        i = start + tl.arange(0, ROWS)
        key = tl.load(KEYS + i, mask=i < end, other=-1)
        token = tl.load(NAMES + i, mask=i < end, other=0).to(tl.int64)
        coefficient = saturated(tl.load(COEFFICIENTS + i, mask=i < end, other=0.0), HIDDEN)
        wanted = (i < end)[:, None] & inside[None, :]
        h = tl.load(HIDDEN + token[:, None] * h_stride + d[None, :], mask=wanted, other=0.0)
        a = tl.where(c[:, None] == key[None, :], coefficient[None, :], 0.0)
        high = a.to(h.dtype)
        total = tl.dot(high, h, total, input_precision="ieee")
        if h.dtype != tl.float32:
            # The coefficients were rounded to half precision: add the product with their rounding errors.
            total = tl.dot((a - high.to(tl.float32)).to(h.dtype), h, total)
    long = tl.load(LONG)
    columns = tl.program_id(0) * CLASSES + tl.arange(0, CLASSES)
    for start in range(0, long, ROWS):
        i = start + tl.arange(0, ROWS)
        token = tl.load(ORDER + i, mask=i < long, other=0)
        here = i.to(tl.int64)[:, None] * width + columns[None, :]
        # Columns after the last class hold arbitrary numbers, and their sums are not stored.
        b = tl.load(RESIDUAL + here, mask=(i < long)[:, None], other=0.0)
        wanted = (i < long)[:, None] & inside[None, :]
        h = tl.load(HIDDEN + token[:, None] * h_stride + d[None, :], mask=wanted, other=0.0)
        total = tl.dot(tl.trans(b), h, total, input_precision="ieee")
    total += tl.load(EVERY + d, mask=inside, other=0.0)[None, :]
    here = c.to(tl.int64)[:, None] * channels + d[None, :]
    tl.store(GW + here, total.to(GW.dtype.element_ty), mask=(c < n)[:, None] & inside[None, :])


@triton.jit
def _sum_coefficients(
    KEYS, NAMES, COEFFICIENTS, EDGES, RESIDUAL, LONG, EVERY, GB, first_class, n, width,
    TILE: tl.constexpr, CLASSES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the bias for CLASSES classes.

    The gradient is a sum over pairs (token, class), which `_sorted_pairs` sorted by class, over long tokens, and EVERY
    (smoothing). The CLASSES classes lie in one block of TILE classes; EDGES says where the pairs of each block begin.
    """
    column = tl.program_id(0) * CLASSES + tl.arange(0, CLASSES)
    c = first_class + column
    tile = (first_class + tl.program_id(0) * CLASSES) // TILE
    total = tl.zeros([CLASSES], tl.float32) + tl.load(EVERY)
    begin, end = tl.load(EDGES + tile), tl.load(EDGES + tile + 1)
    for start in range(begin, end, ROWS):
        i = start + tl.arange(0, ROWS)
        key = tl.load(KEYS + i, mask=i < end, other=-1)
        coefficient = tl.load(COEFFICIENTS + i, mask=i < end, other=0.0)
        total += tl.sum(tl.where(key[:, None] == c[None, :], coefficient[:, None], 0.0), 0)
    long = tl.load(LONG)
    for start in range(0, long, ROWS):
        i = start + tl.arange(0, ROWS)
        here = i.to(tl.int64)[:, None] * width + column[None, :]
        total += tl.sum(tl.load(RESIDUAL + here, mask=(i < long)[:, None], other=0.0).to(tl.float32), 0)
    tl.store(GB + c, total.to(GB.dtype.element_ty), mask=c < n)


@triton.jit
def _make_residuals(
    HIDDEN, W, BIAS, Y, STATISTICS, G, ORDER, LONG, RESIDUAL,
    tokens, begin, end, channels, h_stride, w_stride, stat_stride, width, epsilon, smoothing,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr, GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Store a tile of the residuals g (p̂ − (1−s) e_y) of long tokens, from recomputed logits."""
    # Consecutive programs take the same classes and up to GROUP tiles of tokens, so that rows of W stay in the cache.
    across = GROUP * tl.cdiv(end - begin, CLASSES)
    group, place = tl.program_id(0) // across, tl.program_id(0) % across
    height = tl.minimum(tl.cdiv(tokens, ROWS) - group * GROUP, GROUP)
    tile, tile_of_classes = group * GROUP + place % height, place // height
    long = tl.load(LONG)
    if tile * ROWS < long:
        i = tile * ROWS + tl.arange(0, ROWS)
        lives = i < long
        token = tl.load(ORDER + i, mask=lives, other=0)
        column = tile_of_classes * CLASSES + tl.arange(0, CLASSES)
        c = begin + column
        exists = c < end
        logits = tl.zeros([ROWS, CLASSES], tl.float32)
        for start in range(0, channels, DEPTH):
            d = start + tl.arange(0, DEPTH)
            inside = d < channels
            h = tl.load(
                HIDDEN + token[:, None] * h_stride + d[None, :], mask=lives[:, None] & inside[None, :], other=0.0
            )
            rows = W + c.to(tl.int64)[:, None] * w_stride + d[None, :]
            w = tl.load(rows, mask=exists[:, None] & inside[None, :], other=0.0)
            logits = tl.dot(h, tl.trans(w), logits, input_precision="ieee")
        if HAS_BIAS:
            logits += tl.load(BIAS + c, mask=exists, other=0.0).to(tl.float32)[None, :]
        # Round the logits as the forward pass did.
        x = logits.to(RESIDUAL.dtype.element_ty).to(tl.float32)
        at = STATISTICS + token * stat_stride
        top, t = tl.load(at, mask=lives, other=0.0), tl.load(at + 1, mask=lives, other=1.0)
        inverse, g = tl.load(at + 2, mask=lives, other=0.0), tl.load(G + token, mask=lives, other=0.0)
        p = probabilities(x, top, t, inverse, tl.zeros([ROWS], tl.float32) + epsilon, K)
        is_target = c[None, :] == tl.load(Y + token, mask=lives, other=-1)[:, None]
        value = g[:, None] * (p - tl.where(is_target, 1.0 - smoothing, 0.0))
        here = i.to(tl.int64)[:, None] * width + column[None, :]
        value = saturated(value, RESIDUAL).to(RESIDUAL.dtype.element_ty)
        tl.store(RESIDUAL + here, value, mask=lives[:, None] & exists[None, :])
