"""The task places: losses and measures of answers, and what models attend to, on the truth."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributions import Uniform
from torch.nn import functional as F

from contmax.losses import fenchel_young
from contmax.viz import plot_image_attention, plot_series_attention
from contmax_lab.attention import Attended
from contmax_lab.contract import Batch, Figure, Splits, Task, TrainedRun, seedless
from contmax_lab.data import MOTIONS
from contmax_lab.drawing import Theme, new_axes
from contmax_lab.tasks.places import SETTINGS, PlacesModel
from contmax_lab.tasks.places._attention import Looked, Scene, agreement, looked
from contmax_lab.tasks.places._data import Fixed, load
from contmax_lab.tasks.places._model import Answer, Finder
from contmax_lab.tasks.places._table import CANVAS, FOUND, PLACES, ROBUST, TIMES, UTTERANCE

# Examples in a picture, by the number of axes.
_SHOWN = {1: 4, 2: 5}
_Drawer = Callable[[Any, Batch, "_Found", Theme, str], None]


class _Found:
    """What one model attends to in the one example of a batch; without a background, nothing is replaced."""

    @torch.no_grad()
    def __init__(self, trained: TrainedRun, batch: Batch) -> None:
        answer = trained.model({name: given for name, given in batch.items() if name != "background"})
        self.scene: Scene = answer.scene
        self.place: Attended = answer.place
        self.looked = looked(self.scene, self.place)
        self.iou = float(agreement(self.looked, batch["low"], batch["high"])["iou"])


def _of_one_kind(runs: Sequence[TrainedRun], examples: Sequence[int]) -> Figure:
    """A row of panels for each model, a column for each example."""
    dim, kind = int(runs[0].splits.info["dim"]), runs[0].recipe.data.kind
    valid = cast(Fixed, runs[0].splits.valid)
    chosen = examples or _first_of_classes(valid.examples["label"], _SHOWN[dim])
    batches = [runs[0].task.batch(valid, [index]) for index in chosen]
    found = [[_Found(trained, batch) for batch in batches] for trained in runs]
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
    """Channels, the true interval, weights and densities; below them the set that counts as attended to."""
    where, place = answer.scene.where[0, :, 0], answer.place
    low, high = float(batch["low"]), float(batch["high"])
    axis.axvspan(low, high, color=theme.observed, alpha=0.4, linewidth=0, zorder=0)
    for edge in (low, high):
        axis.axvline(edge, color=theme.ink, linewidth=0.9)
    plot_series_attention(where, batch["frames"][0], ax=axis, limits=(0, 1))
    axis.set_xticks([0, 0.5, 1])
    own, top = axis.twinx(), 0.0
    # Several heads have a density each, of batch shape (1, H, 1).
    shape = () if place.density is None else place.density.batch_shape
    for index in [(0, head, 0) for head in range(shape[1])] if len(shape) > 1 else [(0,)]:
        attended = (place.weights, place.density)
        plot_series_attention(where, None, *attended, ax=own, limits=(0, 1), index=index, color=colour)
        top = max(top, own.get_ylim()[1])
    for start, length in _stretches(answer.looked):
        own.broken_barh([(start, length)], (-0.15 * top, 0.08 * top), color=colour, linewidth=0)
    own.set_ylim(-0.18 * top, top)


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
    """The first example of each of `count` classes, evenly spaced from the first to the last."""
    classes = label.unique().tolist()
    count = min(count, len(classes))
    asked = [classes[round(i * (len(classes) - 1) / max(count - 1, 1))] for i in range(count)]
    return [int((label == one).nonzero()[0]) for one in asked]


def _name(batch: Batch, kind: str) -> str:
    label = int(batch["label"])
    if kind in ("digit", "rows"):
        return f"digit {label}"
    if kind == "motion":
        return MOTIONS.classes[label]
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


class Places(Task, settings=SETTINGS):
    """Find what matters, and say where it was."""

    summary = "utterances in noise and digits in clutter: is what is attended to where the answer is?"
    reproduces = (PLACES, FOUND, TIMES, ROBUST, UTTERANCE, CANVAS)
    curves = ("loss", "accuracy", "iou")
    load = seedless(load)

    def build(self, model: PlacesModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        info = splits.info
        return Finder(model, info["channels"], info["classes"], info["query_dim"], info["dim"])

    def loss(self, output: Answer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy; where the true span is known, also the Fenchel–Young loss of the density to it."""
        losses = F.cross_entropy(output.logits, batch["label"], reduction="none")
        density = None if output.place is None else output.place.density
        if density is not None and batch["span_known"].any():
            truth = Uniform(batch["low"].squeeze(-1), batch["high"].squeeze(-1))
            losses = losses + output.span_weight * batch["span_known"] * fenchel_young(density, truth)
        return losses, torch.ones_like(losses)

    def measures(self, output: Answer, batch: Batch) -> dict[str, Tensor]:
        """Whether the answer is right, also for the attended part and for the rest; and where the model looked."""
        label = batch["label"]
        measured = {"accuracy": (output.logits.argmax(-1) == label).float()}
        if output.scene is None or output.place is None:
            return measured
        found = looked(output.scene, output.place)
        measured.update(agreement(found, batch["low"], batch["high"]))
        for name, logits in (("kept_accuracy", output.kept), ("deleted_accuracy", output.deleted)):
            if logits is not None:
                measured[name] = (logits.argmax(-1) == label).float()
        if "other_low" in batch:
            other = agreement(found, batch["other_low"], batch["other_high"])
            measured["chosen"] = (measured["inside"] > other["inside"]).float()
        return measured

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """The means; and the correlation of the attended size with the true one."""
        metrics = super().summarise(measures)
        if "size" in measures:
            sizes = torch.stack([measures["size"], measures["true_size"]]).double()
            # The correlation with a constant is undefined; report 0.
            varies = bool((sizes.std(-1) > 1e-9).all())
            metrics["size_correlation"] = float(torch.corrcoef(sizes)[0, 1]) if varies else 0.0
        return metrics

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """What each model attends to in some validation examples, by default the first ones of some classes.

        There is one picture for each kind of data; models that look at nothing are left out.
        """
        looking: dict[str, list[TrainedRun]] = {}
        for trained in runs:
            if trained.model.attend is not None:
                looking.setdefault(trained.recipe.data.kind, []).append(trained)
        found = {kind: _of_one_kind(alike, examples) for kind, alike in looking.items()}
        if len(found) == 1:
            return list(found.values())
        return [dataclasses.replace(figure, title=f"{figure.title}: {kind}") for kind, figure in found.items()]


TASK = Places()
