"""The task: losses and measures of answers."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.attention import attended_share
from contmax_lab.contract import Batch, Splits, Table, Task
from contmax_lab.data import DIGIT_SIDE, Images
from contmax_lab.tasks.digits._data import DigitsData, load
from contmax_lab.tasks.digits._model import Answer, DigitsModel, Reader
from contmax_lab.tasks.digits._table import DIGITS


class Digits(Task):
    """Read digits."""

    name = "digits"
    summary = "which digit is written in 8 × 8 pixels, by attention over the plane"
    data_config = DigitsData
    model_config = DigitsModel
    recipe_file = Path(__file__).with_name("recipe.yaml")
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

    def loss(self, output: Answer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy."""
        losses = F.cross_entropy(output.logits, batch["digit"], reduction="none")
        return losses, torch.ones_like(losses)

    def measures(self, output: Answer, batch: Batch) -> dict[str, Tensor]:
        """Whether the answer is right, and how much of the image was attended to."""
        return {
            "accuracy": (output.logits.argmax(-1) == batch["digit"]).float(),
            "attended": _attended(output, batch),
        }

    def answer(self, output: Answer, batch: Batch, info: dict[str, Any]) -> str:
        """Which digit it is, and which it was."""
        sure, digit = output.logits.softmax(-1).max(-1)
        share = float(_attended(output, batch))
        return (
            f"digit {int(digit)} ({float(sure):.0%}); it was {int(batch['digit'])}\nattended: {share:.0%} of the image"
        )

    def tables(self) -> Sequence[Table]:
        """One for the demo."""
        return (DIGITS,)

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where the models look."""
        from contmax_lab.tasks.digits._figures import looking

        return [looking(runs, examples)]


def _attended(output: Answer, batch: Batch) -> Tensor:
    """The share of the image that was attended to, (B,)."""
    cells = batch["digit"].new_full(batch["digit"].shape, DIGIT_SIDE)
    return attended_share(output.attended, [cells, cells])
