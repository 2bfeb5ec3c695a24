"""Shared parts of heads, modules that decide where to look: results, cells of observations, densities from moments."""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._eager import common_dtype, in_dtype, wide_dtype
from contmax._typing import Bool, Float
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.maps import moments
from contmax.nn._module import ShownModule
from contmax.signal._observations import check_grid, check_positions, observation_positions, unmasked

Matching = Literal["exact", "paper"]


class Place(NamedTuple):
    """Where a head looks: a density and, if the head has them, the discrete weights that the density comes from.

    Args:
        density: p, of batch shape (B,) or (B, Q).
        weights: one for each position, summing to one, (B, L) or (B, Q, L); None from a head without weights.
        context: the mean of the values under the weights, (B, D) or (B, Q, D); None if it was not computed.
    """

    density: Distribution
    weights: Tensor | None
    context: Tensor | None


class Where(NamedTuple):
    """The arguments of an attention that say where the L observations of each of B sequences are."""

    positions: Tensor | None  # (L,) or (B, L), with a last axis N in N > 1 dimensions; None for the default positions
    grid: tuple[int, ...] | None  # sizes of a grid, row-major; or None
    mask: Tensor | None  # boolean, (L,) or (B, L), True = may be attended; or None


class Head(ShownModule):
    """A module that decides where to look; a subclass defines ``_attend``, which returns a `Place`."""

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, where: Where) -> Place:
        raise NotImplementedError

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
        """The density to attend with, without the mean of the values."""
        return self._attend(values, alpha, query, Where(positions, grid, mask)).density


class PlacingHead(Head):
    """A head whose density comes from discrete weights.

    If ``_attend`` returns no context (the mean of the values under the weights), `attend` computes it.
    """

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
        """The density, the weights of the positions, and the mean of the values under them."""
        place = self._attend(values, alpha, query, Where(positions, grid, mask))
        if place.context is not None or place.weights is None:
            return place
        weights = place.weights.to(values.dtype)
        return Place(place.density, weights, weighted_mean(weights, unmasked(values, mask)))


class Cells(NamedTuple):
    """Observations as cells: each stands for a box around its position; all boxes of a sequence have the same sides."""

    centers: Tensor  # t_ℓ, (B, L, N); 0 where masked
    sides: Tensor  # sides of a cell along each axis, (B, N), positive

    def box(self, mask: Tensor | None) -> "Box":
        """The box that the cells cover; at default positions it is the unit cube."""
        first, last = _ends(self.centers, mask)
        if mask is not None:
            first, last = (torch.where(mask.any(-1).unsqueeze(-1), end, 0) for end in (first, last))
        return Box(first, last - first + self.sides, self.sides / 2)


class Box(NamedTuple):
    """The box that observations cover, and maps between the box and the unit cube."""

    first: Tensor  # the lowest centre of a cell along each axis, (B, N)
    size: Tensor  # sides of the box, (B, N)
    margin: Tensor  # distance from the border of the box to `first`, (B, N)

    def shares(self, points: Tensor) -> Tensor:
        """Points (B, …, N) of the domain, mapped to the unit cube. To limit rounding, `margin` is added last."""
        first, size, margin = (_aligned(part, points) for part in self)
        return (points - first + margin) / size

    def points(self, shares: Tensor) -> Tensor:
        """Points (B, …, N) of the unit cube, mapped to the domain."""
        first, size, margin = (_aligned(part, shares) for part in self)
        return first + (size * shares - margin)

    def lengths(self, shares: Tensor) -> Tensor:
        """Lengths (B, …, N) along the axes of the unit cube, converted to the unit of the domain."""
        return _aligned(self.size, shares) * shares


def _aligned(part: Tensor, points: Tensor) -> Tensor:
    """`part`, (B, N), reshaped to (B, 1…, N) with as many axes as the points."""
    return part.reshape(part.shape[0], *[1] * (points.dim() - 2), part.shape[-1])


