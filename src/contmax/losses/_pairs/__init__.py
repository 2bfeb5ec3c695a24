"""Losses of (prediction, target) pairs for :func:`contmax.losses.fenchel_young`; imports register them."""

from contmax.losses._pairs import _elliptical as _elliptical
from contmax.losses._pairs import _quadrature as _quadrature
