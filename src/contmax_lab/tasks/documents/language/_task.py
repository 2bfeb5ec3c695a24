"""The task: reviews without their labels."""

import math
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch, Splits, Task
from contmax_lab.tasks.documents._data import Documents, load
from contmax_lab.tasks.documents._settings import DocumentsData
from contmax_lab.tasks.documents.language._model import Surprise, WordGuesser
from contmax_lab.tasks.documents.language._settings import LanguageModel


class Language(Task):
    """Guess the neighbours of every word."""

    name = "language"
    summary = "film reviews without labels: guess the next and the previous word; a start for documents"
    data_config = DocumentsData
    model_config = LanguageModel
    recipe_file = Path(__file__).with_name("recipe.yaml")

    def load(self, data: DocumentsData, seed: int) -> Splits:
        """The parts of ``documents``, so that nothing held out there is read here."""
        return load(data)

    def build(self, model: LanguageModel, splits: Splits) -> nn.Module:
        """A network with fresh weights and the word vectors of the data."""
        return WordGuesser(model, splits.info["vectors"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Numbers of words, padded."""
        return {"tokens": cast(Documents, split)[indices].padded()}

    def loss(self, output: Surprise, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean negative log-likelihood of the words of a review; every review counts alike."""
        return output.nats, torch.ones_like(output.nats)

    def measures(self, output: Surprise, batch: Batch) -> dict[str, Tensor]:
        """The same in bits."""
        return {"bits": output.nats / math.log(2)}

    def lengths(self, split: Sized) -> Sequence[int]:
        """Words of each review."""
        lengths: list[int] = cast(Documents, split).lengths.tolist()
        return lengths


TASK = Language()
