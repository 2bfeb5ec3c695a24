"""Attention by compiled kernels: Triton's, which never store a matrix of weights, or numba's, on lists of weights.

`_CompiledAttention` calls either. Derivatives that the kernels do not have come from `reference_gradients`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply, refused_by_kernels
from contmax._backend import Backend, backend_of
from contmax._eager import wide_dtype
from contmax.attention._arguments import Inputs, save_inputs, saved_inputs, shape_of_bias
from contmax.attention._listed import listed_gradients, listed_means
from contmax.attention._masked import allowed_keys, masked_as_zeros
from contmax.attention._reference import reference_gradients
from contmax.kernels import attention as kernels
from contmax.maps._arguments import widened_scores

# With fewer queries, tiles of the usual kernels would be mostly padding: the decoding kernels take over, or torch
# where a gradient is needed.
_FEWEST_QUERIES = 32
# Up to this many keys a CPU multiplies whole matrices of weights faster than it lists their nonzero entries.
_FEW_KEYS_ON_CPU = 256


def backend_of_attention(inputs: Inputs, dropout_p: float) -> Backend:
    """The backend whose kernels take these arguments; TORCH if none does, as under torch.func or in torch.export."""
    query, alpha, bias = inputs.query, inputs.alpha, inputs.bias
    if inputs.softcap is not None or inputs.sinks is not None:
        return Backend.TORCH
    if dropout_p > 0 or (isinstance(alpha, float) and not 1 < alpha <= 2):
        return Backend.TORCH
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return Backend.TORCH
    is_traced = torch.compiler.is_compiling()
    if not is_traced and not inputs.hold_numbers():
        return Backend.TORCH
    # On a CPU choose for half precision as for float32: tensors are widened before they reach numba's kernels.
    is_wide = is_traced or not query.is_cpu
    backend = backend_of(query if is_wide else query.new_empty(0, dtype=wide_dtype(query.dtype)))
    if backend is Backend.TRITON:
        fits = kernels.attention_fits(*inputs[:3])
        # Compare the number of queries last: torch.compile adds a guard for every size that is compared.
        if fits and query.shape[-2] < _FEWEST_QUERIES:  # the decoding kernels have no gradients
            fits = not _needs_gradient(inputs) and kernels.decoding_fits(*inputs[:3])
    elif backend is Backend.NUMBA and not is_traced:
        fits = 0 not in (*query.shape, *inputs.value.shape) and inputs.key.shape[-2] > _FEW_KEYS_ON_CPU
        if isinstance(alpha, Tensor):
            fits = fits and bool(((alpha.detach() > 1) & (alpha.detach() <= 2)).all())
    else:
        fits = False
    return backend if fits else Backend.TORCH


def attend_fused(inputs: Inputs) -> Tensor:
    """Means of the values by Triton's kernels, (*batch, H, Q, c), in the dtype of the query."""
    if inputs.query.shape[-2] < _FEWEST_QUERIES:
        output: Tensor = kernels.decoding(*_given_to_kernels(_in_one_batch(inputs)))
    else:
        # Leave out `lengths` here: the kernels do not read keys beyond a sequence's length, so these need no zeros.
        inputs = masked_as_zeros(inputs._replace(lengths=None))._replace(lengths=inputs.lengths)
        output = apply(_CompiledAttention, True, _needs_gradient(inputs), *_in_one_batch(inputs))[0]
    return _in_batches(output, inputs)


def is_decoding(inputs: Inputs) -> bool:
    """Whether there are few queries, and no gradient is needed: a step of generation."""
    return inputs.query.shape[-2] < _FEWEST_QUERIES and not _needs_gradient(inputs)


def decode_by_pages(inputs: Inputs, boxes: kernels.Boxes) -> tuple[Tensor, kernels.Bounded]:
    """Means (*batch, H, Q, c) from the pages that may have weight, and the bounds and thresholds that select them."""
    one_batch = _in_one_batch(inputs)
    low, high = (x if x.dim() == 4 else x.reshape(-1, *x.shape[-3:]) for x in boxes[:2])
    found = kernels.decoding_by_pages(*_given_to_kernels(one_batch), boxes._replace(low=low, high=high))
    output, *bounded = (_in_batches(x, inputs) for x in found)
    return output, kernels.Bounded(*bounded)


