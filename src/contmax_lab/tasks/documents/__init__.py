"""Document classification: is a film review positive or negative?

Martins et al. 2020, section on document classification: word vectors, a bidirectional LSTM, an attention over the words
of a review, discrete, continuous or both, and one logit. On the authors' own data, the IMDB reviews of Maas et al. 2011
(``--data.path``).
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.settings import UpTo10000


@dataclasses.dataclass(frozen=True)
class DocumentsData:
    """Where the reviews are, and which words count.

    Args:
        path: folder of IMDB reviews, {train,test}/{pos,neg}/ID_STARS.txt or imdb_{train,test}.tsv.
        vectors: word vectors, a text file of GloVe or .npy with .vocab.txt; by default those in the folder.
        cache: folder for the prepared arrays; by default .contmax in the folder of the reviews.
        max_words: keep this many words of the training reviews, those that come first among the word vectors; 0 = all.
        dimensions: keep this many columns of the word vectors; 0 = all.
        valid: share of the training reviews that is held out for validation, whole films where films are known (files
            urls_{pos,neg}.txt of the archive).
        split: seed of the choice of the validation reviews.
        deletion: measure the test reviews also without the words that are attended, without all the others, and without
            random ones, drawn by the seed of the run.
    """

    path: Path | None = None
    vectors: Path | None = None
    cache: Path | None = None
    max_words: NonNegativeInt = 0
    dimensions: NonNegativeInt = 0
    valid: OpenUnitInterval = 0.1
    split: int = 0
    deletion: bool = False


@dataclasses.dataclass(frozen=True)
class DocumentsModel:
    """The network.

    Args:
        attention: discrete = over single words; continuous = over a stretch of the text; combined = the sum of both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola.
        head: what decides where a continuous attention looks. "pooled" = as in the paper, a pooled summary of the
            states, or in combined attention the moments of the discrete weights; "gates" = a gate on each word, of
            which the density covers the open ones, and whose shares are the discrete weights of combined attention;
            "narrow" = a pooled summary that also sees where words stand, and begins with two fifths of the text.
        values: what is attended to: the states of the LSTM, each of which knows the whole review; or "words", a linear
            map of the word vectors, where the states decide only where to look.
        num_basis: basis functions of the continuous attention, half of width .1, half of width .5; for words all of
            width 1/num_basis, since a wide function would carry words from outside into the support.
        matching: for combined attention with a pooled head: "exact" = the density has the variance of the weights;
            "paper" = it has the variance as its σ².
        penalty: penalty of the ridge fit.
        hidden_dim: channels of each direction of the LSTM.
        dropout: share of the word vectors and of the context that is set to 0 in training.
        word_dropout: share of words that are hidden in training.
        frozen: keep the word vectors as they are.
        start: folder of a run of the task language, whose word vectors and LSTM to begin with.
    """

    attention: Literal["discrete", "continuous", "combined"] = "combined"
    alpha: PositiveFloat = 2.0
    head: Literal["pooled", "gates", "narrow"] = "pooled"
    values: Literal["states", "words"] = "states"
    num_basis: UpTo10000 = 64
    matching: Literal["exact", "paper"] = "exact"
    penalty: PositiveFloat = 0.01
    hidden_dim: PositiveInt = 128
    dropout: ClosedUnitInterval = 0.5
    word_dropout: ClosedUnitInterval = 0.0
    frozen: bool = False
    start: Path | None = None


SETTINGS = Settings.of_package(__file__, DocumentsData, DocumentsModel)
