"""A head from a discrete attention with several peaks: in each window of the domain the density with its moments."""

import torch
from torch import Tensor
from torch.distributions import Categorical

from contmax._precision import in_dtype, wide_dtype
from contmax._typing import Bool, Float
from contmax.densities import Mixture
from contmax.nn._parameters import density_of_moments, moments_of_weights
from contmax.nn._place import Place, PlacingHead
from contmax.signal import observation_positions
from contmax.signal._positions import finite_where_masked

# A window with less of the attention than this is as good as empty; its density may be anything.
_EMPTY = 1e-12


class WindowHead(PlacingHead):
    r"""Looks where a discrete attention looks, also at several peaks: a mixture with one density for each window.

    .. math:: w_j = \sum_\ell k_j(t_\ell)\,p_\ell, \qquad p = \sum_j w_j\,p_j, \qquad
              p_j \text{ with the moments of } k_j(t_\ell)\,p_\ell / w_j

    The windows k_j are products of triangles around n points along each axis of the unit cube, and sum to one
    everywhere. So the mixture has the mean and the covariance of the weights, like the density of a
    :class:`MomentHead`. But when two objects are attended to, that density also covers what lies between them, while
    the mixture covers the objects, and training can shift weight from one to the other.

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights), such as
            :class:`DiscreteAttention`. Where its weights are zero in a whole window, the component has weight zero too.
        windows: n ≥ 2 along each axis, n^N in all; about as many as objects fit along it.
        dim: N.

    Shape:
        values (B, L, D), weights (B, L) or (B, Q, L) as the discrete attention has them, mask (B, L) or (L,); density
        of batch shape (B,) or (B, Q), with n^N components. Positions outside of the unit cube belong to the windows
        at its border.

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.WindowHead(contmax.nn.DiscreteAttention(16), windows=4)
        >>> density = head(torch.randn(2, 50, 16), alpha=1.0)
        >>> density.batch_shape, density.mixture_distribution.probs.shape
        (torch.Size([2]), torch.Size([2, 4]))
    """

    def __init__(self, discrete: torch.nn.Module, *, windows: int = 4, dim: int = 1) -> None:
        super().__init__()
        if windows < 2:
            raise ValueError(
                f"windows must be at least 2 along each axis; got {windows}. For one window use MomentHead."
            )
        self.discrete, self.windows, self.dim = discrete, windows, dim

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
        """The mixture, and the weights and the context of the discrete attention."""
        context, weights = self.discrete(values, query, mask=mask)
        wide = in_dtype(weights, wide_dtype(weights.dtype))
        where = in_dtype(observation_positions(weights.shape[-1], positions, grid, mask, wide), wide.dtype)
        if mask is not None:
            where = finite_where_masked(where, mask, self.dim)
        windows = self._windows(where.unsqueeze(-1) if self.dim == 1 else where)
        if weights.dim() == 3 and windows.dim() == 3:
            # Positions belong to a sequence, and are shared by its queries.
            windows = windows.unsqueeze(1)
        joint = wide.unsqueeze(-2) * windows
        shares = joint.sum(-1)
        local = joint / shares.clamp(min=_EMPTY).unsqueeze(-1)
        flat = local.flatten(1, -2)
        mean, covariance = moments_of_weights(flat, self.dim, positions=positions, grid=grid, mask=mask)
        mean, covariance = mean.unflatten(1, shares.shape[1:]), covariance.unflatten(1, shares.shape[1:])
        # Of nothing to attend some mixture, not NaN.
        shares = torch.where(shares.sum(-1, keepdim=True) > 0, shares, 1.0)
        parts = density_of_moments(mean, covariance, _of_components(alpha), self.dim, "exact")
        return Place(Mixture(Categorical(shares, validate_args=False), parts), weights, context)

    def _windows(self, where: Tensor) -> Tensor:
        """k_j(t_ℓ), (n^N, L) of positions (L, N), (B, n^N, L) of positions (B, L, N)."""
        nodes = torch.arange(self.windows, dtype=where.dtype, device=where.device)
        # (…, L, N, n)
        triangles = torch.relu(1 - ((self.windows - 1) * where.clamp(0, 1).unsqueeze(-1) - nodes).abs())
        product = triangles[..., 0, :]
        for axis in range(1, self.dim):
            product = (product.unsqueeze(-1) * triangles[..., axis, :].unsqueeze(-2)).flatten(-2)
        return product.mT

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"windows={self.windows}, dim={self.dim}"


def _of_components(alpha: float | Tensor) -> float | Tensor:
    """α with an axis for the components, where there is one for each density."""
    return alpha.unsqueeze(-1) if isinstance(alpha, Tensor) and alpha.dim() else alpha
