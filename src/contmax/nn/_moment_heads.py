"""Heads from a discrete attention: the density with the moments of its weights, in all or in each window."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from contmax._precision import in_dtype, wide_dtype
from contmax.densities import Mixture
from contmax.nn._parameters import (
    Matching,
    check_least_half_width,
    checked_matching,
    density_of_moments,
    moments_of_weights,
)
from contmax.nn._place import Place, PlacingHead, observed_cells
from contmax.signal import observation_positions

# A window with less of the attention than this counts as empty; its density may be anything.
_EMPTY = 1e-12


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

    _shown = ("dim", "matching", "width_factor", "least_half_width")

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

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, **where: Any) -> Place:
        context, weights = self.discrete(values, query, mask=where["mask"])
        mean, covariance = moments_of_weights(weights, self.dim, **where)
        # The variance of the truncated paraboloid with this semi-axis.
        least = self.least_half_width**2 / (self.dim + 4)
        eye = torch.eye(self.dim, dtype=mean.dtype, device=mean.device) if self.dim > 1 else 1.0
        covariance = self.width_factor**2 * covariance + least * eye
        return Place(density_of_moments(mean, covariance, alpha, self.dim, self.matching), weights, context)


class WindowHead(PlacingHead):
    r"""Looks where a discrete attention looks, also at several peaks: a mixture with one density for each window.

    .. math:: w_j = \sum_\ell k_j(t_\ell)\,p_\ell, \qquad p = \sum_j w_j\,p_j, \qquad
              p_j \text{ with the moments of } k_j(t_\ell)\,p_\ell / w_j

    The windows k_j are products of triangles around n points along each axis of the unit cube, or, where positions are
    given, of the box that they cover, and sum to one everywhere. So the mixture has the mean and the covariance of the
    weights, like the density of a :class:`MomentHead`. But when two objects are attended to, that density also covers
    what lies between them, while the mixture covers the objects, and training can shift weight from one to the other.

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights), such as
            :class:`DiscreteAttention`. Where its weights are zero in a whole window, the component has weight zero too.
        windows: n ≥ 2 along each axis, n^N in all; about as many as objects fit along it.
        dim: N.

    Shape:
        values (B, L, D), weights (B, L) or (B, Q, L) as the discrete attention has them, mask (B, L) or (L,); density
        of batch shape (B,) or (B, Q), with n^N components.

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.WindowHead(contmax.nn.DiscreteAttention(16), windows=4)
        >>> density = head(torch.randn(2, 50, 16), alpha=1.0)
        >>> density.batch_shape, density.mixture_distribution.probs.shape
        (torch.Size([2]), torch.Size([2, 4]))
    """

    _shown = ("windows", "dim")

    def __init__(self, discrete: torch.nn.Module, *, windows: int = 4, dim: int = 1) -> None:
        super().__init__()
        if windows < 2:
            raise ValueError(
                f"windows must be at least 2 along each axis; got {windows}. For one window use MomentHead."
            )
        self.discrete, self.windows, self.dim = discrete, windows, dim

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, **where: Any) -> Place:
        context, weights = self.discrete(values, query, mask=where["mask"])
        wide = in_dtype(weights, wide_dtype(weights.dtype))
        windows = self._windows(in_dtype(self._shares(wide, **where), wide.dtype))
        if weights.dim() == 3 and windows.dim() == 3:
            # The queries of a sequence share its positions.
            windows = windows.unsqueeze(1)
        joint = wide.unsqueeze(-2) * windows
        shares = joint.sum(-1)
        local = joint / shares.clamp(min=_EMPTY).unsqueeze(-1)
        flat = local.flatten(1, -2)
        mean, covariance = moments_of_weights(flat, self.dim, **where)
        mean, covariance = mean.unflatten(1, shares.shape[1:]), covariance.unflatten(1, shares.shape[1:])
        # A sequence with nothing to attend gets a uniform mixture instead of NaN.
        shares = torch.where(shares.sum(-1, keepdim=True) > 0, shares, 1.0)
        # An α for each density gets an axis for the components.
        alpha = alpha.unsqueeze(-1) if isinstance(alpha, Tensor) and alpha.dim() else alpha
        parts = density_of_moments(mean, covariance, alpha, self.dim, "exact")
        return Place(Mixture(Categorical(shares, validate_args=False), parts), weights, context)

    def _shares(
        self, weights: Tensor, positions: Tensor | None, grid: tuple[int, ...] | None, mask: Tensor | None
    ) -> Tensor:
        """Positions in the unit cube: (L, N) or (B, L, N)."""
        if positions is None:
            where = observation_positions(weights.shape[-1], None, grid, mask, weights)
            return where.unsqueeze(-1) if self.dim == 1 else where
        shape = (weights.shape[0], weights.shape[-1])
        cells = observed_cells(shape, self.dim, positions=positions, grid=grid, mask=mask, like=weights)
        return cells.box(mask).shares(cells.centers)

    def _windows(self, where: Tensor) -> Tensor:
        """k_j(t_ℓ), (n^N, L) of positions (L, N), (B, n^N, L) of positions (B, L, N)."""
        nodes = torch.arange(self.windows, dtype=where.dtype, device=where.device)
        # (…, L, N, n)
        triangles = torch.relu(1 - ((self.windows - 1) * where.clamp(0, 1).unsqueeze(-1) - nodes).abs())
        product = triangles[..., 0, :]
        for axis in range(1, self.dim):
            product = (product.unsqueeze(-1) * triangles[..., axis, :].unsqueeze(-2)).flatten(-2)
        return product.mT
