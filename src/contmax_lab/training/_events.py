"""Metrics for those who watch a training from elsewhere: TensorBoard and Weights & Biases, where wanted."""

import secrets
from pathlib import Path
from typing import Any, Protocol

import yaml

from contmax_lab.contract import Recipe
from contmax_lab.files import write_atomically
from contmax_lab.packages import require
from contmax_lab.recipes import as_yaml


class Events(Protocol):
    """A place that metrics are sent to."""

    def write(self, step: int, metrics: dict[str, dict[str, float]]) -> None:
        """One point per metric of a part, such as ``valid``."""

    def close(self) -> None:
        """Send what is left."""


def events_for(recipe: Recipe, folder: Path) -> list[Events]:
    """The places that a recipe asks for.

    Args:
        recipe: says which.
        folder: of the run.

    Raises:
        LabError: if the package of one is not installed.
    """
    training, places = recipe.training, list[Events]()
    if training.tensorboard:
        places.append(TensorBoard(folder / "tensorboard"))
    if training.wandb:
        places.append(WeightsAndBiases(recipe, folder))
    return places


class TensorBoard:
    """Event files beside metrics.jsonl.

    Args:
        folder: for the files.
    """

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "training.tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, metrics: dict[str, dict[str, float]]) -> None:
        """One point per metric."""
        for part, values in metrics.items():
            for name, value in values.items():
                self._writer.add_scalar(f"{part}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class WeightsAndBiases:
    """A run of wandb, which a resumed training goes on with. What wandb itself needs comes from its environment.

    Args:
        recipe: is shown beside the curves, and names the project.
        folder: of the run; the file ``wandb-id`` in it says which run of wandb belongs to it.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        wandb = require("wandb", "training.wandb")
        known = folder / "wandb-id"
        if not known.exists():
            write_atomically(known, secrets.token_hex(8).encode())
        config: dict[str, Any] = yaml.safe_load(as_yaml(recipe))
        self._run = wandb.init(
            project=recipe.training.wandb,
            name=folder.name,
            id=known.read_text().strip(),
            dir=str(folder),
            config=config,
            resume="allow",
        )

    def write(self, step: int, metrics: dict[str, dict[str, float]]) -> None:
        """One point per metric."""
        points = {f"{part}/{name}": value for part, values in metrics.items() for name, value in values.items()}
        self._run.log(points, step=step)

    def close(self) -> None:
        """Wait until everything is sent."""
        self._run.finish()
