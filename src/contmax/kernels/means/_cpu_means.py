"""E_p[ψ] on a CPU by numba's kernels, split over threads.

These functions take eager CPU tensors; the kernels get arrays.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contmax.kernels.cpu._threads import array_of, matrix_of, over_rows
from contmax.kernels.means._cpu_line_scales import line_scale_rows
from contmax.kernels.means._cpu_scale_path import plane_rows
from contmax.kernels.means._cpu_windows import window_rows


def window_values(
    loc: Tensor,
    half: Tensor,
    centre: Tensor,
    width: Tensor,
    k: float,
    constant: float,
    rule: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """E_p[ψ] of β-Gaussians of half-width a and its derivatives, by quadrature in windows.

    Args:
        loc: μ, (*batch), float32 or float64, the dtype of all tensors.
        half: a, (*batch).
        centre: μ_j, (K,).
        width: σ_j, (K,).
        k: 1/(α−1), from 0 to 4.
        constant: the normaliser of (1 − y²)ᵏ on [−1, 1].
        rule: nodes and weights on [0, 1], (q,) each.

    Returns:
        r, (*batch, K), and ∂r/∂(μ, a, σ_j), (*batch, 3, K).
    """
    inputs = (k, constant / math.sqrt(2 * math.pi), *(array_of(x) for x in (centre, width, *rule)))
    return _values_and_slopes(window_rows, 3, loc, half, centre, inputs)


def line_scale_means(
    loc: Tensor, scale: Tensor, alpha: float | Tensor, centre: Tensor, width: Tensor, rule: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """E_p[ψ] of β-Gaussians of any α ≥ 1 on the line and its derivatives.

    Args:
        loc: μ, (*batch), float32 or float64, the dtype of all tensors but α.
        scale: σ, (*batch).
        alpha: α, a number or a tensor (*batch).
        centre: μ_j, (K,).
        width: σ_j, (K,).
        rule: the path: nodes, end, stretch, lean and curvature of a :class:`contmax.numerics.Hyperbola`.

    Returns:
        r, (*batch, K), and ∂r/∂(μ, σ, σ_j, α), (*batch, 4, K).
    """
    numbers = array_of(alpha.double()).reshape(-1) if isinstance(alpha, Tensor) else np.array([alpha])
    inputs = (numbers, array_of(centre), array_of(width), np.array(rule))
    return _values_and_slopes(line_scale_rows, 4, loc, scale, centre, inputs, work=32)


def _values_and_slopes(
    kernel: Callable[..., None],
    slopes: int,
    loc: Tensor,
    scale: Tensor,
    centre: Tensor,
    inputs: Sequence[Any],
    work: int = 1,
) -> tuple[Tensor, Tensor]:
    """r, (*batch, K), and its slopes, (*batch, slopes, K), which a kernel writes from densities and other inputs."""
    r = centre.new_empty(*loc.shape, centre.shape[0])
    by = centre.new_empty(slopes, *r.shape)
    densities = (array_of(x).reshape(-1) for x in (loc, scale))
    rows = by.numpy().reshape(slopes, loc.numel(), centre.shape[0])
    over_rows(kernel, matrix_of(r), rows, *densities, *inputs, work=work)
    return r, by.movedim(0, -2)


def plane_scale_means(form: Sequence[Tensor], order: float, rule: Sequence[float]) -> Tensor:
    """The mean of a Gaussian on the plane over the law of its scale, and its slopes, (6, *pairs).

    Args:
        form: the five numbers a, b, c, n, g of the Gaussian of each pair, (*pairs), float32.
        order: ν > 1 of the law.
        rule: the path: nodes, end, stretch, lean and curvature of a :class:`contmax.numerics.Hyperbola`.

    Returns:
        The mean, then its slopes in a, b, c, n, g.
    """
    numbers = torch.stack(tuple(form))
    out = numbers.new_empty(6, *numbers.shape[1:])
    inputs, results = (array_of(x).reshape(len(x), -1).T for x in (numbers, out))
    over_rows(plane_rows, inputs, order, np.array(rule), results, work=16)
    return out
