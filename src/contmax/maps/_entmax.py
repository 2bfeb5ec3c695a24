"""softmax, sparsemax and α-entmax over an axis, differentiable to every order.

A call takes one of two ways. In general, `_apply` checks the arguments, `entmax_map` chooses a backend, and `_Entmax`
holds the derivatives. For the commonest eager call, a fixed α ≤ 2 over the last axis without mask or temperature,
`_eager_map` hands the scores directly to a kernel (`_EagerEntmax`), because checks take longer than a small map.
"""

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from contmax._autograd import apply, bare_apply, may_be_differentiated
from contmax._backend import Backend, backend_of
from contmax._eager import REAL_TYPES, in_dtype, is_eager
from contmax._mask import require_mask
from contmax._torch_private import forward_mode_is_on, number_of_modes, torchscript_is_tracing, transforms_are_active
from contmax._typing import Bool, Float
from contmax.kernels import rows
from contmax.maps._arguments import HALF_PRECISION, check_scores, checked_alpha, output_dtype, tempered, widened_scores
from contmax.maps._backend import alpha_of_rows, axis_last, backend_of_map, pull_back, regularized_argmax
from contmax.maps._jacobian import push_forward

__all__ = ["entmax", "entmax_map", "softmax", "sparsemax"]


class _Entmax(torch.autograd.Function):
    """p̂ along the last axis; a backward pass that may be differentiated again consists of torch operations."""

    generate_vmap_rule = True
    forward = staticmethod(regularized_argmax)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, alpha, _, weights, _, ctx.backend = inputs
        ctx.dtype, ctx.fixed_alpha = scores.dtype, None if isinstance(alpha, Tensor) else alpha
        saved = (output, alpha if isinstance(alpha, Tensor) else None, weights)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        p, alpha, weights = ctx.saved_tensors
        index = ctx.fixed_alpha if alpha is None else alpha
        grads = pull_back(p, cotangent, index, weights, ctx.dtype, ctx.needs_input_grad[1], ctx.backend)
        return *grads, None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        p, alpha, weights = ctx.saved_tensors
        return push_forward(p, tangents[0], ctx.fixed_alpha if alpha is None else alpha, tangents[1], weights)


