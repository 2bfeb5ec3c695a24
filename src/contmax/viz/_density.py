"""Densities on the line and in the plane, and attention over a series in time."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.viz._arguments import (
    Index,
    axes_for,
    checked_weights,
    require_density,
    require_matplotlib,
    require_something,
)
from contmax.viz._line import LineMember, line_members
from contmax.viz._plane import MassEllipse, grid_heights, mass_ellipses, plane_view

_GRID = 201
# Heights of contours as shares of the peak.
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
    if limits is None:
        views = [member.view() for member in members]
        start, end = min(view[0] for view in views), max(view[1] for view in views)
        limits = start - _MARGIN * (end - start), end + _MARGIN * (end - start)
    low, high = checked_limits(limits)
    drawn = axes_for(ax)
    for member in members:
        draw_curve(drawn, member, low, high, next_color(drawn, color))
    drawn.set_xlim(low, high)
    drawn.set(xlabel="t", ylabel="p(t)")
    return drawn


def plot_series_attention(
    positions: Any,
    values: Any = None,
    weights: Any = None,
    density: Distribution | None = None,
    *,
    ax: Any = None,
    limits: Any = None,
    index: Index = (),
    color: Any = None,
) -> Any:
    """A series as thin lines; on it, weights as bars of area pₗ and a density as a curve of area 1, on one scale.

    A bar is as wide as the part of the time axis that is nearest to its observation, so that observations at irregular
    times can be compared with a density. Observations at the same time share a bar.

    Args:
        positions: times of the observations, ``(L,)``, in any order.
        values: values of the series, ``(L,)`` or ``(L, C)``; without them attention alone is drawn, on ``ax`` itself.
        weights: weights of the observations, ``(L,)`` or ``(*batch, L)``.
        density: over the same time axis, of batch shape ``()`` or ``(*batch)``.
        ax: Axes to draw on; by default the Axes of a new figure.
        limits: time range to show, (low, high); by default from the first observation to the last.
        index: index into the batches of weights and density; what remains must be one series.
        color: colour of the attention; by default the next one of the Axes.

    Returns:
        The Axes of the series. Attention is drawn on a twin of it, with its own scale.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is nothing to draw, shapes do not fit, or a number is NaN.

    Example:
        >>> from contmax.densities import TruncatedParabola
        >>> time = [0.0, 0.1, 0.5, 1.0]
        >>> ax = plot_series_attention(time, [1.0, 3.0, 2.0, 2.0], density=TruncatedParabola.from_support(0.0, 0.4))
        >>> [float(end) for end in ax.get_xlim()]
        [0.0, 1.0]
    """
    where = _times(positions)
    if values is None:
        require_something(weights, density)
    low, high = (float(where.min()), float(where.max())) if limits is None else checked_limits(limits)
    low, high = (low, high) if low < high else (low - 0.5, high + 0.5)
    series = None if values is None else _channels(values, len(where))
    meaning = f"one weight for each of {len(where)} observations, shape ({len(where)},)"
    shares = checked_weights(weights, (len(where),), meaning, index)
    member = None if density is None else line_members(density, index, ())[0]
    drawn = axes_for(ax)
    if series is not None:
        order = where.argsort(stable=True)
        # Mark a single observation, which has no line, by a dot.
        marker = "." if len(where) == 1 else ""
        ink = require_matplotlib().rcParams["text.color"]
        drawn.plot(where[order].numpy(), series[order].numpy(), color=ink, alpha=0.35, linewidth=0.8, marker=marker)
        _hide_height(drawn)
    if shares is not None or member is not None:
        _draw_attention(drawn if series is None else drawn.twinx(), where, shares, member, (low, high), color)
    drawn.set_xlim(low, high)
    return drawn


def draw_curve(ax: Any, member: LineMember, low: float, high: float, color: Any, scale: float = 1.0) -> float:
    """Draw the curve p(t), the area below the curve, and the support, with t and p shown as scale·t and p/scale.

    Returns:
        The greatest height in the picture.
    """
    t = member.points(low, high)
    heights = member.heights(t) / scale
    places = (t * scale).numpy()
    ax.plot(places, heights.numpy(), color=color)
    area = ax.fill_between(places, heights.numpy(), color=color, alpha=0.2, linewidth=0)
    # Remove the margin below zero by a sticky edge: set_ylim would also fix the limit for later curves and shared Axes.
    area.sticky_edges.y.append(0)
    for start, end in member.stretches():
        if max(start, low) < min(end, high):
            ax.axvspan(max(start, low) * scale, min(end, high) * scale, color=color, alpha=0.1, linewidth=0)
    return float(heights.max())


def next_color(ax: Any, color: Any) -> Any:
    """`color` if given, else the next colour of the Axes."""
    if color is not None:
        return color
    # Draw an empty line to advance the colour cycle, for which matplotlib has no public function.
    (line,) = ax.plot([], [])
    found = line.get_color()
    line.remove()
    return found


def checked_limits(limits: Any) -> tuple[float, float]:
    """`limits` as two finite floats, checked to increase."""
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
    """Draw lines at shares of the peak and, if `shade_support`, shade where p > 0, unless p > 0 on the whole grid."""
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
    """A patch of the ellipse, with x and y its first and second coordinate; a halo makes it visible on any image."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Ellipse
    from matplotlib.patheffects import Normal, Stroke

    # Colours carry the opacity, because the patch's `alpha` would give edge and filling equal opacities.
    effects = [Stroke(linewidth=2.8, foreground=(1, 1, 1, 0.8 * ellipse.weight)), Normal()] if halo else None
    return Ellipse(
        ellipse.centre,
        2 * ellipse.half_axes[0],
        2 * ellipse.half_axes[1],
        angle=ellipse.angle,
        facecolor=(*to_rgb(color), 0.14 * ellipse.weight),
        edgecolor=(*to_rgb(color), ellipse.weight),
        path_effects=effects,
        linewidth=1.3,
    )


