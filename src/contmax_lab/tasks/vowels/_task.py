"""The task: losses and measures of answers."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from contmax_lab.attention import attended_share
from contmax_lab.contract import Batch, Splits, Table, Task
from contmax_lab.data import Utterances
from contmax_lab.tasks.vowels._data import VowelsData, load
from contmax_lab.tasks.vowels._model import Answer, Listener, VowelsModel
from contmax_lab.tasks.vowels._table import VOWELS


class Vowels(Task):
    """Tell speakers apart."""

    name = "vowels"
    summary = "which of nine speakers says two Japanese vowels, by attention over time"
    data_config = VowelsData
    model_config = VowelsModel
    recipe_file = Path(__file__).with_name("recipe.yaml")
    curves = ("loss", "accuracy", "attended")

    def load(self, data: VowelsData, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

    def build(self, model: VowelsModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        return Listener(model, splits.info["channels"], splits.info["classes"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Frames, padded; which of them are there; the speakers."""
        chosen = cast(Utterances, split)[indices]
        lengths = torch.tensor([len(series) for series in chosen.series])
        frames = pad_sequence(chosen.series, batch_first=True)
        mask = torch.arange(frames.shape[1]) < lengths.unsqueeze(-1)
        return {"frames": frames, "mask": mask, "speaker": chosen.speaker}

    def loss(self, output: Answer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy."""
        losses = F.cross_entropy(output.logits, batch["speaker"], reduction="none")
        return losses, torch.ones_like(losses)

    def measures(self, output: Answer, batch: Batch) -> dict[str, Tensor]:
        """Whether the answer is right, and how much of the utterance was attended to."""
        return {
            "accuracy": (output.logits.argmax(-1) == batch["speaker"]).float(),
            "attended": attended_share(output.attended, [batch["mask"].sum(-1)]),
        }

    def answer(self, output: Answer, batch: Batch, info: dict[str, Any]) -> str:
        """Who it is, and who it was."""
        sure, speaker = output.logits.softmax(-1).max(-1)
        share = float(attended_share(output.attended, [batch["mask"].sum(-1)]))
        return (
            f"speaker {int(speaker) + 1} ({float(sure):.0%}); it was speaker {int(batch['speaker']) + 1}\n"
            f"attended: {share:.0%} of the utterance"
        )

    def lengths(self, split: Sized) -> Sequence[int]:
        """Frames of each utterance."""
        return [len(series) for series in cast(Utterances, split).series]

    def tables(self) -> Sequence[Table]:
        """One for the demo."""
        return (VOWELS,)

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where the models listen."""
        from contmax_lab.tasks.vowels._figures import listening

        return [listening(runs, examples)]
