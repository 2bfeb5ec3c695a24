"""Two objects pasted into a photo, and a question about one of them: where the answer is, is known."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.data import Place
from contmax_lab.tasks.vqa._questions import Question

COLOURS = {
    "red": (215, 25, 30),
    "green": (30, 160, 50),
    "blue": (25, 60, 215),
    "yellow": (245, 220, 30),
    "purple": (135, 30, 160),
    "orange": (245, 130, 20),
    "white": (248, 248, 248),
    "black": (10, 10, 10),
}
# Shape → whether a point (x, y) of [−1, 1]² belongs to it.
SHAPES: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]] = {
    "disk": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.92,
    "triangle": lambda x, y: (y >= -0.9) & (y <= 0.9) & (abs(x) <= 0.5 * (y + 0.9) * 1.05),
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.35),
    "cross": lambda x, y: np.minimum(abs(x), abs(y)) <= 0.32,
    "diamond": lambda x, y: abs(x) + abs(y) <= 1,
    "bar": lambda x, y: abs(y) <= 0.34,
    "flower": lambda x, y: np.sqrt(x**2 + y**2) <= 0.62 + 0.38 * np.cos(5 * np.arctan2(x, -y)),
}
# Half the side of an object, as a share of that of the image.
_HALF_SIDES = (0.08, 0.15)


@dataclasses.dataclass(frozen=True)
class Pasted:
    """An object in an image.

    Args:
        shape, colour: their names.
        centre: (row, column), as shares of the image.
        half: half its side, likewise.
    """

    shape: str
    colour: str
    centre: tuple[float, float]
    half: float

    @property
    def box(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Low and high corner, (row, column)."""
        (row, column), half = self.centre, self.half
        return (row - half, column - half), (row + half, column + half)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Two objects in a photo, and which of them is asked for.

    Args:
        photo: name of the photo.
        asked, other: the objects; neither their shapes nor their colours are the same.
        by_colour: whether the question names the colour and asks for the shape, or the reverse.
    """

    photo: str
    asked: Pasted
    other: Pasted
    by_colour: bool

    def question(self, name: str, place: Place) -> Question:
        """In words, about the image of that name."""
        asked = self.asked
        if self.by_colour:
            return Question(name, f"what shape is the {asked.colour} object", (asked.shape,), "other", place)
        return Question(name, f"what colour is the {asked.shape}", (asked.colour,), "other", place)


def scenes(photos: Sequence[str], copies: int, seed: int) -> dict[str, Scene]:
    """Name of the new image → what is in it, for this many copies of each photo; a function of the seed.

    Example:
        >>> made = scenes(["kitchen"], 2, seed=0)
        >>> list(made), made["kitchen+0"].asked.shape != made["kitchen+0"].other.shape
        (['kitchen+0', 'kitchen+1'], True)
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=random))

    def pair(names: Sequence[str]) -> list[str]:
        return [names[index] for index in torch.randperm(len(names), generator=random)[:2].tolist()]

    found = {}
    for photo in photos:
        for copy in range(copies):
            shapes, colours = pair(list(SHAPES)), pair(list(COLOURS))
            halves = [uniform(*_HALF_SIDES) for _ in range(2)]
            while True:
                centres = [(uniform(half, 1 - half), uniform(half, 1 - half)) for half in halves]
                apart = max(abs(a - b) for a, b in zip(*centres, strict=True))
                if apart > sum(halves):
                    break
            objects = [Pasted(*parts) for parts in zip(shapes, colours, centres, halves, strict=True)]
            found[f"{photo}+{copy}"] = Scene(photo, objects[0], objects[1], by_colour=uniform(0, 1) < 0.5)
    return found


def paste(image: Tensor, scene: Scene) -> Tensor:
    """The photo, bytes (3, H, W), with both objects in it."""
    pixels = image.numpy().copy()
    height, width = pixels.shape[1:]
    for item in (scene.other, scene.asked):
        (row, column), half = item.centre, item.half
        y = ((np.arange(height) + 0.5) / height - row) / half
        x = ((np.arange(width) + 0.5) / width - column) / half
        grid_y, grid_x = np.meshgrid(y, x, indexing="ij")
        inside = SHAPES[item.shape](grid_x, grid_y) & (np.maximum(abs(grid_x), abs(grid_y)) <= 1)
        pixels[:, inside] = np.array(COLOURS[item.colour], dtype=np.uint8)[:, None]
    return torch.from_numpy(pixels)


def scene_questions(found: dict[str, Scene], folder: Path) -> list[Question]:
    """The questions about scenes."""
    return [scene.question(name, Place(folder)) for name, scene in found.items()]
