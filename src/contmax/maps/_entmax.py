"""The maps themselves: softmax, sparsemax and α-entmax over an axis, differentiable to every order."""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import may_be_differentiated
from contmax._mask import require_mask
from contmax._typing import Bool, Float
from contmax.maps._arguments import check_scores, checked_alpha, output_dtype, tempered_and_masked
from contmax.maps._backend import pull_back, regularized_argmax
from contmax.maps._fused import fused_entmax, plain_entmax
from contmax.maps._half_precision import widened_scores
from contmax.maps._jacobian import pull_back_reference, push_forward_reference

__all__ = ["entmax", "entmax_map", "softmax", "sparsemax"]


class _Entmax(torch.autograd.Function):
    """p̂ = argmax ⟨x, p⟩ − Ω_α(p); the backward is made of torch operations whenever it may be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
        return regularized_argmax(scores, alpha, dim, weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, alpha, ctx.dim, weights = inputs
        ctx.fixed_alpha = None if isinstance(alpha, Tensor) else alpha
        saved = (output, alpha if isinstance(alpha, Tensor) else None, weights)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        p, alpha, weights = ctx.saved_tensors
        alpha_or_fixed = ctx.fixed_alpha if alpha is None else alpha
        # A compiled kernel cannot be differentiated again; the reference can.
        rule = pull_back_reference if may_be_differentiated() else pull_back
        grad, grad_alpha = rule(p, cotangent, alpha_or_fixed, ctx.dim, weights, ctx.needs_input_grad[1])
        return grad, None if grad_alpha is None else grad_alpha.sum_to_size(alpha.shape), None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        p, alpha, weights = ctx.saved_tensors
        alpha_or_fixed = ctx.fixed_alpha if alpha is None else alpha
        return push_forward_reference(p, tangents[0], alpha_or_fixed, tangents[1], ctx.dim, weights)


def entmax_map(scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None = None) -> Tensor:
    """The bare map on checked arguments, for the layers above; `weights` are masses of the points, Σ w p = 1."""
    if weights is None and isinstance(alpha, float) and alpha == 1:
        return _softmax_or_zeros(scores, dim)
    return apply(_Entmax, scores, alpha, dim, weights)  # type: ignore[no-any-return]


def _softmax_or_zeros(scores: Tensor, dim: int) -> Tensor:
    """torch.softmax, with zeros and zero gradient where a slice has nothing to attend.

    A cotangent of what is masked does not matter, whatever it is.
    """
    masked = scores == -torch.inf
    return torch.softmax(scores.masked_fill(masked.all(dim, keepdim=True), 0), dim).masked_fill(masked, 0)


def _apply(
    name: str, scores: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None, temperature: float | Tensor
) -> Tensor:
    plain = plain_entmax(scores, alpha, dim, mask, temperature)
    if plain is not None:
        return plain
    check_scores(scores, dim, name)
    dtype = output_dtype(scores)
    index = checked_alpha(alpha, scores, dim)
    if _is_one(temperature) and not _is_one(index) and kernels.rows_are_fused(scores):
        require_mask(mask, scores.shape)
        return fused_entmax(scores, index, dim, mask, dtype)
    p = entmax_map(tempered_and_masked(widened_scores(scores), mask, temperature, dim), index, dim)
    return p if p.dtype == dtype else p.to(dtype)


def _is_one(value: float | Tensor) -> bool:
    return isinstance(value, float | int) and value == 1


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
