"""Attention on a CPU: weights of a block of queries are made, and kept as lists of those that are not zero.

One product of matrices is left, that of queries and keys. All others, of the forward and of the backward pass, are sums
over the lists. A block with long lists is left to products of matrices, as in `_blocked`.
"""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, refused_by_kernels
from contmax._precision import wide_dtype, without_autocast
from contmax.attention._arguments import Inputs, save_inputs, saved_inputs
from contmax.attention._blocked import block_of, query_blocks
from contmax.attention._distances import bias_of_scores
from contmax.attention._reference import allowed_keys, attend_reference, repeated_heads
from contmax.maps._half_precision import widened_scores

# Lists of more than this share of the keys save nothing.
_LONGEST_SHARE = 1 / 8


def can_be_listed(inputs: Inputs, dropout_p: float) -> bool:
    """Whether all tensors hold numbers on a CPU, there are some, and weights have zeros."""
    if 0 in (*inputs.query.shape, *inputs.value.shape):
        return False
    wide = wide_dtype(inputs.query.dtype)
    if dropout_p > 0 or not inputs.hold_numbers or not kernels.attention_is_listed(wide, inputs.tensors):
        return False
    if inputs.bias is not None and inputs.bias.requires_grad and torch.is_grad_enabled():
        return False
    if isinstance(inputs.alpha, Tensor):
        alpha = inputs.alpha.detach()
        return bool(((alpha > 1) & (alpha <= 2)).all())
    return 1 < inputs.alpha <= 2


def attend_listed(inputs: Inputs) -> Tensor:
    """Means of the values for all queries, (*batch, H, Q, c), in full precision."""
    query, key, value = (widened_scores(x) for x in inputs[:3])
    output: Tensor = apply(_ListedAttention, query, key, value, *inputs[3:])[0]
    return output


class _ListedAttention(torch.autograd.Function):
    """Means of the values, then places and weights of the lists of each block; empty for a block that has none."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        detached: list[Any] = [x.detach() if isinstance(x, Tensor) else x for x in arguments]
        inputs = Inputs(*detached)
        outputs, kept = [], []
        for rows in query_blocks(inputs):
            output, *lists = _block_means(block_of(inputs, rows))
            outputs.append(output)
            kept += lists
        return torch.cat(outputs, -2), *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        save_inputs(ctx, inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, kept = saved_inputs(ctx)
        others = (None,) * (len(inputs) - 4)
        if g is None:
            return None, None, None, None, *others
        needed = ctx.needs_input_grad[:4]
        if refused_by_kernels(g):
            return *gradients_by_reference(_of_tensors(inputs), _differentiable(inputs), needed, g), *others
        return *_gradients(inputs, kept, g, needed[3]), *others


def _differentiable(inputs: Inputs) -> tuple[Tensor | None, ...]:
    """Query, key, value, and α if it is a tensor."""
    return *inputs[:3], inputs.alpha if isinstance(inputs.alpha, Tensor) else None


def _of_tensors(inputs: Inputs) -> Any:
    """The reference as a function of these four."""

    def output(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None) -> Tensor:
        index = inputs.alpha if alpha is None else alpha
        return attend_reference(Inputs(query, key, value, index, *inputs[4:]), 0.0).output

    return output


def _block_means(block: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Means of the values, and the lists of a block, empty where they are too long."""
    key, value = (repeated_heads(x, block.query.shape[-3]) for x in (block.key, block.value))
    with without_autocast(block.query):
        scores = (block.query * block.scale) @ key.mT
    added = _bias_and_mask(block, scores.dtype)
    if added is not None:
        scores += added
    weights = kernels.rows.on_cpu().entmax_rows(scores, block.alpha)[0]
    longest = int(_LONGEST_SHARE * weights.shape[-1]) + 8
    lists = kernels.listed_weights(weights.flatten(0, -3), longest)
    if lists is None:
        empty = weights.new_empty(0)
        with without_autocast(value):
            return weights @ value, empty, empty
    means = kernels.listed_means(*lists, _heads_first(block.value))
    return means.reshape(*weights.shape[:-1], value.shape[-1]), *lists


