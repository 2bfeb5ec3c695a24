"""p̂ W − W_y for rows of logits: the gradient of a loss by what a linear layer was given.

p̂ of most rows has mass on a few classes only. Those are listed, and their rows of the weight are read and added up in
float32. A row with more classes than a list holds is multiplied as a whole, by programs that end at once where there is
no such row: nobody has to ask the device how many there are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels.triton._class_losses import row_losses_backward
from contmax.kernels.triton._counting import blocks_of
from contmax.kernels.triton._launch import device_of, order_of, side_by_side
from contmax.kernels.triton._solve import NOTHING, relative_weights

# Reading more rows of the weight than this costs as much as a dense product.
_LONGEST_LIST = 512
_CHUNK = 4096


def support_products(z: Tensor, target: Tensor, alpha: float, cut: Tensor, weight: Tensor) -> Tensor:
    """(p̂ − e_y) W in float32, (T, D).

    Args:
        z: logits (T, C), contiguous; they are overwritten.
        target: class ids (T,).
        alpha: α in (1, 2].
        cut: of the rows, (T, 4), from `row_losses` without a mask or smoothing.
        weight: W, (C, D).
    """
    (tokens, classes), channels = z.shape, weight.shape[1]
    places = z.new_empty((tokens, _LONGEST_LIST), dtype=torch.int32)
    masses = z.new_empty((tokens, _LONGEST_LIST), dtype=torch.float32)
    counts = z.new_empty(tokens, dtype=torch.int32)
    products = z.new_empty((tokens, channels), dtype=torch.float32)
    weight, target, cut = side_by_side(weight), target.contiguous(), cut.contiguous()
    order, stride = order_of(alpha), weight.stride(0)
    lists = (places, masses, counts)
    with device_of(z):
        _list_support[(tokens,)](
            z, cut, *lists, classes, alpha - 1, K=order, CHUNK=_CHUNK, CAPACITY=_LONGEST_LIST, num_warps=8
        )
        _add_listed_rows[(tokens, blocks_of(channels, 512))](
            *lists, target, cut, weight, products, classes, channels, stride,
            CAPACITY=_LONGEST_LIST, ROWS=8, BLOCK=512, num_warps=4,
        )  # fmt: skip
        residual = row_losses_backward(z, target, alpha, None, 0.0, cut, (counts > _LONGEST_LIST).float(), out=z)
        _multiply_long_rows[(blocks_of(tokens, 64), blocks_of(channels, 128))](
            residual, counts, weight, products, tokens, classes, channels, stride,
            CAPACITY=_LONGEST_LIST, ROWS=64, BLOCK=128, CHUNK=32 if z.dtype == torch.float32 else 64,
            num_warps=4, num_stages=2,
        )  # fmt: skip
    return products


@triton.jit
def _list_support(
    X, CUT, PLACES, MASSES, COUNTS, n, epsilon, K: tl.constexpr, CHUNK: tl.constexpr, CAPACITY: tl.constexpr
):
    """Where a row has mass, and how much; the count goes on where the list is full."""
    r = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, 1)
    top = tl.load(CUT + r * 4 + one)
    t, p_max = tl.load(CUT + r * 4 + 1 + one), tl.load(CUT + r * 4 + 2 + one)
    top = tl.where(top == -float("inf"), 0.0, top)
    epsilons = tl.zeros([1], tl.float32) + epsilon
    count = 0
    for start in range(0, n, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        x = tl.load(X + r * n + columns, mask=columns < n, other=-float("inf")).to(tl.float32)
        y = x[None, :] - top[:, None]
        weight, _ = relative_weights(tl.where(y < NOTHING, NOTHING, y), t, epsilons, K)
        p = tl.sum(weight * p_max[:, None], 0)
        keep = p > 0.0
        place = count + tl.cumsum(keep.to(tl.int32), 0) - 1
        listed = keep & (place < CAPACITY)
        tl.store(PLACES + r * CAPACITY + place, columns, mask=listed)
        tl.store(MASSES + r * CAPACITY + place, p, mask=listed)
        count += tl.sum(keep.to(tl.int32), 0)
    tl.store(COUNTS + r, count)


@triton.jit
def _add_listed_rows(
    PLACES, MASSES, COUNTS, Y, CUT, W, OUT, n, channels, w_stride,
    CAPACITY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some channels of one row of the product, from its list; of no use where that is too short."""
    r = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < channels
    y = tl.load(Y + r).to(tl.int64)
    known = inside & (y >= 0) & (y < n)
    # A row with NaN has a NaN threshold, and nothing in its list.
    total = tl.zeros([BLOCK], tl.float32) + tl.load(CUT + r * 4 + 1) * 0.0
    total -= tl.load(W + y * w_stride + d, mask=known, other=0.0).to(tl.float32)
    count = tl.minimum(tl.load(COUNTS + r), CAPACITY)
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
    """Rows of the product whose lists are too short, in full."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.load(COUNTS + r, mask=r < tokens, other=0)
    if tl.max(counts, 0) > CAPACITY:
        at = r.to(tl.int64)[:, None]
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, n, CHUNK):
            c = start + tl.arange(0, CHUNK)
            a = tl.load(RESIDUAL + at * n + c[None, :], mask=(r < tokens)[:, None] & (c < n)[None, :], other=0.0)
            here = c.to(tl.int64)[:, None] * w_stride + d[None, :]
            b = tl.load(W + here, mask=(c < n)[:, None] & (d < channels)[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        wanted = (counts > CAPACITY)[:, None] & (d < channels)[None, :]
        tl.store(OUT + at * channels + d[None, :], total, mask=wanted)
