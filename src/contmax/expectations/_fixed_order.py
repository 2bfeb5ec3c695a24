"""Which β-Gaussians the library's own rules send to kernels that are compiled for one k = 1/(α−1)."""

import functools
from collections.abc import Callable
from typing import Any

from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola, TruncatedParaboloid
from contmax.expectations._expectation import RULES
from contmax.expectations._line_gaussian import line_order
from contmax.expectations._space_gaussian import plane_order

LINE_DENSITIES: frozenset[type] = frozenset((BetaGaussian, TruncatedParabola))
PLANE_DENSITIES: frozenset[type] = frozenset((MultivariateBetaGaussian, TruncatedParaboloid))
_Order = Callable[[float], float | None]


def _own(densities: frozenset[type], basis: type, order: _Order) -> dict[tuple[type, type], tuple[Any, _Order]]:
    cached = functools.lru_cache(maxsize=64)(order)
    return {(density, basis): (RULES.find(density, basis), cached) for density in densities}


# The rules as they are now, and their k: users may register others later.
_OWN = _own(LINE_DENSITIES, GaussianBasis, line_order) | _own(PLANE_DENSITIES, MultivariateGaussianBasis, plane_order)


def fixed_order(density: type, basis: type, alpha: float) -> float | None:
    """k of the kernel, ∞ for the Gaussian; None for all other types, other α, or where a rule was registered since.

    Args:
        density: the type of the density.
        basis: the type of the basis, on the line or on the plane.
        alpha: α.
    """
    own = _OWN.get((density, basis))
    if own is None or RULES.find(density, basis) is not own[0]:
        return None
    return own[1](alpha)
