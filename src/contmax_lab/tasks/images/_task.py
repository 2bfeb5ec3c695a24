"""The task images: a network, pictures of where it looks, what it says of a new image."""

import itertools
import math
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

import contmax
from contmax.viz import plot_image_attention
from contmax_lab.contract import Batch, FileAnswer, Look, Prediction, Splits, seedless
from contmax_lab.data import BrokenImageError, TableRow, file_pixels, pixels, table_kind
from contmax_lab.drawing import Theme
from contmax_lab.errors import UsageError
from contmax_lab.labelled import (
    Answer,
    Decision,
    Input,
    LabelledTask,
    Panel,
    PanelPicture,
    Targets,
    answered,
    attended_box,
    attention_over,
    cell_centres,
    look_of,
    numbered,
    said,
    table_inputs,
    told_of,
)
from contmax_lab.tasks.images import SETTINGS, ImagesData, ImagesModel
from contmax_lab.tasks.images._data import Pictures, images_below, load

# Of a box, as shares of the image.
_SIDES = ("top", "left", "bottom", "right")


class ImageReader(nn.Module):
    """Images → answers.

    Args:
        model: its configuration.
        size: of the images, pixels along a side.
        targets: classes or numbers.

    Example:
        >>> reader = ImageReader(ImagesModel(hidden_dim=8), 32, Targets(("cat", "dog")))
        >>> answer = reader({"pixels": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)})
        >>> answer.scores.shape, answer.inside.shape
        (torch.Size([2, 2]), torch.Size([2, 16]))
    """

    def __init__(self, model: ImagesModel, size: int, targets: Targets) -> None:
        super().__init__()
        width = model.hidden_dim
        widths = [3, *(max(width >> (model.layers - 1 - layer), 8) for layer in range(model.layers - 1)), width]
        self.encoder = nn.Sequential(*(_layer(before, after) for before, after in itertools.pairwise(widths)))
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.MultivariateGaussianBasis.covering(model.functions)
        self.attention = attention_over(basis, width, model)
        self.decision = Decision(self.attention.width, targets, size)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``batch["pixels"]``, bytes (B, 3, H, W)."""
        hidden = self.encode(batch["pixels"])
        grid = (hidden.shape[-2], hidden.shape[-1])
        context, heads = self.attention(hidden.flatten(2).mT, grid=grid)
        centres = cell_centres(grid, hidden).expand(len(hidden), -1, -1)
        mask = torch.ones(centres.shape[:-1], dtype=torch.bool, device=hidden.device)
        scores = self.decision(self.dropout(context))
        return Answer(scores, self.decision.deviation, heads, centres, mask, self.decision.targets)

    def encode(self, pixels: Tensor) -> Tensor:
        """What is attended to, (B, hidden_dim, H', W')."""
        hidden: Tensor = self.encoder(pixels.float() / 127.5 - 1)
        return hidden


def _layer(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=2, padding=1),
        # Normalises each image by itself: an answer does not depend on the other images of a batch.
        nn.GroupNorm(1, after),
        nn.GELU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.GroupNorm(1, after),
        nn.GELU(),
    )


def _draw(axis: Any, panel: Panel[Tensor], row: int, theme: Theme) -> None:
    # Drawn pale, so that attention can be seen on dark images too.
    plot_image_attention(panel.shown, ax=axis, image_alpha=0.7)
    for number, head in enumerate(panel.answer.heads):
        cells = None if head.weights is None else head.weights.unflatten(-1, 2 * [math.isqrt(head.weights.shape[-1])])
        plot_image_attention(None, cells, head.density, ax=axis, color=theme.colour(row + number))
    axis.spines[:].set_color(theme.line)


# Panels show pixels, bytes (3, H, W).
PICTURE = PanelPicture[Tensor](
    "Where the models look in images",
    "Squares: weights of single cells, the fuller the greater. Ellipses, one for each head: continuous attention; of "
    "the sparse kind the support, outside which attention is exactly zero, and what holds half of it; of the Gaussian, "
    "which has no edge, the regions that hold 50 % and 90 %.",
    size=(2.2, 2.5),
    least_width=3.0,
    shown=lambda pictures, place: pictures.pixels[place],
    most=5,
    draw=_draw,
)


def _of_file(file: Path, folder: Path, size: int) -> Input[Tensor]:
    name = {"file": str(file.relative_to(folder))}
    try:
        return Input(name, pixels(file, size))
    except BrokenImageError as error:
        return Input(name, problem=str(error))


class ImagesTask(LabelledTask, settings=SETTINGS):
    """Classes or numbers of images."""

    summary = "images of your own with their labels, classes or numbers, by attention over the plane"
    looks_at = "image"
    knows: ClassVar = {"size": int}
    load = seedless(load)

    def build(self, model: ImagesModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        return ImageReader(model, splits.info["size"], splits.info["targets"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Pixels and targets."""
        pictures, chosen = cast(Pictures, split), list(indices)
        return {"pixels": pictures.pixels[chosen], "target": pictures.target[chosen]}

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where the models look in some validation images."""
        return [PICTURE.of_runs(runs, examples)]

    def ask(self, model: nn.Module, info: dict[str, Any], words: Sequence[str]) -> Prediction:
        """The label of an image file, and how much of it was attended."""
        if len(words) != 1:
            raise UsageError("pass the path of one image, e.g. contmax predict RUN new.png")
        image = pixels(Path(words[0]), info["size"])
        answer = model({"pixels": image.unsqueeze(0)})
        text = said(answer, info)
        share = float(answer.inside.float().mean())
        figure = PICTURE.of_panels([[Panel("", text, image, answer)]])
        return Prediction(f"{text}\nattended: {share:.0%} of the image", figure)

    def holds_many(self, path: Path, info: dict[str, Any]) -> bool:
        """Whether it is a table or a folder."""
        return path.is_dir() or bool(table_kind(path))

    def predict_file(
        self, model: nn.Module, info: dict[str, Any], path: Path, column: str = "", keep: Sequence[str] = ()
    ) -> Iterator[FileAnswer]:
        """The label of every image of a folder or a table; of continuous attention, the box around its region."""
        size, classes = info["size"], info["classes"]
        column = column or info.get("of_table", {}).get("column", ImagesData.file)

        def read(row: TableRow) -> Tensor:
            return pixels(path.parent / row.text(column), size, row.place)

        def answer(images: list[Tensor]) -> list[dict[str, Any]]:
            output = model({"pixels": torch.stack(images)})
            told = told_of(output, classes)
            for head, found in enumerate(output.heads):
                boxes = attended_box(found)
                for each, box in zip(told, [] if boxes is None else boxes.clamp(0, 1).tolist(), strict=False):
                    each |= {numbered(side, head, output.heads): end for side, end in zip(_SIDES, box, strict=True)}
            return told

        if not path.is_dir():
            return answered(table_inputs(path, column, keep, read), answer)
        if keep:
            raise UsageError(f"{path} is a folder and has no columns; leave out --keep")
        return answered((_of_file(file, path, size) for file in images_below(path)), answer)

    @torch.no_grad()
    def look(self, model: nn.Module, info: dict[str, Any], given: Any) -> Look:
        """The cells of an image, which is stretched to the size of the training images."""
        reader = cast(ImageReader, model)
        image = file_pixels(given, info["size"]) if isinstance(given, bytes) else given
        answer = reader({"pixels": image.unsqueeze(0)})
        hidden = reader.encode(image.unsqueeze(0))
        attend: Any = reader.attention.heads[0]
        shown = {"classes": info["classes"], "pixels": image, "grid": (hidden.shape[-2], hidden.shape[-1])}
        return look_of(attend.attend, hidden.flatten(2).mT, answer.heads, reader.decision.probabilities, **shown)


TASK = ImagesTask()
