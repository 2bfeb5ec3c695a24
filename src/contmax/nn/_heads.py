"""Score heads: modules that decide where a continuous attention looks."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from contmax._mask import require_boolean
from contmax._typing import Bool, Float
from contmax.densities import MultivariateBetaGaussian
from contmax.nn._parameters import (
    Matching,
    check_query,
    check_values,
    checked_matching,
    density_of_scale,
    density_of_weights,
    wide_linear,
)
from contmax.nn._place import Place

# The least shape parameter σ² of a head, so that a saturated softplus still is a density.
_LEAST = 1e-12
_CONVOLUTIONS: dict[int, type[torch.nn.Module]] = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}


class PooledHead(torch.nn.Module):
    r"""Where to look from a summary of the values: convolution, maximum over positions, affine maps.

    .. math:: v = \max_\ell\, \mathrm{relu}(\mathrm{conv}(H))_\ell, \qquad
              \mu = \mathrm{sigmoid}(W_1 v), \qquad \sigma^2 = \mathrm{softplus}(w_2^\top v)

    In N > 1 dimensions Σ = LLᵀ with squared diagonal softplus(W₂v) and the entries W₃v below it. μ lies in the unit
    cube, where positions are by default.

    Args:
        embed_dim: D, channels of the values.
        dim: N, 1 to 3; for N > 1 the attention must be told the `grid`.
        hidden_dim: channels of the convolution; D by default.
        kernel_size: its width, odd.
        query_dim: channels of queries, joined to v; None for a head without queries.

    Shape:
        values (B, L, D), query (B, query_dim) or (B, Q, query_dim); density of batch shape (B,) or (B, Q).

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.PooledHead(16)
        >>> head(torch.randn(2, 50, 16), alpha=2.0).batch_shape
        torch.Size([2])

    Reference: Martins et al. 2020, document classification.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        dim: int = 1,
        hidden_dim: int | None = None,
        kernel_size: int = 3,
        query_dim: int | None = None,
    ) -> None:
        super().__init__()
        if dim not in _CONVOLUTIONS:
            raise ValueError(f"dim must be 1, 2 or 3; got {dim}. For other domains pass a head of your own.")
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, to stay aligned with the positions; got {kernel_size}.")
        self.embed_dim, self.dim, self.query_dim = embed_dim, dim, query_dim
        width = embed_dim if hidden_dim is None else hidden_dim
        make: Any = _CONVOLUTIONS[dim]
        self.convolution = make(embed_dim, width, kernel_size, padding=kernel_size // 2)
        summary = width + (query_dim or 0)
        self.location = torch.nn.Linear(summary, dim)
        self.scale = torch.nn.Linear(summary, dim + dim * (dim - 1) // 2)

    def forward(
        self,
        values: Float[Tensor, "B L D"],
        *,
        alpha: float | Tensor,
        query: Float[Tensor, "..."] | None = None,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Distribution:
        """The density to attend with; the summary does not depend on `positions`."""
        check_values(values, self.embed_dim, "values")
        check_query(query, self.query_dim, values)
        summary = self._summary(values, grid, mask)
        if query is not None:
            if query.dim() == 3:
                summary = summary.unsqueeze(1).expand(-1, query.shape[1], -1)
            summary = torch.cat([summary, query.to(summary.dtype)], -1)
        loc, spread = torch.sigmoid(wide_linear(self.location, summary)), wide_linear(self.scale, summary)
        squared = softplus(spread[..., : self.dim]) + _LEAST
        if self.dim == 1:
            return density_of_scale(loc.squeeze(-1), squared.squeeze(-1).sqrt(), alpha, 1)
        tril = _lower_triangular(squared.sqrt(), spread[..., self.dim :])
        return MultivariateBetaGaussian(loc, alpha=alpha, scale_tril=tril, validate_args=False)

    def _summary(self, values: Tensor, grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """v, (B, hidden_dim): over the positions that may be attended; zeros where there are none."""
        if (1 if grid is None else len(grid)) != self.dim:
            raise ValueError(
                f"A head of dim={self.dim} needs a grid of {self.dim} sizes; got {grid}. Pass grid=(…) to the "
                "attention, or make the head with dim=…."
            )
        require_boolean(mask)
        may = None if mask is None else mask.expand(values.shape[:-1])
        seen = values if may is None else torch.where(may.unsqueeze(-1), values, 0)
        channels_first = seen.mT if grid is None else seen.mT.unflatten(-1, grid)
        features = torch.relu(self.convolution(channels_first)).flatten(2)
        if may is not None:
            # After relu nothing is below zero: a zero never wins over an attended position.
            features = torch.where(may.unsqueeze(1), features, 0)
        return features.amax(-1)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"embed_dim={self.embed_dim}, dim={self.dim}, query_dim={self.query_dim}"


def _lower_triangular(diagonal: Tensor, below: Tensor) -> Tensor:
    """The matrix (…, N, N) with this diagonal (…, N), and these entries below it (…, N(N−1)/2), row by row."""
    rest, zero = iter(below.unbind(-1)), torch.zeros_like(diagonal[..., 0])
    rows = [
        [*(next(rest) for _ in range(i)), entry, *[zero] * (diagonal.shape[-1] - 1 - i)]
        for i, entry in enumerate(diagonal.unbind(-1))
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


class MomentHead(torch.nn.Module):
    r"""Where to look from a discrete attention: the density with the moments of its weights over the positions.

    .. math:: \mu = E_p[t], \qquad V = \mathrm{Cov}_p[t] + \mathrm{diag}\big(1/12L_i^2\big)

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights), such as
            :class:`DiscreteAttention`.
        dim: N.
        matching: "exact" for the β-Gaussian with mean μ and covariance V; "paper" for the one with shape parameter
            Σ := V, which is the same only for α = 1.

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.MomentHead(contmax.nn.DiscreteAttention(16))
        >>> head(torch.randn(2, 50, 16), alpha=2.0).batch_shape
        torch.Size([2])

    Reference: Martins et al. 2020, combined attention.
    """

    def __init__(self, discrete: torch.nn.Module, *, dim: int = 1, matching: Matching = "exact") -> None:
        super().__init__()
        self.discrete, self.dim, self.matching = discrete, dim, checked_matching(matching)

    def forward(
        self,
        values: Float[Tensor, "B L D"],
        *,
        alpha: float | Tensor,
        query: Float[Tensor, "..."] | None = None,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Distribution:
        """The density to attend with."""
        place = self.attend(values, alpha=alpha, query=query, positions=positions, grid=grid, mask=mask)
        return place.density

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
        density = density_of_weights(weights, alpha, self.dim, self.matching, positions=positions, grid=grid, mask=mask)
        return Place(density, weights, context)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"dim={self.dim}, matching={self.matching!r}"
