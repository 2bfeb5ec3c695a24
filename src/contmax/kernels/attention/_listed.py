"""Lists of the weights of attention that are not zero, for CPU tensors that hold numbers, by kernels of numba.

Keys and weights of lists have the shape (heads, queries, n).
"""

import torch
from torch import Tensor


def listed_weights(p: Tensor, longest: int) -> tuple[Tensor, Tensor] | None:
    """Keys and weights of the entries of p (heads, queries, L) that are not zero; None if a row has too many.

    A row may have `longest` of them.
    """
    from contmax.kernels._numba_kernels import count_kernel, list_kernel
    from contmax.kernels.cpu._threads import over_rows

    matrix, counts = _rows(p), torch.empty(p.shape[:2].numel(), dtype=torch.int64)
    over_rows(count_kernel, matrix, counts.numpy())
    width = int(counts.max()) if counts.numel() else 0
    if width > longest:
        return None
    keys, weights = (p.new_zeros((*p.shape[:2], max(width, 1)), dtype=kind) for kind in (torch.int32, p.dtype))
    over_rows(list_kernel, matrix, _rows(keys), _rows(weights))
    return keys, weights


def listed_means(keys: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Means of values (key heads, L, c), (heads, queries, c)."""
    from contmax.kernels._numba_kernels import listed_mean_kernel
    from contmax.kernels.cpu._threads import over_rows

    out = value.new_empty((*keys.shape[:2], value.shape[-1]))
    group = keys.shape[0] // value.shape[0]
    over_rows(listed_mean_kernel, *map(_rows, (out, keys, weights)), value.numpy(force=True), keys.shape[1], group)
    return out


def listed_products(keys: Tensor, weights: Tensor, g: Tensor, value: Tensor) -> Tensor:
    """⟨g, v⟩ for each entry of the lists, cotangents g (heads, queries, c) and values v (key heads, L, c)."""
    from contmax.kernels._numba_kernels import listed_product_kernel
    from contmax.kernels.cpu._threads import over_rows

    products = torch.empty_like(weights)
    arrays = (*map(_rows, (products, keys, weights, g)), value.numpy(force=True))
    group = keys.shape[0] // value.shape[0]
    over_rows(listed_product_kernel, *arrays, keys.shape[1], group, work=g.shape[-1])
    return products


def add_listed_gradients(
    d_key: Tensor, d_value: Tensor, lists: tuple[Tensor, Tensor, Tensor], query: Tensor, key: Tensor, g: Tensor
) -> Tensor:
    """The gradient of queries (heads, queries, d); those of keys and values (key heads, L, ·) are added to theirs.

    `lists` are keys, weights and the gradients of the scores.
    """
    from contmax.kernels._numba_kernels import listed_gradient_kernel
    from contmax.kernels.cpu._threads import over_rows

    def kernel(heads, *arguments):  # type: ignore[no-untyped-def]
        """`listed_gradient_kernel` without the array whose size says how much work there is."""
        listed_gradient_kernel(*arguments)

    d_query = torch.empty_like(query)
    heads = torch.empty((len(d_key), lists[0].numel() // max(len(d_key), 1)), dtype=torch.int8)
    sums = [x.numpy() for x in (d_key, d_value, d_query)]
    given = [x.numpy(force=True) for x in (query, key, g)]
    over_rows(kernel, heads.numpy(), *sums, *map(_rows, lists), *given, work=query.shape[-1])
    return d_query


def _rows(x: Tensor):  # type: ignore[no-untyped-def]
    return x.numpy(force=True).reshape(-1, x.shape[-1])
