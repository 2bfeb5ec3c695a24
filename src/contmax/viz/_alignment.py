"""Which source tokens are attended for each target token of a translation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.viz._arguments import Index, checked_tokens, checked_weights, require_something, scaled
from contmax.viz._line import LineMember, line_members, unit_edges
from contmax.viz._matplotlib import axes_for, literal, require_matplotlib

# Points of a density that are drawn for each source token.
_POINTS = 12
_INCHES_PER_TOKEN = 0.24


def plot_alignment(
    source: Sequence[str],
    target: Sequence[str],
    weights: Any = None,
    density: Distribution | None = None,
    *,
    ax: Any = None,
    index: Index = (),
    colors: Sequence[Any] = ("C0", "C1"),
) -> Any:
    """For each target token, from top to bottom, where in the source it looks; each row has its own scale.

    Weights or a density shade the rows; where there are both, squares are weights. Dots mark the source tokens in the
    support of the density, or without a density those with a positive weight, unless all have one.

    Args:
        source: L tokens, which divide the unit interval into equal parts.
        target: T tokens.
        weights: ``(T, L)`` or ``(*batch, T, L)``.
        density: over the source as the unit interval, of batch shape ``(T,)`` or ``(*batch, T)``.
        ax: Axes to draw on; by default the Axes of a new figure that is large enough to read.
        index: index into the batches of weights and density; what remains must be one alignment.
        colors: colours of weights and density.

    Returns:
        The Axes.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there are no tokens, neither weights nor density, shapes that do not fit, or NaN.

    Example:
        >>> ax = plot_alignment(["ein", "Hund"], ["a", "dog"], [[0.9, 0.1], [0.0, 1.0]])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['a', 'dog']
    """
    read, said = checked_tokens("source", source), checked_tokens("target", target)
    require_something(weights, density)
    rows, columns = len(said), len(read)
    shares = (
        None if weights is None else checked_weights(weights, (rows, columns), alignment_meaning(rows, columns), index)
    )
    members = None if density is None else alignment_members(density, rows, index)
    drawn = axes_for(ax, max(columns * _INCHES_PER_TOKEN, 1.6) + 1.0, rows * _INCHES_PER_TOKEN + 1.2)
    if members is not None:
        _shade(drawn, torch.stack([_band(member, columns) for member in members]), (rows, columns), colors[1])
        if shares is not None:
            sizes = (40 * shares.flatten()).tolist()
            drawn.scatter(*_middles(shares), s=sizes, marker="s", color=colors[0])
    elif shares is not None:
        _shade(drawn, shares, (rows, columns), colors[0])
    inside = attended_cells(columns, shares, members)
    if not bool(inside.all()):
        ink = require_matplotlib().rcParams["text.color"]
        drawn.scatter(*_middles(inside), s=(4.0 * inside.flatten()).tolist(), color=ink, linewidths=0)
    names = ([place + 0.5 for place in range(count)] for count in (columns, rows))
    drawn.set_xticks(next(names), [literal(token) for token in read], rotation=60, ha="right", fontsize=7)
    drawn.set_yticks(next(names), [literal(token) for token in said], fontsize=7)
    drawn.tick_params(length=0, pad=1)
    for label in drawn.get_xticklabels():
        label.set_rotation_mode("anchor")
    return drawn


def alignment_members(density: Distribution, rows: int, index: Index) -> list[LineMember]:
    """A density for each target token.

    Raises:
        ValueError: if there are more or fewer.
    """
    members = line_members(density, index)
    if len(members) != rows:
        raise ValueError(
            f"density must have batch shape ({rows},), one density for each target token; got "
            f"{tuple(density.batch_shape)}. Pass index= to choose one sentence of a batch."
        )
    return members


def alignment_meaning(rows: int, columns: int) -> str:
    """What the shape of the weights stands for."""
    return f"a row for each of {rows} target tokens and a column for each of {columns} source tokens"


def attended_cells(columns: int, shares: Tensor | None, members: list[LineMember] | None) -> Tensor:
    """Which source tokens lie in the support, or have a positive weight if there is no density, (T, L)."""
    if members is None:
        assert shares is not None
        return shares > 0
    edges = unit_edges(columns)
    return torch.stack([member.holds((edges[1:] + edges[:-1]) / 2) for member in members])


def _shade(ax: Any, rows: Tensor, shape: tuple[int, int], color: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    ax.imshow(
        scaled(rows).numpy(),
        extent=(0, shape[1], shape[0], 0),
        aspect="auto",
        cmap=LinearSegmentedColormap.from_list("attention", [ax.get_facecolor(), color]),
        vmin=0,
        vmax=1.3,
        interpolation="nearest",
    )


def _band(member: LineMember, columns: int) -> Float[Tensor, "points"]:
    """The mean height in each of many narrow cells, which no density is too narrow for."""
    return member.cell_mass(unit_edges(columns * _POINTS))


def _middles(cells: Tensor) -> tuple[list[float], list[float]]:
    """Across and down, of all cells (T, L) row by row."""
    rows, columns = torch.meshgrid(*(torch.arange(n) + 0.5 for n in cells.shape), indexing="ij")
    return columns.flatten().tolist(), rows.flatten().tolist()
