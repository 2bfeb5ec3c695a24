"""Metrics for TensorBoard, where that is wanted and installed."""

from pathlib import Path

from contmax_lab.packages import require


class Events:
    """Event files beside metrics.jsonl.

    Args:
        folder: for the files.

    Raises:
        LabError: if tensorboard is not installed.
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
