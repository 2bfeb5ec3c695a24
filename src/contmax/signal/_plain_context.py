"""The context of the commonest calls in one node: a density for each sequence, in float32 on a GPU, default positions.

On a GPU most of the time of such a call is Python's: checks, objects, rules, nodes of autograd. Here the fewest
questions are asked, and what they leave is a few launches, and one for all gradients. All other calls take the
ordinary way, by :func:`contmax.fit_signal` and :func:`contmax.expectation`, and it alone refuses what is wrong.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import bare_apply
from contmax._by_reference import gradients_by_reference, may_be_differentiated
from contmax._device import device_type
from contmax._eager import all_eager, is_eager
from contmax._precision import without_autocast
from contmax._torch_private import forward_mode_is_on
from contmax.basis import Basis
from contmax.basis._basis import constants_of
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.expectations._derivatives import expectation_by
from contmax.expectations._fixed_order import LINE_DENSITIES, PLANE_DENSITIES, fixed_order
from contmax.kernels import means
from contmax.signal._kept_weights import Even, kept_weights
from contmax.signal._masked_mean import masked_product
from contmax.signal._order_of_products import through_values

_F32 = torch.float32


def context_of_pair(
    values: object, pair: object, alpha: object, basis: Basis, grid: tuple[int, ...] | None, penalty: float
) -> Tensor | None:
    """c of (μ, σ) on the line or (μ, Σ) on the plane: (B, L, D) → (B, D); None where the ordinary way must be taken.

    Args:
        values: H, (B, L, D).
        pair: (B,) and (B,) on the line, (B, 2) and (B, 2, 2) on the plane.
        alpha: α of the β-Gaussian.
        basis: ψ.
        grid: sizes of the grid on the plane; None on the line.
        penalty: λ of the ridge fit.
    """
    if type(pair) is not tuple or len(pair) != 2:
        return None
    kind = BetaGaussian if basis.event_dim == 1 else MultivariateBetaGaussian
    return _context(values, pair[0], pair[1], kind, alpha, basis, grid, penalty, is_factor=False)


def context_of_density(
    values: object, density: Any, basis: Basis, grid: tuple[int, ...] | None, penalty: float
) -> Tensor | None:
    """The same of a β-Gaussian; None as above."""
    kind = type(density)
    if kind in LINE_DENSITIES:
        return _context(values, density.loc, density.scale, kind, density.alpha, basis, grid, penalty, is_factor=False)
    if kind in PLANE_DENSITIES and type(density.alpha) is float and is_eager(density.loc) and density.loc.dim() == 2:
        tril = density.scale_tril
        return _context(values, density.loc, tril, kind, density.alpha, basis, grid, penalty, is_factor=True)
    return None


def _context(
    values: Any,
    loc: Any,
    scale: Any,
    density: type,
    alpha: Any,
    basis: Any,
    grid: tuple[int, ...] | None,
    penalty: Any,
    is_factor: bool,
) -> Tensor | None:
    """What both do, with Σ or its Cholesky factor for the scale on the plane."""
    if type(alpha) is not float or not _are_plain(values, loc, scale):
        return None
    k = fixed_order(density, type(basis), alpha)
    if k is None:
        return None
    batch, length, channels = values.shape
    if density in LINE_DENSITIES:
        width, fits = "fixed_scale", grid is None and loc.shape == scale.shape == (batch,)
    else:
        width, fits = "fixed_tril", loc.shape == (batch, 2) and scale.shape == (batch, 2, 2) and basis.event_dim == 2
        fits = fits and _covers(grid, length)
    if not fits or not through_values(length, basis.num_functions, channels, 1):
        return None
    fitted = _fitted(basis, width, length, grid, penalty, values.device)
    if fitted is None:
        return None
    # Inside of a function of autograd nobody can tell whether gradients are wanted at all.
    needs_slopes = (loc.requires_grad or scale.requires_grad) and torch.is_grad_enabled()
    given = (*fitted, k, is_factor, needs_slopes)
    if not torch.is_autocast_enabled(device_type(values)):
        return _apply(values, loc, scale, given)  # type: ignore[no-any-return]
    with without_autocast(values):
        return _apply(values, loc, scale, given)  # type: ignore[no-any-return]


def _are_plain(values: Any, loc: Any, scale: Any) -> bool:
    """Whether all hold numbers now, in float32 on one GPU, the values as (B, L, D), and none has a tangent."""
    if not (isinstance(values, Tensor) and isinstance(loc, Tensor) and isinstance(scale, Tensor)):
        return False
    if not all_eager(values, loc, scale):
        return False
    if forward_mode_is_on():
        return False
    if values.dtype is not _F32 or loc.dtype is not _F32 or scale.dtype is not _F32 or values.dim() != 3:
        return False
    device = values.device
    return loc.device == device and scale.device == device and values.numel() > 0 and kernels.triton_takes(values)


def _fitted(
    basis: Any, width: str, length: int, grid: tuple[int, ...] | None, penalty: Any, device: torch.device
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The ridge weights, the centres of the functions, and their widths, which are a buffer of this name.

    None where a constant of the basis is learned, or is not of float32 on this device.
    """
    buffers = basis._buffers  # to ask the module for one of them takes longer
    centre, spread = buffers.get("loc"), buffers.get(width)
    if centre is None or spread is None or centre.dtype is not _F32 or spread.dtype is not _F32:
        return None
    constants = constants_of(basis)
    for constant in constants:
        if constant.requires_grad:
            return None
    if type(penalty) is not float or not penalty >= 0:
        return None
    weights = kept_weights(basis, basis, constants, Even(length, grid, penalty, _F32, device), None)
    return None if weights is None else (weights, centre, spread)


