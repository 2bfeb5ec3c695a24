"""Scores on the line: what a prediction is the Ω_α-map of."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Laplace

from contmax._typing import Bool, Float
from contmax.densities import LocationScale, Triangular
from contmax.densities._elliptical import Elliptical

from ._summary import scale_of

#: A score of a larger size counts as −∞, because its derivatives might be infinite.
LOG_SCORE_MAX = 345.0


@dataclass(frozen=True)
class Score:
    """A centred score f with its α, in float64.

    Attributes:
        alpha: α of the prediction.
        conjugate: Ω_α*(f), ``(*batch)``.
        loc: the centre of f, ``(*batch)``.
        smooth: whether f has no kink at its centre.
        depth: distance |t−μ| from the centre ↦ f.
    """

    alpha: float | Tensor
    conjugate: Float[Tensor, "*batch"]
    loc: Float[Tensor, "*batch"]
    smooth: bool
    depth: Callable[[Tensor], Tensor]

    def at(self, points: Float[Tensor, "..."], side: Tensor | None = None) -> Float[Tensor, "..."]:
        """f at points ``(*sample, *batch)``; ``side`` is ±1, the side from which a point at the centre is seen."""
        offset = points - self.loc
        if side is None:
            return self.depth(offset.abs())
        return self.depth(offset * torch.where(offset == 0, side, offset.detach().sign()))

    def in_range(self, points: Float[Tensor, "..."], side: Tensor | None = None) -> Bool[Tensor, "..."]:
        """Whether f is of a size whose derivatives are finite too."""
        with torch.no_grad():
            return self.at(points, side) > -math.exp(LOG_SCORE_MAX)


def score_of(prediction: Distribution) -> Score:
    """The score of a prediction on the line."""
    for kind in type(prediction).__mro__:
        if kind in _SCORES and not prediction.event_shape:
            return _SCORES[kind](prediction)
    raise NotImplementedError(
        f"{type(prediction).__name__} with event shape {tuple(prediction.event_shape)} is not known as the prediction "
        "of a score on the line. Pass a β-Gaussian, Triangular or LocationScale, or register_fenchel_young the pair."
    )


def _of_elliptical(prediction: Any) -> Score:
    loc, scale = prediction.loc.double(), prediction.scale.double()
    conjugate = prediction._profile.conjugate(scale_of(prediction).half_log_det())
    return Score(prediction.alpha, conjugate, loc, True, lambda d: -0.5 * (d / scale).square())


def _of_triangular(prediction: Triangular) -> Score:
    loc, scale = prediction.loc.double(), prediction.scale.double()
    return Score(2.0, 0.5 - 2 / (3 * scale.sqrt()), loc, False, lambda d: -d / scale)


def _of_location_scale(prediction: LocationScale) -> Score:
    loc, scale, slope = prediction.loc.double(), prediction.scale.double(), prediction._g.slope
    return Score(2.0, prediction.conjugate().double(), loc, False, lambda d: -slope(d / scale) / scale)


def _of_laplace(prediction: Laplace) -> Score:
    loc, scale = prediction.loc.double(), prediction.scale.double()
    return Score(1.0, torch.log(2 * scale), loc, False, lambda d: -d / scale)


_SCORES: dict[type, Callable[[Any], Score]] = {
    Elliptical: _of_elliptical,
    Triangular: _of_triangular,
    LocationScale: _of_location_scale,
    Laplace: _of_laplace,
}
