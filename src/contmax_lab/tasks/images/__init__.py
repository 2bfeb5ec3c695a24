"""Images of the user's own, with classes or numbers as labels.

A plain convolutional encoder, an attention over the plane, a linear decision.
"""

from contmax_lab.tasks.images._data import ImagesData as ImagesData
from contmax_lab.tasks.images._data import Pictures as Pictures
from contmax_lab.tasks.images._data import load as load
from contmax_lab.tasks.images._model import ImageReader as ImageReader
from contmax_lab.tasks.images._model import ImagesModel as ImagesModel
from contmax_lab.tasks.images._task import ImagesTask as ImagesTask

TASK = ImagesTask()
