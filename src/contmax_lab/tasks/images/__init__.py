"""Images of the user's own, with classes or numbers as labels.

A plain convolutional encoder, an attention over the plane, a linear decision.
"""

import dataclasses

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from contmax_lab.contract import Settings
from contmax_lab.settings import AttentionModel, LabelledData, UpTo100


@dataclasses.dataclass(frozen=True)
class ImagesData(LabelledData):
    """Your images.

    Args:
        train: folder with one folder of images for each class; or a table of files and labels (.csv, .tsv or .jsonl),
            with paths relative to the folder of the table.
        file: in a table, the name of the column with the paths.
        label: in a table, the name of the column with the labels.
        size: all images are resized to a square with this many pixels along each side.
        skip_broken: leave out images that cannot be read, instead of ending with an error; contmax data check and the
            results name them.
    """

    file: str = "file"
    label: str = "label"
    size: PositiveInt = 64
    skip_broken: bool = False


@dataclasses.dataclass(frozen=True)
class ImagesModel(AttentionModel):
    """The network.

    Args:
        hidden_dim: channels of the last convolutions.
        layers: number of pairs of convolutions; each halves the sides of the image.
        dropout: share of the attended vector that is set to 0 in training.
        functions: Gaussian basis functions of the continuous attention along each side of the image.
    """

    hidden_dim: PositiveInt = 64
    layers: UpTo100 = 3
    dropout: ClosedUnitInterval = 0.1
    functions: UpTo100 = 6


SETTINGS = Settings.of_package(__file__, ImagesData, ImagesModel)
