"""Digits: which one is written in 8 × 8 pixels.

The task images, on real images that come with scikit-learn: the digits of Alpaydin & Kaynak (1998).
"""

from contmax_lab.tasks.images.digits._data import DigitsData as DigitsData
from contmax_lab.tasks.images.digits._task import Digits as Digits

TASK = Digits()
