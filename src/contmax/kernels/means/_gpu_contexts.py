"""The contexts of continuous attention with one density for each sequence, and their gradients.

A context is a sum Σ_ℓ s_ℓ h_ℓ of values h_ℓ with shares s_ℓ, which depend on the density. A density has few parameters,
N of its location and N² of its scale, so the context changes along few directions. One pass over the values computes
the context and these directions, its slopes. A gradient is then a product of the slopes with the cotangent, and the
backward pass never reads the values again. Launches depend on shapes only, and are cached.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax._caches import cached
from contmax.kernels import blocks_of, power_of_two
from contmax.kernels.gpu._cached_launch import Launch, ReadyLaunch
from contmax.kernels.gpu._launch import laid_out
from contmax.kernels.means._gpu_line import LINE
from contmax.kernels.means._gpu_pairs import launch_of
from contmax.kernels.means._gpu_plane import PLANE, PLANE_OF_MATRIX

# These sizes were measured on an H200. If the contexts have at least _MANY entries in total, programs of one warp keep
# the device busy; with up to _FEW_SLOPES slopes, such a program has registers for more observations at a time.
_MANY, _FEW_SLOPES = 2**16, 2
# A sequence of more than _MANY_TURNS steps of the loop is divided into parts of at least _TURNS_OF_A_PART steps, which
# never raises the number of programs above _PROGRAMS.
_MANY_TURNS, _TURNS_OF_A_PART, _PROGRAMS = 16, 4, 512
# How many gradients of values a program of the backward pass writes, and the most channels that it takes at a time.
_WRITTEN, _CHANNELS = 4096, 512


@triton.jit
def contexts_kernel(
    context_ptr, slopes_ptr, shares_ptr, values_ptr,
    length, channels, blocks, example_stride, length_stride, channel_stride, part_length,
    SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Σ_ℓ s_ℓ h_ℓ of values h, over a part of a sequence and a block of channels.

    The first row of s holds the shares, the other SLOPES rows their derivatives in the density's parameters. Results
    are (parts, examples, channels), and for slopes (parts, examples, SLOPES, channels).
    """
    program, part = tl.program_id(0), tl.program_id(1)
    example = (program // blocks).to(tl.int64)
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    shares = shares_ptr + example * (1 + SLOPES) * length
    values = values_ptr + example * example_stride + column[None, :].to(tl.int64) * channel_stride
    # `totals` have LANES rows. In the loop each row sums the numbers that its threads read; after the loop a reduction
    # adds up the rows.
    totals = ()
    for _ in tl.static_range(1 + SLOPES):
        totals += (tl.zeros([LANES, COLUMNS], tl.float32),)  # type: ignore[assignment]
    first = part * part_length
    last = tl.minimum(first + part_length, length)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & (column < channels)[None, :]
        block = tl.load(values + row[:, None].to(tl.int64) * length_stride, inside, other=0.0)
        more = ()
        for n in tl.static_range(1 + SLOPES):
            share = tl.load(shares + n * length + row, row < last, other=0.0)
            products = tl.reshape(share[:, None] * block, [ROWS // LANES, LANES, COLUMNS])
            more += (totals[n] + tl.sum(products, 0),)  # type: ignore[assignment]
        totals = more
    known, result = column < channels, part * (tl.num_programs(0) // blocks) + example
    tl.store(context_ptr + result * channels + column, tl.sum(totals[0], 0), known)  # type: ignore[misc]
    for n in tl.static_range(SLOPES):
        tl.store(slopes_ptr + (result * SLOPES + n) * channels + column, tl.sum(totals[n + 1], 0), known)


@triton.jit
def contexts_bwd_kernel(
    by_values_ptr, by_loc_ptr, by_scale_ptr, shares_ptr, slopes_ptr, cotangent_ptr,
    examples, length, channels, row_blocks, column_blocks,
    SHARES: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """If PLACES > 0, each of the first programs writes one density's gradients; others write gradients of values.

    A location has PLACES numbers, a scale PLACES². The shares have SHARES rows per example; the kernel reads the first.
    """
    SCALES: tl.constexpr = PLACES * PLACES
    first = examples if PLACES else 0
    program = tl.program_id(0)
    if program < first:
        sequence = program.to(tl.int64)
        slopes = slopes_ptr + sequence * (PLACES + SCALES) * channels
        for n in tl.static_range(PLACES + SCALES):
            total = tl.zeros([COLUMNS], tl.float32)
            for start in range(0, channels, COLUMNS):
                column = start + tl.arange(0, COLUMNS)
                known = column < channels
                cotangent = tl.load(cotangent_ptr + sequence * channels + column, known, other=0.0)
                total += cotangent * tl.load(slopes + n * channels + column, known, other=0.0)
            if n < PLACES:
                tl.store(by_loc_ptr + sequence * PLACES + n, tl.sum(total))
            else:
                tl.store(by_scale_ptr + sequence * SCALES + (n - PLACES), tl.sum(total))
    else:
        block = program - first
        example = (block // (row_blocks * column_blocks)).to(tl.int64)
        row = block // column_blocks % row_blocks * ROWS + tl.arange(0, ROWS)
        column = block % column_blocks * COLUMNS + tl.arange(0, COLUMNS)
        share = tl.load(shares_ptr + example * SHARES * length + row, row < length, other=0.0)
        cotangent = tl.load(cotangent_ptr + example * channels + column, column < channels, other=0.0)
        place = (example * length + row)[:, None] * channels + column[None, :]
        inside = (row < length)[:, None] & (column < channels)[None, :]
        tl.store(by_values_ptr + place, share[:, None] * cotangent[None, :], inside)


class Contexts:
    """Contexts of values (B, L, D) of one layout, under densities of one kind; tensors are float32, on one device.

    Args:
        shape: shape of the values.
        strides: strides of the values.
        functions: K, the number of functions ψ, which get no gradients.
        dimension: N, 1 or 2.
        k: 1/(α−1), as the families LINE and PLANE of `contmax.kernels.means` take it.
        is_matrix: on the plane, whether the scale is Σ rather than its Cholesky factor.
        device: device of all tensors.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        functions: int,
        dimension: int,
        k: float,
        is_matrix: bool,
        device: torch.device,
    ) -> None:
        self._shape, self._functions, self._dimension = shape, functions, dimension
        self._slopes = dimension + dimension**2
        # CPU devices (interpreter only) have index None.
        self._device = -1 if device.index is None else device.index
        family = LINE if dimension == 1 else PLANE_OF_MATRIX if is_matrix else PLANE
        # Call `_rule` before every launch: it makes the current stream wait for the nodes.
        self._rule = functools.partial(family.rule, k, device)
        values = [launch_of(family, shape[0], functions, k, SLOPES=slopes) for slopes in (False, True)]
        self._values = [ReadyLaunch(launch, self._device) for launch in values]
        self._parts, contexts = _launches_of_contexts(shape, strides, self._slopes)
        self._contexts = [ReadyLaunch(launch, self._device) for launch in contexts]

    def contexts(
        self,
        values: Tensor,
        loc: Tensor,
        scale: Tensor,
        weights: Tensor,
        centre: Tensor,
        width: Tensor,
        *,
        needs_slopes: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """c, (B, D); shares of the observations and their slopes, (B·(1 + N + N²), L); slopes of c, (B, N + N², D).

        Without `needs_slopes` the second result is the shares alone, (B, L), and the third is None.

        Args:
            values: H, (B, L, D), without a pending negation.
            loc: μ, (B,) or (B, 2).
            scale: σ, (B,), or Σ or its factor, (B, 2, 2).
            weights: G of the ridge fit, (L, K).
            centre: μ_j, (K,) or (K, 2).
            width: σ_j, (K,), or L_j, (K, 2, 2).
            needs_slopes: whether loc or scale need gradients.
        """
        rows = self._shape[0] * (1 + self._slopes if needs_slopes else 1)
        r = loc.new_empty((rows, self._functions))
        parameters = (laid_out(loc), laid_out(scale), laid_out(centre), laid_out(width))
        self._values[needs_slopes](r, *parameters, *self._rule())
        shares = torch.mm(r, weights.mT)
        (batch, _, channels), parts = self._shape, self._parts
        context = loc.new_empty((parts * batch, channels))
        by_context = loc.new_empty((parts * batch, self._slopes, channels)) if needs_slopes else None
        launch = self._contexts[needs_slopes]
        launch(context, context if by_context is None else by_context, shares, values)
        if parts > 1:
            context = context.unflatten(0, (parts, batch)).sum(0)
            by_context = None if by_context is None else by_context.unflatten(0, (parts, batch)).sum(0)
        return context, shares, by_context

    def gradients(
        self, cotangent: Tensor, shares: Tensor | None, slopes: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of values, None without `shares`; and of loc and scale, None without the `slopes` of c."""
        batch, n, cotangent = self._shape[0], self._dimension, laid_out(cotangent)
        # Hooks on saved tensors may return shares and slopes in another dtype or on another device.
        shares, slopes = (x if x is None else laid_out(x.to(cotangent)) for x in (shares, slopes))
        by_values = by_loc = by_scale = None
        if shares is not None:
            by_values = cotangent.new_empty(self._shape)
        if slopes is not None:
            axes = (n,) * (n - 1)
            by_loc, by_scale = cotangent.new_empty(batch, *axes), cotangent.new_empty(batch, *axes, *axes)
        rows = 0 if shares is None else shares.shape[0] // batch
        launch = _launch_of_gradients(self._shape, rows, 0 if slopes is None else n, self._device)
        # The kernel never reads the pointers of missing tensors.
        tensors = (by_values, by_loc, by_scale, shares, slopes)
        launch(*[cotangent if x is None else x for x in tensors], cotangent)
        return by_values, by_loc, by_scale


contexts_of = cached(Contexts)
"""The cached :class:`Contexts` of these arguments."""


def _launches_of_contexts(shape: tuple[int, ...], strides: tuple[int, ...], slopes: int) -> tuple[int, list[Launch]]:
    """The number of parts of a sequence, and the launches of contexts without slopes and with slopes.

    If few programs would take many steps each, sequences are divided into parts, and the caller adds up their results.
    """
    batch, length, channels = shape
    # Observations and channels per step of a program, and its warps.
    rows, columns, warps = 64, 32, 4
    if batch * channels >= _MANY:
        rows, columns, warps = (32, 64, 1) if slopes <= _FEW_SLOPES else (16, 128, 1)
    columns = min(columns, max(power_of_two(channels), 8))
    blocks, turns = blocks_of(channels, columns), blocks_of(length, rows)
    parts = 1
    if turns > _MANY_TURNS:
        parts = max(1, min(_PROGRAMS // (batch * blocks), turns // _TURNS_OF_A_PART))
    part_length = blocks_of(turns, parts) * rows
    numbers = (length, channels, blocks, *strides, part_length)
    # A warp reads 128 numbers at a time.
    kinds = {"ROWS": rows, "COLUMNS": columns, "LANES": warps * 128 // columns}
    grid = (batch * blocks, blocks_of(length, part_length))
    launches = [
        Launch(contexts_kernel, grid, numbers, {"SLOPES": n} | kinds, warps, contracts=True) for n in (0, slopes)
    ]
    return grid[1], launches


@cached
def _launch_of_gradients(shape: tuple[int, ...], shares: int, dimension: int, device: int) -> ReadyLaunch:
    """The launch of `contexts_bwd_kernel`.

    `shares`: rows per sequence of the tensor of shares (0: values need no gradient). `dimension`: N (0: densities need
    no gradient).
    """
    batch, length, channels = shape
    columns = min(power_of_two(channels), _CHANNELS)
    rows = _WRITTEN // columns
    row_blocks, column_blocks = blocks_of(length, rows), blocks_of(channels, columns)
    programs = (batch if dimension else 0) + (batch * row_blocks * column_blocks if shares else 0)
    kinds = {"SHARES": shares, "PLACES": dimension, "ROWS": rows, "COLUMNS": columns}
    numbers = (batch, length, channels, row_blocks, column_blocks)
    return ReadyLaunch(Launch(contexts_bwd_kernel, (programs,), numbers, kinds, contracts=True), device)
