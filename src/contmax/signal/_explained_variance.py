r"""How much of the observations a signal follows: :math:`1 - \sum\|h-V(t)\|^2 / \sum\|h-\bar h\|^2`."""

import torch
from torch import Tensor

from contmax._typing import Bool, Float

_EPS = torch.finfo(torch.float64).eps


def explained_variance(
    values: Float[Tensor, "*batch L D"], fitted: Float[Tensor, "*batch L D"], mask: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*batch"]:
    """The share of their variance, over positions and channels, that fitted values explain.

    Args:
        values: h, in float64; zeros where masked.
        fitted: V(t).
        mask: which positions count, broadcastable to (*batch, L).
    """
    if mask is None:
        counts = torch.ones((), dtype=values.dtype, device=values.device).expand(values.shape[:-1]).unsqueeze(-1)
    else:
        counts = mask.to(values.dtype).expand(values.shape[:-1]).unsqueeze(-1)
    mean = (counts * values).sum(-2, keepdim=True) / counts.sum(-2, keepdim=True).clamp(min=1)
    missed = (counts * (values - fitted).square()).sum((-2, -1))
    total = (counts * (values - mean).square()).sum((-2, -1))
    # What rounding leaves of equal observations is nothing to explain.
    return _share(missed, total, (64 * _EPS) ** 2 * values.square().sum((-2, -1)))


def explained_variance_of_sums(
    coefficients: Float[Tensor, "*batch K D"],
    gram: Float[Tensor, "... K K"],
    cross: Float[Tensor, "*batch K D"],
    sums: tuple[Tensor, Tensor, Tensor],
) -> Float[Tensor, "*batch"]:
    r"""The same from sums over the observations, which cancel where their mean is large beside their spread.

    .. math:: \sum\|h-V\|^2 = \sum\|h\|^2 - 2\langle B, \Psi H^\top\rangle + \langle B, \Psi\Psi^\top B\rangle

    Args:
        coefficients: B, in float64 as all others.
        gram: ΨΨᵀ, which may be one for the whole batch.
        cross: ΨHᵀ.
        sums: the number of observations (*batch), their sum (*batch, D), and the sum of their squares (*batch).
    """
    count, first, second = sums
    missed = second + (coefficients * (gram @ coefficients - 2 * cross)).sum((-2, -1))
    total = second - first.square().sum(-1) / count.clamp(min=1)
    return _share(missed.clamp(min=0), total, 64 * _EPS * second)


def _share(missed: Tensor, total: Tensor, least: Tensor) -> Tensor:
    """1 − missed/total; 1 where there is nothing to explain."""
    varies = total > least
    return torch.where(varies, 1 - missed / torch.where(varies, total, 1.0), 1.0)