def _in_one_batch(inputs: Inputs) -> Inputs:
    """The inputs as Triton's kernels take them: with a single batch axis and a scale that is not negative."""
    if inputs.query.shape[-2] < _FEWEST_QUERIES and inputs.spans is not None:  # decoding takes a mask, no spans
        inputs = inputs._replace(mask=allowed_keys(inputs), spans=None)
    batch = inputs.query.shape[:-3]
    scores = (*inputs.query.shape[:-1], inputs.key.shape[-2])
    query, key, value = (x if x.dim() == 4 else x.reshape(-1, *x.shape[-3:]) for x in inputs[:3])
    return inputs._replace(
        query=-query if inputs.scale < 0 else query,
        key=key,
        value=value,
        mask=None if inputs.mask is None else _as_one_batch(inputs.mask, scores),
        bias=None if inputs.bias is None else _as_one_batch(inputs.bias, shape_of_bias(inputs.bias, scores)),
        lengths=None if inputs.lengths is None else inputs.lengths.expand(*batch, 1, 1, 1).reshape(-1, 1, 1, 1),
        scale=abs(inputs.scale),
        spans=None if inputs.spans is None else _as_one_batch(inputs.spans, (*scores[:-1], 2)),
    )


def _in_batches(x: Tensor, inputs: Inputs) -> Tensor:
    """x (B, …) reshaped to the batch axes of the inputs, (*batch, …)."""
    batch = inputs.query.shape[:-3]
    return x if len(batch) == 1 else x.reshape(*batch, *x.shape[1:])


def _needs_gradient(inputs: Inputs) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs.tensors())


def attend_listed(inputs: Inputs) -> Tensor:
    """Means of the values by lists of nonzero weights on a CPU, (*batch, H, Q, c), in full precision."""
    query, key, value = (widened_scores(x) for x in inputs[:3])
    output: Tensor = apply(_CompiledAttention, False, True, query, key, value, *inputs[3:])[0]
    return output


def _as_one_batch(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x, which broadcasts to `shape` (*batch, H, ·, ·), reshaped to broadcast to (B, H, ·, ·) with B = ∏ batch."""
    return x if len(shape) == 4 or x.dim() <= 3 else x.expand(shape).reshape(-1, *shape[-3:])


class _CompiledAttention(torch.autograd.Function):
    """Returns the means of the values, then the lists and other tensors that the backward pass needs."""

    @staticmethod
    def forward(is_fused: bool, needs_gradient: bool, *arguments: Any) -> tuple[Tensor, ...]:
        inputs = Inputs(*arguments)
        if not is_fused:
            return listed_means(inputs)
        return tuple(kernels.attention(*_given_to_kernels(inputs), needs_gradient))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.is_fused = inputs[0]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        save_inputs(ctx, inputs[2:], *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, saved = saved_inputs(ctx)
        needed = ctx.needs_input_grad[2:]
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        if refused_by_kernels(g):
            return None, None, *reference_gradients(inputs, needed, g)
        found: Sequence[Tensor | None]
        if ctx.is_fused:
            found = kernels.attention_backward(*_given_to_kernels(inputs), kernels.AttentionLists(*saved), g, needed[3])
        else:
            found = listed_gradients(inputs, saved, g, needed[3])
        grads = [x if need else None for x, need in zip(found, needed[:4], strict=True)]
        alpha, d_alpha = inputs.alpha, grads[3]
        if isinstance(alpha, Tensor) and d_alpha is not None:
            grads[3] = d_alpha.reshape(-1, 1, 1).sum_to_size(alpha.shape).to(alpha.dtype)
        return None, None, *grads, *(None,) * 8


def _given_to_kernels(
    inputs: Inputs,
) -> tuple[Tensor, Tensor, Tensor, float | Tensor, kernels.AttentionOptions]:
    """The first arguments of the operators of `kernels`: query, key, value, α as a number or (H,), and options."""
    alpha = inputs.alpha
    if isinstance(alpha, Tensor):
        alpha = alpha.reshape(-1).expand(inputs.query.shape[-3])
    return (*inputs[:3], alpha, kernels.AttentionOptions(*inputs[4:10]))
