"""Texts of the user's own, with classes or numbers as labels: reviews and stars, messages and topics.

Word vectors that are learned, a convolution, an attention over the words, a linear decision.
"""

import dataclasses
from pathlib import Path

from jsonargparse.typing import ClosedUnitInterval, OpenUnitInterval, PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.settings import AttentionModel, LabelledData, UpTo10000


@dataclasses.dataclass(frozen=True)
class TextsData(LabelledData):
    """Your texts.

    Args:
        train: table of texts and labels: .csv, .tsv or .jsonl (JSON lines); .gz is read too.
        text: name of the column with the texts.
        label: name of the column with the labels.
        vectors: word vectors to begin with, a text file in the format of GloVe or word2vec; .gz is read too. Words
            that are not in it begin at random.
        min_count: words that occur less often in the training texts count as unknown.
        max_words: size of the vocabulary; the most frequent words are kept.
        max_length: longest text, in words; the rest of a text is cut off.
    """

    held_out: OpenUnitInterval = 0.1
    text: str = "text"
    label: str = "label"
    vectors: Path | None = None
    min_count: PositiveInt = 2
    max_words: PositiveInt = 50_000
    max_length: PositiveInt = 1000


@dataclasses.dataclass(frozen=True)
class TextsModel(AttentionModel):
    """The network.

    Args:
        hidden_dim: channels of the word vectors and of the convolution.
        kernel_size: how many neighbouring words the convolution sees; odd.
        dropout: share of the word vectors, and of the attended vector, that is set to 0 in training.
        functions: number of Gaussian basis functions of the continuous attention.
    """

    hidden_dim: PositiveInt = 64
    kernel_size: PositiveInt = 3
    dropout: ClosedUnitInterval = 0.3
    functions: UpTo10000 = 32


SETTINGS = Settings.of_package(__file__, TextsData, TextsModel)
