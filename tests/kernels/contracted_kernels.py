"""Kernels whose threads disagree where products and sums are contracted, launched with contraction and without."""

import torch
import triton
import triton.language as tl

from contmax.kernels.rows._gpu_lists import largest_of_threads
from contmax.kernels.rows._gpu_solve import sums


@triton.jit
def halved(X, OUT):
    """A loop that a reduction decides."""
    u = tl.load(X + tl.arange(0, 32))
    while tl.sum(u * u, 0) > 1.0:
        u = u * 0.5
    tl.store(OUT + tl.arange(0, 32), u)


@triton.jit
def probed(X, OUT):
    """A branch that a sum of the solver decides, one number a thread."""
    u = largest_of_threads(tl.load(X + tl.arange(0, 512)), 4)[None, :]
    s, e = sums(u * u, u)
    if tl.max(s, 0) > 1.0:
        e = sums(u, e[:, None] * u)[1]
    tl.store(OUT + tl.arange(0, 32), tl.sum((s + e)[:, None] + tl.zeros([1, 32], tl.float32), 0))


@triton.jit
def climbed(X, OUT):
    """Newton's method for 1.5-entmax as the solver had it when launches hung."""
    x = largest_of_threads(tl.load(X + tl.arange(0, 512)), 4)
    y = (x - tl.max(x, 0))[None, :]
    t, steps, climbing = tl.zeros([1], tl.float32) + 1.0, 0, True
    while climbing:
        root = tl.maximum(y * 0.5 + t[:, None], 0.0)
        total, slope = sums(root * root, root)
        step = total / slope * (1.0 - 1.0 / tl.sqrt(total))
        t -= step
        steps += 1
        climbing = (tl.max((step > t * 1e-6).to(tl.int32), 0) > 0) & (steps < 100)
    tl.store(OUT + tl.arange(0, 32), tl.sum(t[:, None] + tl.zeros([1, 32], tl.float32), 0))


@triton.jit
def thinned(X, OUT):
    """A loop that a sum of no products decides, which is not contracted yet."""
    u = tl.load(X + tl.arange(0, 32))
    while tl.sum(u, 0) > 1.0:
        u = u * 0.5
    tl.store(OUT + tl.arange(0, 32), u)


@triton.jit
def summed(X, OUT):
    """The sum that decides the first loop, deciding nothing."""
    u = tl.load(X + tl.arange(0, 32))
    tl.store(OUT + tl.arange(0, 32), u + tl.sum(u * u, 0))


def launched_both_ways() -> None:
    """Launch each of them with contraction, then without."""
    x, out = torch.zeros(512), torch.zeros(32)
    for options in ({"enable_fp_fusion": True}, {"enable_fp_fusion": False}):
        for kernel in (halved, probed, climbed, thinned, summed):
            kernel[(1,)](x, out, num_warps=1, **options)
