"""Compiled CPU kernels (numba): expectations on the line, means over scales. They take real tensors only."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from contmax.kernels._numba_kernels import (
    line_scale_kernel,
    plane_kernel,
    window_slope_kernel,
    window_value_kernel,
)
from contmax.kernels.cpu._threads import over_rows
from contmax.kernels.means._cpu_windows import numbers_of


def window_values(
    loc: Tensor, half: Tensor, k: float, constant: float, centre: Tensor, width: Tensor, rule: tuple[Tensor, Tensor]
) -> Tensor:
    """r, (*batch, K), of densities (*batch, 1) against K functions, by the windowed rule on [0, 1]."""
    r = loc.new_empty(*loc.shape[:-1], centre.shape[0])
    over_rows(window_value_kernel, _matrix(r), *_window_inputs(loc, half, k, constant, centre, width, rule))
    return r


def window_values_and_slopes(
    loc: Tensor, half: Tensor, k: float, constant: float, centre: Tensor, width: Tensor, rule: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """r, (*batch, K), and ∂r/∂(μ, a, σ_j), (3, *batch, K)."""
    r = loc.new_empty(*loc.shape[:-1], centre.shape[0])
    by = loc.new_empty(3, *r.shape)
    stacked = by.numpy().reshape(3, -1, centre.shape[0])
    inputs = _window_inputs(loc, half, k, constant, centre, width, rule)
    over_rows(window_slope_kernel, _matrix(r), stacked, *inputs)
    return r, by


def _window_inputs(loc, half, k, constant, centre, width, rule):  # type: ignore[no-untyped-def]
    if loc.shape != half.shape:
        loc, half = torch.broadcast_tensors(loc, half)
    rows = [_vector(t).reshape(-1) for t in (loc, half)]
    return *rows, numbers_of(k, constant, rows[0].dtype), *(_vector(t) for t in (centre, width, *rule))


def _vector(tensor):  # type: ignore[no-untyped-def]
    # What torch negates only when it reads it, and zeros that it has no memory for, have no array unless by force.
    return tensor.contiguous().numpy(force=True)


def line_scale_means(
    loc: Tensor, scale: Tensor, alpha: float | Tensor, centre: Tensor, width: Tensor, rule: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """r, (*batch, K), and ∂r/∂(μ, σ, σ_j, α), (4, *batch, K), of densities (*batch) against K functions."""
    r = centre.new_empty(*loc.shape, centre.shape[0])
    by = centre.new_empty(4, *r.shape)
    stacked = by.numpy().reshape(4, -1, centre.shape[0])
    rows = (_vector(loc).reshape(-1), _vector(scale).reshape(-1), _numbers(alpha))
    over_rows(line_scale_kernel, _matrix(r), stacked, *rows, _vector(centre), _vector(width), np.array(rule), work=32)
    return r, by


def plane_means_cpu(form: Tensor, order: float, rule: Sequence[float]) -> Tensor:
    """Mean and slopes, (6, *pairs), of the numbers a, b, c, n, g of each pair, (5, *pairs), float32."""
    out = form.new_empty(6, *form.shape[1:])
    numbers, results = (_vector(x).reshape(len(x), -1).T for x in (form, out))
    over_rows(plane_kernel, numbers, order, np.array(rule), results, work=16)
    return out


def _matrix(tensor: Tensor):  # type: ignore[no-untyped-def]
    return _vector(tensor).reshape(-1, tensor.shape[-1])


def _numbers(alpha: float | Tensor):  # type: ignore[no-untyped-def]
    return _vector(alpha.double()).reshape(-1) if isinstance(alpha, Tensor) else np.array([alpha])
