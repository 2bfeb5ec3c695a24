"""Metrics for those who watch a training: at a terminal, in TensorBoard, in Weights & Biases."""

import secrets
import sys
from pathlib import Path
from typing import Any

import yaml

from contmax_lab.contract import Recipe
from contmax_lab.files import write_atomically
from contmax_lab.packages import require
from contmax_lab.recipes import as_yaml


class TensorBoard:
    """Event files in the folder of the run, beside metrics.jsonl."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "training.tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, points: dict[str, float]) -> None:
        """One point per metric, such as ``valid/loss``."""
        for name, value in points.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class WeightsAndBiases:
    """A run of wandb, which a resumed training continues: the file ``wandb-id`` of the run's folder identifies it.

    wandb shows the settings of the recipe beside the curves, and reads its own settings from the environment.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        wandb = require("wandb", "training.wandb")
        known = folder / "wandb-id"
        if not known.exists():
            write_atomically(known, secrets.token_hex(8).encode())
        self._run = wandb.init(
            project=recipe.training.wandb,
            name=folder.name,
            id=known.read_text().strip(),
            dir=str(folder),
            config=yaml.safe_load(as_yaml(recipe)),
            resume="allow",
        )

    def write(self, step: int, points: dict[str, float]) -> None:
        """One point per metric, such as ``valid/loss``."""
        self._run.log(points, step=step)

    def close(self) -> None:
        """Wait until everything is sent."""
        self._run.finish()


def events_for(recipe: Recipe, folder: Path) -> list[TensorBoard | WeightsAndBiases]:
    """The places that a recipe wants its metrics sent to; a LabError if the package of one is not installed."""
    boards = [TensorBoard(folder)] if recipe.training.tensorboard else []
    return [*boards, *([WeightsAndBiases(recipe, folder)] if recipe.training.wandb else [])]


class Display:
    """A progress bar with time left, examples per second and the latest metrics; without a terminal it does nothing."""

    def __init__(self, title: str, epochs: int, *, visible: bool) -> None:
        self._bar: Any = None
        if visible and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("epoch {task.fields[epoch]:.0f}/" + str(epochs)),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[speed]} {task.fields[news]}"),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(title, total=epochs, epoch=0, speed="", news="")

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def at(self, epoch: float, examples_per_second: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch, epoch=epoch, speed=f"{examples_per_second:,.0f}/s")

    def news(self, monitor: str, latest: float, best: float) -> None:
        """Show the monitored metric."""
        if self._bar is not None:
            self._bar.update(self._task, news=f"{monitor} {latest:.4g}, best {best:.4g}")