def _bias_and_mask(block: Inputs, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores: the bias, and −inf where a key may not be attended; None for nothing.

    One pass over few numbers and one over the scores: a masked fill of the scores takes several.
    """
    bias, allowed = block.bias, allowed_keys(block)
    if bias is not None:
        bias = bias_of_scores(bias, *block.sizes).to(dtype)
        return bias if allowed is None else torch.where(allowed, bias, -torch.inf)
    if allowed is None:
        return None
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def _gradients(inputs: Inputs, kept: list[Tensor], g: Tensor, needs_alpha: bool) -> tuple[Tensor | None, ...]:
    """Of query, key, value, and α."""
    query, key, value, g = (x.detach() for x in (*inputs[:3], g))
    inputs = inputs._replace(query=query, key=key, value=value)
    d_query = torch.empty_like(query, memory_format=torch.contiguous_format)
    d_key, d_value = (x.new_zeros(x.shape) for x in (key, value))
    d_alpha = query.new_zeros(query.shape[-3]) if needs_alpha else None
    for i, rows in enumerate(query_blocks(inputs)):
        block, lists, along = block_of(inputs, rows), kept[2 * i : 2 * i + 2], g[..., rows, :]
        found = _block_gradients(block, lists, along, (d_key, d_value), needs_alpha)
        d_query[..., rows, :] = found[0]
        if d_alpha is not None:
            d_alpha += found[1]
    alpha = inputs.alpha
    if d_alpha is not None and isinstance(alpha, Tensor):
        d_alpha = d_alpha.reshape(-1, 1, 1).sum_to_size(alpha.shape).to(alpha.dtype)
    return d_query, d_key, d_value, d_alpha


def _block_gradients(
    block: Inputs, lists: list[Tensor], g: Tensor, sums: tuple[Tensor, Tensor], needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Of the queries of a block, and of α for each head; what keys and values get is added to the sums."""
    d_key, d_value = sums
    keys = block.key.shape[-2]
    if lists[0].numel() == 0:
        return _dense_gradients(block, g, (d_key[..., :keys, :], d_value[..., :keys, :]), needs_alpha)
    places, masses = lists
    shape = (*block.query.shape[:-1], masses.shape[-1])
    along = kernels.listed_products(places, masses, _heads_first(g), _heads_first(block.value))
    pulled = kernels.rows.on_cpu().entmax_rows_backward(
        masses.reshape(shape), along.reshape(shape), block.alpha, needs_alpha
    )
    slopes = pulled[0].reshape(masses.shape)
    slopes *= block.scale
    queries, all_keys = _heads_first(block.query), _heads_first(block.key)
    d_query = kernels.add_listed_gradients(
        d_key.flatten(0, -3), d_value.flatten(0, -3), (places, masses, slopes), queries, all_keys, _heads_first(g)
    )
    turns = block.query.new_zeros(()) if not needs_alpha else _of_heads(pulled[1])
    return d_query.reshape(block.query.shape), turns


def _dense_gradients(block: Inputs, g: Tensor, sums: tuple[Tensor, Tensor], needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """The same by products of matrices."""
    live = [x.detach().requires_grad_() for x in block[:3]]
    index = block.alpha
    if isinstance(index, Tensor) and needs_alpha:
        index = index.detach().expand(block.query.shape[-3], 1, 1).clone().requires_grad_()
        live.append(index)
    with torch.enable_grad():
        output = attend_reference(Inputs(live[0], live[1], live[2], index, *block[4:]), 0.0).output
    d_query, d_key, d_value, *d_alpha = torch.autograd.grad(output, live, g)
    sums[0].add_(d_key)
    sums[1].add_(d_value)
    return d_query, d_alpha[0].reshape(-1) if d_alpha else d_query.new_zeros(())


def _of_heads(x: Tensor) -> Tensor:
    """Numbers (*batch, H, Q, 1) added up for each head."""
    return x.flatten(0, -4).sum((0, 2, 3)) if x.dim() > 3 else x.sum((1, 2))


def _heads_first(x: Tensor) -> Tensor:
    """(*batch, H, n, c) as contiguous (heads, n, c), whose memory holds the numbers as they are."""
    return x.flatten(0, -3).resolve_neg().contiguous()
