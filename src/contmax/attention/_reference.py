"""Attention in plain steps, with all weights in memory: the reference, and what derivatives of any kind go through."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax._precision import without_autocast
from contmax.attention._arguments import Inputs
from contmax.attention._distances import bias_of_scores
from contmax.maps import entmax
from contmax.maps._half_precision import widened_scores


class Attended(NamedTuple):
    """What queries get: means of the values (*batch, H, Q, c), and the weights (*batch, H, Q, L), in full precision."""

    output: Tensor
    weights: Tensor


def attend_reference(inputs: Inputs, dropout_p: float) -> Attended:
    """Scores, their map, means of the values."""
    heads = inputs.query.shape[-3]
    query = widened_scores(inputs.query)
    key, value = (repeated_heads(widened_scores(x), heads) for x in (inputs.key, inputs.value))
    with without_autocast(query):
        scores = (query * inputs.scale) @ key.mT
        if inputs.bias is not None:
            scores = scores + bias_of_scores(inputs.bias, *inputs.sizes).to(scores.dtype)
        if scores.shape[-1] == 0:  # there is no distribution over nothing
            return Attended(scores @ value, scores)
        allowed = allowed_keys(inputs)
        weights = entmax(scores, inputs.alpha, mask=allowed)
        kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
        return Attended(kept @ value, weights)


def allowed_keys(inputs: Inputs) -> Tensor | None:
    """Which keys a query may attend, broadcastable to the scores; None if all."""
    queries, keys = inputs.sizes
    allowed = inputs.mask
    place = torch.arange(keys, device=inputs.query.device)
    if inputs.lengths is not None:
        allowed = _both(allowed, place < inputs.lengths)
    if inputs.diagonal is not None and inputs.diagonal < keys - 1:  # else the first query meets all keys
        last = torch.arange(inputs.diagonal, inputs.diagonal + queries, device=place.device).unsqueeze(-1)
        allowed = _both(allowed, place <= last)
    return allowed


def repeated_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values (*batch, G, L, c) for this many heads of queries, neighbours sharing one."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b
