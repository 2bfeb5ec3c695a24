"""The pairs of prediction and target that :func:`contmax.losses.fenchel_young` knows; importing them registers them."""

from contmax.losses._pairs import _any_on_line as _any_on_line
from contmax.losses._pairs import _elliptical as _elliptical
from contmax.losses._pairs import _observation as _observation
from contmax.losses._pairs import _torch_predictions as _torch_predictions
from contmax.losses._pairs import _triangular as _triangular
