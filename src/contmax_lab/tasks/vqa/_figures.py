"""Attention over images: a row for each question, a column for each model; and a question about a new image."""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from contmax.viz import plot_image_attention
from contmax_lab.contract import Figure, Prediction, TrainedRun
from contmax_lab.data import Place, pixels
from contmax_lab.drawing import Theme, new_axes, plain_text
from contmax_lab.errors import LabError, UsageError
from contmax_lab.tasks.vqa._data import Asked, padded_words
from contmax_lab.tasks.vqa._features import CHANNELS, GRID, SIZE, Features, GridFile, GridNetwork
from contmax_lab.tasks.vqa._model import Answered
from contmax_lab.tasks.vqa._questions import image_files, paste, question_words
from contmax_lab.tasks.vqa._reduction import where_measures

_EXAMPLES = 3
_SEARCHED = 300
# Opacity of the greatest weight, and of the image below it: both can be seen.
_CELLS, _BELOW = 0.65, 0.8
_CAPTION = (
    "Squares: weights of single cells, the fuller the greater. Ellipses: continuous attention; of the sparse kind the "
    "support, which holds all of it, and what holds half; of the Gaussian, which has no edge, what holds 90 % and "
    "50 %. ✓ right, ✗ wrong."
)


@dataclasses.dataclass(frozen=True)
class Look:
    """What one model says of a question.

    Args:
        label: of the model.
        answer: the likeliest one.
        right: whether that is right; None if not known.
        output: of a batch with that question alone.
    """

    label: str
    answer: str
    right: bool | None
    output: Answered


@dataclasses.dataclass(frozen=True)
class Example:
    """A question with its image and what models say of it.

    Args:
        question: in words.
        truth: the right answer; empty if not known.
        pixels: bytes (3, H, W); None if the image is not at hand.
        looks: one for each model.
        box: low and high corner of the object that the question is about, (2, 2); None if not known.
    """

    question: str
    truth: str
    pixels: Tensor | None
    looks: Sequence[Look]
    box: Tensor | None = None


def overlay(title: str, examples: Sequence[Example]) -> Figure:
    """The images, and beside each the attention of every model on it; all examples have the same models."""
    columns = 1 + len(examples[0].looks)

    def draw(theme: Theme) -> Any:
        figure, axes = new_axes(len(examples), columns, width=2.3 * columns, height=2.75)
        for index, axis in enumerate(axes):
            row, column = divmod(index, columns)
            example = examples[row]
            if example.pixels is not None:
                pale = 1.0 if column == 0 else _BELOW
                axis.imshow(example.pixels.permute(1, 2, 0).numpy(), extent=(0, 1, 1, 0), alpha=pale)
            axis.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
            axis.set_aspect("equal")
            if column == 0:
                truth = f"\n→ {textwrap.shorten(example.truth, 34, placeholder=' …')}" if example.truth else ""
                asked = textwrap.wrap(textwrap.shorten(example.question, 72, placeholder=" …"), 38)
                axis.set_title(plain_text("\n".join(asked) + truth), fontsize=7)
                if example.box is not None:
                    _outline(axis, example.box)
            else:
                _draw_look(axis, example.looks[column - 1], theme.colour(column - 1))
        return figure

    return Figure(title, draw, _CAPTION)


def _draw_look(axis: Any, look: Look, colour: str) -> None:
    mark = {None: "", True: " ✓", False: " ✗"}[look.right]
    axis.set_title(plain_text(f"{look.label}\n{textwrap.shorten(look.answer, 30)}{mark}"), fontsize=7.5)
    place, grid = look.output.place, look.output.grid
    if place is None:
        return
    cells = None if place.weights is None or grid is None else place.weights[0].reshape(grid)
    if cells is not None or place.density is not None:
        plot_image_attention(None, cells, place.density, ax=axis, color=colour, weight_alpha=_CELLS)


def _outline(axis: Any, box: Tensor) -> None:
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    # The halo is seen on dark images, the line on light ones.
    halo = [Stroke(linewidth=2.6, foreground="white"), Normal()]
    (top, left), (bottom, right) = box.tolist()
    size = (right - left, bottom - top)
    axis.add_patch(Rectangle((left, top), *size, fill=False, ec="black", lw=1.2, ls="--", path_effects=halo))


