"""The context of a β-Gaussian for each sequence in one node of autograd: the fast path for float32 on a GPU.

An eager call of :func:`contmax.fit_signal` and :func:`contmax.expectation` spends most of its time on a GPU in Python:
checks, objects, nodes of autograd. Without this path a small step takes 3 to 8 times as long as softmax attention, with
it about as long. The path takes default positions without a mask, one density for each sequence and a Gaussian basis
that is not learned. It returns None for all other calls and for every mistake, which the general path then reports.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._autograd import bare_apply
from contmax._backend import Backend, backend_of
from contmax._by_reference import gradients_by_reference, may_be_differentiated
from contmax._eager import device_type, is_eager
from contmax._precision import without_autocast
from contmax._torch_private import forward_mode_is_on
from contmax.basis import Basis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.expectations._derivatives import expectation_by
from contmax.expectations._fixed_order import LINE_DENSITIES, PLANE_DENSITIES, fixed_order
from contmax.kernels import means
from contmax.signal._masked_mean import masked_product
from contmax.signal._ridge import through_values
from contmax.signal._ridge_cache import Even, cached_weights

_F32 = torch.float32


class _Given(NamedTuple):
    """Arguments of the kernels besides values and density.

    Args:
        weights: G of the ridge fit, (L, K).
        centre: centres of the functions, (K,) or (K, 2).
        width: standard deviations (K,), or Cholesky factors (K, 2, 2).
        k: 1/(α−1), ∞ for the Gaussian.
        is_factor: whether the scale of the density is a Cholesky factor.
        needs_slopes: whether location or scale need a gradient.
    """

    weights: Tensor
    centre: Tensor
    width: Tensor
    k: float
    is_factor: bool
    needs_slopes: bool


def fused_context(
    values: Any, density: Any, basis: Basis, grid: tuple[int, ...] | None, penalty: float, alpha: object = None
) -> Tensor | None:
    """c, (B, D), or None where the general path must be taken.

    Args:
        values: H, (B, L, D).
        density: a β-Gaussian; or (μ, σ), (B,) and (B,), on the line, and (μ, Σ), (B, 2) and (B, 2, 2), on the plane.
        basis: ψ.
        grid: sizes of the grid on the plane; None on the line.
        penalty: λ of the ridge fit.
        alpha: α of the pair; a density has its own.
    """
    kind, is_factor = type(density), False
    if kind is tuple and len(density) == 2:
        kind = BetaGaussian if basis.event_dim == 1 else MultivariateBetaGaussian
        loc, scale = density
    elif kind in LINE_DENSITIES:
        loc, scale, alpha = density.loc, density.scale, density.alpha
    elif kind in PLANE_DENSITIES and is_eager(density.loc) and density.loc.dim() == 2 and type(density.alpha) is float:
        loc, scale, alpha, is_factor = density.loc, density.scale_tril, density.alpha, True
    else:
        return None
    given = _given(values, loc, scale, kind, alpha, basis, grid, penalty, is_factor)
    if given is None:
        return None
    if not torch.is_autocast_enabled(device_type(values)):
        return _apply(values, loc, scale, given)  # type: ignore[no-any-return]
    with without_autocast(values):
        return _apply(values, loc, scale, given)  # type: ignore[no-any-return]


def _given(
    values: Any,
    loc: Any,
    scale: Any,
    kind: type,
    alpha: Any,
    basis: Any,
    grid: tuple[int, ...] | None,
    penalty: Any,
    is_factor: bool,
) -> _Given | None:
    """All else that the kernels take; None for a call that they do not compute."""
    if type(alpha) is not float or not _are_float32_on_gpu(values, loc, scale):
        return None
    k = fixed_order(kind, type(basis), alpha)
    if k is None:
        return None
    batch, length, channels = values.shape
    if kind in LINE_DENSITIES:
        width, fits = "fixed_scale", grid is None and loc.shape == scale.shape == (batch,)
    else:
        width, fits = "fixed_tril", loc.shape == (batch, 2) and scale.shape == (batch, 2, 2) and basis.event_dim == 2
        fits = fits and _covers(grid, length)
    if not fits or not through_values(length, basis.num_functions, channels, 1):
        return None
    if type(penalty) is not float or not 0 <= penalty < math.inf:
        return None
    buffers = basis._buffers  # quicker than attributes of the module
    centre, spread = buffers.get("loc"), buffers.get(width)
    if centre is None or spread is None or centre.dtype is not _F32 or spread.dtype is not _F32:
        return None
    weights = cached_weights(basis, basis, Even(length, grid, penalty, _F32, values.device), None)
    if weights is None:
        return None
    # Inside of a function of autograd nobody can tell whether gradients are wanted at all.
    needs_slopes = (loc.requires_grad or scale.requires_grad) and torch.is_grad_enabled()
    return _Given(weights, centre, spread, k, is_factor, needs_slopes)


def _are_float32_on_gpu(values: Any, loc: Any, scale: Any) -> bool:
    """Whether all hold numbers now, in float32 on one GPU, the values as (B, L, D), and none has a tangent."""
    if not (isinstance(values, Tensor) and isinstance(loc, Tensor) and isinstance(scale, Tensor)):
        return False
    if not is_eager(values, loc, scale) or forward_mode_is_on():
        return False
    if values.dtype is not _F32 or loc.dtype is not _F32 or scale.dtype is not _F32 or values.dim() != 3:
        return False
    device = values.device
    return (
        loc.device == device and scale.device == device and values.numel() > 0 and backend_of(values) is Backend.TRITON
    )


def _covers(grid: Any, length: int) -> bool:
    """Whether a grid on the plane has this number of cells."""
    if type(grid) is not tuple or len(grid) != 2:
        return False
    height, width = grid
    return type(height) is type(width) is int and height * width == length


class _FusedContext(torch.autograd.Function):
    """(E_p[ψ] Gᵀ) H, with G the ridge weights."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loc: Tensor, scale: Tensor, given: _Given) -> Tensor:
        weights, centre, width, k, is_factor, needs_slopes = given
        # Where torch has put off a negation this is a copy, which may have other strides.
        read = values.resolve_neg() if values.is_neg() else values
        from contmax.kernels.means._gpu_contexts import contexts_of

        plain = contexts_of(
            read.shape, read.stride(), centre.shape[0], 1 if loc.dim() == 1 else 2, k, not is_factor, read.device
        )
        context, shares, slopes = plain.contexts(read, loc, scale, weights, centre, width, needs_slopes=needs_slopes)
        ctx.given = plain, k, is_factor
        saved = values if needs_slopes else None, shares if ctx.needs_input_grad[0] else None, slopes
        ctx.save_for_backward(*saved, loc, scale, weights, centre, width)
        return context

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        values, shares, slopes, loc, scale, weights, centre, width = ctx.saved_tensors
        contexts, k, is_factor = ctx.given
        if not may_be_differentiated() and is_eager(cotangent):
            return *contexts.gradients(cotangent, shares, slopes), None
        if values is None:
            return shares.unsqueeze(2) * cotangent.unsqueeze(1), None, None, None
        # These gradients can be differentiated again, and vmapped.
        reference = partial(_reference, weights=weights, centre=centre, width=width, k=k, is_factor=is_factor)
        return *gradients_by_reference(reference, (values, loc, scale), ctx.needs_input_grad[:3], cotangent), None


def _reference(
    values: Tensor,
    loc: Tensor,
    scale: Tensor,
    *,
    weights: Tensor,
    centre: Tensor,
    width: Tensor,
    k: float,
    is_factor: bool,
) -> Tensor:
    """The context by the steps of the general path."""
    if loc.dim() == 1:
        r = expectation_by(means.LINE, k, loc, scale, None, centre, width)
    else:
        tril = scale if is_factor else MultivariateBetaGaussian(loc, scale, validate_args=False).scale_tril
        r = expectation_by(means.PLANE, k, loc, tril, None, centre, width)
    with without_autocast(r):
        return masked_product((r @ weights.mT).unsqueeze(1), values, None).squeeze(1)


_apply = bare_apply(_FusedContext)