def _draw_attention(
    ax: Any, where: Tensor, shares: Tensor | None, member: Any, span: tuple[float, float], color: Any
) -> None:
    chosen, top = next_color(ax, color), 0.0
    if shares is not None:
        # Each distinct time has a bar, which ends halfway to the neighbouring times.
        times, which = where.unique(return_inverse=True)
        mass = torch.zeros_like(times).index_add(0, which, shares)
        ends = torch.tensor(span, dtype=torch.float64)
        low, high = torch.minimum(ends[:1], times[:1]), torch.maximum(ends[1:], times[-1:])
        edges = torch.cat([low, (times[1:] + times[:-1]) / 2, high])
        widths = edges.diff()
        heights = torch.where(widths > 0, mass / widths, 0.0)
        middles = (edges[1:] + edges[:-1]) / 2
        ax.bar(middles.numpy(), heights.numpy(), (0.88 * widths).numpy(), color=chosen, alpha=0.55, linewidth=0)
        top = float(heights.max())
    if member is not None:
        top = max(top, draw_curve(ax, member, *span, chosen))
    ax.set_ylim(0, 1.15 * (top or 1.0))
    _hide_height(ax)


def _hide_height(ax: Any) -> None:
    ax.set_yticks([])
    ax.spines[["left", "right", "top"]].set_visible(False)


def _channels(values: Any, count: int) -> Float[Tensor, "L C"]:
    given = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    if given.dim() not in (1, 2) or len(given) != count:
        raise ValueError(
            f"values must be one number or row of channels for each of {count} positions, shape ({count},) or "
            f"({count}, C); got {tuple(given.shape)}."
        )
    # NaN marks a missing value and becomes a gap in the line.
    return given.reshape(count, -1)


def _times(positions: Any) -> Float[Tensor, "L"]:
    given = torch.as_tensor(positions, dtype=torch.float64).detach().cpu()
    if given.dim() != 1 and given.numel() != given.shape[-1:].numel():
        raise ValueError(f"positions must have shape (L,); got {tuple(given.shape)}. Pass one series.")
    if not bool(given.isfinite().all()):
        raise ValueError("positions must be finite; got NaN or infinity. Leave out observations without a time.")
    if not given.numel():
        raise ValueError("positions must hold at least one time; got none.")
    return given.flatten()
