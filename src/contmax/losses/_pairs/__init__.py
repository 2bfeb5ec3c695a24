"""The pairs of prediction and target that :func:`contmax.losses.fenchel_young` knows; importing them registers them."""

from . import _any_on_line as _any_on_line
from . import _elliptical as _elliptical
from . import _observation as _observation
from . import _torch_predictions as _torch_predictions
from . import _triangular as _triangular
