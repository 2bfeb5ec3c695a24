"""Targets of batches that are labelled in part: where nothing is known, a harmless member of the same family.

A target may hold anything where it does not count: NaN, or an interval that ends where it begins. Leaving its loss out
afterwards is too late, since zero times an infinite derivative is NaN.
"""

import copy
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Laplace, MultivariateNormal, Normal, StudentT, Uniform

from contmax._typing import Bool
from contmax.densities import Empirical, LineDensity, MultivariateBetaGaussian

#: Parameters for which nothing overflows, by family.
_HARMLESS: dict[type, dict[str, float]] = {
    Uniform: {"low": 0.0, "high": 1.0},
    Normal: {"loc": 0.0, "scale": 1.0},
    Laplace: {"loc": 0.0, "scale": 1.0},
    StudentT: {"loc": 0.0, "scale": 1.0, "df": 3.0},
    LineDensity: {"loc": 0.0, "scale": 1.0},
}


def harmless_where_unlabelled(
    target: Distribution | Tensor, labelled: Bool[Tensor, "..."], event_dims: int
) -> Distribution | Tensor:
    """The target with harmless parameters where it does not count; their gradient there is zero.

    Args:
        target: a distribution, or observations ``(*sample, *batch)`` or ``(*sample, *batch, N)``.
        labelled: where the target counts, broadcastable with its batch.
        event_dims: 1 if observations have coordinates, else 0.

    Returns:
        A target of the same type, of the broadcast batch. Families without known harmless parameters are returned as
        they are.

    Example:
        >>> spans = Uniform(torch.tensor([0.2, float("nan")]), torch.tensor([0.6, 0.0]), validate_args=False)
        >>> harmless_where_unlabelled(spans, torch.tensor([True, False]), 0).high
        tensor([0.6000, 1.0000])
    """
    if isinstance(target, Tensor):
        return torch.where(labelled.reshape(labelled.shape + (1,) * event_dims), target, 0.0)
    return _harmless(target, labelled)


def _harmless(target: Distribution, labelled: Tensor) -> Distribution:
    shape = torch.broadcast_shapes(target.batch_shape, labelled.shape)
    if isinstance(target, Independent):
        axes = (1,) * target.reinterpreted_batch_ndims
        base = _harmless(target.base_dist, labelled.reshape(labelled.shape + axes))
        return Independent(base, target.reinterpreted_batch_ndims, validate_args=False)
    if isinstance(target, MultivariateBetaGaussian):
        loc, tril = _vector_and_matrix(target, labelled)
        return MultivariateBetaGaussian(loc, scale_tril=tril, alpha=target.alpha, validate_args=False)
    if isinstance(target, MultivariateNormal):
        loc, tril = _vector_and_matrix(target, labelled)
        return MultivariateNormal(loc, scale_tril=tril, validate_args=False)
    if isinstance(target, Empirical):
        kept = labelled.unsqueeze(-1)
        points = kept.unsqueeze(-1) if target.event_shape else kept
        return Empirical(
            torch.where(points, target.samples, 0.0),
            torch.where(kept, target.weights, 1.0),
            event_dim=len(target.event_shape),
            validate_args=False,
        )
    values = next((values for kind, values in _HARMLESS.items() if isinstance(target, kind)), None)
    if values is None:
        return target
    new: Any = copy.copy(target if target.batch_shape == shape else target.expand(shape))
    for name, value in values.items():
        setattr(new, name, torch.where(labelled, getattr(new, name), value))
    return cast(Distribution, new)


def _vector_and_matrix(target: Any, labelled: Tensor) -> tuple[Tensor, Tensor]:
    """μ and L of a density in N dimensions, where unlabelled 0 and I."""
    tril: Tensor = target.scale_tril
    eye = torch.eye(tril.shape[-1], dtype=tril.dtype, device=tril.device)
    loc = torch.where(labelled[..., None], target.loc, 0.0)
    return loc, torch.where(labelled[..., None, None], tril, eye)
