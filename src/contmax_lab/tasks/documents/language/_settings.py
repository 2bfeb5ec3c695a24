"""What can be set of the language model; the data is that of documents. Without torch, so that help is quick."""

import dataclasses

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from contmax_lab.tasks.documents._settings import DocumentsData


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """The network.

    Args:
        words: the first words of the vocabulary, up to this number, are predicted; the others are only read.
        hidden_dim: channels of each direction of the LSTM.
        dropout: share of the word vectors and of the states that is set to 0 in training.
    """

    words: PositiveInt = 20000
    hidden_dim: PositiveInt = 128
    dropout: ClosedUnitInterval = 0.2


DATA, MODEL = DocumentsData, LanguageModel
