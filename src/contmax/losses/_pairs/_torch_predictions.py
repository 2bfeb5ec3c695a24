"""Torch's own densities as predictions: Gaussians, the β-Gaussians of index one, and Laplace densities."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)

from contmax.densities import BetaGaussian, LineDensity, LineLaw, MultivariateBetaGaussian
from contmax.losses._fenchel_young import loss_between, register_fenchel_young


@register_fenchel_young(Normal, Distribution)
@register_fenchel_young(Normal, Tensor)
def normal_loss(prediction: Normal, target: Any) -> Tensor:
    """The loss of the β-Gaussian that the normal density is."""
    return loss_between(BetaGaussian(prediction.loc, prediction.scale, 1.0, validate_args=False), target)


@register_fenchel_young(MultivariateNormal, Distribution)
@register_fenchel_young(MultivariateNormal, Tensor)
@register_fenchel_young(LowRankMultivariateNormal, Distribution)
@register_fenchel_young(LowRankMultivariateNormal, Tensor)
def multivariate_normal_loss(prediction: MultivariateNormal | LowRankMultivariateNormal, target: Any) -> Tensor:
    """The loss of the multivariate β-Gaussian that the normal density is."""
    tril = prediction.scale_tril
    ours = MultivariateBetaGaussian(prediction.loc, scale_tril=tril, alpha=1.0, validate_args=False)
    return loss_between(ours, target)


@register_fenchel_young(Independent, Distribution)
@register_fenchel_young(Independent, Tensor)
def independent_loss(prediction: Independent, target: Any) -> Tensor:
    """Independent normal coordinates: a diagonal scale. For α ≠ 1 a product is not the map of a sum of scores."""
    base = prediction.base_dist
    if not isinstance(base, Normal) or prediction.reinterpreted_batch_ndims != 1:
        raise NotImplementedError(
            f"Independent({type(base).__name__}, {prediction.reinterpreted_batch_ndims}) is not the prediction of a "
            "score. Pass MultivariateBetaGaussian(loc, scale_diag=...)."
        )
    ours = MultivariateBetaGaussian(base.loc, scale_diag=base.scale, alpha=1.0, validate_args=False)
    return loss_between(ours, target)


class _LaplaceLaw(LineLaw):
    def tail(self, depth: Tensor) -> Tensor:
        return 0.5 * torch.exp(-depth)

    def log_density(self, depth: Tensor) -> Tensor:
        return -depth - math.log(2.0)

    def depth(self, tail: Tensor) -> Tensor:
        return -torch.log(2 * tail)


class _Laplace(LineDensity):
    """The Ω₁-map of −|t−μ|/b."""

    alpha = 1.0

    def law(self) -> LineLaw:
        return _LaplaceLaw()

    def _score(self, points: Tensor) -> Tensor:
        return -(points - self._wide(self.loc)).abs() / self._wide(self.scale)

    def conjugate(self) -> Tensor:
        """The logarithm of the integral of e^f, ln 2b."""
        return self._round(torch.log(2 * self._wide(self.scale)))


@register_fenchel_young(Laplace, Distribution)
@register_fenchel_young(Laplace, Tensor)
def laplace_loss(prediction: Laplace, target: Any) -> Tensor:
    """The loss of the density of index one that the Laplace density is."""
    return loss_between(_Laplace(prediction.loc, prediction.scale, validate_args=False), target)