def _ends(centers: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The lowest and the highest centre along each axis, (B, N); ∞ and −∞ for a fully masked sequence."""
    if mask is None:
        return centers.amin(-2), centers.amax(-2)
    may = mask.unsqueeze(-1)
    return torch.where(may, centers, torch.inf).amin(-2), torch.where(may, centers, -torch.inf).amax(-2)


def observed_cells(shape: tuple[int, int], dim: int, given: Where, like: Tensor) -> Cells:
    """The cells of L observations in each of B sequences.

    On a grid, and at default positions, the cells divide the unit cube. At given positions the side of a cell is the
    mean spacing of n positions: (max t − min t)/(n^(1/N) − 1) along each axis. Along an axis on which all positions
    coincide it is the side along the widest axis. The cell of a single position has sides of nearly 0.

    Args:
        shape: (B, L).
        dim: N.
        given: where the observations are.
        like: a tensor whose dtype and device the result has; positions in float64 stay in float64.

    Raises:
        ValueError: if positions or grid do not fit.
    """
    observations, (positions, grid, mask) = torch.Size(shape), given
    check_positions(observations, dim, positions)
    check_grid(observations, dim, positions, grid)
    if positions is not None:
        like = like.new_empty(0, dtype=common_dtype(like.dtype, positions.dtype))
    where = in_dtype(observation_positions(shape[1], positions, grid, mask, like), like.dtype)
    centers = (where.unsqueeze(-1) if dim == 1 else where).expand(*shape, dim)
    if grid is not None:
        # Make the sides on the device: a tensor made of a list would be copied to it while the host waits.
        return Cells(centers, torch.stack([like.new_full((), 1 / n) for n in grid]).expand(shape[0], dim))
    count = like.new_full((1, 1), shape[1]) if mask is None else mask.expand(shape).sum(-1, keepdim=True).clamp(min=1)
    count = in_dtype(count, like.dtype)
    if positions is None:
        return Cells(centers, count.reciprocal().expand(shape[0], 1))
    first, last = _ends(centers, mask)
    span = last - first
    spaces = (count ** (1 / dim) - 1).clamp(min=1)
    sides = torch.where(span > 0, span, span.amax(-1, keepdim=True).clamp(min=0)) / spaces
    # If all observations coincide, the sides are 0: raise them. The Σ of a density with such a support is of the order
    # of side^(N+2), and must not underflow to 0.
    sides = sides.clamp(min=torch.finfo(like.dtype).tiny ** (1 / (dim + 2)))
    return Cells(unmasked(centers, mask), sides)


def cells_of_weights(weights: Tensor, dim: int, where: Where) -> tuple[Cells, Tensor]:
    """The cells of L observations relative to an origin, and this origin, for weights (B, L) or (B, Q, L).

    The origin is the lowest centre along each axis, or 0 at default positions and on a grid. Queries share the
    positions of their sequence: for weights (B, Q, L) the cells have an axis of size 1 after the batch.
    """
    cells = observed_cells((weights.shape[0], weights.shape[-1]), dim, where, weights)
    first = cells.sides.new_zeros(1, dim)
    if where.positions is not None:
        # Subtract an origin: weights sum to one only up to rounding, an error that positions far from 0 would amplify.
        first = cells.box(where.mask).first.detach()
        cells = cells._replace(centers=cells.centers - first.unsqueeze(-2))
    if weights.dim() == 3:
        cells, first = Cells(*(part.unsqueeze(1) for part in cells)), first.unsqueeze(1)
    return cells, first


def weighted_mean(weights: Tensor, values: Tensor) -> Tensor:
    """Σ p_ℓ h_ℓ: (B, D) for weights (B, L), (B, Q, D) for weights (B, Q, L)."""
    mixed = in_dtype(weights.unsqueeze(1) if weights.dim() == 2 else weights, values.dtype) @ values
    return mixed.squeeze(1) if weights.dim() == 2 else mixed


def density_of_scale(loc: Tensor, scale: Tensor, alpha: float | Tensor, dim: int) -> Distribution:
    """The β-Gaussian of (μ, σ) on the line, of (μ, Σ) in N dimensions."""
    if dim == 1:
        return BetaGaussian(loc, scale, alpha, validate_args=False)
    return MultivariateBetaGaussian(loc, scale, alpha, validate_args=False)


def density_of_moments(
    mean: Tensor, covariance: Tensor, alpha: float | Tensor, dim: int, matching: Matching = "exact"
) -> Distribution:
    """The β-Gaussian with these moments; for matching "paper", with the covariance as its shape parameter Σ."""
    if matching == "paper":
        return density_of_scale(mean, covariance.sqrt() if dim == 1 else covariance, alpha, dim)
    if dim == 1:
        return BetaGaussian.from_moments(mean, covariance, alpha, validate_args=False)
    return MultivariateBetaGaussian.from_moments(mean, covariance, alpha, validate_args=False)


def moments_of_weights(weights: Tensor, dim: int, where: Where) -> tuple[Tensor, Tensor]:
    """Mean and (co)variance of the positions of L observations under weights (B, L) or (B, Q, L)."""
    wide = in_dtype(weights, wide_dtype(weights.dtype))
    (centers, sides), first = cells_of_weights(wide, dim, where)
    if dim == 1:
        centers, first = centers.squeeze(-1), first.squeeze(-1)
    else:
        # Expand the centres of each sequence to the shape (*batch, L, N) that `moments` takes, over all its queries.
        centers = centers.expand(*weights.shape, dim)
    mean, covariance = moments(wide, centers, sides=sides)
    return first + mean, covariance


def ball_covariance(square: float, dim: int, like: Tensor) -> Tensor | float:
    """a²/(N + 4)·I, the covariance of a truncated paraboloid on a ball of radius a, for a² = `square`."""
    return square / (dim + 4) * (torch.eye(dim, dtype=like.dtype, device=like.device) if dim > 1 else 1.0)


def check_least_half_width(least: float | None) -> None:
    """Raise ValueError for a least half-width that is negative or NaN."""
    if least is not None and not least >= 0:
        raise ValueError(f"least_half_width must not be negative; got {least}. Pass a length in units of the domain.")


def checked_matching(matching: Matching) -> Matching:
    """The matching; raises ValueError for an unknown name."""
    if matching not in get_args(Matching):
        raise ValueError(f'matching must be "exact" or "paper"; got {matching!r}.')
    return matching
