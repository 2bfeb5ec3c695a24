"""Tokens with mass on more classes than a list holds: their residuals g (p̂ − q), from logits that are made again.

Which tokens those are is known to the device only. They are put first, and programs behind the last of them end at
once.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels.gpu._counting import blocks_of
from contmax.kernels.gpu._kept import Launch
from contmax.kernels.gpu._launch import order_of
from contmax.kernels.rows._gpu_rows import saturated
from contmax.kernels.rows._gpu_solve import NOTHING, relative_weights

# Tokens and classes of a program; tiles of tokens that use the same rows of the weight one after the other.
_TOKENS, _CLASSES, _GROUP = 128, 128, 16


class LongTokens(NamedTuple):
    """Which tokens are long."""

    tokens: Tensor  # all of them, the long ones first
    total: Tensor  # how many are long, (1,)


def find_long_tokens(counts: Tensor, capacity: int, g: Tensor) -> LongTokens:
    """Tokens that count, g ≠ 0, with more classes than fit."""
    long = (counts > capacity) & (g != 0)
    return LongTokens(torch.argsort((~long).byte(), stable=True), long.sum(0, keepdim=True, dtype=torch.int32))


def long_residuals(
    residual: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    cut: Tensor,
    g: Tensor,
    long: LongTokens,
    columns: slice,
) -> None:
    """Write g (p̂ − (1−s) e_y) of some classes, a row for each long token, in their order; other rows are left alone."""
    tokens, channels = hidden.shape
    tiles = blocks_of(tokens, _TOKENS) * blocks_of(columns.stop - columns.start, _CLASSES)
    sizes = (tokens, columns.start, columns.stop, channels)
    strides = (hidden.stride(0), weight.stride(0), cut.stride(0), residual.stride(0))
    kinds = {"K": order_of(alpha), "HAS_BIAS": bias is not None, "ROWS": _TOKENS, "CLASSES": _CLASSES, "GROUP": _GROUP}
    kinds["DEPTH"] = 32 if hidden.dtype == torch.float32 else 64
    make = Launch(_make_residuals, (tiles,), (*sizes, *strides, alpha - 1, smoothing), kinds, 8, stages=3)
    biases = weight if bias is None else bias
    make(hidden, weight, biases, target, cut, g, long.tokens, long.total, residual)


@triton.jit
def _make_residuals(
    HIDDEN, W, BIAS, Y, CUT, G, ORDER, LONG, RESIDUAL,
    tokens, begin, end, channels, h_stride, w_stride, cut_stride, width, epsilon, smoothing,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr, GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of logits, and the residuals in their place."""
    height = tl.cdiv(tokens, ROWS)
    tile, tile_of_classes = _in_groups(tl.program_id(0), height, tl.cdiv(end - begin, CLASSES), GROUP)
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
        # As the forward pass saw them.
        x = logits.to(RESIDUAL.dtype.element_ty).to(tl.float32)
        cut = CUT + token * cut_stride
        top, t = tl.load(cut, mask=lives, other=0.0), tl.load(cut + 1, mask=lives, other=1.0)
        inverse, g = tl.load(cut + 2, mask=lives, other=0.0), tl.load(G + token, mask=lives, other=0.0)
        y = x - tl.where(top == -float("inf"), 0.0, top)[:, None]
        weights, _ = relative_weights(
            tl.where(y < NOTHING, NOTHING, y), t, tl.zeros([ROWS], tl.float32) + epsilon, K
        )  # fmt: skip
        p = weights * inverse[:, None]
        is_target = c[None, :] == tl.load(Y + token, mask=lives, other=-1)[:, None]
        value = g[:, None] * (p - tl.where(is_target, 1.0 - smoothing, 0.0))
        here = i.to(tl.int64)[:, None] * width + column[None, :]
        value = saturated(value, RESIDUAL).to(RESIDUAL.dtype.element_ty)
        tl.store(RESIDUAL + here, value, mask=lives[:, None] & exists[None, :])


@triton.jit
def _in_groups(program, height, width, GROUP: tl.constexpr):
    """Row and column of the tile of a program: columns one after the other within groups of rows, for the cache."""
    group = program // (GROUP * width)
    rows = tl.minimum(height - group * GROUP, GROUP)
    place = program - group * GROUP * width
    return group * GROUP + place % rows, place // rows
