"""Densities on the line and in the plane."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax.viz._arguments import Index, axes_for, require_density
from contmax.viz._line import LineMember, line_members
from contmax.viz._plane import MassEllipse, grid_heights, mass_ellipses, plane_view

_GRID = 201
# Contours at these shares of the peak.
_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
_MARGIN = 0.1


def plot_density(
    density: Distribution,
    *,
    ax: Any = None,
    limits: Any = None,
    index: Index = (),
    color: Any = None,
) -> Any:
    """A density on the line as a curve, in the plane as contours; a bounded support is shaded.

    Args:
        density: from this library or from torch, on the line or in the plane; each member of a batch has a colour.
        ax: Axes to draw on; by default the Axes of a new figure.
        limits: what to show, (low, high) on the line, ((low, high), (low, high)) in the plane; by default the support,
            or nearly all of an unbounded density.
        index: index into the batch: draw this member, or the members of this row of the batch.
        color: one for all members; by default the colours of the Axes in turn.

    Returns:
        The Axes.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if it is not a density, or has more than two dimensions.
        ValueError: if the density is NaN, or the limits are not valid.

    Example:
        >>> from contmax.densities import TruncatedParabola
        >>> ax = plot_density(TruncatedParabola.from_support(0.2, 0.6))
        >>> curve = ax.lines[0].get_ydata()
        >>> round(float(max(curve)), 3)
        3.75
    """
    require_density(density)
    if tuple(density.event_shape) == (2,):
        return _plot_plane(density, axes_for(ax, 4.5, 4.0), limits, index, color)
    if len(density.event_shape):
        raise TypeError(
            f"{type(density).__name__} has {density.event_shape[-1]} dimensions; plot_density draws densities on the "
            "line and in the plane. Pass a density with one or two dimensions."
        )
    members = line_members(density, index)
    low, high = _line_limits(members, limits)
    drawn = axes_for(ax)
    for member in members:
        draw_curve(drawn, member, low, high, next_color(drawn, color))
    drawn.set_xlim(low, high)
    drawn.set(xlabel="t", ylabel="p(t)")
    return drawn


def draw_curve(ax: Any, member: LineMember, low: float, high: float, color: Any, scale: float = 1.0) -> float:
    """The curve, the area below it and the support, on an axis where the interval has length ``scale`` times its own.

    Returns:
        The greatest height that was drawn.
    """
    t = member.points(low, high)
    heights = member.heights(t) / scale
    places = (t * scale).numpy()
    ax.plot(places, heights.numpy(), color=color)
    area = ax.fill_between(places, heights.numpy(), color=color, alpha=0.2, linewidth=0)
    # The sticky edge leaves no margin below zero. A limit would also hold for later curves and for shared Axes.
    area.sticky_edges.y.append(0)
    for start, end in member.stretches():
        if max(start, low) < min(end, high):
            ax.axvspan(max(start, low) * scale, min(end, high) * scale, color=color, alpha=0.1, linewidth=0)
    return float(heights.max())


def next_color(ax: Any, color: Any) -> Any:
    """The given colour, or the next of the Axes."""
    if color is not None:
        return color
    # An empty line advances the colour cycle, for which matplotlib has no public function.
    (line,) = ax.plot([], [])
    found = line.get_color()
    line.remove()
    return found


def _line_limits(members: list[LineMember], limits: Any) -> tuple[float, float]:
    if limits is not None:
        return checked_limits(limits)
    views = [member.view() for member in members]
    low, high = min(view[0] for view in views), max(view[1] for view in views)
    margin = _MARGIN * (high - low)
    return low - margin, high + margin


def checked_limits(limits: Any) -> tuple[float, float]:
    """Two finite numbers, the first below the second."""
    try:
        low, high = (float(limit) for limit in limits)
    except (TypeError, ValueError):
        raise ValueError(f"limits must be two numbers (low, high); got {limits!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"limits must be finite, the first below the second; got ({low:g}, {high:g}).")
    return low, high


def _plot_plane(density: Distribution, ax: Any, limits: Any, index: Index, color: Any) -> Any:
    view = plane_view(density) if limits is None else tuple(map(checked_limits, limits))
    if len(view) != 2:
        raise ValueError(f"limits of the plane must be ((low, high), (low, high)); got {limits!r}.")
    across, up = (torch.linspace(*span, _GRID, dtype=torch.float64) for span in view)
    ellipses = mass_ellipses(density, index)
    for number, heights in enumerate(grid_heights(density, across, up, index)):
        chosen = next_color(ax, color)
        draw_contours(ax, across, up, heights.T, chosen, shade_support=ellipses is None)
        for ellipse in ellipses[number] if ellipses else ():
            if ellipse.share == 1:
                ax.add_patch(ellipse_patch(ellipse, chosen))
    ax.set(xlim=view[0], ylim=view[1], xlabel="t₁", ylabel="t₂")
    ax.set_aspect("equal")
    return ax


def draw_contours(ax: Any, across: Tensor, up: Tensor, heights: Tensor, color: Any, *, shade_support: bool) -> None:
    """Lines at shares of the peak; with `shade_support` also the area of positive density, unless it fills the grid."""
    top = float(heights.max())
    if top <= 0:
        return
    if float(heights.min()) < top:
        ax.contour(
            across.numpy(), up.numpy(), (heights / top).numpy(), levels=list(_LEVELS), colors=[color], linewidths=0.9
        )
    inside = (heights > 0).double()
    if shade_support and float(inside.min()) == 0:
        ax.contourf(across.numpy(), up.numpy(), inside.numpy(), levels=[0.5, 1.5], colors=[color], alpha=0.16)


def ellipse_patch(ellipse: MassEllipse, color: Any, *, halo: bool = False) -> Any:
    """The ellipse as a patch; the first coordinate goes across, the second up; with a halo to be seen on any image."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Ellipse
    from matplotlib.patheffects import Normal, Stroke

    # The colours carry the opacity: an opacity of the patch would hold for edge and filling alike.
    effects = [Stroke(linewidth=2.8, foreground=(1, 1, 1, 0.8 * ellipse.weight)), Normal()] if halo else None
    return Ellipse(
        ellipse.centre,
        2 * ellipse.half_axes[0],
        2 * ellipse.half_axes[1],
        angle=math.degrees(math.atan2(ellipse.axis[1], ellipse.axis[0])),
        facecolor=(*to_rgb(color), 0.14 * ellipse.weight),
        edgecolor=(*to_rgb(color), ellipse.weight),
        path_effects=effects,
        linewidth=1.3,
    )
