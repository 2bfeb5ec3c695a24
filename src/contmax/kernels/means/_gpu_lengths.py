"""Lengths, distances and slopes in float32 that stay in range, whatever the parameters are."""

import triton
import triton.language as tl

# Lengths are taken to be in this range, distances not to exceed the longest, and slopes not to exceed the last number:
# then products of two are numbers, and what is far away underflows by itself.
SHORTEST, LONGEST, STEEPEST = tl.constexpr(1e-18), tl.constexpr(1e18), tl.constexpr(1e33)


@triton.jit
def length_in_range(x):
    """The length within range."""
    return tl.minimum(tl.maximum(x, SHORTEST), LONGEST)


@triton.jit
def nan_from(x, y):
    """NaN where one of both is NaN, else 0: what minima and maxima have lost is added at the end."""
    return tl.where((x == x) & (y == y), 0.0, float("nan"))


@triton.jit
def distance(x, y):
    return tl.minimum(tl.maximum(x - y, -LONGEST), LONGEST)


@triton.jit
def bounded(slope):
    return tl.minimum(tl.maximum(slope, -STEEPEST), STEEPEST)
