"""The task: reviews without their labels."""

import math
from collections.abc import Sequence, Sized
from typing import cast

from torch import Tensor, nn

from contmax_lab.tasks import Batch, Splits, Task
from contmax_lab.tasks.documents import Documents, DocumentsData, load
from contmax_lab.tasks.language._model import LanguageModel, Surprise, WordGuesser


class Language(Task):
    """Guess the neighbours of every word."""

    name = "language"
    summary = "film reviews without labels: guess the next and the previous word; a start for documents"
    data_config = DocumentsData
    model_config = LanguageModel

    def load(self, data: DocumentsData, seed: int) -> Splits:
        """The parts of ``documents``, so that nothing held out there is read here."""
        return load(data)

    def build(self, model: LanguageModel, splits: Splits) -> nn.Module:
        """A network with fresh weights and the word vectors of the data."""
        return WordGuesser(model, splits.info["vectors"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Numbers of words, padded."""
        return {"tokens": cast(Documents, split)[indices].padded()}

    def losses(self, output: Surprise, batch: Batch) -> Tensor:
        """Mean negative log-likelihood of the words of a review."""
        return output.nats

    def measures(self, output: Surprise, batch: Batch) -> dict[str, Tensor]:
        """The same in bits."""
        return {"bits": output.nats / math.log(2)}

    def lengths(self, split: Sized) -> Sequence[int]:
        """Words of each review."""
        lengths: list[int] = cast(Documents, split).lengths.tolist()
        return lengths
