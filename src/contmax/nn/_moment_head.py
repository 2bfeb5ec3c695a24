"""A head from a discrete attention: the density with the moments of its weights."""

import torch
from torch import Tensor

from contmax._typing import Bool, Float
from contmax.nn._parameters import (
    Matching,
    check_least_half_width,
    checked_matching,
    density_of_moments,
    moments_of_weights,
)
from contmax.nn._place import Place, PlacingHead


class MomentHead(PlacingHead):
    r"""Looks where a discrete attention looks: the density has the moments of its weights over the positions.

    .. math:: \mu = E_p[t], \qquad V = s^2\big(\mathrm{Cov}_p[t] + \mathrm{diag}(1/12L_i^2)\big) + \frac{a^2}{N+4}\,I

    L_i observations lie along each axis of the unit cube; where positions are given, 1/L_i is their mean spacing, in
    their unit. The head finds the place, but trained from labels alone it stays narrow, since a softmax stays peaked: s
    and a widen it. For α = 2 the support is s times as wide, and has no half-width (semi-axis) below a.

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights), such as
            :class:`DiscreteAttention`.
        dim: N.
        matching: "exact" for the β-Gaussian with mean μ and covariance V; "paper" for the one with shape parameter
            Σ := V, which is the same only for α = 1.
        width_factor: s > 0; 1 for the moments as they are.
        least_half_width: a ≥ 0, about the radius of the objects, in the unit of the positions; 0 for none.

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.MomentHead(contmax.nn.DiscreteAttention(16))
        >>> head(torch.randn(2, 50, 16), alpha=2.0).batch_shape
        torch.Size([2])

    Reference: Martins et al. 2020, combined attention.
    """

    def __init__(
        self,
        discrete: torch.nn.Module,
        *,
        dim: int = 1,
        matching: Matching = "exact",
        width_factor: float = 1.0,
        least_half_width: float = 0.0,
    ) -> None:
        super().__init__()
        if not width_factor > 0:
            raise ValueError(f"width_factor must be positive; got {width_factor}. 1 leaves the moments as they are.")
        check_least_half_width(least_half_width)
        self.discrete, self.dim, self.matching = discrete, dim, checked_matching(matching)
        self.width_factor, self.least_half_width = width_factor, least_half_width

    def attend(
        self,
        values: Float[Tensor, "B L D"],
        *,
        alpha: float | Tensor,
        query: Float[Tensor, "..."] | None = None,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Place:
        """The density, and the weights and the context of the discrete attention."""
        context, weights = self.discrete(values, query, mask=mask)
        mean, covariance = moments_of_weights(weights, self.dim, positions=positions, grid=grid, mask=mask)
        # Of the truncated paraboloid with this least semi-axis.
        least = self.least_half_width**2 / (self.dim + 4)
        eye = torch.eye(self.dim, dtype=mean.dtype, device=mean.device) if self.dim > 1 else 1.0
        covariance = self.width_factor**2 * covariance + least * eye
        return Place(density_of_moments(mean, covariance, alpha, self.dim, self.matching), weights, context)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return (
            f"dim={self.dim}, matching={self.matching!r}, width_factor={self.width_factor:g}, "
            f"least_half_width={self.least_half_width:g}"
        )
