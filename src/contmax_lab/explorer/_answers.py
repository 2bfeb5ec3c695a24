"""What the server knows and answers, as JSON; nothing here knows of HTTP."""

import base64
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax.densities import BetaGaussian
from contmax_lab.errors import LabError
from contmax_lab.explorer._lanes import Examination, ellipse, interval
from contmax_lab.explorer._models import Models

_WORD = re.compile(r"\w+|[^\w\s]")
_KEPT = 16
_EXAMPLES = 18
# Side of a picture in the gallery, pixels.
_THUMBNAIL = 64
#: Words of a text that are read; more would not be seen either.
MOST_WORDS = 30_000


class Forgotten(Exception):  # noqa: N818, the sentence begins so
    """The error for an input that the server no longer stores; the page has to send the input again."""


class Answers:
    """Models (`runs` and `models` as of `Models`), and the inputs that were looked at last."""

    def __init__(self, runs: Path, models: Sequence[Path] = ()) -> None:
        self._models = Models(runs, models)
        self._examined: OrderedDict[str, Examination] = OrderedDict()

    def models(self) -> list[dict[str, str]]:
        """All models."""
        return [{"name": each.name, "kind": each.kind, "title": each.title} for each in self._models.listed()]

    def text(self, name: str, text: str) -> dict[str, Any]:
        """A text, attended to in all ways."""
        model = self._opened(name, "text")
        # Punctuation counts too, since a model may read it as words.
        count = len(_WORD.findall(text))
        if count > MOST_WORDS:
            raise LabError(f"the text has {count:,} words and signs; pass at most {MOST_WORDS:,}")
        return self._remembered(model.look(text))

    def image(self, name: str, content: bytes) -> dict[str, Any]:
        """The content of an image file, attended to in all ways."""
        return self._remembered(self._opened(name, "image").look(content))

    def example(self, name: str, number: int) -> dict[str, Any]:
        """An example of the model's task, attended to in all ways."""
        model = self._opened(name, "image")
        if not 0 <= number < len(model.examples):
            raise LabError(f"there is no example {number + 1}; the model has {len(model.examples)}")
        return self._remembered(model.look(model.task.batch(model.examples, [number])["pixels"][0]))

    def examples(self, name: str) -> list[dict[str, Any]]:
        """Some examples of the model's task, small."""
        model = self._opened(name, "image")
        count = min(len(model.examples), _EXAMPLES)
        if not count:
            return []
        pixels = model.task.batch(model.examples, range(count))["pixels"]
        if pixels.shape[-1] > _THUMBNAIL:
            pixels = F.interpolate(pixels.float(), (_THUMBNAIL, _THUMBNAIL), mode="area").round().to(torch.uint8)
        return [{"number": number, "image": _image(pixels[number])} for number in range(count)]

    def interval(self, look: str, low: float, high: float) -> list[float]:
        """The answer of the model if it attends to this interval of the text alone."""
        examined = self._recalled(look)
        if examined.grid is not None:
            raise LabError("this is an image; an interval is for texts")
        return _finite(examined.answer_to(interval(low, high)))

    def ellipse(self, look: str, centre: tuple[float, float], axes: tuple[float, float], angle: float) -> list[float]:
        """The answer of the model if it attends to this ellipse of the image alone."""
        examined = self._recalled(look)
        if examined.grid is None:
            raise LabError("this is a text; an ellipse is for images")
        return _finite(examined.answer_to(ellipse(centre, axes, angle)))

    def _opened(self, name: str, kind: str) -> Any:
        try:
            model = self._models.open(name)
        except KeyError:
            raise LookupError(f"there is no model {name[:80]!r}; choose one of the list") from None
        if model.task.looks_at != kind:
            wanted = "an image" if kind == "image" else "a text"
            raise LabError(f"the model {name} does not look at {wanted}; choose another")
        return model

    def _remembered(self, look: Any) -> dict[str, Any]:
        examined = Examination(look)
        key = secrets.token_urlsafe(9)
        self._examined[key] = examined
        if len(self._examined) > _KEPT:
            self._examined.popitem(last=False)
        lanes = [
            {
                "name": lane.name,
                "own": lane.own,
                "answer": _finite(lane.answer),
                "weights": None if lane.weights is None else [float(f"{x:.3g}") for x in lane.weights.tolist()],
                "densities": [_density(density) for density in lane.densities],
            }
            for lane in examined.lanes
        ]
        answer = {"look": key, "classes": list(examined.classes), "lanes": lanes}
        if examined.pixels is not None:
            return {**answer, "image": _image(examined.pixels), "grid": examined.grid}
        return {**answer, "words": list(examined.words)}

    def _recalled(self, key: str) -> Examination:
        if key not in self._examined:
            raise Forgotten("the server has forgotten this input; read it again")
        self._examined.move_to_end(key)
        return self._examined[key]


def _density(density: Any) -> dict[str, Any]:
    """The parameters of a density for the script of the page, for which Σ is a matrix also on the line."""
    if isinstance(density, BetaGaussian):
        return {"alpha": density.alpha, "loc": [float(density.loc)], "scale": [[float(density.scale) ** 2]]}
    return {"alpha": density.alpha, "loc": density.loc.tolist(), "scale": density.scale_matrix.tolist()}


def _image(pixels: Tensor) -> dict[str, Any]:
    """Rows of red, green and blue."""
    flat = pixels.permute(1, 2, 0).contiguous().numpy().tobytes()
    return {"width": pixels.shape[2], "height": pixels.shape[1], "rgb": base64.b64encode(flat).decode("ascii")}


def _finite(values: list[float]) -> list[float]:
    if not all(map(math.isfinite, values)):
        raise LabError("the model's answer is not a finite number")
    return [float(f"{value:.6g}") for value in values]
