"""The pairs of prediction and target that :func:`contmax.losses.fenchel_young` knows; importing them registers them."""

from . import _elliptical as _elliptical
from . import _gaussian as _gaussian
from . import _observation as _observation
from . import _quadrature as _quadrature
from . import _triangular as _triangular
