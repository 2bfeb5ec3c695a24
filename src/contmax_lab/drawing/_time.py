"""Attention over time that runs from 0 to 1: series, weights of their observations, densities."""

from typing import Any

import torch
from torch import Tensor

from contmax_lab.drawing._theme import Theme

_POINTS = 400


def draw_series(axis: Any, positions: Tensor, values: Tensor, theme: Theme) -> None:
    """Channels (L, C) at positions (L,), as thin lines; single observations as dots."""
    marker = "." if len(positions) == 1 else ""
    axis.plot(positions.numpy(), values.numpy(), color=theme.observed, linewidth=0.7, marker=marker)
    axis.set_xlim(0, 1)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)


def draw_over_time(axis: Any, weights: Tensor | None, density: Any, positions: Tensor, colour: str) -> None:
    """Bars of area pₗ, a curve of area 1: on one scale.

    Args:
        axis: of matplotlib.
        weights: of the observations, (1, L), or None.
        density: over the unit interval, of batch shape (1,), or None.
        positions: of the observations, (L,).
        colour: of both.
    """
    top, count = 0.0, len(positions)
    if weights is not None:
        heights = (weights[0] * count).numpy()
        axis.bar(positions.numpy(), heights, width=0.86 / count, color=colour, alpha=0.55, linewidth=0)
        top = float(heights.max())
    if density is not None:
        time = torch.linspace(0, 1, _POINTS)
        height = density.log_prob(time).exp()
        axis.plot(time.numpy(), height.numpy(), color=colour)
        axis.fill_between(time.numpy(), height.numpy(), color=colour, alpha=0.22, linewidth=0)
        inside = time[height > 0]
        if 0 < len(inside) < _POINTS:
            axis.axvspan(float(inside[0]), float(inside[-1]), color=colour, alpha=0.12, linewidth=0)
        top = max(top, float(height.max()))
    axis.set_ylim(0, 1.15 * (top or 1.0))
    axis.set_yticks([])
    axis.spines[["left", "right", "top"]].set_visible(False)
