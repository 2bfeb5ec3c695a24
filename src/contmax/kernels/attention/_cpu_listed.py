"""Attention by lists on CPU tensors that hold numbers: weights that are not zero become lists, and sums run over these.

Keys and weights of lists have the shape (heads, queries, n), padded with weights of zero. In the kernels rows are
queries of one head after another, `queries` of each; `group` heads share keys and values.
"""

import numpy as np
import torch
from torch import Tensor

from contmax.kernels.cpu._compiled import kernel
from contmax.kernels.cpu._lanes import wide_vectors
from contmax.kernels.cpu._threads import over_rows
from contmax.kernels.rows._cpu_evaluate import REDUCTION


def listed_weights(p: Tensor, longest: int) -> tuple[Tensor, Tensor] | None:
    """Keys and weights of the entries of p (heads, queries, L) that are not zero; None if a row has too many.

    A row may have `longest` of them.
    """
    matrix, counts = _rows(p), p.new_empty(p.shape[:2].numel(), dtype=torch.int64)
    over_rows(count_rows, matrix, counts.numpy())
    width = int(counts.max()) if counts.numel() else 0
    if width > longest:
        return None
    keys, weights = (p.new_zeros((*p.shape[:2], max(width, 1)), dtype=kind) for kind in (torch.int32, p.dtype))
    over_rows(list_rows, matrix, _rows(keys), _rows(weights))
    return keys, weights


def listed_means(keys: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Means of values (key heads, L, c), (heads, queries, c)."""
    out = value.new_empty((*keys.shape[:2], value.shape[-1]))
    group = keys.shape[0] // value.shape[0]
    over_rows(mean_rows, *map(_rows, (out, keys, weights)), value.numpy(force=True), keys.shape[1], group)
    return out


def listed_products(keys: Tensor, weights: Tensor, g: Tensor, value: Tensor) -> Tensor:
    """⟨g, v⟩ for each entry of the lists, cotangents g (heads, queries, c) and values v (key heads, L, c)."""
    products = torch.empty_like(weights)
    arrays = (*map(_rows, (products, keys, weights, g)), value.numpy(force=True))
    group = keys.shape[0] // value.shape[0]
    over_rows(product_rows, *arrays, keys.shape[1], group, work=g.shape[-1])
    return products


def add_listed_gradients(
    d_key: Tensor, d_value: Tensor, lists: tuple[Tensor, Tensor, Tensor], query: Tensor, key: Tensor, g: Tensor
) -> Tensor:
    """The gradient of queries (heads, queries, d); those of keys and values (key heads, L, ·) are added to theirs.

    `lists` are keys, weights and the gradients of the scores.
    """

    def gradients(heads, *arguments):  # type: ignore[no-untyped-def]
        """`gradient_heads` without the array whose size says how much work there is."""
        gradient_heads(*arguments)

    d_query = torch.empty_like(query)
    heads = query.new_empty((len(d_key), lists[0].numel() // max(len(d_key), 1)), dtype=torch.int8)
    sums = [x.numpy() for x in (d_key, d_value, d_query)]
    given = [x.numpy(force=True) for x in (query, key, g)]
    over_rows(gradients, heads.numpy(), *sums, *map(_rows, lists), *given, work=query.shape[-1])
    return d_query


def _rows(x: Tensor):  # type: ignore[no-untyped-def]
    return x.numpy(force=True).reshape(-1, x.shape[-1])


@kernel(fastmath=REDUCTION)
def count_rows(p, counts, start, stop):  # type: ignore[no-untyped-def]
    """Count the weights of each row that are not zero; NaN counts."""
    wide_vectors()
    for r in range(start, stop):
        count = 0
        for i in range(np.uint64(p.shape[1])):
            count += 0 if p[r, i] == 0 else 1
        counts[r] = count


@kernel()
def list_rows(p, keys, weights, start, stop):  # type: ignore[no-untyped-def]
    """Write keys and weights of the entries that are not zero to lists, which hold zeros before."""
    width = np.uint64(keys.shape[1])
    for r in range(start, stop):
        n = np.uint64(0)
        for i in range(np.uint64(p.shape[1])):
            # A weight of zero is written too, and overwritten by the next: cheaper than a branch.
            if n < width:
                keys[r, n] = i
                weights[r, n] = p[r, i]
                n += np.uint64(0) if p[r, i] == 0 else np.uint64(1)


@kernel(fastmath=REDUCTION)
def mean_rows(out, keys, weights, value, queries, group, start, stop):  # type: ignore[no-untyped-def]
    """Means of the values, (rows, c); values are (key heads, L, c)."""
    wide_vectors()
    channels = np.uint64(out.shape[1])
    for r in range(start, stop):
        head = r // queries // group
        for c in range(channels):
            out[r, c] = 0
        for s in range(keys.shape[1]):
            m = weights[r, s]
            if m != 0:
                j = keys[r, s]
                for c in range(channels):
                    out[r, c] += m * value[head, j, c]


@kernel(fastmath=REDUCTION)
def product_rows(products, keys, weights, g, value, queries, group, start, stop):  # type: ignore[no-untyped-def]
    """⟨g, v⟩ for each entry of the lists, from cotangents (rows, c); zero where there is none."""
    wide_vectors()
    channels = np.uint64(g.shape[1])
    for r in range(start, stop):
        head = r // queries // group
        for s in range(keys.shape[1]):
            total = products.dtype.type(0.0)
            if weights[r, s] != 0:
                j = keys[r, s]
                for c in range(channels):
                    total += g[r, c] * value[head, j, c]
            products[r, s] = total


@kernel(fastmath=REDUCTION)
def gradient_heads(dk, dv, dq, keys, weights, slopes, query, key, g, start, stop):  # type: ignore[no-untyped-def]
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
                for s in range(keys.shape[1]):
                    m = weights[r, s]
                    if m != 0:
                        j, slope = keys[r, s], slopes[r, s]
                        for c in range(channels):
                            dq[h, i, c] += slope * key[head, j, c]
                            dk[head, j, c] += slope * query[h, i, c]
                        for c in range(value_channels):
                            dv[head, j, c] += m * g[h, i, c]
