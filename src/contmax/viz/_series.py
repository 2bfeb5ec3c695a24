"""Where a model looks over time: a series, weights of its observations, a density."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.viz._arguments import Index, axes_for, checked_weights, require_matplotlib, require_something
from contmax.viz._density import checked_limits, draw_curve, next_color
from contmax.viz._line import one_line_member


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
    low, high = _limits(where, limits)
    series = None if values is None else _channels(values, len(where))
    meaning = f"one weight for each of {len(where)} observations, shape ({len(where)},)"
    shares = checked_weights(weights, (len(where),), meaning, index)
    member = one_line_member(density, index)
    drawn = axes_for(ax)
    if series is not None:
        _draw_series(drawn, where, series)
    if shares is not None or member is not None:
        _draw_attention(drawn if series is None else drawn.twinx(), where, shares, member, (low, high), color)
    drawn.set_xlim(low, high)
    return drawn


def _draw_series(ax: Any, where: Tensor, series: Tensor) -> None:
    order = where.argsort(stable=True)
    # A single observation makes no line.
    marker = "." if len(where) == 1 else ""
    ink = require_matplotlib().rcParams["text.color"]
    ax.plot(where[order].numpy(), series[order].numpy(), color=ink, alpha=0.35, linewidth=0.8, marker=marker)
    _hide_height(ax)


def _draw_attention(
    ax: Any, where: Tensor, shares: Tensor | None, member: Any, span: tuple[float, float], color: Any
) -> None:
    chosen, top = next_color(ax, color), 0.0
    if shares is not None:
        edges, mass = _cells(where, shares, span)
        widths = edges.diff()
        heights = torch.where(widths > 0, mass / widths, 0.0)
        middles = (edges[1:] + edges[:-1]) / 2
        ax.bar(middles.numpy(), heights.numpy(), (0.88 * widths).numpy(), color=chosen, alpha=0.55, linewidth=0)
        top = float(heights.max())
    if member is not None:
        top = max(top, draw_curve(ax, member, *span, chosen))
    ax.set_ylim(0, 1.15 * (top or 1.0))
    _hide_height(ax)


def _cells(where: Tensor, shares: Tensor, span: tuple[float, float]) -> tuple[Float[Tensor, "n+1"], Float[Tensor, "n"]]:
    """Edges of the cells of points nearest to each distinct time, and the weight in each cell."""
    times, which = where.unique(return_inverse=True)
    mass = torch.zeros_like(times).index_add(0, which, shares)
    ends = torch.tensor(span, dtype=torch.float64)
    low, high = torch.minimum(ends[:1], times[:1]), torch.maximum(ends[1:], times[-1:])
    return torch.cat([low, (times[1:] + times[:-1]) / 2, high]), mass


def _hide_height(ax: Any) -> None:
    ax.set_yticks([])
    ax.spines[["left", "right", "top"]].set_visible(False)


def _limits(where: Tensor, limits: Any) -> tuple[float, float]:
    if limits is not None:
        return checked_limits(limits)
    low, high = float(where.min()), float(where.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)


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
