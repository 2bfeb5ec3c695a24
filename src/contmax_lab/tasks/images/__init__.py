"""Images of the user's own, with classes or numbers as labels.

A plain convolutional encoder, an attention over the plane, a linear decision.
"""

from contmax_lab.tasks.images._settings import ImagesData as ImagesData
from contmax_lab.tasks.images._settings import ImagesModel as ImagesModel
