"""Attention by lists of the keys that have mass: rows of weights become lists, and all that follows is done on those.

Rows are queries of one head after another, `queries` of each; `group` heads share keys and values. Lists are padded
with weights of zero.
"""

import numpy as np

from contmax.kernels.cpu._compiled import kernel
from contmax.kernels.cpu._lanes import wide_vectors
from contmax.kernels.rows._cpu_evaluate import REDUCTION


@kernel(fastmath=REDUCTION)
def count_rows(p, counts, start, stop):  # type: ignore[no-untyped-def]
    """How many weights of each row are not zero; NaN counts."""
    wide_vectors()
    for r in range(start, stop):
        count = 0
        for i in range(np.uint64(p.shape[1])):
            count += 0 if p[r, i] == 0 else 1
        counts[r] = count


@kernel()
def list_rows(p, places, masses, start, stop):  # type: ignore[no-untyped-def]
    """Where a row has weights, and these; lists are as long as the longest must be, and hold zeros before."""
    width = np.uint64(places.shape[1])
    for r in range(start, stop):
        n = np.uint64(0)
        for i in range(np.uint64(p.shape[1])):
            # Written to a place that the next one takes if there is no weight: cheaper than a branch.
            if n < width:
                places[r, n] = i
                masses[r, n] = p[r, i]
                n += np.uint64(0) if p[r, i] == 0 else np.uint64(1)


@kernel(fastmath=REDUCTION)
def mean_rows(out, places, masses, value, queries, group, start, stop):  # type: ignore[no-untyped-def]
    """Means of the values, (rows, c); values are (key heads, L, c)."""
    wide_vectors()
    channels = np.uint64(out.shape[1])
    for r in range(start, stop):
        head = r // queries // group
        for c in range(channels):
            out[r, c] = 0
        for s in range(places.shape[1]):
            m = masses[r, s]
            if m != 0:
                j = places[r, s]
                for c in range(channels):
                    out[r, c] += m * value[head, j, c]


@kernel(fastmath=REDUCTION)
def product_rows(products, places, masses, g, value, queries, group, start, stop):  # type: ignore[no-untyped-def]
    """⟨g, v⟩ for each entry of the lists, from cotangents (rows, c); zero where there is none."""
    wide_vectors()
    channels = np.uint64(g.shape[1])
    for r in range(start, stop):
        head = r // queries // group
        for s in range(places.shape[1]):
            total = products.dtype.type(0.0)
            if masses[r, s] != 0:
                j = places[r, s]
                for c in range(channels):
                    total += g[r, c] * value[head, j, c]
            products[r, s] = total


@kernel(fastmath=REDUCTION)
def gradient_heads(dk, dv, dq, places, masses, slopes, query, key, g, start, stop):  # type: ignore[no-untyped-def]
    """Gradients from those of the scores: dq (heads, queries, d) is written, dk, dv (key heads, L, ·) are added to."""
    wide_vectors()
    group, queries = query.shape[0] // dk.shape[0], query.shape[1]
    channels, value_channels = np.uint64(query.shape[2]), np.uint64(g.shape[2])
    for head in range(start, stop):
        for h in range(head * group, (head + 1) * group):
            for i in range(queries):
                r = h * queries + i
                for c in range(channels):
                    dq[h, i, c] = 0
                for s in range(places.shape[1]):
                    m = masses[r, s]
                    if m != 0:
                        j, slope = places[r, s], slopes[r, s]
                        for c in range(channels):
                            dq[h, i, c] += slope * key[head, j, c]
                            dk[head, j, c] += slope * query[h, i, c]
                        for c in range(value_channels):
                            dv[head, j, c] += m * g[h, i, c]