class _EagerEntmax(torch.autograd.Function):
    """p̂ by the kernels of `ready`, which `contmax.kernels.rows` has prepared for tensors like the scores."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, ready: Any) -> Tensor:
        p: Tensor = ready.forward(scores)
        ctx.ready, ctx.dtype = ready, scores.dtype
        ctx.save_for_backward(p)
        if forward_mode_is_on():
            ctx.save_for_forward(p)
        return p

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        (p,) = ctx.saved_tensors
        ready = ctx.ready
        if not may_be_differentiated() and type(cotangent) is Tensor:
            try:
                grad = ready.backward(p, cotangent)
            except RuntimeError:
                # The kernel raises an error for cotangents under torch.vmap, which have no memory. A check for these in
                # every call would take longer.
                if is_eager(cotangent):
                    raise
                grad = None
            if grad is not None:
                return grad, None
        return pull_back(p, cotangent, ready.alpha, None, ctx.dtype, False, ready.backend)[0], None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (p,) = ctx.saved_tensors
        return push_forward(p, tangents[0], ctx.ready.alpha, None, None)


_eager_apply = bare_apply(_EagerEntmax)


def _eager_map(scores: Tensor, alpha: object, dim: int, mask: Tensor | None, temperature: object) -> Tensor | None:
    """p for the commonest eager calls, whose arguments need no other check; None for all other calls.

    On a GPU a small map spends most of its time in Python, so the checks are few. Fake and wrapped tensors, which have
    no memory, are recognised by the RuntimeError of the kernel.
    """
    if (
        type(alpha) is float
        and type(temperature) is float
        and temperature == 1
        and mask is None
        and type(dim) is int
        and dim == -1
        and type(scores) in REAL_TYPES
        and not number_of_modes()  # modes such as make_fx, which may trace ordinary tensors
        and not transforms_are_active()
        and not torchscript_is_tracing()  # then `_apply` raises an error
    ):
        backend = backend_of(scores)
        if backend is Backend.TORCH:
            return None
        room = rows.on_gpu() if backend is Backend.TRITON else rows.on_cpu()
        ready = room.ready(scores, alpha, output_dtype(scores) if scores.dtype in HALF_PRECISION else scores.dtype)
        try:
            return None if ready is None else _eager_apply(scores, ready)
        except RuntimeError:
            if is_eager(scores):
                raise
    return None


def entmax_map(
    scores: Tensor,
    alpha: float | Tensor,
    dim: int,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """p̂ along `dim` for checked arguments, in `dtype`; `weights` are masses w of the points, so that Σ w p = 1."""
    if weights is None and isinstance(alpha, float) and alpha == 1:
        # Mask the result too: then a cotangent at a score of −inf has no effect, even if it is NaN. A slice with
        # only scores of −inf gives zeros.
        masked = scores == -torch.inf
        p = torch.softmax(scores.masked_fill(masked.all(dim, keepdim=True), 0), dim).masked_fill(masked, 0)
        return in_dtype(p, dtype or scores.dtype)
    backend = backend_of_map(scores, alpha)
    if backend is Backend.TORCH and scores.dtype in HALF_PRECISION:
        scores = widened_scores(scores)
        backend = backend_of_map(scores, alpha)
    if weights is not None:
        backend = Backend.TORCH
        # Give the weights the rank of the scores: torch.vmap adds its axis in front, which would misalign other ranks.
        weights = axis_last(weights.reshape((1,) * (scores.dim() - weights.dim()) + weights.shape), dim)
    if mask is not None:
        mask = axis_last(mask.expand(scores.shape), dim)
    x, index = axis_last(scores, dim), alpha_of_rows(alpha, scores, dim)
    to = dtype if dtype is not None and backend is Backend.TRITON else scores.dtype
    p = apply(_Entmax, x, index, mask, weights, to, backend)
    p = p if x is scores else p.movedim(-1, dim)
    return in_dtype(p, dtype or p.dtype)


def _apply(
    name: str, scores: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None, temperature: float | Tensor
) -> Tensor:
    # A compiled program checks before each call all that its trace has read: let a trace read little.
    if not is_dynamo_compiling():
        p = _eager_map(scores, alpha, dim, mask, temperature)
        if p is not None:
            return p
    check_scores(scores, dim, name)
    dtype = output_dtype(scores)
    index = checked_alpha(alpha, scores, dim)
    if mask is not None:
        require_mask(mask, scores.shape)
    if not _is_one(temperature) or _is_one(index):
        scores = widened_scores(scores)
        if mask is not None:
            scores, mask = scores.masked_fill(~mask, -torch.inf), None
        if not _is_one(temperature):
            scores = tempered(scores, temperature, dim)
    return entmax_map(scores, index, dim, None, mask, dtype)


def _is_one(value: float | Tensor) -> bool:
    return isinstance(value, (float, int)) and value == 1


def softmax(
    scores: Float[Tensor, "..."],
    dim: int = -1,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    temperature: float | Float[Tensor, "..."] = 1.0,
) -> Float[Tensor, "..."]:
    r"""Softmax with a mask and a temperature; where nothing may be attended it gives zeros instead of NaN.

    .. math:: p_i = \exp(x_i/T) / \sum_j \exp(x_j/T)

    Args:
        scores: x, any shape; −inf counts as masked.
        dim: the axis of the distribution.
        mask: boolean, broadcastable to the scores; True = may be attended.
        temperature: T > 0, a float or a tensor broadcastable to the scores; differentiable.

    Returns:
        Probabilities of the shape and dtype of the scores (float32 under autocast). A slice with nothing to attend
        is zero, with zero gradient.

    Example:
        >>> import torch, contmax
        >>> contmax.softmax(torch.tensor([0.0, 0.0, 5.0]), mask=torch.tensor([True, True, False]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    return _apply("softmax", scores, 1.0, dim, mask, temperature)


def sparsemax(
    scores: Float[Tensor, "..."],
    dim: int = -1,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    temperature: float | Float[Tensor, "..."] = 1.0,
) -> Float[Tensor, "..."]:
    r"""Euclidean projection of the scores onto the simplex: probabilities with exact zeros (α = 2).

    .. math:: p = \arg\min_{p \in \triangle} \|p - x/T\|^2 = [x/T - \tau]_+

    Arguments and results are as for :func:`entmax` with α = 2.

    Example:
        >>> import torch, contmax
        >>> contmax.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])

    Reference: Martins & Astudillo 2016.
    """
    return _apply("sparsemax", scores, 2.0, dim, mask, temperature)


def entmax(
    scores: Float[Tensor, "..."],
    alpha: float | Float[Tensor, "..."] = 1.5,
    dim: int = -1,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    temperature: float | Float[Tensor, "..."] = 1.0,
) -> Float[Tensor, "..."]:
    r"""α-entmax: softmax at α = 1, sparser as α grows, sparsemax at α = 2.

    .. math::
        p = \arg\max_{p \in \triangle} \langle x/T, p\rangle - \Omega_\alpha(p)
          = \exp_{2-\alpha}(x/T - A) = [1 + (\alpha-1)(x/T - A)]_+^{1/(\alpha-1)}

    with Ω_α the Tsallis negentropy and A the scalar that makes p sum to one.

    Args:
        scores: x, any shape; −inf counts as masked. A slice with a NaN gives NaN, the others are untouched.
        alpha: α > 0, a float, or a tensor that broadcasts to the scores with size 1 along `dim` (one α per head,
            per row). Differentiable, also at and near α = 1. For α ≤ 1 no probability is exactly zero.
        dim: the axis of the distribution.
        mask: boolean, broadcastable to the scores; True = may be attended.
        temperature: T > 0, a float or a tensor broadcastable to the scores; differentiable.

    Returns:
        Probabilities of the shape and dtype of the scores (float32 under autocast). float16 and bfloat16 are
        computed in float32 and rounded once. A slice with nothing to attend is zero, with zero gradient.

    Raises:
        ValueError, TypeError, IndexError: for an empty axis, α ≤ 0 or infinite, a shape of α that does not fit,
            integer scores, a mask that is not boolean, a temperature that is not positive.

    Example:
        >>> import torch, contmax
        >>> scores = torch.tensor([2.0, 1.0, 0.1, -1.0])
        >>> contmax.entmax(scores, alpha=1.5)
        tensor([0.8307, 0.1693, 0.0000, 0.0000])
        >>> contmax.entmax(scores.repeat(2, 1), alpha=torch.tensor([[1.0], [2.0]]))
        tensor([[0.6381, 0.2347, 0.0954, 0.0318],
                [1.0000, 0.0000, 0.0000, 0.0000]])

    References: Peters, Niculae & Martins 2019; Correia, Niculae & Martins 2019 (learned α).
    """
    return _apply("entmax", scores, alpha, dim, mask, temperature)
