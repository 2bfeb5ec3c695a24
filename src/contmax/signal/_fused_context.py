"""Contexts of one β-Gaussian per sequence by a single autograd node: the fast path for float32 on a GPU.

Eager calls of :func:`contmax.fit_signal` and :func:`contmax.expectation` on a GPU spend most of their time in Python.
Without this path a small step takes 3 to 8 times as long as softmax attention, with it about as long. The path takes
default positions without a mask, one density for each of B sequences of L values with D channels, and a Gaussian basis
of K functions that is not learned. It returns None for other calls and for mistakes, which the general path reports.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._autograd import bare_apply, gradients_by_reference, may_be_differentiated
from contmax._eager import is_eager, without_autocast
from contmax._torch_private import forward_mode_is_on
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola, TruncatedParaboloid
from contmax.expectations._expectation import RULES, expectation_by
from contmax.expectations._line_gaussian import line_order
from contmax.expectations._space_gaussian import plane_order
from contmax.kernels import means
from contmax.signal._ridge import Even, cached_weights, through_values

_F32 = torch.float32
_LINE_DENSITIES: frozenset[type] = frozenset((BetaGaussian, TruncatedParabola))
_PLANE_DENSITIES: frozenset[type] = frozenset((MultivariateBetaGaussian, TruncatedParaboloid))
# Maps types (density, basis) to contmax's rule for E_p[ψ] and a function from α to k. The rule is stored here because a
# user may later register another one, which then must be used.
_OWN = {
    (density, basis): (RULES.find(density, basis), functools.lru_cache(maxsize=64)(order))
    for densities, basis, order in (
        (_LINE_DENSITIES, GaussianBasis, line_order),
        (_PLANE_DENSITIES, MultivariateGaussianBasis, plane_order),
    )
    for density in densities
}


class _Given(NamedTuple):
    """Arguments of the kernels besides values and density."""

    weights: Tensor  # G of the ridge fit, (L, K)
    centre: Tensor  # centres of the functions, (K,) or (K, 2)
    width: Tensor  # standard deviations (K,), or Cholesky factors (K, 2, 2)
    k: float  # 1/(α−1), ∞ for the Gaussian
    is_factor: bool  # whether the scale of the density is a Cholesky factor
    needs_slopes: bool  # whether location or scale need a gradient


def fused_context(
    values: Any, density: Any, basis: Any, grid: tuple[int, ...] | None, penalty: float, alpha: object = None
) -> Tensor | None:
    """The context c = E_p[V], (B, D), of the signal V; None for calls that must take the general path.

    Args:
        values: H, (B, L, D).
        density: a β-Gaussian; or (μ, σ), (B,) and (B,), on the line, and (μ, Σ), (B, 2) and (B, 2, 2), on the plane.
        basis: ψ.
        grid: sizes of the grid on the plane; None on the line.
        penalty: λ of the ridge fit.
        alpha: α for a pair; unused for a density, which has an α.
    """
    kind, is_factor = type(density), False
    if kind is tuple and len(density) == 2:
        kind = BetaGaussian if basis.event_dim == 1 else MultivariateBetaGaussian
        loc, scale = density
    elif kind in _LINE_DENSITIES:
        loc, scale, alpha = density.loc, density.scale, density.alpha
    elif kind in _PLANE_DENSITIES and is_eager(density.loc) and density.loc.dim() == 2 and type(density.alpha) is float:
        loc, scale, alpha, is_factor = density.loc, density.scale_tril, density.alpha, True
    else:
        return None
    own = _OWN.get((kind, type(basis)))
    if own is None or type(alpha) is not float or not _are_float32(values, loc, scale):
        return None
    k = own[1](alpha)
    # Take the general path if a user has replaced the rule.
    if k is None or RULES.find(kind, type(basis)) is not own[0]:
        return None
    constants = _constants(values, loc, scale, basis, grid, penalty)
    if constants is None:
        return None
    # Read the grad mode before the call: inside autograd.Function.forward it is always off.
    needs_slopes = (loc.requires_grad or scale.requires_grad) and torch.is_grad_enabled()
    with without_autocast(values):
        return _apply(values, loc, scale, _Given(*constants, k, is_factor, needs_slopes))  # type: ignore[no-any-return]


def _constants(
    values: Tensor, loc: Tensor, scale: Tensor, basis: Any, grid: tuple[int, ...] | None, penalty: Any
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Ridge weights, centres and widths, as in `_Given`; None for calls that must take the general path."""
    batch, length, channels = values.shape
    if basis.event_dim == 1:
        width, fits = "fixed_scale", grid is None and loc.shape == scale.shape == (batch,)
    else:
        width, fits = "fixed_tril", loc.shape == (batch, 2) and scale.shape == (batch, 2, 2) and basis.event_dim == 2
        sizes: Any = grid
        fits = fits and type(sizes) is tuple and [*map(type, sizes)] == [int, int] and math.prod(sizes) == length
    if not fits or not through_values(length, basis.num_functions, channels, 1):
        return None
    if type(penalty) is not float or not 0 <= penalty < math.inf:
        return None
    buffers = basis._buffers  # quicker than attributes of the module
    centre, spread = buffers.get("loc"), buffers.get(width)
    if centre is None or spread is None or centre.dtype is not _F32 or spread.dtype is not _F32:
        return None
    weights = cached_weights(basis, basis, Even(length, grid, penalty, _F32, values.device), None)
    return None if weights is None else (weights, centre, spread)


def _are_float32(values: Any, loc: Any, scale: Any) -> bool:
    """Whether all are eager float32 tensors on one device, values are (B, L, D), and forward mode (jvp) is off."""
    if not (isinstance(values, Tensor) and isinstance(loc, Tensor) and isinstance(scale, Tensor)):
        return False
    if not is_eager(values, loc, scale) or forward_mode_is_on():
        return False
    if values.dtype is not _F32 or loc.dtype is not _F32 or scale.dtype is not _F32 or values.dim() != 3:
        return False
    return loc.device == values.device == scale.device and values.numel() > 0


class _FusedContext(torch.autograd.Function):
    """The contexts (E_p[ψ] Gᵀ) H, (B, D), with G the ridge weights."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loc: Tensor, scale: Tensor, given: _Given) -> Tensor:
        weights, centre, width, k, is_factor, needs_slopes = given
        # Resolve a lazy negation before strides are read: the copy may have other strides.
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
        # Gradients by the reference can be differentiated again, and vmapped.
        reference = functools.partial(_reference, weights=weights, centre=centre, width=width, k=k, is_factor=is_factor)
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
    """The context by the operations of the general path."""
    if loc.dim() == 1:
        r = expectation_by(means.LINE, k, loc, scale, None, centre, width)
    else:
        tril = scale if is_factor else MultivariateBetaGaussian(loc, scale, validate_args=False).scale_tril
        r = expectation_by(means.PLANE, k, loc, tril, None, centre, width)
    with without_autocast(r):
        return ((r @ weights.mT).unsqueeze(1) @ values).squeeze(1)


_apply = bare_apply(_FusedContext)
