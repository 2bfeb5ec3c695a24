"""Attention on a CPU: each query of a block gets a list of the keys with nonzero weight and of these weights.

Scores are computed by matrix products. All other products of the forward and backward passes are sums over the lists.
A block whose lists would be long uses matrix products throughout.
"""

import torch
from torch import Tensor

from contmax import kernels
from contmax._eager import without_autocast
from contmax.attention._arguments import Inputs
from contmax.attention._masked import allowed_keys, bias_of_scores
from contmax.attention._reference import attend_reference, block_of, query_blocks, repeated_heads

# Lists save time only if they are shorter than this share of the number of keys.
_LONGEST_SHARE = 1 / 8


def listed_means(inputs: Inputs) -> tuple[Tensor, ...]:
    """Means of the values, then two tensors for each block of queries: the keys and the weights of its lists.

    Both are empty if a list of the block would be too long.
    """
    outputs, saved = [], []
    for rows in query_blocks(inputs):
        output, *listed = _block_means(block_of(inputs, rows))
        outputs.append(output)
        saved += listed
    return torch.cat(outputs, -2), *saved


def listed_gradients(
    inputs: Inputs, saved: list[Tensor], g: Tensor, needs_alpha: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, α (per head, 0 unless `needs_alpha`); `saved` are the lists of `listed_means`."""
    d_query, d_key, d_value = (x.new_zeros(x.shape) for x in inputs[:3])
    d_alpha = d_query.new_zeros(d_query.shape[-3])
    for i, rows in enumerate(query_blocks(inputs)):
        block, along = block_of(inputs, rows), g[..., rows, :]
        keys = block.key.shape[-2]
        if saved[2 * i].numel() == 0:
            sums = d_key[..., :keys, :], d_value[..., :keys, :]
            found = _gradients_by_matrices(block, along, sums, needs_alpha)
        else:
            found = _gradients_by_lists(block, (saved[2 * i], saved[2 * i + 1]), along, (d_key, d_value), needs_alpha)
        d_query[..., rows, :] = found[0]
        d_alpha += found[1]
    return d_query, d_key, d_value, d_alpha


def _block_means(block: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Means of the values for a block of queries, then keys and weights of its lists, both empty if one is too long."""
    key, value = (repeated_heads(x, block.query.shape[-3]) for x in (block.key, block.value))
    with without_autocast(block.query):
        scores = (block.query * block.scale) @ key.mT
    allowed = allowed_keys(block)
    if block.bias is not None:
        scores += bias_of_scores(block.bias, *block.sizes()).to(scores.dtype)
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    from contmax.kernels.attention import _cpu_listed as lists

    weights = kernels.rows.on_cpu().entmax_rows(scores, block.alpha)[0]
    longest = int(_LONGEST_SHARE * weights.shape[-1]) + 8
    listed = lists.listed_weights(weights.flatten(0, -3), longest)
    if listed is None:
        empty = weights.new_empty(0)
        with without_autocast(value):
            return weights @ value, empty, empty
    means = lists.listed_means(*listed, _heads_first(block.value))
    return means.reshape(*weights.shape[:-1], value.shape[-1]), *listed


def _gradients_by_lists(
    block: Inputs, listed: tuple[Tensor, Tensor], g: Tensor, sums: tuple[Tensor, Tensor], needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries of a block, and of α per head; gradients of keys and values are added to `sums`."""
    from contmax.kernels.attention import _cpu_listed as lists

    places, weights = listed
    shape = (*block.query.shape[:-1], weights.shape[-1])
    cotangent = _heads_first(g)
    along = lists.listed_products(places, weights, cotangent, _heads_first(block.value))
    pulled = kernels.rows.on_cpu().entmax_rows_backward(
        weights.reshape(shape), along.reshape(shape), block.alpha, needs_alpha
    )
    slopes = pulled[0].reshape(weights.shape)
    slopes *= block.scale
    d_key, d_value = (x.flatten(0, -3) for x in sums)
    queries, keys = _heads_first(block.query), _heads_first(block.key)
    d_query = lists.add_listed_gradients(d_key, d_value, (places, weights, slopes), queries, keys, cotangent)
    d_alpha = block.query.new_zeros(())
    if needs_alpha and pulled[1] is not None:
        d_alpha = pulled[1].reshape(-1, *shape[-3:-1]).sum((0, 2))
    return d_query.reshape(block.query.shape), d_alpha


def _gradients_by_matrices(
    block: Inputs, g: Tensor, sums: tuple[Tensor, Tensor], needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The results of `_gradients_by_lists` for a block without lists, by autograd of the reference."""
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


def _heads_first(x: Tensor) -> Tensor:
    """x (*batch, H, n, c) as contiguous (heads, n, c), without a lazy negation, which numba would not see."""
    return x.flatten(0, -3).resolve_neg().contiguous()