def seen_images(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Sequence[Figure]:
    """Where trained models look: questions that the last gets right and the first does not, and the reverse.

    Args:
        runs: trained on the same data.
        examples: which validation questions; by default such that show successes and failures.
    """
    looking = [run for run in runs if getattr(run.recipe.model, "attention", "") not in ("question", "frequent")]
    looking = [run for run in looking if run.recipe.data == looking[0].recipe.data]
    if not looking:
        return []
    asked = cast(Asked, looking[0].splits.valid)
    if examples:
        return [overlay("Where the models look", _examples(looking, examples))]
    count = min(len(asked), _SEARCHED)
    right = torch.stack([_right(run, range(count)) for run in looking])
    figures = []
    for title, wanted in _choices(right, [run.label for run in looking]):
        # Several questions are about one photo; the first of each photo is enough.
        by_image: dict[str, int] = {}
        for index in wanted.nonzero().flatten().tolist():
            by_image.setdefault(asked.questions[index].image, index)
        if by_image:
            figures.append(overlay(title, _examples(looking, list(by_image.values())[:_EXAMPLES])))
    return figures


def _choices(right: Tensor, labels: Sequence[str]) -> list[tuple[str, Tensor]]:
    """Titles, and which questions (Q,) they are about; `right` is (models, Q)."""
    first, last = right[0], right[-1]
    if len(right) == 1:
        return [("Questions that are answered rightly", first), ("Failures", ~first)]
    return [
        (f"Right: {labels[-1]}, wrong: {labels[0]}", last & ~first),
        (f"Failures: {labels[-1]} wrong, {labels[0]} right", first & ~last),
        ("Failures of all", ~right.any(0)),
    ]


@torch.no_grad()
def _right(run: TrainedRun, indices: Sequence[int]) -> Tensor:
    """Whether the answers are worth half at least, (Q,)."""
    found = []
    for start in range(0, len(indices), 64):
        batch = run.task.batch(run.splits.valid, indices[start : start + 64])
        given = run.model(batch).logits.argmax(-1, keepdim=True)
        found.append(batch["worth"].gather(-1, given).squeeze(-1) >= 0.5)
    return torch.cat(found)


def _examples(runs: Sequence[TrainedRun], indices: Sequence[int]) -> list[Example]:
    asked = cast(Asked, runs[0].splits.valid)
    files = image_files(runs[0].splits.info["images"])
    examples = []
    for index in indices:
        question, batch = asked.questions[index], asked.batch([index])
        scene = asked.scenes.get(question.image)
        path = files.get(scene.photo if scene else question.image)
        image = None if path is None else pixels(path, SIZE)
        if image is not None and scene:
            image = paste(image, scene)
        looks = [look(run, run.task.batch(run.splits.valid, [index])) for run in runs]
        box = batch["box"][0] if "box" in batch else None
        examples.append(Example(question.text, question.answers[0], image, looks, box))
    return examples


@torch.no_grad()
def look(run: TrainedRun, batch: dict[str, Tensor]) -> Look:
    """What a model says of the one question of a batch."""
    output: Answered = run.model(batch)
    given = int(output.logits[0].argmax())
    right = bool(batch["worth"][0, given] >= 0.5) if "worth" in batch else None
    return Look(run.label, run.splits.info["answers"].answers[given], right, output)


def predict(trained: TrainedRun, words: Sequence[str]) -> Prediction:
    """The likeliest answers to a question about an image file, and where the model looked.

    Args:
        trained: the run.
        words: path of the image, and the question.

    Raises:
        UsageError: if that is not what was given.
        LabError: if the image cannot be read, or there are no features of it and none can be made.
    """
    if len(words) != 2 or not question_words(words[1]):
        raise UsageError('pass an image and a question, e.g. contmax predict RUN room.jpg "what is on the table"')
    path, question = Path(words[0]), words[1]
    info = trained.splits.info
    image = pixels(path, SIZE)
    tokens = padded_words([question_words(question)], info["word_numbers"], info["max_words"])
    batch = {"tokens": tokens, **_features(trained, path, image)}
    seen = look(trained, batch)
    output = seen.output
    unknown = [word for word in question_words(question) if word not in info["word_numbers"]]
    lines = [_said(output, info)]
    if unknown:
        lines.append(f"unknown words: {', '.join(unknown)}")
    if output.place is None:
        return Prediction("\n".join([*lines, "the image is not looked at"]))
    if output.grid is not None:
        area = where_measures(output.place, output.grid, sparse=output.sparse)["area"]
        lines.append(f"attended: {float(area):.0%} of the image")
    figure = overlay("Where the model looks", [Example(question, "", image, [seen])])
    return Prediction("\n".join(lines), figure, filename=f"{path.stem}-overlay.png")


def _said(output: Answered, info: dict[str, Any]) -> str:
    scores = output.logits[0].softmax(-1) if output.loss == "categorical" else output.logits[0].sigmoid()
    order = scores.argsort(descending=True, stable=True)[:3].tolist()
    return ", ".join(f"{info['answers'].answers[index]} ({float(scores[index]):.0%})" for index in order)


def _features(trained: TrainedRun, path: Path, image: Tensor) -> dict[str, Tensor]:
    """Extracted where the run was trained with extracted features, or else read by the name of the image."""
    features: Features = cast(Asked, trained.splits.train).features
    made_here = isinstance(features, GridFile) and (features.grid, features.channels) == (GRID, CHANNELS)
    if made_here:
        return {"features": GridNetwork()(image.unsqueeze(0)).flatten(1, 2)}
    try:
        features.check(path.stem, Place(path))
    except LabError as error:
        raise LabError(f"{error}; make its features in the same way as for the training images") from None
    return features.take([path.stem])
