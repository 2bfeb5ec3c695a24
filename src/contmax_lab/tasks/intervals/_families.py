"""How an interval becomes a density to learn, and a predicted density an interval."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributions import Distribution, Normal

from contmax.densities import Triangular, TruncatedParabola
from contmax.losses import fenchel_young

# The central 95 % of a Gaussian lie within this many standard deviations.
_NORMAL_95 = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class Family:
    r"""Densities p_y that stand for intervals y, and the loss of predicting another of the same kind.

    Args:
        predicted: the density with location μ and scale s, as the network gives them.
        observed: the density that stands for the interval [low, high].
        half_width: of the interval that a density stands for.
    """

    predicted: Callable[[Tensor, Tensor], Distribution]
    observed: Callable[[Tensor, Tensor], Distribution]
    half_width: Callable[[Any], Tensor]

    def losses(self, prediction: Distribution, low: Tensor, high: Tensor) -> Tensor:
        r""":math:`L_{\Omega_\alpha}(f_\theta; p_y)` of each example, shape (B,)."""
        return fenchel_young(prediction, self.observed(low, high))


def _gaussian(deviations: float) -> Family:
    """μ ± `deviations`·σ is the interval."""
    # A check of the values cannot be made for many networks at once, and the network gives positive scales anyway.
    normal = functools.partial(Normal, validate_args=False)
    return Family(
        predicted=normal,
        observed=lambda low, high: normal((low + high) / 2, (high - low) / (2 * deviations)),
        half_width=lambda density: deviations * density.stddev,
    )


def _supported(density: type[TruncatedParabola] | type[Triangular]) -> Family:
    """The support is the interval."""
    return Family(predicted=density, observed=density.from_support, half_width=lambda p: p.half_width)


FAMILIES: dict[str, Family] = {
    "gaussian-sigma": _gaussian(1.0),
    "gaussian-95": _gaussian(_NORMAL_95),
    "parabola": _supported(TruncatedParabola),
    "triangular": _supported(Triangular),
}