def _covers(grid: Any, length: int) -> bool:
    """Whether a grid on the plane has so many cells."""
    if type(grid) is not tuple or len(grid) != 2:
        return False
    height, width = grid
    return type(height) is type(width) is int and height * width == length


class _PlainContext(torch.autograd.Function):
    """(E_p[ψ] Gᵀ) H, with G the ridge weights."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loc: Tensor, scale: Tensor, given: tuple[Any, ...]) -> Tensor:
        weights, centre, width, k, is_factor, needs_slopes = given
        # Where torch has put off a negation this is a copy, which may lie otherwise.
        read = values.resolve_neg() if values.is_neg() else values
        from contmax.kernels.means._gpu_contexts import contexts_of

        plain = contexts_of(
            read.shape, read.stride(), centre.shape[0], 1 if loc.dim() == 1 else 2, k, not is_factor, read.device
        )
        context, shares, slopes = plain.contexts(read, loc, scale, weights, centre, width, needs_slopes=needs_slopes)
        ctx.given = plain, k, is_factor
        kept = values if needs_slopes else None, shares if ctx.needs_input_grad[0] else None, slopes
        ctx.save_for_backward(*kept, loc, scale, weights, centre, width)
        return context

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if may_be_differentiated() or not is_eager(cotangent):
            return _gradients_by_reference(ctx, cotangent)
        _, shares, slopes, *_ = ctx.saved_tensors
        # torch leaves out what is not needed
        return *ctx.given[0].gradients(cotangent, shares, slopes), None


def _gradients_by_reference(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
    """Those of the ordinary way, which can be differentiated again, and vmapped."""
    values, shares, _, loc, scale, weights, centre, width = ctx.saved_tensors
    if values is None:
        return shares.unsqueeze(2) * cotangent.unsqueeze(1), None, None, None
    _, k, is_factor = ctx.given
    reference = partial(_ordinary, weights=weights, centre=centre, width=width, k=k, is_factor=is_factor)
    return *gradients_by_reference(reference, (values, loc, scale), ctx.needs_input_grad[:3], cotangent), None


def _ordinary(
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
    """The steps that the ordinary way would take."""
    if loc.dim() == 1:
        r = expectation_by(means.LINE, k, loc, scale, None, centre, width)
    else:
        tril = scale if is_factor else MultivariateBetaGaussian(loc, scale, validate_args=False).scale_tril
        r = expectation_by(means.PLANE, k, loc, tril, None, centre, width)
    with without_autocast(r):
        return masked_product((r @ weights.mT).unsqueeze(1), values, None).squeeze(1)


_apply = bare_apply(_PlainContext)
