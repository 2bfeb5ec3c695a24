"""Questions about images: modular co-attention, and an attention over the image that is discrete or continuous."""

import dataclasses
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

from contmax_lab.contract import Settings


@dataclasses.dataclass(frozen=True)
class VqaData:
    """Questions about images.

    Args:
        path: folder of DAQUAR (images, train_images_list.txt, test_images_list.txt, data.csv), or of VQA-v2 (questions
            and annotations as JSON).
        train: instead of path, your own table with the columns image, question and answer; .csv, .tsv or .jsonl.
        validation: a table for validation; by default the questions about a share of the training images are held out.
        test: a table for the test, used only with --test.
        images: folder of the images; by default the folder of path or of train.
        features: features of the images: a folder with an array [H, W, C] for each, IMAGE.npy or .npz, or with regions;
            or the array that contmax data features has made from the images, which is found by default.
        vectors: word vectors, .txt of GloVe or .npy with .vocab.txt; by default glove*.txt in the folder of path, or
            else random ones.
        wordnet: folder of WordNet, for the metrics wups_90 and wups_0; by default, for DAQUAR, the folder of Debian's
            package wordnet-base; if that is not installed, these metrics are left out.
        min_count: how often an answer must occur in training for the model to be able to give it; MCAN uses 8 for
            VQA-v2.
        max_words: longest question, in words; the rest is cut off.
        held_out: the share of the training images that is held out where there is no validation data.
        split: seed of the choice of held-out images, of the choice by limit, and of pasted objects.
        limit: take this many questions of each part, at random, for a quick try; 0 = all.
        pasted: instead of the questions of the data, make this many copies of each image with two objects pasted in,
            and questions about one of them; 0 = use the questions of the data.
        pasted_train: with pasted, make this many copies of each training image instead, so that there are more
            questions to learn from and those for validation and test stay the same; 0 = as many as pasted.
        resident: keep the features on the device of the model; they must fit there (half a megabyte for each image).
    """

    path: Path | None = None
    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None
    images: Path | None = None
    features: Path | None = None
    vectors: Path | None = None
    wordnet: Path | None = None
    min_count: PositiveInt = 1
    max_words: PositiveInt = 30
    held_out: OpenUnitInterval = 0.1
    split: int = 0
    limit: NonNegativeInt = 0
    pasted: NonNegativeInt = 0
    pasted_train: NonNegativeInt = 0
    resident: bool = False


@dataclasses.dataclass(frozen=True)
class VqaModel:
    """The network; by default of the paper's size.

    Args:
        attention: the reduction of the image: discrete, continuous (one ellipse), windows (one in each window of the
            image), mixture (several ellipses), combined; question = the image is ignored; frequent = everything is, and
            the most frequent answer is given.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated paraboloid.
        weights_alpha: α of the weights of cells whose moments the ellipses of continuous and windows have; above 1
            windows can be left out.
        windows: number of windows along each side of the image.
        components: number of ellipses of a mixture.
        functions: Gaussian basis functions along each side of their grid, K = functions².
        variance: variance of each basis function, in units of the image.
        penalty: λ of the ridge fit.
        loss: binary = each answer is judged by itself, as in MCAN; categorical = exactly one is right.
        layers: layers of the encoder of words and of the decoder of cells.
        heads: heads of their attentions.
        hidden_dim: channels of words and cells.
        fused_dim: channels of what is reduced.
        flat_dim: channels of the layer that scores words and cells in the reductions.
        word_dim: channels of the word vectors, where none are given.
        dropout: share set to 0 in training, everywhere in the network.
        feature_dropout: share of the features of the image that is set to 0 in training, before the network.
    """

    attention: Literal["question", "frequent", "discrete", "continuous", "windows", "mixture", "combined"] = (
        "continuous"
    )
    alpha: PositiveFloat = 2.0
    weights_alpha: PositiveFloat = 1.0
    windows: PositiveInt = 4
    components: PositiveInt = 3
    functions: PositiveInt = 10
    variance: PositiveFloat = 0.001
    penalty: PositiveFloat = 0.01
    loss: Literal["binary", "categorical"] = "binary"
    layers: PositiveInt = 6
    heads: PositiveInt = 8
    hidden_dim: PositiveInt = 512
    fused_dim: PositiveInt = 1024
    flat_dim: PositiveInt = 512
    word_dim: PositiveInt = 300
    dropout: ClosedUnitInterval = 0.1
    feature_dropout: ClosedUnitInterval = 0.0


SETTINGS = Settings.of_package(__file__, VqaData, VqaModel)
