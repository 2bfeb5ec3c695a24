"""A question about a new image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from contmax_lab.contract import Prediction, TrainedRun
from contmax_lab.data import Place, pixels
from contmax_lab.errors import LabError, UsageError
from contmax_lab.tasks.vqa._data import Asked, padded_words
from contmax_lab.tasks.vqa._extraction import CHANNELS, GRID, SIZE, GridNetwork
from contmax_lab.tasks.vqa._features import Features, GridFile
from contmax_lab.tasks.vqa._figures import Example, look, overlay
from contmax_lab.tasks.vqa._measures import where_measures
from contmax_lab.tasks.vqa._model import Answered
from contmax_lab.tasks.vqa._questions import question_words


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
    with torch.no_grad():
        output: Answered = trained.model(batch)
    seen = look(trained, batch)
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
    """Those that are there under the name of the image, or new ones where the run was trained with such."""
    features: Features = cast(Asked, trained.splits.train).features
    made_here = isinstance(features, GridFile) and (features.grid, features.channels) == (GRID, CHANNELS)
    if made_here:
        return {"features": GridNetwork()(image.unsqueeze(0)).flatten(1, 2)}
    try:
        features.check(path.stem, Place(path))
    except LabError as error:
        raise LabError(f"{error}; make its features in the same way as for the training images") from None
    return features.take([path.stem])
