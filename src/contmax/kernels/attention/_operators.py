"""Attention by triton's kernels: called as it is, or as opaque operators in a trace.

α is a number, or a tensor (H,); operators take it as a tensor, or, where that is None, as the number after it.
"""

from typing import Any

import torch
from torch import Tensor

from contmax._backend import triton_takes
from contmax._eager import all_eager, is_exporting
from contmax.kernels.attention._options import AttentionOptions
from contmax.kernels.rows._operators import tensor_or_number

# Entries of all lists are numbered by 32 bits, and a grid of programs has at most this many heads.
_MOST_ENTRIES, _MOST_HEADS = 2**31, 65535


def attention_is_fused(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether kernels take queries (*batch, H, Q, d), keys (*batch, G, L, d) and values likewise, for α in (1, 2]."""
    if not triton_takes(query) or is_exporting() or 0 in (*query.shape, *key.shape, *value.shape):
        return False
    from contmax.kernels import triton

    if query.shape[:-1].numel() * triton.LIST_CAPACITY >= _MOST_ENTRIES or query.shape[:-2].numel() > _MOST_HEADS:
        return False
    return max(query.shape[-1], value.shape[-1]) <= triton.widest_head(query)


def attention_fused(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> tuple[Tensor, ...]:
    """Means of the values (B, H, Q, c), and what the backward pass needs."""
    if all_eager(query, key, value, alpha, *options):
        return _attention(query, key, value, alpha, options, needs_gradient)
    result: list[Tensor] = attention_op(query, key, value, *tensor_or_number(alpha), *options, needs_gradient)
    return tuple(result)


def attention_fused_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    options: AttentionOptions,
    kept: tuple[Tensor, ...],
    cotangent: Tensor,
    needs_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key and value, and of α, (H,), where it is needed."""
    if all_eager(query, key, value, alpha, *options, *kept, cotangent):
        grads = _attention_backward(query, key, value, alpha, options, kept, cotangent, needs_alpha)
    else:
        arguments = (query, key, value, *tensor_or_number(alpha), *options, list(kept), cotangent, needs_alpha)
        grads = attention_backward_op(*arguments)
    return grads[0], grads[1], grads[2], grads[3] if needs_alpha else None


def _attention(
    query: Tensor, key: Tensor, value: Tensor, alpha: float | Tensor, options: AttentionOptions, needs_gradient: bool
) -> tuple[Tensor, ...]:
    from contmax.kernels import triton

    out, lists = triton.entmax_attention(query, key, value, alpha, options, needs_gradient)
    return out, *lists


def _attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    options: AttentionOptions,
    kept: tuple[Tensor, ...],
    cotangent: Tensor,
    needs_alpha: bool,
) -> list[Tensor]:
    from contmax.kernels import triton

    lists = triton.AttentionLists(*kept)
    *grads, grad_alpha = triton.entmax_attention_backward(
        query, key, value, alpha, options, lists, cotangent, needs_alpha
    )
    return [*grads, query.new_empty(0) if grad_alpha is None else grad_alpha.sum((0, 2))]


@torch.library.custom_op("contmax::entmax_attention", mutates_args=())
def attention_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Tensor | None,
    fixed_alpha: float,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    diagonal: int | None,
    scale: float,
    needs_gradient: bool,
) -> list[Tensor]:
    """`attention_fused` as one opaque node."""
    options = AttentionOptions(mask, bias, lengths, diagonal, scale)
    return list(_attention(query, key, value, fixed_alpha if alpha is None else alpha, options, needs_gradient))


@attention_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None, fixed_alpha: float, *rest: Any) -> list[Tensor]:
    from contmax.kernels import triton

    out = query.new_empty((*query.shape[:3], value.shape[3]))
    return [out, *triton.empty_attention_lists(query, key, value, fixed_alpha if alpha is None else alpha, rest[-1])]


@torch.library.custom_op("contmax::entmax_attention_backward", mutates_args=())
def attention_backward_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Tensor | None,
    fixed_alpha: float,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    diagonal: int | None,
    scale: float,
    kept: list[Tensor],
    cotangent: Tensor,
    needs_alpha: bool,
) -> list[Tensor]:
    """`attention_fused_backward` as one opaque node; where it is not needed, the gradient of α is empty, (0,)."""
    options = AttentionOptions(mask, bias, lengths, diagonal, scale)
    index = fixed_alpha if alpha is None else alpha
    return _attention_backward(query, key, value, index, options, tuple(kept), cotangent, needs_alpha)


@attention_backward_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None, fixed_alpha: float, *rest: Any) -> list[Tensor]:
    grads = [x.new_empty(x.shape) for x in (query, key, value)]
    return [*grads, query.new_empty(query.shape[1] if rest[-1] else 0, dtype=torch.float32)]
