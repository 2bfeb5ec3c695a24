"""A bias that depends on the distance of query and key only: one number for each distance instead of a matrix."""

import torch
from torch import Tensor

from contmax.kernels import is_by_distance


def bias_of_scores(bias: Tensor, queries: int, keys: int) -> Tensor:
    """The bias as what broadcasts to the scores (*batch, H, Q, L).

    Args:
        bias: that already, or (…, 1, Q + L − 1), the number of query i and key j at j − i + Q − 1.
        queries, keys: Q and L.
    """
    if not is_by_distance(bias, queries, keys):
        return bias
    line = bias if bias.dim() == 1 else bias.squeeze(-2)
    if torch.compiler.is_compiling():  # unfold would make the number of keys a constant of the program
        before = torch.arange(queries - 1, -1, -1, device=bias.device)
        return line[..., before.unsqueeze(-1) + torch.arange(keys, device=bias.device)]
    return line.unfold(-1, keys, 1).flip(-2)


def full_shape(bias: Tensor, scores: tuple[int, ...]) -> tuple[int, ...]:
    """What a bias in either form broadcasts to, for scores of this shape."""
    return (*scores[:-2], 1, bias.shape[-1]) if is_by_distance(bias, *scores[-2:]) else scores


def bias_of_queries(bias: Tensor, rows: slice, queries: int, keys: int) -> Tensor:
    """The bias of some of the queries, in the same form."""
    if is_by_distance(bias, queries, keys):
        return bias[..., queries - rows.stop : queries - rows.start + keys - 1]
    return rows_of(bias, rows)


def bias_of_keys(bias: Tensor, count: int, queries: int, keys: int) -> Tensor:
    """The bias of the first few keys, in the same form."""
    if is_by_distance(bias, queries, keys):
        return bias[..., : queries + count - 1]
    return columns_of(bias, count)


def rows_of(x: Tensor, rows: slice) -> Tensor:
    """Some of the queries of what broadcasts to the scores."""
    return x if x.dim() < 2 or x.shape[-2] == 1 else x[..., rows, :]


def columns_of(x: Tensor, count: int) -> Tensor:
    """The first few keys of what broadcasts to the scores."""
    return x if x.dim() < 1 or x.shape[-1] == 1 else x[..., :count]
