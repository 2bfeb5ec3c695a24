"""The pairs of prediction and target that :func:`contmax.losses.fenchel_young` knows; importing them registers them."""

from contmax.losses._pairs import _any as _any
from contmax.losses._pairs import _elliptical as _elliptical
