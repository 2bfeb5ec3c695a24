"""The support of a density on a line as a list of disjoint intervals, from the live parts of its pieces."""

import torch
from torch import Tensor

from contmax._typing import Bool, Float


def joined(
    start: Float[Tensor, "*rows P"],
    stop: Float[Tensor, "*rows P"],
    live: Bool[Tensor, "*rows P"],
    gap: Tensor | float = 0,
) -> Float[Tensor, "*rows M 2"]:
    """Maximal intervals made of consecutive live pieces no further apart than a gap, padded with NaN to one length."""
    touches = (start[..., 1:] <= stop[..., :-1] + gap) & live[..., :-1] & live[..., 1:]
    opens = live & ~torch.nn.functional.pad(touches, (1, 0))
    closes = live & ~torch.nn.functional.pad(touches, (0, 1))
    count = int(opens.sum(-1).max())
    slots = torch.arange(count, device=start.device)
    ends = []
    for flag, end in ((opens, start), (closes, stop)):
        rank = torch.where(flag, flag.cumsum(-1) - 1, -1)
        chosen = rank[..., None, :] == slots[:, None]
        found = torch.where(chosen, end[..., None, :], 0).sum(-1)
        ends.append(torch.where(chosen.any(-1), found, torch.nan))
    return torch.stack(ends, -1)


def without_slivers(cells: Float[Tensor, "*rows M 2"], size: Tensor) -> Float[Tensor, "*rows m 2"]:
    """The same intervals less gaps and intervals up to a size: a polynomial leaves such beside a jump of the score."""
    if cells.shape[-2] < 2:
        return cells
    length = (cells[..., 1] - cells[..., 0]).detach().nan_to_num(-1)
    kept = (length > size) | ((length == length.amax(-1, keepdim=True)) & (length >= 0))
    cells = joined(cells[..., 0], cells[..., 1], kept)
    return joined(cells[..., 0], cells[..., 1], ~cells[..., 0].isnan(), size)
