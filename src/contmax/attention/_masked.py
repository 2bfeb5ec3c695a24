"""Keys and values that no query may attend, and queries that may attend no key, as zeros: so they never matter.

A weight of zero is not enough: 0 · NaN is NaN, and so is 0 · ∞.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax.attention._arguments import Inputs
from contmax.attention._distances import bias_of_scores
from contmax.attention._reference import allowed_keys
from contmax.kernels import is_by_distance


def masked_as_zeros(inputs: Inputs) -> Inputs:
    """The same inputs with zeros for what is masked; gradients there are exactly zero."""
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
    """Keys that any query may attend, (…, 1, L), and queries that may attend any key, (…, Q or 1, 1); None if all.

    Whatever concerns keys only, and a bias by distance, is never made a matrix of queries and keys.
    """
    (queries, keys), bias, line = inputs.sizes, inputs.bias, None
    if bias is not None and is_by_distance(bias, queries, keys):
        line = bias.detach() != -torch.inf
        bias = None
    parts = [] if inputs.mask is None else [inputs.mask]
    if bias is not None:
        parts.append(bias.detach() != -torch.inf)
    if any(part.shape[-2] > 1 for part in parts):
        allowed = allowed_keys(inputs)
        if inputs.bias is not None:
            finite = bias_of_scores(inputs.bias.detach(), queries, keys) != -torch.inf
            allowed = finite if allowed is None else allowed & finite
        assert allowed is not None
        return _any(allowed, -2), _any(allowed, -1)
    if inputs.lengths is not None:
        parts.append(torch.arange(keys, device=inputs.query.device) < inputs.lengths)
    seen = None
    for part in parts:
        seen = part if seen is None else seen & part
    # With a causal mask the last query meets all keys, and the first one meets one unless there are more queries.
    asks = _asking(seen, inputs)
    if line is not None:
        if inputs.diagonal is not None:
            line = F.pad(line[..., : inputs.diagonal + queries], (0, keys - 1 - inputs.diagonal))
        in_reach = _any_in_window(line, queries)
        seen = in_reach if seen is None else seen & in_reach
    return seen, asks


def _asking(seen: Tensor | None, inputs: Inputs) -> Tensor | None:
    """Queries that may attend any of the seen keys, (…, Q or 1, 1); None if all."""
    queries, keys = inputs.sizes
    diagonal = inputs.diagonal
    if diagonal is not None and seen is None and diagonal < 0:
        return torch.arange(queries, device=inputs.query.device).unsqueeze(-1) >= -diagonal
    if diagonal is None or seen is None:
        return None if seen is None else seen.any(-1, keepdim=True)
    so_far = seen.expand(*seen.shape[:-1], keys).cumsum(-1)
    # The last query stands at the last key.
    return (F.pad(so_far, (max(-diagonal, 0), 0))[..., -queries:] > 0).mT


def _any(x: Tensor, dim: int) -> Tensor:
    """``x.any(dim, keepdim=True)``. On a CPU torch takes up to thirty times as long for that as for a maximum."""
    if torch.compiler.is_compiling() or x.numel() == 0:
        return x.any(dim, keepdim=True)
    return x.amax(dim, keepdim=True)


def _any_in_window(line: Tensor, size: int) -> Tensor:
    """Whether any of `size` neighbours is true, for every place where these begin: (…, n) → (…, n − size + 1)."""
    counts = F.pad(line.cumsum(-1), (1, 0))
    return counts[..., size:] > counts[..., :-size]
