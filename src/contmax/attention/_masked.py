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
    if seen is None:
        return inputs
    heads, groups = inputs.query.shape[-3], inputs.key.shape[-3]
    if heads != groups and seen.dim() > 2 and seen.shape[-3] == heads:
        seen = seen.unflatten(-3, (groups, heads // groups)).any(-3)
    key, value = (torch.where(seen.mT, x, 0) for x in (inputs.key, inputs.value))
    query = inputs.query if asks is None else torch.where(asks, inputs.query, 0)
    return inputs._replace(query=query, key=key, value=value)


def _seen_and_asking(inputs: Inputs) -> tuple[Tensor | None, Tensor | None]:
    """Keys that any query may attend, (…, 1, L), and queries that may attend any key, (…, Q or 1, 1); None if all.

    Whatever concerns keys only, and a bias by distance, is never made a matrix of queries and keys.
    """
    (queries, keys), bias, line = inputs.sizes, inputs.bias, None
    if bias is not None and is_by_distance(bias, queries, keys):
        bias, line = None, bias.detach() != -torch.inf
    parts = [] if inputs.mask is None else [inputs.mask]
    if bias is not None:
        parts.append(bias.detach() != -torch.inf)
    if any(part.shape[-2] > 1 for part in parts):
        allowed = allowed_keys(inputs)
        if inputs.bias is not None:
            finite = bias_of_scores(inputs.bias.detach(), queries, keys) != -torch.inf
            allowed = finite if allowed is None else allowed & finite
        assert allowed is not None
        return allowed.any(-2, keepdim=True), allowed.any(-1, keepdim=True)
    if inputs.lengths is not None:
        parts.append(torch.arange(keys, device=inputs.query.device) < inputs.lengths)
    seen = None
    for part in parts:
        seen = part if seen is None else seen & part
    # With a causal mask the last query still meets all keys.
    asks = None if seen is None else _asking(seen, inputs)
    if line is not None:
        in_reach = _any_in_window(line, queries)
        seen = in_reach if seen is None else seen & in_reach
    return seen, asks


def _asking(seen: Tensor, inputs: Inputs) -> Tensor:
    """Queries that may attend any of the seen keys, (…, Q or 1, 1)."""
    queries, keys = inputs.sizes
    if inputs.diagonal is None:
        return seen.any(-1, keepdim=True)
    so_far = seen.expand(*seen.shape[:-1], keys).cumsum(-1)
    # The last query stands at the last key, and the first ones before the first key if there are more of them.
    return (F.pad(so_far, (max(queries - keys, 0), 0))[..., -queries:] > 0).mT


def _any_in_window(line: Tensor, size: int) -> Tensor:
    """Whether any of `size` neighbours is true, for every place where these begin: (…, n) → (…, n − size + 1)."""
    counts = F.pad(line.cumsum(-1), (1, 0))
    return counts[..., size:] > counts[..., :-size]
