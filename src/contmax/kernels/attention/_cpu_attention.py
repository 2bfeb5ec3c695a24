"""Attention by lists, on tensors: what is listed, means of values, gradients."""

import numpy as np
import torch
from torch import Tensor

from contmax.kernels._numba_kernels import (
    count_kernel,
    list_kernel,
    listed_gradient_kernel,
    listed_mean_kernel,
    listed_product_kernel,
)
from contmax.kernels.cpu._threads import over_rows


def listed_weights(p: Tensor, longest: int) -> tuple[Tensor, Tensor] | None:
    """Places and weights (heads, queries, n) of what is not zero in p (heads, queries, L); None if n > longest."""
    matrix = p.numpy().reshape(-1, p.shape[-1])
    counts = np.empty(len(matrix), np.int64)
    over_rows(count_kernel, matrix, counts)
    width = int(counts.max(initial=0))
    if width > longest:
        return None
    places, masses = (p.new_zeros((*p.shape[:2], max(width, 1)), dtype=kind) for kind in (torch.int32, p.dtype))
    over_rows(list_kernel, matrix, _rows(places), _rows(masses))
    return places, masses


def listed_means(places: Tensor, masses: Tensor, value: Tensor) -> Tensor:
    """Means of values (key heads, L, c), (heads, queries, c)."""
    out = value.new_empty((*places.shape[:2], value.shape[-1]))
    group = places.shape[0] // value.shape[0]
    arrays = (_rows(out), _rows(places), _rows(masses), value.numpy(force=True), places.shape[1], group)
    over_rows(listed_mean_kernel, *arrays)
    return out


def listed_products(places: Tensor, masses: Tensor, g: Tensor, value: Tensor) -> Tensor:
    """⟨g, v⟩ for each entry of the lists and cotangents (heads, queries, c)."""
    products = torch.empty_like(masses)
    group = places.shape[0] // value.shape[0]
    arrays = (_rows(products), _rows(places), _rows(masses), _rows(g), value.numpy(force=True), places.shape[1], group)
    over_rows(listed_product_kernel, *arrays, work=g.shape[-1])
    return products


def add_listed_gradients(
    d_key: Tensor, d_value: Tensor, lists: tuple[Tensor, Tensor, Tensor], query: Tensor, key: Tensor, g: Tensor
) -> Tensor:
    """The gradient of queries (heads, queries, d); what keys and values (key heads, L, ·) get is added to theirs.

    `lists` are places, weights and the gradients of the scores.
    """
    d_query = torch.empty_like(query)
    arrays = (x.numpy() for x in (d_key, d_value, d_query, *lists))
    flat = [x.reshape(-1, x.shape[-1]) if i >= 3 else x for i, x in enumerate(arrays)]
    heads = np.empty((len(d_key), lists[0].numel() // max(len(d_key), 1)), np.int8)
    given = [x.numpy(force=True) for x in (query, key, g)]
    over_rows(_per_head, heads, *flat, *given, work=query.shape[-1])
    return d_query


def _per_head(heads, *arguments):  # type: ignore[no-untyped-def]
    """The kernel without the array that only says how much work there is."""
    listed_gradient_kernel(*arguments)


def _rows(x: Tensor):  # type: ignore[no-untyped-def]
    return x.numpy(force=True).reshape(-1, x.shape[-1])
