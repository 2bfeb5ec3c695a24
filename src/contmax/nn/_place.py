"""What a head says, and where the observations stand that it looks at."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._mask import has_shape
from contmax._precision import in_dtype
from contmax._typing import Bool, Float
from contmax.signal import observation_positions


class Place(NamedTuple):
    """Where a head looks: a density and, if the head has them, the discrete weights that the density comes from.

    Args:
        density: p, of batch shape (B,) or (B, Q).
        weights: one for each position, summing to one, (B, L) or (B, Q, L); None from a head without weights.
        context: the mean of the values under the weights, (B, D) or (B, Q, D); None from a head without weights.
    """

    density: Distribution
    weights: Tensor | None
    context: Tensor | None


class PlacingHead(torch.nn.Module):
    """A head that knows the weights behind its density: a subclass defines ``attend``, a call gives the density."""

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
        raise NotImplementedError

    def forward(self, values: Float[Tensor, "B L D"], **where: Any) -> Distribution:
        """The density to attend with; takes the arguments of `attend`."""
        return self.attend(values, **where).density


class Cells(NamedTuple):
    """Observations as cells of the domain.

    Args:
        centers: t_ℓ, (B, L, N); 0 where nothing may be attended.
        sides: of one cell along each axis, (B, N), positive.
    """

    centers: Tensor
    sides: Tensor


def observed_cells(
    shape: tuple[int, int],
    dim: int,
    *,
    positions: Tensor | None,
    grid: tuple[int, ...] | None,
    mask: Tensor | None,
    like: Tensor,
) -> Cells:
    """The cells of L observations in each of B sequences.

    On a grid, and at default positions, these are the cells of the unit cube. Where positions are given a cell is as
    wide as n of them are apart on average: (max t − min t)/(n^(1/N) − 1) along each axis; one alone has the unit cube.

    Args:
        shape: (B, L).
        dim: N.
        positions: (L,) or (B, L), with a last axis N in N > 1 dimensions; or None.
        grid: sizes of a grid, row-major; or None.
        mask: boolean, (L,) or (B, L).
        like: a tensor whose dtype and device the result has.

    Raises:
        ValueError: if positions or grid do not fit.
    """
    _check(shape, dim, positions, grid)
    where = in_dtype(observation_positions(shape[1], positions, grid, mask, like), like.dtype)
    centers = (where.unsqueeze(-1) if dim == 1 else where).expand(*shape, dim)
    if grid is not None:
        # Filled on the device: a tensor made of a list would be copied there, and the host would wait.
        return Cells(centers, torch.stack([like.new_full((), 1 / n) for n in grid]).expand(shape[0], dim))
    if positions is None and mask is None:
        return Cells(centers, like.new_full((1, 1), 1 / shape[1]).expand(shape[0], 1))
    may = torch.ones_like(centers[..., 0], dtype=torch.bool) if mask is None else mask.expand(shape)
    count = may.sum(-1, keepdim=True).clamp(min=1).to(like.dtype)
    if positions is None:
        return Cells(centers, count.reciprocal())
    may = may.unsqueeze(-1)
    span = torch.where(may, centers, -torch.inf).amax(-2) - torch.where(may, centers, torch.inf).amin(-2)
    apart = (count ** (1 / dim) - 1).clamp(min=1)
    sides = torch.where(span > 0, span / apart, count ** (-1 / dim))
    # Observations that all but coincide still are a density: its Σ, of the order of side^(N+2), must not vanish.
    sides = sides.clamp(min=torch.finfo(like.dtype).tiny ** (1 / (dim + 4)))
    return Cells(torch.where(may, centers, 0), sides)


def _check(shape: tuple[int, int], dim: int, positions: Tensor | None, grid: tuple[int, ...] | None) -> None:
    batch, length = shape
    if length == 0:
        raise ValueError(f"values of {batch} sequences hold no observation: L = 0. Skip such inputs.")
    if grid is not None and (len(grid) != dim or torch.Size(grid).numel() != length or positions is not None):
        given = " beside positions" if positions is not None else ""
        raise ValueError(
            f"grid {tuple(grid)}{given} does not fit a head of dim={dim} and {length} values: pass {dim} sizes whose "
            f"product is {length}, or positions instead, or make the head with dim={len(grid)}."
        )
    if grid is None and positions is None and dim > 1:
        raise ValueError(
            f"A head of dim={dim} needs a grid of {dim} sizes, or positions of shape (L, {dim}); got neither. Pass "
            "grid=(…) to the attention when it is made or called."
        )
    tail = () if dim == 1 else (dim,)
    shapes = [(*b, length, *tail) for b in ((), (1,), (batch,))]
    if positions is not None and not has_shape(positions, *shapes):
        axes = ", ".join(map(str, (length, *tail)))
        raise ValueError(
            f"positions must have shape ({axes},) or (B, {axes}), B = {batch}; got {tuple(positions.shape)}."
        )
