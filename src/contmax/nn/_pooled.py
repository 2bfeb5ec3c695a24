"""A head from a summary of the values: convolution, maximum, affine maps; the paper's, and one that knows where."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from contmax._precision import in_dtype, wide_dtype, without_autocast
from contmax._typing import Bool, Float
from contmax.densities import MultivariateBetaGaussian
from contmax.nn._alpha import ShownModule
from contmax.nn._parameters import (
    check_mask,
    check_query,
    check_values,
    density_of_moments,
    density_of_scale,
    wide_linear,
)
from contmax.nn._place import Box, observed_cells

# The least shape parameter σ² of a head, so that a saturated softplus still is a density; and the least half-width.
_LEAST = 1e-12
_LEAST_HALF_WIDTH = 1e-4
_LEAST_SHARE = 1e-5
# Half-width with which a head with position channels begins: less than half of the unit interval.
_HALF_WIDTH = 0.2
_CONVOLUTIONS: dict[int, type[torch.nn.Module]] = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}


class PooledHead(ShownModule):
    r"""Decides where to look from a summary of the values: convolution, maximum over positions, affine maps.

    .. math:: v = \max_\ell\, \mathrm{relu}(\mathrm{conv}([H, t]))_\ell, \qquad
              \mu = \mathrm{sigmoid}(W_1 v), \qquad a = \mathrm{softplus}(w_2^\top v)

    The positions t are extra channels, because a maximum alone does not tell where it was taken. a is the half-width
    for α = 2; for other α the density has the same variance. In N > 1 dimensions the support is the ellipsoid of T =
    LLᵀ, with diagonal softplus(W₂v) and the entries W₃v below it. μ lies in the unit cube, where positions are by
    default. Where positions are given, the interval that they cover takes its place: t, μ and a are shares of it.

    The head of the paper is ``PooledHead(…, position_channels=False)``: v without t, and σ² = softplus(w₂ᵀv); in N > 1
    dimensions Σ = LLᵀ with squared diagonal softplus(W₂v). After an encoder that treats all positions alike it cannot
    tell where to look, and it begins wider than the domain: use it to reproduce the paper, and :class:`GateHead` to
    find places.

    Args:
        embed_dim: D, channels of the values.
        dim: N, 1 to 3; for N > 1 the attention needs `grid`.
        hidden_dim: channels of the convolution; D by default.
        kernel_size: its width, odd.
        query_dim: channels of queries, joined to v; None for a head without queries.
        position_channels: whether the convolution sees the positions; False for the head of the paper.
        init_half_width: half-width (semi-axis) a to begin with, as a share of the domain. None for 0.2, or, without
            position channels, for the start of the paper.

    Shape:
        values (B, L, D), query (B, query_dim) or (B, Q, query_dim); density of batch shape (B,) or (B, Q).

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.PooledHead(16)
        >>> head(torch.randn(2, 50, 16), alpha=2.0).batch_shape
        torch.Size([2])

    Reference: Martins et al. 2020, document classification.
    """

    _shown = ("embed_dim", "dim", "query_dim", "position_channels", "init_half_width")

    def __init__(
        self,
        embed_dim: int,
        *,
        dim: int = 1,
        hidden_dim: int | None = None,
        kernel_size: int = 3,
        query_dim: int | None = None,
        position_channels: bool = True,
        init_half_width: float | None = None,
    ) -> None:
        super().__init__()
        if dim not in _CONVOLUTIONS:
            raise ValueError(f"dim must be 1, 2 or 3; got {dim}. For other domains pass your own head.")
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, to stay aligned with the positions; got {kernel_size}.")
        if init_half_width is not None and not init_half_width > 0:
            raise ValueError(f"init_half_width must be positive, a share of the domain; got {init_half_width}.")
        self.embed_dim, self.dim, self.query_dim = embed_dim, dim, query_dim
        self.position_channels = position_channels
        self.init_half_width = _HALF_WIDTH if position_channels and init_half_width is None else init_half_width
        width = embed_dim if hidden_dim is None else hidden_dim
        channels = embed_dim + dim if position_channels else embed_dim
        make: Any = _CONVOLUTIONS[dim]
        self.convolution = make(channels, width, kernel_size, padding=kernel_size // 2)
        summary = width + (query_dim or 0)
        self.location = torch.nn.Linear(summary, dim)
        self.scale = _Spread(summary, dim, self.init_half_width)

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
        """The density to attend with; without position channels `positions` say only which interval to look in."""
        check_values(values, self.embed_dim, "values")
        check_query(query, self.query_dim, values)
        self._check_grid(grid)
        check_mask(mask, values)
        like = values.new_empty(0, dtype=wide_dtype(values.dtype))
        shape = (values.shape[0], values.shape[1])
        cells = observed_cells(shape, self.dim, positions=positions, grid=grid, mask=mask, like=like)
        box = None if positions is None else cells.box(mask)
        centers = cells.centers if box is None else box.shares(cells.centers)
        summary = self._summary(values, centers, grid, mask)
        if query is not None:
            if query.dim() == 3:
                summary = summary.unsqueeze(1).expand(-1, query.shape[1], -1)
            summary = torch.cat([summary, in_dtype(query, summary.dtype)], -1)
        loc, spread = torch.sigmoid(wide_linear(self.location, summary)), wide_linear(self.scale, summary)
        make = self._with_scale if self.init_half_width is None else self._with_half_width
        return make(loc if box is None else box.points(loc), spread, alpha, box)

    def _with_half_width(self, loc: Tensor, spread: Tensor, alpha: float | Tensor, box: Box | None) -> Distribution:
        """The density of the support that the numbers mean for α = 2, and for any other α of its moments."""
        half_width = softplus(spread[..., : self.dim]) + _LEAST_HALF_WIDTH
        half_width = half_width if box is None else box.lengths(half_width)
        if self.dim == 1:
            return density_of_moments(loc.squeeze(-1), half_width.squeeze(-1).square() / 5, alpha, 1, "exact")
        tril = _lower_triangular(half_width, spread[..., self.dim :])
        with without_autocast(tril):
            support = tril @ tril.mT
        # The margin keeps a very thin ellipsoid positive definite in spite of rounding.
        support = support + _LEAST_SHARE * torch.diag_embed(support.diagonal(dim1=-2, dim2=-1))
        return density_of_moments(loc, support / (self.dim + 4), alpha, self.dim, "exact")

    def _with_scale(self, loc: Tensor, spread: Tensor, alpha: float | Tensor, box: Box | None) -> Distribution:
        """The density of the shape parameter that the numbers mean, as the paper has it."""
        squared = softplus(spread[..., : self.dim]) + _LEAST
        if self.dim == 1:
            scale = squared.squeeze(-1).sqrt()
            if box is not None:
                # A β-Gaussian that is s times as wide has σ s^((α+1)/2): the support goes with σ^(2/(α+1)).
                stretch = box.lengths(torch.ones_like(loc)).squeeze(-1)
                scale = scale * stretch ** ((alpha + 1) / 2)
            return density_of_scale(loc.squeeze(-1), scale, alpha, 1)
        tril = _lower_triangular(squared.sqrt(), spread[..., self.dim :])
        return MultivariateBetaGaussian(loc, alpha=alpha, scale_tril=tril, validate_args=False)

    def _check_grid(self, grid: tuple[int, ...] | None) -> None:
        if (1 if grid is None else len(grid)) != self.dim:
            raise ValueError(
                f"A head of dim={self.dim} needs a grid of {self.dim} sizes; got {grid}. Pass grid=(…) to the "
                "attention, or make the head with dim=…."
            )

    def _summary(self, values: Tensor, centers: Tensor, grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """v, (B, hidden_dim): over the positions that may be attended; zeros where there are none."""
        may = None if mask is None else mask.expand(values.shape[:-1])
        if self.position_channels:
            values = torch.cat([values, in_dtype(centers, values.dtype)], -1)
        seen = values if may is None else torch.where(may.unsqueeze(-1), values, 0)
        channels_first = seen.mT if grid is None else seen.mT.unflatten(-1, grid)
        features = torch.relu(self.convolution(channels_first)).flatten(2)
        if may is not None:
            # After relu a zero never exceeds the value of an attended position.
            features = torch.where(may.unsqueeze(1), features, 0)
        return features.amax(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        weight = state_dict.get(prefix + "convolution.weight")
        if self.position_channels and weight is not None and weight.shape[1] == self.embed_dim:
            arguments[-1].append(
                "The state dict is that of a head without position channels, as in the paper: make the head with "
                "position_channels=False."
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class _Spread(torch.nn.Linear):
    """From a summary to N widths and the N(N−1)/2 entries below the diagonal.

    With a `start` the widths begin there, and the entries at 0, whatever the summary; else as in any affine map.
    """

    def __init__(self, summary: int, dim: int, start: float | None) -> None:
        self.dim, self.start = dim, start  # torch fills the parameters within __init__
        super().__init__(summary, dim + dim * (dim - 1) // 2)

    def reset_parameters(self) -> None:
        """Reset the parameters."""
        if self.start is None:
            return super().reset_parameters()
        with torch.no_grad():
            self.weight.zero_()
            self.bias.zero_()
            # The inverse of softplus.
            self.bias[: self.dim] = self.start + math.log(-math.expm1(-self.start))


def _lower_triangular(diagonal: Tensor, below: Tensor) -> Tensor:
    """The matrix (…, N, N) with this diagonal (…, N), and these entries below it (…, N(N−1)/2), row by row."""
    rest, zero = iter(below.unbind(-1)), torch.zeros_like(diagonal[..., 0])
    rows = [
        [*(next(rest) for _ in range(i)), entry, *[zero] * (diagonal.shape[-1] - 1 - i)]
        for i, entry in enumerate(diagonal.unbind(-1))
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)
