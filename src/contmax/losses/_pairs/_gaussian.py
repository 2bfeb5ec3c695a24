"""Torch's own Gaussians as predictions: the β-Gaussians of index one."""

from typing import Any

from torch import Tensor
from torch.distributions import Distribution, Independent, LowRankMultivariateNormal, MultivariateNormal, Normal

from contmax.densities import BetaGaussian, MultivariateBetaGaussian
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
