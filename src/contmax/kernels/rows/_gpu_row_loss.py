"""Results of a row with a known normaliser: its loss against a class, or Ω*, and statistics for the backward pass.

The statistics (CUT) are four numbers and, for rows of several tiles, the maximum of each tile: the backward pass does
not read tiles without mass.
"""

import triton
import triton.language as tl


@triton.jit
def store_cut(CUT, r, exists, width, top, t, total, share):
    """Store the statistics that give p̂ from the scores: maximum, t, 1/Σ weights, share of smoothing; each (R,)."""
    at = CUT + r.to(tl.int64) * width
    tl.store(at, top, mask=exists)
    tl.store(at + 1, t, mask=exists)
    tl.store(at + 2, 1.0 / tl.where(total > 0.0, total, 1.0), mask=exists)
    tl.store(at + 3, share, mask=exists)


@triton.jit
def store_tops(CUT, x, first, n, SPANS: tl.constexpr, SPAN: tl.constexpr):
    """Store the maxima of SPANS tiles of SPAN scores x of one row, from tile `first` on."""
    maxima = tl.max(tl.reshape(x, [SPANS, SPAN]), 1)
    span = first + tl.arange(0, SPANS)
    tl.store(CUT + 4 + span, maxima, mask=span * SPAN < n)


@triton.jit
def chunk_has_mass(highest, top, t, epsilon):
    """Whether the maximum of a tile, (1,), may have mass in its row; a margin covers rounding."""
    return tl.max(((epsilon <= 0.0) | ((highest - top) * epsilon + t > -1e-6)).to(tl.int32), 0) > 0


@triton.jit
def store_loss(LOSS, r, exists, top, gain, linear, HAS_TARGET: tl.constexpr):
    """Ω* − ⟨z, q⟩, or Ω* without a target; `gain` is Ω* and `linear` ⟨z, q⟩, both less the maximum."""
    empty = top == -float("inf")
    if HAS_TARGET:
        loss = gain - linear
        # Clamp rounding below 0. A fully masked row has infinite loss.
        loss = tl.where(loss < 0.0, 0.0, tl.where(empty, float("inf"), loss))
        tl.store(LOSS + r, loss.to(tl.float64), mask=exists)
    else:
        highest = top.to(tl.float64)
        tl.store(LOSS + r, tl.where(empty, highest, highest + gain.to(tl.float64)), mask=exists)


@triton.jit
def target_score(X, M, Y, r, at, mask_at, exists, n, top, HAS_MASK: tl.constexpr):
    """The target's score less the maximum, (R,): −inf where it is masked, NaN where there is no such class."""
    y = tl.load(Y + r, mask=exists, other=0)
    known = exists & (y >= 0) & (y < n)
    allowed = known
    if HAS_MASK:
        allowed = known & (tl.load(M + mask_at + y, mask=known, other=0) != 0)
    score = tl.load(X + at + y, mask=allowed, other=-float("inf")).to(tl.float32)
    return tl.where(known, score - tl.where(top == -float("inf"), 0.0, top), float("nan"))


@triton.jit
def smoothed(smoothing, linear, share, spread):
    """⟨z, q⟩ less the maximum, from the target's score and the sum of the allowed ones."""
    return tl.where(smoothing < 1.0, (1.0 - smoothing) * linear, 0.0) + share * spread
