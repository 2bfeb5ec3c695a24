"""The pairs of prediction and target that :func:`contmax.losses.fenchel_young` knows; importing them registers them."""

from contmax.losses._pairs import _elliptical as _elliptical
from contmax.losses._pairs import _quadrature as _quadrature
