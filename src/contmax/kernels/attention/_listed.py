"""Attention by lists on CPU tensors that hold numbers, by kernels of numba; see contmax.kernels.cpu."""

from collections.abc import Sequence

import torch
from torch import Tensor

from contmax._backend import numba_takes
from contmax._eager import is_eager_cpu


def attention_is_listed(dtype: torch.dtype, tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors hold numbers on a CPU, and the kernels compute in this dtype."""
    return is_eager_cpu(*tensors) and numba_takes(tensors[0].new_empty(0, dtype=dtype))


def listed_weights(p: Tensor, longest: int) -> tuple[Tensor, Tensor] | None:
    """Places and weights of what is not zero in p (heads, queries, L); None where there are too many in a row."""
    from contmax.kernels import numba as cpu

    return cpu.listed_weights(p, longest)


def listed_means(places: Tensor, masses: Tensor, value: Tensor) -> Tensor:
    """Means of values (key heads, L, c), (heads, queries, c)."""
    from contmax.kernels import numba as cpu

    return cpu.listed_means(places, masses, value)


def listed_products(places: Tensor, masses: Tensor, g: Tensor, value: Tensor) -> Tensor:
    """⟨g, v⟩ for each entry of the lists and cotangents (heads, queries, c)."""
    from contmax.kernels import numba as cpu

    return cpu.listed_products(places, masses, g, value)


def add_listed_gradients(
    d_key: Tensor, d_value: Tensor, lists: tuple[Tensor, Tensor, Tensor], query: Tensor, key: Tensor, g: Tensor
) -> Tensor:
    """The gradient of queries; what keys and values get is added to theirs."""
    from contmax.kernels import numba as cpu

    return cpu.add_listed_gradients(d_key, d_value, lists, query, key, g)
