"""Which query may attend which key, and zeros in place of keys, values and queries that are masked altogether.

The zeros are needed because a weight of zero does not hide a masked value: 0 · NaN and 0 · ∞ are NaN.
"""

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax.attention._arguments import Inputs
from contmax.kernels.attention import is_by_distance


def bias_of_scores(bias: Tensor, queries: int, keys: int) -> Tensor:
    """The bias in a shape that broadcasts to the scores (*batch, H, Q, L).

    Args:
        bias: in such a shape, or (…, 1, Q + L − 1) with the bias of query i and key j at index j − i + Q − 1.
        queries, keys: Q and L.
    """
    if not is_by_distance(bias, queries, keys):
        return bias
    line = bias if bias.dim() == 1 else bias.squeeze(-2)
    if torch.compiler.is_compiling():  # unfold would make the number of keys a constant of the program
        before = torch.arange(queries - 1, -1, -1, device=bias.device)
        return line[..., before.unsqueeze(-1) + torch.arange(keys, device=bias.device)]
    return line.unfold(-1, keys, 1).flip(-2)


def allowed_keys(inputs: Inputs) -> Tensor | None:
    """Which keys a query may attend by mask, lengths, causality and spans, broadcastable to the scores; None if all."""
    queries, keys = inputs.sizes()
    allowed = inputs.mask
    if inputs.lengths is None and inputs.diagonal is None and inputs.spans is None:
        return allowed
    place = torch.arange(keys, device=inputs.query.device)
    if inputs.spans is not None:
        allowed = _both(allowed, (place >= inputs.spans[..., :1]) & (place < inputs.spans[..., 1:]))
    if inputs.lengths is not None:
        allowed = _both(allowed, place < inputs.lengths)
    if inputs.diagonal is not None and inputs.diagonal < keys - 1:  # else every query may attend all keys
        last = torch.arange(inputs.diagonal, inputs.diagonal + queries, device=place.device).unsqueeze(-1)
        allowed = _both(allowed, place <= last)
    return allowed


def masked_as_zeros(inputs: Inputs) -> Inputs:
    """The inputs with 0 for queries without an allowed key, and for keys and values without an allowed query.

    The gradients of these entries are exactly 0 too.
    """
    seen, asks = _seen_and_asking(inputs)
    query, key, value = inputs[:3]
    if asks is not None:
        query = torch.where(asks, query, 0)
    if seen is not None:
        heads, groups = query.shape[-3], key.shape[-3]
        if heads != groups and seen.dim() > 2 and seen.shape[-3] == heads:
            seen = seen.unflatten(-3, (groups, heads // groups)).any(-3)
        key, value = (torch.where(seen.mT, x, 0) for x in (key, value))
    return inputs._replace(query=query, key=key, value=value)


def _seen_and_asking(inputs: Inputs) -> tuple[Tensor | None, Tensor | None]:
    """Which keys some query may attend, (…, 1, L), and which queries may attend some key, (…, Q or 1, 1); None if all.

    Conditions on keys alone are not expanded to a matrix (Q, L). A bias by distance (one number for each j − i) is
    expanded only if there are spans, or a mask that is a matrix. Otherwise this bias is tested by itself: a query then
    counts even if its bias excludes all keys that the other conditions allow.
    """
    (queries, keys), bias, line = inputs.sizes(), inputs.bias, None
    if bias is not None and is_by_distance(bias, queries, keys):
        line = bias.detach() != -torch.inf
        bias = None
    parts = [] if inputs.mask is None else [inputs.mask]
    if bias is not None:
        parts.append(bias.detach() != -torch.inf)
    if any(part.shape[-2] > 1 for part in parts) or (line is not None and inputs.spans is not None):
        allowed = allowed_keys(inputs)
        if inputs.bias is not None:
            allowed = _both(allowed, bias_of_scores(inputs.bias.detach(), queries, keys) != -torch.inf)
        assert allowed is not None
        return _any(allowed, -2), _any(allowed, -1)
    if inputs.spans is not None:
        return _seen_and_asking_of_spans(inputs.spans, parts, keys)
    if inputs.lengths is not None:
        parts.append(torch.arange(keys, device=inputs.query.device) < inputs.lengths)
    seen = functools.reduce(torch.logical_and, parts) if parts else None
    # A causal mask hides no key from the last query: `seen` does not depend on a causal mask, but `asks` does.
    asks = _asking(seen, inputs)
    if line is not None:
        if inputs.diagonal is not None:
            line = F.pad(line[..., : inputs.diagonal + queries], (0, keys - 1 - inputs.diagonal))
        # A key is seen if `line` is True for its distance from some query: for one of Q neighbouring entries.
        counts = F.pad(line.cumsum(-1), (1, 0))
        seen = _both(seen, counts[..., queries:] > counts[..., :-queries])
        # A query may attend some key if `line` is True for its distance from one: for one of L neighbouring entries.
        asks = _both(asks, (counts[..., keys:] > counts[..., :queries]).flip(-1).mT)
    return seen, asks


def _seen_and_asking_of_spans(spans: Tensor, parts: list[Tensor], keys: int) -> tuple[Tensor, Tensor]:
    """`_seen_and_asking` for spans of keys; each of `parts`, (…, 1, L), says which of the keys may be attended."""
    begins, ends = spans.long().split(1, -1)
    # A key is open if all `parts` allow it. A query may attend one if more open keys lie before the end of its span
    # than before its begin.
    open_keys = functools.reduce(torch.logical_and, parts) if parts else begins.new_ones((1, keys), dtype=torch.bool)
    open_keys = open_keys.expand(*open_keys.shape[:-1], keys)
    leading = torch.broadcast_shapes(open_keys.shape[:-2], spans.shape[:-2])
    before = F.pad(open_keys.cumsum(-1), (1, 0)).expand(*leading, 1, keys + 1)
    begins, ends = (x.mT.expand(*leading, 1, -1) for x in (begins, ends))
    asks = before.gather(-1, ends) > before.gather(-1, begins)
    # The number of spans that hold a key is the number that begin at or before it, less those that end there or before.
    steps = begins.new_zeros((*leading, 1, keys + 1)).scatter_add(-1, begins, torch.ones_like(begins))
    steps = steps.scatter_add(-1, ends, -torch.ones_like(ends))
    return (steps.cumsum(-1)[..., :-1] > 0) & open_keys, asks.mT


def _asking(seen: Tensor | None, inputs: Inputs) -> Tensor | None:
    """Which queries may attend some key of those that are True in `seen`, (…, 1, L); (…, Q or 1, 1), None if all."""
    queries, keys = inputs.sizes()
    diagonal = inputs.diagonal
    if diagonal is not None and seen is None and diagonal < 0:
        return torch.arange(queries, device=inputs.query.device).unsqueeze(-1) >= -diagonal
    if diagonal is None or seen is None:
        return None if seen is None else seen.any(-1, keepdim=True)
    so_far = seen.expand(*seen.shape[:-1], keys).cumsum(-1)
    # A causal mask aligns query Q − 1 with key L − 1.
    return (F.pad(so_far, (max(-diagonal, 0), 0))[..., -queries:] > 0).mT


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b


def _any(x: Tensor, dim: int) -> Tensor:
    """``x.any(dim, keepdim=True)`` by a maximum, which on a CPU is up to thirty times as fast in torch."""
    if torch.compiler.is_compiling() or x.numel() == 0:
        return x.any(dim, keepdim=True)
    return x.amax(dim, keepdim=True)
