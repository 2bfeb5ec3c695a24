"""Digits: which one is written in 8 × 8 pixels.

Attention over the plane, on real images that come with scikit-learn: 1797 handwritten digits of Alpaydin & Kaynak
(1998).
"""

from contmax_lab.tasks.digits._data import DigitsData as DigitsData
from contmax_lab.tasks.digits._model import Answer as Answer
from contmax_lab.tasks.digits._model import DigitsModel as DigitsModel
from contmax_lab.tasks.digits._model import Reader as Reader
from contmax_lab.tasks.digits._task import Digits as Digits

TASK = Digits()
