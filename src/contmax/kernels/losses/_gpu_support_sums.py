"""Σ_t g_t (p̂_t − q_t) h_tᵀ over tokens: the gradient of a loss by the weight of a linear layer, without the logits.

Most tokens have mass on a few classes, which are listed. Their pairs (token, class) are put in the order of the
classes, so that the pairs of neighbouring classes lie side by side: a program takes the hidden vectors of those, and
adds them up in float32, by products with a matrix that has one entry per pair.

Tokens with more classes than a list holds are multiplied as a whole (`_long_tokens`): they are put first, so that
programs without such a token end at once. Both parts of a row are added before it is rounded.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels.gpu._counting import blocks_of, power_of_two
from contmax.kernels.gpu._kept import Launch
from contmax.kernels.gpu._launch import laid_out, side_by_side
from contmax.kernels.losses._gpu_long_tokens import find_long_tokens, long_residuals
from contmax.kernels.rows._gpu_rows import saturated

# Classes and channels of a program, and how far ahead it loads: tokens first, then their hidden vectors.
_CLASSES, _CHANNELS, _STAGES = 128, 128, 6
# The part of the classes for which long tokens have their residuals in memory at once.
_BLOCKS_OF_CLASSES = 32
# Hidden vectors that are in memory in float32 at once.
_TOKENS = 1024
# As many numbers as torch sorts on a GPU.
_MOST_PAIRS = 2**31 - 1


def support_sums(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    smoothing: float,
    cut: Tensor,
    places: Tensor,
    masses: Tensor,
    counts: Tensor,
    g: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
) -> None:
    """Write the gradients of W, (C, D), and of the bias, (C,), or empty where there is none.

    Args:
        hidden: h, (T, D).
        weight: W, (C, D).
        bias: (C,), or None.
        target: class ids y, (T,).
        alpha: α in (1, 2].
        smoothing: s: q = (1−s)·e_y + s·(uniform).
        cut: of the tokens, (T, 4 or more), from `row_losses` without a mask.
        places: from `list_supports`, as the next two.
        masses: likewise.
        counts: likewise.
        g: the cotangents of the losses, (T,), float32.
        grad_weight: contiguous, where the gradient of W goes.
        grad_bias: likewise for the bias.
    """
    hidden, weight, target, g = side_by_side(hidden), side_by_side(weight), target.contiguous(), laid_out(g)
    of_tokens, most = (hidden, target, cut, places, masses, counts, g), _MOST_PAIRS // (places.shape[1] + 1)
    layer = (weight, bias, alpha, smoothing)
    if hidden.shape[0] <= most:
        _write_sums(of_tokens, *layer, grad_weight, grad_bias)
        return
    totals = [torch.zeros_like(x, dtype=torch.float32) for x in (grad_weight, grad_bias)]
    shares = [torch.empty_like(x) for x in totals]
    for start in range(0, hidden.shape[0], most):
        part = tuple(x[start : start + most] for x in of_tokens)
        _write_sums(part, *layer, shares[0], shares[1])
        for total, share in zip(totals, shares, strict=True):
            total.add_(share)
    grad_weight.copy_(totals[0])
    grad_bias.copy_(totals[1])


def _write_sums(
    of_tokens: tuple[Tensor, ...],
    weight: Tensor,
    bias: Tensor | None,
    alpha: float,
    smoothing: float,
    grad_weight: Tensor,
    grad_bias: Tensor,
) -> None:
    """The same for as many tokens as fit: of these hidden, target, cut, places, masses, counts and g."""
    hidden, target, cut, places, masses, counts, g = of_tokens
    (classes, channels), half = weight.shape, hidden.dtype != torch.float32
    every = _every_class(hidden, cut, g, smoothing / classes)
    long = find_long_tokens(counts, places.shape[1], g)
    pairs = _sorted_pairs(places, masses, counts, target, g, classes, smoothing)
    width = blocks_of(blocks_of(classes, _BLOCKS_OF_CLASSES), _CLASSES) * _CLASSES
    residual = hidden.new_empty(hidden.shape[0], width)
    for start in range(0, classes, width):
        columns = slice(start, min(start + width, classes))
        long_residuals(residual, hidden, weight, bias, target, alpha, smoothing, cut, g, long, columns)
        sum_rows = Launch(
            _sum_rows,
            (blocks_of(columns.stop - start, _CLASSES), blocks_of(channels, _CHANNELS)),
            (start, classes, channels, residual.stride(0), hidden.stride(0)),
            {"CLASSES": _CLASSES, "CHANNELS": _CHANNELS, "ROWS": 64 if half else 32},
            8,
            stages=_STAGES,
        )
        sum_rows(*pairs, residual, *long, hidden, every, grad_weight)
        if bias is not None:
            sum_coefficients = Launch(
                _sum_coefficients,
                (blocks_of(columns.stop - start, _CLASSES // 4),),
                (start, classes, residual.stride(0)),
                {"TILE": _CLASSES, "CLASSES": _CLASSES // 4, "ROWS": 128},
            )
            sum_coefficients(*pairs, residual, long.total, every[channels:], grad_bias)


def _every_class(hidden: Tensor, cut: Tensor, g: Tensor, share: float) -> Tensor:
    """What every class gets, (D + 1,) in float32, the last of it for the bias.

    That is what smoothing takes from it; and NaN, where a token that counts has a NaN in its logits, and so in its
    threshold, or where a cotangent is not finite.
    """
    broken = torch.where(g == 0, 0, (cut[:, 1] + g) * 0).sum()
    if share == 0:
        return broken.expand(hidden.shape[1] + 1).contiguous()
    spread = torch.zeros(hidden.shape[1], dtype=torch.float32, device=g.device)
    for h, weights in zip(hidden.split(_TOKENS), g.split(_TOKENS), strict=True):
        # The vector of a token without a cotangent may be NaN.
        spread.addmv_(torch.where(weights.unsqueeze(-1) == 0, 0, h).mT.to(torch.float32), weights)
    return torch.cat([spread, g.sum().unsqueeze(0)]).mul_(-share).add_(broken)


def _sorted_pairs(
    places: Tensor, masses: Tensor, counts: Tensor, target: Tensor, g: Tensor, classes: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs of short lists in the order of their classes: class, token, coefficient; the first of each 128 classes.

    The pairs of a token are those of its list, with g p̂, and that of its target, with −g (1−s). Their number is known
    to the device only: slots without a pair have the class C, and come last.
    """
    tokens, capacity = places.shape
    keys = places.new_empty(tokens * (capacity + 1))
    sizes = {"CAPACITY": capacity, "SLOTS": power_of_two(capacity)}
    Launch(_name_pairs, (tokens,), (tokens * capacity, classes), sizes)(places, counts, target, g, keys)
    # The order of equal classes is that of the tokens: sums have the same rounding every time.
    keys, order = torch.sort(keys, stable=True)
    names, coefficients = torch.empty_like(keys), torch.empty_like(keys, dtype=torch.float32)
    block = 1024
    weigh = Launch(
        _weigh_pairs,
        (blocks_of(keys.numel(), block),),
        (tokens * capacity, keys.numel(), classes, smoothing),
        {"CAPACITY": capacity, "BLOCK": block},
    )
    weigh(keys, order, masses, g, names, coefficients)
    edges = torch.arange(0, classes + _CLASSES, _CLASSES, dtype=torch.int32, device=keys.device).clamp_(max=classes)
    return keys, names, coefficients, torch.searchsorted(keys, edges)


@triton.jit
def _name_pairs(PLACES, COUNTS, Y, G, KEYS, slots, n, CAPACITY: tl.constexpr, SLOTS: tl.constexpr):
    """The classes of a token's pairs: (T, CAPACITY) of the lists, then (T,) of the targets; n where there is none."""
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
    """Tokens and coefficients of the pairs, from where they were before they were sorted."""
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
    """Some channels of some rows of the gradient."""
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
            # What rounding took from the coefficients.
            total = tl.dot((a - high.to(tl.float32)).to(h.dtype), h, total)
    long = tl.load(LONG)
    columns = tl.program_id(0) * CLASSES + tl.arange(0, CLASSES)
    for start in range(0, long, ROWS):
        i = start + tl.arange(0, ROWS)
        token = tl.load(ORDER + i, mask=i < long, other=0)
        here = i.to(tl.int64)[:, None] * width + columns[None, :]
        # Behind the last class anything may be read: it is not written.
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
    """The gradient of the bias for some classes, which all belong to one tile of the sorted pairs."""
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
