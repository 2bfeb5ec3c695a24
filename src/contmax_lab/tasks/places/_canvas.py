"""Digits at random places on a canvas with clutter."""

import torch
from torch import Tensor

from contmax_lab.contract import Batch
from contmax_lab.data import Images

SIDE = 24
_FRAGMENTS = 6
_FRAGMENT_SIDE = 4
_NOISE = 0.1


def digit_in_clutter(source: Images, others: Images) -> Batch:
    """Each digit at a random place among fragments of others, with a little noise.

    Args:
        source: the digits to be found, B of them.
        others: digits that fragments of 4 × 4 pixels are cut from.

    Returns:
        ``pixels`` (B, 24, 24); ``label`` (B,); ``low``, ``high`` (B, 2), corners of the digit's scan, row and column,
        the canvas having sides of length 1.
    """
    count, side = len(source), source.pixels.shape[-1]
    canvas = _clutter(others, count)
    corner = torch.randint(0, SIDE - side + 1, (count, 2))
    canvas[_window(corner, side)] = source.pixels
    return {
        "pixels": canvas + _NOISE * torch.randn_like(canvas),
        "label": source.digit,
        "low": corner / SIDE,
        "high": (corner + side) / SIDE,
    }


def clutter_alone(others: Images, count: int) -> Tensor:
    """Canvases without a digit, (count, 24, 24): what takes the place of what is deleted."""
    canvas = _clutter(others, count)
    return canvas + _NOISE * torch.randn_like(canvas)


def _clutter(others: Images, count: int) -> Tensor:
    canvas = torch.zeros(count, SIDE, SIDE)
    free = others.pixels.shape[-1] - _FRAGMENT_SIDE + 1
    for _ in range(_FRAGMENTS):
        whole = others.pixels[torch.randint(0, len(others), (count,))]
        fragment = whole[_window(torch.randint(0, free, (count, 2)), _FRAGMENT_SIDE)]
        place = _window(torch.randint(0, SIDE - _FRAGMENT_SIDE + 1, (count, 2)), _FRAGMENT_SIDE)
        canvas[place] = torch.maximum(canvas[place], fragment)
    return canvas


def _window(corner: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of a square in each of B images, its upper left corner (B, 2)."""
    steps = torch.arange(side)
    rows, columns = corner[:, :1] + steps, corner[:, 1:] + steps
    return torch.arange(len(corner))[:, None, None], rows.unsqueeze(-1), columns.unsqueeze(1)
