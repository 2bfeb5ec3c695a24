"""Language: which word comes next, and which came before?

An encoder that has learned to answer reads better afterwards: a run of this task is what ``--model.start`` of
``documents`` takes (Dai and Le 2015, Semi-supervised sequence learning). It learns from the training reviews
without their labels and from nothing else; validation reviews decide which of its epochs is kept.
"""

import dataclasses

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.tasks.documents import DocumentsData


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


SETTINGS = Settings.of_package(__file__, DocumentsData, LanguageModel)
