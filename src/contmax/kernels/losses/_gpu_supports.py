"""(p̂ − q) W for rows of logits: the gradient of a loss with respect to the inputs of a linear layer.

The prediction p̂ of most rows of logits has mass on a few classes only; q is the target. A list holds these classes,
and the rows of the weight W that belong to them are added in float32. Where a list would be too long, a dense product
takes its place. The host does not know which rows of logits have such a list. So programs of the dense product cover
all rows, and a program ends at once if none of its rows needs the product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels import blocks_of
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.gpu._launch import CHUNK, in_parts, order_of, side_by_side
from contmax.kernels.losses._gpu_losses import write_gradients
from contmax.kernels.losses._operators import LinearLoss, Supports
from contmax.kernels.rows._gpu_row_loss import chunk_has_mass, probabilities

# Channels of a program of `_add_listed_rows`.
_CHANNELS = 512
# Rows and channels of a tile of the dense product.
_TILE_ROWS, _TILE_CHANNELS = 128, 128


def list_supports(z: Tensor, alpha: float, statistics: Tensor, supports: Supports) -> None:
    """Write the supports of contiguous, unmasked logits (T, C) from their statistics; α > 1."""
    tokens, classes = z.shape
    kinds = {"K": order_of(alpha), "HAS_MAXIMA": statistics.shape[1] > 4, "CHUNK": CHUNK}
    kinds["CAPACITY"] = supports.places.shape[1]
    list_them = Launch(_list_support, (tokens,), (classes, alpha - 1, statistics.stride(0)), kinds, 1)
    list_them(z, statistics, *supports)


def support_products(
    z: Tensor, loss: LinearLoss, statistics: Tensor, supports: Supports, mean_row: Tensor | None
) -> Tensor:
    """(p̂ − q) W in float32, (T, D), from contiguous logits (T, C), which are overwritten.

    `mean_row` is the mean of W over the classes, (D,) in float32; None without smoothing.
    """
    (tokens, classes), channels, capacity = z.shape, loss.weight.shape[1], supports.places.shape[1]
    products = z.new_empty((tokens, channels), dtype=torch.float32)
    weight, target = side_by_side(loss.weight), loss.target.contiguous()
    add = Launch(
        _add_listed_rows,
        (tokens, blocks_of(channels, _CHANNELS)),
        (classes, channels, weight.stride(0), statistics.stride(0), loss.smoothing),
        {"SMOOTHS": mean_row is not None, "CAPACITY": capacity, "ROWS": 8, "BLOCK": _CHANNELS},
    )
    add(*supports, target, statistics, weight, products if mean_row is None else mean_row, products)
    is_long = (supports.counts > capacity).float()
    in_parts(write_gradients, (z, target, None, statistics, is_long, z, None), loss.alpha, loss.smoothing)
    chunk = 32 if z.dtype == torch.float32 else 64
    multiply = Launch(
        _multiply_long_rows,
        (blocks_of(tokens, _TILE_ROWS), blocks_of(channels, _TILE_CHANNELS)),
        (tokens, classes, channels, weight.stride(0)),
        {"CAPACITY": capacity, "ROWS": _TILE_ROWS, "BLOCK": _TILE_CHANNELS, "CHUNK": chunk},
        8,
        stages=3,
    )
    multiply(z, supports.counts, weight, products)
    return products


@triton.jit
def _list_support(
    X, STATISTICS, PLACES, MASSES, COUNTS, n, epsilon, stat_stride,
    K: tl.constexpr, HAS_MAXIMA: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """List the classes with mass of a row of logits, at most CAPACITY of them. Tiles without mass are not read.

    COUNTS gets the number of all classes with mass, which is above CAPACITY if the list overflows.
    """
    r = tl.program_id(0).to(tl.int64)
    statistics = STATISTICS + r * stat_stride + tl.arange(0, 1)
    top, t, inverse = tl.load(statistics), tl.load(statistics + 1), tl.load(statistics + 2)
    epsilons = tl.zeros([1], tl.float32) + epsilon
    count = 0
    for start in range(0, n, CHUNK):
        has_mass = True
        if HAS_MAXIMA:
            has_mass = chunk_has_mass(tl.load(statistics + 4 + start // CHUNK), top, t, epsilons)
        if has_mass:
            columns = start + tl.arange(0, CHUNK)
            x = tl.load(X + r * n + columns, mask=columns < n, other=-float("inf")).to(tl.float32)
            p = tl.sum(probabilities(x[None, :], top, t, inverse, epsilons, K), 0)
            keep = p > 0.0
            place = count + tl.cumsum(keep.to(tl.int32), 0) - 1
            listed = keep & (place < CAPACITY)
            tl.store(PLACES + r * CAPACITY + place, columns, mask=listed)
            tl.store(MASSES + r * CAPACITY + place, p, mask=listed)
            count += tl.sum(keep.to(tl.int32), 0)
    tl.store(COUNTS + r, count)


@triton.jit
def _add_listed_rows(
    PLACES, MASSES, COUNTS, Y, STATISTICS, W, MEAN, OUT, n, channels, w_stride, stat_stride, smoothing,
    SMOOTHS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store BLOCK channels of a row of (p̂ − q) W from its list.

    If the list overflowed, `_multiply_long_rows` overwrites the result.
    """
    r = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < channels
    y = tl.load(Y + r).to(tl.int64)
    known = inside & (y >= 0) & (y < n)
    # A row with a NaN has an empty list and t = NaN: adding t·0 makes its product NaN.
    total = tl.zeros([BLOCK], tl.float32) + tl.load(STATISTICS + r * stat_stride + 1) * 0.0
    total -= (1.0 - smoothing) * tl.load(W + y * w_stride + d, mask=known, other=0.0).to(tl.float32)
    if SMOOTHS:
        total -= smoothing * tl.load(MEAN + d, mask=inside, other=0.0)
    count = tl.load(COUNTS + r)
    count = tl.where(count > CAPACITY, 0, count)
    for start in range(0, count, ROWS):
        j = start + tl.arange(0, ROWS)
        place = tl.load(PLACES + r * CAPACITY + j, mask=j < count, other=0).to(tl.int64)
        mass = tl.load(MASSES + r * CAPACITY + j, mask=j < count, other=0.0)
        wanted = (j < count)[:, None] & inside[None, :]
        rows = tl.load(W + place[:, None] * w_stride + d[None, :], mask=wanted, other=0.0).to(tl.float32)
        total += tl.sum(mass[:, None] * rows, 0)
    tl.store(OUT + r * channels + d, total, mask=inside)


@triton.jit
def _multiply_long_rows(
    RESIDUAL, COUNTS, W, OUT, tokens, n, channels, w_stride,
    CAPACITY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the rows of (p̂ − q) W whose lists overflowed, from their residuals p̂ − q; other rows stay unchanged."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.load(COUNTS + r, mask=r < tokens, other=0)
    if tl.max(counts, 0) > CAPACITY:
        at = r.to(tl.int64)[:, None]
        c = tl.arange(0, CHUNK)
        residual = RESIDUAL + at * n + c[None, :]
        rows = W + c[:, None] * w_stride + d[None, :]
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, n, CHUNK):
            exists = c < n - start
            a = tl.load(residual, mask=(r < tokens)[:, None] & exists[None, :], other=0.0)
            b = tl.load(rows, mask=exists[:, None] & (d < channels)[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
            residual += CHUNK
            rows += CHUNK * w_stride
        wanted = (counts > CAPACITY)[:, None] & (d < channels)[None, :]
        tl.store(OUT + at * channels + d[None, :], total, mask=wanted)
