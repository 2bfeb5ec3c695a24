"""Attention by kernels that keep no matrix of weights; derivatives they do not know come from the reference."""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, refused_by_kernels
from contmax.attention._arguments import Inputs
from contmax.attention._distances import full_shape
from contmax.attention._masked import masked_as_zeros
from contmax.attention._reference import attend_reference

# For fewer queries all weights are few, and a product of matrices of that height would be mostly padding.
_FEWEST_QUERIES = 32


def can_be_fused(inputs: Inputs, dropout_p: float) -> bool:
    """Whether the kernels take these arguments; transforms of torch.func and exported programs get the reference."""
    if dropout_p > 0:
        return False
    if isinstance(inputs.alpha, float) and not 1 < inputs.alpha <= 2:
        return False
    if inputs.bias is not None and inputs.bias.requires_grad and torch.is_grad_enabled():
        return False
    if not torch.compiler.is_compiling() and not inputs.hold_numbers:
        return False
    # The size comes last: a traced program keeps what it was asked for, and an exported one is not fused.
    return kernels.attention_is_fused(*inputs[:3]) and inputs.query.shape[-2] >= _FEWEST_QUERIES


def attend_fused(inputs: Inputs) -> Tensor:
    """Means of the values for all queries, (*batch, H, Q, c), in the dtype of the query."""
    # Kernels do not read keys behind the last.
    inputs = masked_as_zeros(inputs._replace(lengths=None))._replace(lengths=inputs.lengths)
    batch = inputs.query.shape[:-3]
    query, key, value = (x if x.dim() == 4 else x.reshape(-1, *x.shape[-3:]) for x in inputs[:3])
    scores = (*inputs.query.shape[:-1], inputs.key.shape[-2])
    mask = None if inputs.mask is None else _as_one_batch(inputs.mask, scores)
    bias = None if inputs.bias is None else _as_one_batch(inputs.bias, full_shape(inputs.bias, scores))
    lengths = None if inputs.lengths is None else inputs.lengths[..., 0, 0, 0].expand(batch).reshape(-1)
    alpha, heads = inputs.alpha, inputs.query.shape[-3]
    if isinstance(alpha, Tensor):
        alpha = alpha.reshape(-1).expand(heads)
    if inputs.scale < 0:
        query = -query
    options = (mask, bias, lengths, inputs.diagonal, abs(inputs.scale))
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in inputs.tensors)
    output: Tensor = apply(_FusedAttention, query, key, value, alpha, *options, needs_gradient)[0]
    return output if len(batch) == 1 else output.reshape(*batch, *output.shape[1:])


def _as_one_batch(x: Tensor, scores: tuple[int, ...]) -> Tensor:
    """A tensor that broadcasts to scores (*batch, H, Q, L) as one that does to (B, H, Q, L)."""
    if len(scores) == 4 or x.dim() <= 3:
        return x
    return x.expand(scores).reshape(-1, *scores[-3:])


def _reference(query: Tensor, key: Tensor, value: Tensor, alpha: Any, options: kernels.AttentionOptions) -> Tensor:
    index = alpha.reshape(-1, 1, 1) if isinstance(alpha, Tensor) else alpha
    mask, bias, lengths, diagonal, scale = options
    places = None if lengths is None else lengths[:, None, None, None]
    inputs = Inputs(query, key, value, index, mask, bias, places, diagonal, scale)
    return attend_reference(masked_as_zeros(inputs), 0.0).output.to(query.dtype)


class _FusedAttention(torch.autograd.Function):
    """Means of the values, and what is kept for gradients; queries (B, H, Q, d), α a number or (H,)."""

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: float | Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        lengths: Tensor | None,
        diagonal: int | None,
        scale: float,
        needs_gradient: bool,
    ) -> tuple[Tensor, ...]:
        options = kernels.AttentionOptions(mask, bias, lengths, diagonal, scale)
        return kernels.attention_fused(query, key, value, alpha, options, needs_gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        query, key, value, alpha, mask, bias, lengths, ctx.diagonal, ctx.scale, _ = inputs
        ctx.fixed_alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        given = (query, key, value, None if ctx.fixed_alpha is not None else alpha, mask, bias, lengths)
        ctx.save_for_backward(*given, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        given, options, kept = _FusedAttention._saved(ctx)
        others = (None,) * 6
        if g is None:
            return None, None, None, None, *others
        needed = ctx.needs_input_grad[:4]
        if refused_by_kernels(g):
            found = gradients_by_reference(_FusedAttention._of_tensors(ctx, options), given, needed, g)
            return *found, *others
        alpha = ctx.fixed_alpha if given[3] is None else given[3]
        query, key, value = given[:3]
        grads = kernels.attention_fused_backward(query, key, value, alpha, options, kept, g, needed[3])
        found = [x if need else None for x, need in zip(grads, needed, strict=True)]
        if found[3] is not None:
            found[3] = found[3].to(given[3].dtype)
        return *found, *others

    @staticmethod
    def _saved(ctx: Any) -> tuple[tuple[Any, ...], kernels.AttentionOptions, tuple[Tensor, ...]]:
        """Query, key, value and α if it is a tensor; the options; and the lists."""
        query, key, value, alpha, mask, bias, lengths, *kept = ctx.saved_tensors
        options = kernels.AttentionOptions(mask, bias, lengths, ctx.diagonal, ctx.scale)
        return (query, key, value, alpha), options, tuple(kept)

    @staticmethod
    def _of_tensors(ctx: Any, options: kernels.AttentionOptions) -> Any:
        """The reference as a function of query, key, value and α."""

        def output(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None) -> Tensor:
            return _reference(query, key, value, ctx.fixed_alpha if alpha is None else alpha, options)

        return output
