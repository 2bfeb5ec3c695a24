"""Attention on a CPU by lists of nonzero weights: means of the values and all gradients are sums over the lists.

The lists of all rows are two tensors (heads, queries, n), keys and weights, padded with weights of zero. In the kernels
a row is a query of one head: row r belongs to head r // `queries`; `group` neighbouring heads share keys and values.
"""

import numpy as np
import torch
from torch import Tensor

from contmax.kernels.cpu._compiled import kernel
from contmax.kernels.cpu._lanes import wide_vectors
from contmax.kernels.cpu._threads import matrix_of, over_rows
from contmax.kernels.rows._cpu_evaluate import REDUCTION


def listed_weights(p: Tensor, longest: int) -> tuple[Tensor, Tensor] | None:
    """Keys and weights of the nonzero entries of p (heads, queries, L); None if a row has more than `longest`."""
    matrix, counts = matrix_of(p), p.new_empty(p.shape[:2].numel(), dtype=torch.int64)
    over_rows(count_rows, matrix, counts.numpy())
    width = int(counts.max()) if counts.numel() else 0
    if width > longest:
        return None
    keys, weights = (p.new_zeros((*p.shape[:2], max(width, 1)), dtype=kind) for kind in (torch.int32, p.dtype))
    over_rows(list_rows, matrix, matrix_of(keys), matrix_of(weights))
    return keys, weights


def listed_means(keys: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Means (heads, queries, c) of the values (key heads, L, c), weighted by the listed weights."""
    out = value.new_empty((*keys.shape[:2], value.shape[-1]))
    group = keys.shape[0] // value.shape[0]
    over_rows(mean_rows, *map(matrix_of, (out, keys, weights)), value.numpy(force=True), keys.shape[1], group)
    return out


def listed_products(keys: Tensor, weights: Tensor, g: Tensor, value: Tensor) -> Tensor:
    """⟨g, v⟩ for each entry of the lists, from cotangents g (heads, queries, c) and values (key heads, L, c)."""
    products = torch.empty_like(weights)
    arrays = (*map(matrix_of, (products, keys, weights, g)), value.numpy(force=True))
    group = keys.shape[0] // value.shape[0]
    over_rows(product_rows, *arrays, keys.shape[1], group, work=g.shape[-1])
    return products


def add_listed_gradients(
    d_key: Tensor, d_value: Tensor, lists: tuple[Tensor, Tensor, Tensor], query: Tensor, key: Tensor, g: Tensor
) -> Tensor:
    """Return the gradient of the queries, (heads, queries, d); add to d_key and d_value, (key heads, L, ·).

    `lists` are keys, weights and gradients of the products ⟨q, k⟩; g (heads, queries, c) is the cotangent of the means.
    """
    d_query = torch.empty_like(query)
    # `over_rows` divides the rows of this array, one per key head, among threads. Only its shape is used: a row has
    # one column per list entry, which tells `over_rows` the amount of work.
    heads = query.new_empty((len(d_key), lists[0].numel() // max(len(d_key), 1)), dtype=torch.int8)
    sums = [x.numpy() for x in (d_key, d_value, d_query)]
    given = [x.numpy(force=True) for x in (query, key, g)]
    over_rows(gradient_heads, heads.numpy(), *sums, *map(matrix_of, lists), *given, work=query.shape[-1])
    return d_query


@kernel(fastmath=REDUCTION)
def count_rows(p, counts, start, stop):  # type: ignore[no-untyped-def]
    """Count the nonzero weights of each row; NaN counts as nonzero."""
    wide_vectors()
    for r in range(start, stop):
        count = 0
        for i in range(np.uint64(p.shape[1])):
            count += 0 if p[r, i] == 0 else 1
        counts[r] = count


@kernel()
def list_rows(p, keys, weights, start, stop):  # type: ignore[no-untyped-def]
    """Write keys and weights of the nonzero entries to the lists, which must be filled with zeros."""
    width = np.uint64(keys.shape[1])
    for r in range(start, stop):
        n = np.uint64(0)
        for i in range(np.uint64(p.shape[1])):
            # Write zero weights too; the next weight overwrites them, which is cheaper than a branch.
            if n < width:
                keys[r, n] = i
                weights[r, n] = p[r, i]
                n += np.uint64(0) if p[r, i] == 0 else np.uint64(1)


@kernel(fastmath=REDUCTION)
def mean_rows(out, keys, weights, value, queries, group, start, stop):  # type: ignore[no-untyped-def]
    """Write to `out`, (rows, c), the means of the values, (key heads, L, c), weighted by the listed weights."""
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
    """Write ⟨g, v⟩ of each list entry to `products`, from cotangents g (rows, c); zero for padding."""
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
def gradient_heads(heads, dk, dv, dq, keys, weights, slopes, query, key, g, start, stop):  # type: ignore[no-untyped-def]
    """From `slopes`, the gradients of ⟨q, k⟩: write dq (heads, queries, d), add to dk and dv (key heads, L, ·)."""
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
