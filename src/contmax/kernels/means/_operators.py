"""E_p[ψ] by Triton's kernels, as operators; and which logits the kernel of gates takes.

Triton is imported when an operator first runs on numbers, because tracers cannot follow an import.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from contmax._backend import Backend, backend_of
from contmax._eager import is_eager
from contmax._operator import operator

# Families of densities that Triton's kernels take; comments name the arguments `scale` and `number` of each.
LINE = "line"  # σ; k = 1/(α−1), one of 0, …, 4 and ∞
INTERVAL = "interval"  # half the length of the support; k = 0
ANY_ALPHA = "any alpha"  # σ; α, unless α is the tensor `index`
PLANE = "plane"  # L of Σ = LLᵀ; k = 1/(α−1) from 1 to 30, or ∞


@functools.cache
def _family(name: str) -> Any:
    """The object or module with `values` and `gradients` of a family."""
    from contmax.kernels.means import _gpu_any_alpha, _gpu_line, _gpu_plane

    families = {LINE: _gpu_line.LINE, INTERVAL: _gpu_line.INTERVAL, ANY_ALPHA: _gpu_any_alpha, PLANE: _gpu_plane.PLANE}
    return families[name]


def _means_like(loc: Tensor, _scale: Tensor, _index: Tensor | None, centre: Tensor, *_: Any) -> Tensor:
    return loc.new_empty(*loc.shape[: loc.dim() + 1 - centre.dim()], centre.shape[0])


@operator("gaussian_means", _means_like, shared=("centre", "width"))
def gaussian_means(
    loc: Tensor, scale: Tensor, index: Tensor | None, centre: Tensor, width: Tensor, family: str, number: float
) -> Tensor:
    """E_p[ψ], (*batch, K), of K Gaussian functions under β-Gaussians, float32, by Triton's kernels.

    Args:
        loc: μ, (*batch), or (*batch, 2) on the plane.
        scale: σ, or the family's `scale`, (*batch), or (*batch, 2, 2).
        index: α as a tensor, (*batch), of any dtype; None if `number` gives α.
        centre: μ_j, (K,) or (K, 2).
        width: σ_j, (K,), or L_j of Σ_j = L_jL_jᵀ, (K, 2, 2).
        family: LINE, INTERVAL, ANY_ALPHA or PLANE.
        number: k or α, the family's `number`.
    """
    means: Tensor = _family(family).values((loc, scale, index, centre, width), number)
    return means


def _gradients_like(_cotangent: Tensor, loc: Tensor, scale: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    _index, centre, width, family, _number, needs_basis = rest
    by_alpha = loc.new_empty(loc.shape if family == ANY_ALPHA else 0)
    by_basis = (loc.new_empty(x.shape if needs_basis else 0) for x in (centre, width))
    return loc.new_empty(loc.shape), loc.new_empty(scale.shape), by_alpha, *by_basis


@operator("gaussian_mean_gradients", _gradients_like, shared=("centre", "width"), sums_if="needs_basis")
def gaussian_mean_gradients(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    index: Tensor | None,
    centre: Tensor,
    width: Tensor,
    family: str,
    number: float,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of loc, scale, α, centre and width from `cotangent`, the gradient of the means, (*batch, K).

    Gradients have shape (0,) for α unless the family is ANY_ALPHA, and for centre and width unless `needs_basis`.
    """
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _family(family).gradients(
        cotangent, (loc, scale, index, centre, width), number, needs_basis
    )
    return gradients


# The longest row of logits that a program of the gate kernel holds.
_LONGEST_ROW = 16384


def gates_are_compiled(logits: Tensor) -> bool:
    """Whether `_gpu_gates` takes these logits: eager ones only, since in traces compilers fuse torch's operations."""
    return (
        logits.dtype == torch.float32
        and 0 < logits.shape[-1] <= _LONGEST_ROW
        and logits.numel() > 0
        and is_eager(logits)
        and backend_of(logits) is Backend.TRITON
    )
