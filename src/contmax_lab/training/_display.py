"""Progress for people at a terminal; silence for everything else."""

import sys
from types import TracebackType
from typing import Any, Self


class Display:
    """A progress bar with time left, examples per second and the latest metrics; nothing without a terminal.

    Args:
        title: of the run.
        epochs: of the whole training.
        visible: whether this process may draw.
    """

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
            self._task = self._bar.add_task(title, total=epochs, epoch=0, speed="", news="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, epoch: float, examples_per_second: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch, epoch=epoch, speed=f"{examples_per_second:,.0f}/s")

    def news(self, monitor: str, latest: float, best: float) -> None:
        """Show the metric that decides."""
        if self._bar is not None:
            self._bar.update(self._task, news=f"{monitor} {latest:.4g}, best {best:.4g}")
