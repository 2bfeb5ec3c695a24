"""Attention in blocks of queries: weights of one block are in memory at a time, and are made again for the gradient."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contmax.attention._arguments import Inputs
from contmax.attention._distances import bias_of_keys, bias_of_queries, columns_of, rows_of
from contmax.attention._reference import attend_reference
from contmax.maps._half_precision import widened_scores

# Weights in memory at once: enough for matrix products to run well.
_WEIGHTS, _WEIGHTS_ON_GPU = 2**22, 2**27


def attend_in_blocks(inputs: Inputs, dropout_p: float) -> Tensor:
    """Means of the values for all queries, (*batch, H, Q, c), in full precision."""
    blocks = list(query_blocks(inputs))
    if len(blocks) <= 1:
        return attend_reference(inputs, dropout_p).output
    # Blocks add their gradients up in the dtype of what they were given.
    inputs = inputs._replace(key=widened_scores(inputs.key), value=widened_scores(inputs.value))
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs.tensors):
        return torch.cat([attend_reference(block_of(inputs, rows), dropout_p).output for rows in blocks], -2)
    outputs = [
        checkpoint(
            lambda *block: attend_reference(Inputs(*block), dropout_p).output,
            *block_of(inputs, rows),
            use_reentrant=False,
            preserve_rng_state=dropout_p > 0,
        )
        for rows in blocks
    ]
    return torch.cat(outputs, -2)


def query_blocks(inputs: Inputs) -> Iterator[slice]:
    """Blocks of queries."""
    queries, keys = inputs.sizes
    heads = inputs.query.shape[:-2].numel()
    weights = _WEIGHTS if inputs.query.device.type == "cpu" else _WEIGHTS_ON_GPU
    size = max(1, weights // max(1, heads * keys))
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def block_of(inputs: Inputs, rows: slice) -> Inputs:
    """The same for some of the queries, and the keys that any of them may attend."""
    diagonal = None if inputs.diagonal is None else inputs.diagonal + rows.start
    queries, keys = inputs.sizes
    mask = None if inputs.mask is None else rows_of(inputs.mask, rows)
    bias = None if inputs.bias is None else bias_of_queries(inputs.bias, rows, queries, keys)
    block = inputs._replace(query=inputs.query[..., rows, :], mask=mask, bias=bias, diagonal=diagonal)
    if diagonal is None:
        return block
    count = max(1, min(keys, rows.stop + inputs.diagonal))
    mask = None if mask is None else columns_of(mask, count)
    bias = None if bias is None else bias_of_keys(bias, count, rows.stop - rows.start, keys)
    return block._replace(key=inputs.key[..., :count, :], value=inputs.value[..., :count, :], mask=mask, bias=bias)
