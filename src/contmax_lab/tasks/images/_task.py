"""The task: batches of images, and what a model says of a new one."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import nn

from contmax_lab.contract import Batch, Look, Prediction, Splits
from contmax_lab.data import file_pixels, pixels
from contmax_lab.errors import UsageError
from contmax_lab.labelled import LabelledTask, Panel, Targets, look_of, said
from contmax_lab.tasks.images._data import Pictures, load
from contmax_lab.tasks.images._model import ImageReader
from contmax_lab.tasks.images._settings import ImagesData, ImagesModel


class ImagesTask(LabelledTask):
    """Classes or numbers of images."""

    name = "images"
    summary = "images of your own with their labels, classes or numbers, by attention over the plane"
    data_config: ClassVar[type] = ImagesData
    model_config = ImagesModel
    recipe_file = Path(__file__).with_name("recipe.yaml")
    looks_at = "image"

    def load(self, data: Any, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

    def build(self, model: ImagesModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        return ImageReader(model, splits.info["size"], splits.info["targets"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Pixels and targets."""
        pictures, chosen = cast(Pictures, split), list(indices)
        return {"pixels": pictures.pixels[chosen], "target": pictures.target[chosen]}

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where the models look in some validation images."""
        from contmax_lab.tasks.images._figures import seen_images

        return [seen_images(runs, examples)]

    def ask(self, model: nn.Module, info: dict[str, Any], words: Sequence[str]) -> Prediction:
        """The label of an image file, and how much of it was attended."""
        from contmax_lab.tasks.images._figures import PICTURE

        if len(words) != 1:
            raise UsageError("pass the path of one image, e.g. contmax predict RUN new.png")
        image = pixels(Path(words[0]), info["size"])
        answer = model({"pixels": image.unsqueeze(0)})
        text = said(answer, info)
        share = float(answer.inside.float().mean())
        figure = PICTURE.of_panels([[Panel("", text, image, answer)]])
        return Prediction(f"{text}\nattended: {share:.0%} of the image", figure)

    @torch.no_grad()
    def look(self, model: nn.Module, info: dict[str, Any], given: Any) -> Look:
        """The cells of an image, which is stretched to the size of the training images."""
        reader = cast(ImageReader, model)
        image = file_pixels(given, info["size"]) if isinstance(given, bytes) else given
        answer = reader({"pixels": image.unsqueeze(0)})
        hidden = reader.encode(image.unsqueeze(0))
        shown = {"pixels": image, "grid": (hidden.shape[-2], hidden.shape[-1])}
        return look_of(reader.attention, reader.decision, hidden.flatten(2).mT, answer, info["classes"], **shown)

    def known(self, info: dict[str, Any]) -> dict[str, Any]:
        """Labels and size."""
        return {"targets": info["targets"].plain(), "size": info["size"]}

    def informed(self, known: dict[str, Any]) -> dict[str, Any]:
        """The opposite of `known`."""
        targets = Targets.of_plain(known["targets"])
        return {"targets": targets, "classes": targets.classes, "size": int(known["size"])}


TASK = ImagesTask()
