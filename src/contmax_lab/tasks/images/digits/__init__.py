"""Digits: which one is written in 8 × 8 pixels.

The task images, on real images that come with scikit-learn: the digits of Alpaydin & Kaynak (1998).
"""

from contmax_lab.tasks.images.digits._settings import DigitsData as DigitsData
