"""What models attend to, on the truth: intervals of series, regions of canvases."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from contmax.viz import plot_image_attention
from contmax_lab.contract import Batch, Figure, TrainedRun
from contmax_lab.drawing import Theme, new_axes
from contmax_lab.tasks.places._attention import Looked, Place, Scene, agreement, looked
from contmax_lab.tasks.places._data import Fixed

# Examples in a picture, by the number of axes.
_SHOWN = {1: 4, 2: 5}
_Drawer = Callable[[Any, Batch, "_Found", Theme, str], None]


class _Found:
    """What one model attends to in one example.

    Args:
        scene: what the attention was given.
        place: what it returned.
        batch: the example.
    """

    def __init__(self, scene: Scene, place: Place, batch: Batch) -> None:
        self.scene, self.place = scene, place
        self.looked = looked(scene, place)
        self.iou = float(agreement(self.looked, batch["low"], batch["high"])["iou"])


def finding(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> list[Figure]:
    """What each model attends to in some validation examples, beside where the answer is.

    Args:
        runs: one row of panels each. Those that look at nothing are left out.
        examples: of the validation examples; by default the first ones of some classes.

    Returns:
        One picture for each kind of data; none if no run looks at anything.
    """
    looking: dict[str, list[TrainedRun]] = {}
    for trained in runs:
        if trained.model.attend is not None:
            looking.setdefault(trained.recipe.data.kind, []).append(trained)
    found = [_of_one_kind(alike, examples) for alike in looking.values()]
    if len(found) == 1:
        return found
    return [
        dataclasses.replace(figure, title=f"{figure.title}: {kind}")
        for kind, figure in zip(looking, found, strict=True)
    ]


def _of_one_kind(runs: Sequence[TrainedRun], examples: Sequence[int]) -> Figure:
    """A row of panels for each model, a column for each example."""
    dim, kind = int(runs[0].splits.info["dim"]), runs[0].recipe.data.kind
    valid = cast(Fixed, runs[0].splits.valid)
    chosen = examples or _first_of_classes(valid.batch["label"], _SHOWN[dim])
    batches = [runs[0].task.batch(valid, [index]) for index in chosen]
    found = [[_found(trained, batch) for batch in batches] for trained in runs]
    names = [_name(batch, kind) for batch in batches]
    title, height, panel, caption = _LOOKS[dim]

    def draw(theme: Theme) -> Any:
        figure, axes = new_axes(len(runs), len(names), width=9.3, height=height)
        for place, axis in enumerate(axes):
            row, column = divmod(place, len(names))
            answer = found[row][column]
            panel(axis, batches[column], answer, theme, theme.colour(row))
            if row == 0:
                axis.set_title(names[column])
            axis.set_title(f"IoU {answer.iou:.2f}", loc="right", color=theme.soft, fontsize=9)
            if column == 0:
                axis.set_ylabel(runs[row].label.replace(" ", "\n"), rotation=0, ha="right", va="center")
            if dim == 1 and row + 1 < len(runs):
                axis.set_xticklabels([])
            elif dim == 1:
                axis.set_xlabel("share of the series")
        return figure

    which = "Validation examples" if examples else f"The first validation examples of {len(chosen)} classes"
    return Figure(title, draw, f"{which}: {caption}")


def _series_panel(axis: Any, batch: Batch, answer: _Found, theme: Theme, colour: str) -> None:
    scene = answer.scene
    low, high = float(batch["low"]), float(batch["high"])
    axis.axvspan(low, high, color=theme.observed, alpha=0.4, linewidth=0, zorder=0)
    for edge in (low, high):
        axis.axvline(edge, color=theme.ink, linewidth=0.9)
    axis.plot(scene.where[0, :, 0].numpy(), batch["frames"][0].numpy(), color=theme.observed, linewidth=0.5)
    axis.set(xlim=(0, 1), xticks=[0, 0.5, 1], yticks=[])
    axis.spines["left"].set_visible(False)
    _heights(axis.twinx(), answer, colour)


def _heights(axis: Any, answer: _Found, colour: str) -> None:
    """Bars of area pₗ, curve of area 1, on one scale; below them the set that counts as attended to."""
    scene, place, top = answer.scene, answer.place, 0.0
    if place.weights is not None:
        middles, widths = _cells_of(scene.where[0, :, 0])
        heights = place.weights[0] / widths
        _bars(axis, middles, heights, 0.9 * widths, colour)
        top = float(heights.max())
    if place.density is not None:
        curve = looked(scene, Place(place.context, density=place.density))
        time, height = curve.points[:, 0].numpy(), (curve.mass[0] * len(curve.points)).numpy()
        axis.plot(time, height, color=colour)
        axis.fill_between(time, height, color=colour, alpha=0.3, linewidth=0)
        top = max(top, float(height.max()))
    for start, length in _stretches(answer.looked):
        axis.broken_barh([(start, length)], (-0.17 * top, 0.09 * top), color=colour, linewidth=0)
    axis.set(ylim=(-0.2 * top, 1.12 * top), yticks=[])
    axis.spines[["left", "right", "top"]].set_visible(False)


def _bars(axis: Any, middles: Tensor, heights: Tensor, widths: Tensor, colour: str) -> None:
    """Bars that stand on zero: all of them one artist, which is made and drawn in a tenth of the time of many."""
    from matplotlib.collections import PolyCollection

    left, right, ground = middles - widths / 2, middles + widths / 2, torch.zeros_like(heights)
    corners = [(left, ground), (left, heights), (right, heights), (right, ground)]
    outlines = torch.stack([torch.stack(corner, -1) for corner in corners], 1)
    bars = PolyCollection([*outlines.numpy()], color=colour, alpha=0.75, linewidth=0)
    axis.add_collection(bars)


def _cells_of(where: Tensor) -> tuple[Tensor, Tensor]:
    """Middles and widths of the parts of the unit interval that are nearest to each position."""
    middle = (where[1:] + where[:-1]) / 2
    edges = torch.cat([middle.new_zeros(1), middle, middle.new_ones(1)])
    return (edges[1:] + edges[:-1]) / 2, edges.diff()


def _stretches(found: Looked) -> list[tuple[float, float]]:
    """Beginnings and lengths of the intervals that a set on the line is made of."""
    edges = torch.nn.functional.pad(found.seen[0].float(), (1, 1)).diff().nonzero().squeeze(-1) / len(found.points)
    return [(float(start), float(end - start)) for start, end in edges.reshape(-1, 2)]


def _canvas_panel(axis: Any, batch: Batch, answer: _Found, theme: Theme, colour: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    ink = LinearSegmentedColormap.from_list("ink", [theme.plate, theme.ink])
    axis.imshow(batch["pixels"][0].numpy(), cmap=ink, vmin=0, vmax=1.6, extent=(0, 1, 1, 0))
    weights, grid = answer.place.weights, answer.scene.grid
    cells = None if weights is None or grid is None else weights[0].reshape(grid)
    plot_image_attention(None, cells, answer.place.density, ax=axis, color=colour)
    (top, left), (bottom, right) = batch["low"][0].tolist(), batch["high"][0].tolist()
    axis.add_patch(
        Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=theme.ink, linestyle=(0, (4, 2)))
    )
    axis.spines[:].set_color(theme.line)


def _first_of_classes(label: Tensor, count: int) -> list[int]:
    """The first example of the first class, of the last, and of those evenly between: no choice of pretty ones."""
    classes = label.unique().tolist()
    count = min(count, len(classes))
    asked = [classes[round(i * (len(classes) - 1) / max(count - 1, 1))] for i in range(count)]
    return [int((label == one).nonzero()[0]) for one in asked]


@torch.no_grad()
def _found(trained: TrainedRun, batch: Batch) -> _Found:
    """One example at a time, so that nothing is padded; and as it is, not with parts of it replaced."""
    answer = trained.model({name: given for name, given in batch.items() if name != "background"})
    return _Found(answer.scene, answer.place, batch)


def _name(batch: Batch, kind: str) -> str:
    label = int(batch["label"])
    if kind == "digit":
        return f"digit {label}"
    if kind == "pair":
        return f"speaker {int(batch['query'].argmax()) + 1} played {'backwards' if label else 'forwards'}"
    return f"speaker {label + 1}"


# By the number of axes: title, height of a panel in inches, what draws it, caption.
_LOOKS: dict[int, tuple[str, float, _Drawer, str]] = {
    1: (
        "The true interval and the attended one",
        1.6,
        _series_panel,
        "the channels over time (thin lines), the true interval, which no model was told (grey band), and "
        "what each model attends to (colour): bars are weights of single frames, curves are densities over continuous "
        "time. The bar along the bottom marks what counts as attended to: what has any weight at all, and for softmax, "
        "which leaves nothing out, the smallest set with 95 % of the weight. IoU: this set against the true interval, "
        "1 = the same.",
    ),
    2: (
        "The true box and the attended region",
        1.85,
        _canvas_panel,
        "the canvas, the box of the digit, which no model was told (dashed), and what each model attends to "
        "(colour). Squares: weights of single cells, the fuller the greater. Ellipses: continuous attention; of the "
        "sparse kind the support, outside which attention is exactly zero, and what holds half of it. IoU: what is "
        "attended to, for softmax the smallest set with 95 % of the weight, against the box; a disk that touches all "
        "its sides has 0.785.",
    ),
}
