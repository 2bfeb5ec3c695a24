"""The task: losses and measures of answers."""

from collections.abc import Sequence, Sized
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.attention import attended_share
from contmax_lab.tables import Table
from contmax_lab.tasks import Batch, Splits, Task
from contmax_lab.tasks.digits._data import SIDE, DigitsData, Images, load
from contmax_lab.tasks.digits._model import Answer, DigitsModel, Reader
from contmax_lab.tasks.digits._table import DIGITS


class Digits(Task):
    """Read digits."""

    name = "digits"
    summary = "which digit is written in 8 × 8 pixels, by attention over the plane"
    data_config = DigitsData
    model_config = DigitsModel
    curves = ("loss", "accuracy", "attended")

    def load(self, data: DigitsData, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

    def build(self, model: DigitsModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        return Reader(model)

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Pixels and digits."""
        chosen = cast(Images, split)[indices]
        return {"pixels": chosen.pixels, "digit": chosen.digit}

    def losses(self, output: Answer, batch: Batch) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(output.logits, batch["digit"], reduction="none")

    def measures(self, output: Answer, batch: Batch) -> dict[str, Tensor]:
        """Whether the answer is right, and how much of the image was attended to."""
        cells = batch["digit"].new_full(batch["digit"].shape, SIDE)
        return {
            "accuracy": (output.logits.argmax(-1) == batch["digit"]).float(),
            "attended": attended_share(output.attended, [cells, cells]),
        }

    def tables(self) -> Sequence[Table]:
        """One for the demo."""
        return (DIGITS,)

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where the models look."""
        from contmax_lab.tasks.digits._figures import looking

        return [looking(runs, examples)]
