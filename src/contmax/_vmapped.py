"""What rules of torch.vmap for opaque operators share."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Where vmap's axis is in each argument of an operator; None for an argument without it.
Places = tuple[int | None, ...]


def batch_first(info: Any, places: Places, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The first arguments of an operator, with vmap's axis in front of all tensors; a tensor without it is expanded."""
    return tuple(
        x
        if not isinstance(x, Tensor)
        else x.expand(info.batch_size, *x.shape)
        if place is None
        else x.movedim(place, 0)
        for x, place in zip(arguments, places, strict=False)
    )


def one_by_one(operator: Callable[..., Any], info: Any, places: Places, arguments: Sequence[Any]) -> Any:
    """The results of a call for each place of vmap's axis, stacked, and where the axis is in them."""
    results = [
        operator(*(x if place is None else x.select(place, i) for x, place in zip(arguments, places, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(torch.stack(part) for part in zip(*results, strict=True)), (0,) * len(results[0])
