"""How much of the image is attended to, and whether that is where the object lies."""

import torch
from torch import Tensor

from contmax_lab.attention import Attended
from contmax_lab.tasks.vqa._reduction import cell_centres

# Points along a side of a cell at which attention is measured.
_FINER = 3
# What is left out of the region of an attention that leaves nothing out by itself.
_LEFT_OUT = 0.05


@torch.no_grad()
def attention_map(place: Attended, grid: tuple[int, int]) -> Tensor:
    """The attention as shares of 3 × 3 points in each cell, (B, P), row by row; of a combined one the mean of both."""
    fine = (_FINER * grid[0], _FINER * grid[1])
    maps = []
    if place.weights is not None:
        cells = place.weights.float().unflatten(-1, grid)
        maps.append(cells.repeat_interleave(_FINER, 1).repeat_interleave(_FINER, 2).flatten(1) / _FINER**2)
    if place.density is not None:
        points = cell_centres(fine, place.context)
        density = place.density.log_prob(points.unsqueeze(1)).mT.exp().float()
        # What lies outside the image is no part of the map; a density narrower than the points keeps its centre.
        total = density.sum(-1, keepdim=True)
        nearest = torch.cdist(place.density.mean.float(), points).argmin(-1)
        alone = torch.zeros_like(density).scatter_(1, nearest.unsqueeze(1), 1.0)
        maps.append(torch.where(total > 0, density / total.clamp(min=1e-30), alone))
    return torch.stack(maps).mean(0)


def attended_region(shares: Tensor, *, sparse: bool) -> Tensor:
    """Which points are attended to, (B, P): all with any attention, or of one without zeros the fewest with 95 %."""
    if sparse:
        return shares > 0
    order = shares.argsort(-1, descending=True)
    before = shares.gather(-1, order).cumsum(-1) - shares.gather(-1, order)
    return torch.zeros_like(shares, dtype=torch.bool).scatter(-1, order, before < 1 - _LEFT_OUT)


@torch.no_grad()
def where_measures(
    place: Attended, grid: tuple[int, int], *, sparse: bool, box: Tensor | None = None, other_box: Tensor | None = None
) -> dict[str, Tensor]:
    """The share of the image that is attended to; and where objects are known, how it lies to them.

    Args:
        place: where the network looked.
        grid: (H, W) of the cells.
        sparse: whether the attention leaves anything out.
        box: low and high corner of the object that is asked for, (B, 2, 2), as shares of the image.
        other_box: of the other object.

    Returns:
        ``area``; with boxes also ``iou`` of the region and the box, ``inside`` and ``inside_other``, the attention in
        either box, and ``chosen``, whether there is more in that of the object that is asked for; each (B,).
    """
    shares = attention_map(place, grid)
    region = attended_region(shares, sparse=sparse)
    measured = {"area": region.float().mean(-1)}
    if box is None or other_box is None:
        return measured
    points = cell_centres((_FINER * grid[0], _FINER * grid[1]), shares)
    inside, other = (
        ((points >= corners[:, None, 0]) & (points <= corners[:, None, 1])).all(-1) for corners in (box, other_box)
    )
    measured["iou"] = (region & inside).sum(-1) / (region | inside).sum(-1)
    measured["inside"], measured["inside_other"] = (shares * inside).sum(-1), (shares * other).sum(-1)
    measured["chosen"] = (measured["inside"] > measured["inside_other"]).float()
    return measured
