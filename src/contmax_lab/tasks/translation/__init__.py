"""Machine translation: a sentence into another language.

Martins et al. 2020, section on machine translation: a bidirectional GRU reads the source sentence, a GRU with input
feeding says the translation piece by piece, and for every piece an attention looks at the source: discrete, continuous
or both. Beside it stands a small transformer, with softmax or α-entmax. On Multi30k, Tatoeba, IWSLT 2017
(``--data.path``) or pairs of your own (``--data.train``).
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
)

from contmax_lab.contract import Settings
from contmax_lab.settings import AttentionKind


@dataclasses.dataclass(frozen=True)
class TranslationData:
    """Where the sentences are, and how they are cut into pieces.

    Args:
        path: folder of Multi30k, Tatoeba, IWSLT 2017 or data that lies like it; or a folder that was prepared.
        train: instead of it, pairs of your own: PAIR for PAIR.de and PAIR.en, or a .tsv file, source TAB target.
        valid: pairs of your own for validation; if there are none, a share of the training pairs is held out.
        test: pairs of your own for the test.
        source: the language to translate from, as in the ending of file names.
        target: the language to translate into.
        source_column: column of the source in .tsv files, from 1.
        target_column: column of the translation in .tsv files, from 1.
        merges: merges of the byte-pair encoding, which is learned from the training pairs, both languages together.
        lowercase: write everything in lower case, also what is scored.
        max_length: training pairs with a sentence of more than this many pieces are left out.
        any_length: train on as many pairs as max_length leaves, but drawn at random from all, by split: a control that
            tells a lack of long sentences from a lack of data.
        held_out: share of the training pairs for validation, if there is no validation part.
        split: seed of the choice of validation pairs, and of the choices by limit and any_length.
        limit: take this many pairs of each part, for a quick try; 0 = all.
        cache: folder for the prepared data; by default .contmax beside the data.
    """

    path: Path | None = None
    train: Path | None = None
    valid: Path | None = None
    test: Path | None = None
    source: str = "de"
    target: str = "en"
    source_column: PositiveInt = 1
    target_column: PositiveInt = 2
    merges: PositiveInt = 32000
    lowercase: bool = True
    max_length: PositiveInt = 100
    any_length: bool = False
    held_out: OpenUnitInterval = 0.02
    split: int = 0
    limit: NonNegativeInt = 0
    cache: Path | None = None


@dataclasses.dataclass(frozen=True)
class TranslationModel:
    """The network, and how it searches for a translation.

    Args:
        network: GRUs that ask one attention, as in the paper; or a transformer, whose heads are all discrete.
        attention: discrete = over single pieces; continuous = over a stretch of the sentence with the moments of their
            weights; combined = the sum of both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola.
        learned_alpha: whether each head of a transformer learns its own α inside (1, 2), starting at alpha.
        num_basis: basis functions of the continuous attention, a third of each width .03, .1 and .3.
        penalty: penalty of the ridge fit.
        embedding_dim: channels of a piece, and of all states of a transformer.
        encoder_dim: channels of each direction of the GRU encoder.
        decoder_dim: channels of the GRU decoder and of the scores.
        layers: layers of a transformer's encoder, and of its decoder.
        heads: heads of each attention of a transformer.
        feedforward_dim: channels inside each layer of a transformer.
        tied: use one table for the pieces of both languages and for the output.
        dropout: share of the vectors of the pieces that is set to 0 in training.
        hidden_dropout: share that is set to 0 in training of the states of the encoder and of those that the output is
            made of; with a transformer, of what each layer adds.
        label_smoothing: share of the probability that is spread evenly over all pieces, in training.
        beam: number of hypotheses of the beam search.
        max_output: largest number of pieces in a translation.
        length_penalty: hypotheses of n pieces are ranked by log p divided by n to this power.
    """

    network: Literal["recurrent", "transformer"] = "recurrent"
    attention: AttentionKind = "combined"
    alpha: PositiveFloat = 2.0
    learned_alpha: bool = False
    num_basis: PositiveInt = 30
    penalty: PositiveFloat = 0.01
    embedding_dim: PositiveInt = 620
    encoder_dim: PositiveInt = 1000
    decoder_dim: PositiveInt = 1000
    layers: PositiveInt = 3
    heads: PositiveInt = 4
    feedforward_dim: PositiveInt = 1024
    tied: bool = False
    dropout: ClosedUnitInterval = 0.0
    hidden_dropout: ClosedUnitInterval = 0.2
    label_smoothing: ClosedUnitInterval = 0.0
    beam: PositiveInt = 5
    max_output: PositiveInt = 80
    length_penalty: NonNegativeFloat = 1.0


SETTINGS = Settings.of_package(__file__, TranslationData, TranslationModel)
