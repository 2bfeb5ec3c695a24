"""Mean and covariance of positions under a probability vector."""

import torch
from torch import Tensor

from contmax._eager import common_dtype, in_dtype, wide_dtype, without_autocast
from contmax._mask import require_mask
from contmax._typing import Bool, Float


def moments(
    weights: Float[Tensor, "*batch L"],
    positions: Float[Tensor, "..."],
    *,
    grid: tuple[int, ...] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    sides: Float[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""Mean and covariance of positions under weights, each position standing for a cell of the unit cube.

    .. math:: \mu = \sum_\ell p_\ell t_\ell, \qquad
              V = \sum_\ell p_\ell (t_\ell-\mu)(t_\ell-\mu)^\top + \mathrm{diag}\Big(\frac1{12 L_i^2}\Big)

    The last term is the spread of a uniform cell of side 1/L_i, so that all weight on one position is a narrow density
    and not a degenerate one.

    Args:
        weights: p, (*batch, L), summing to one over L, such as a discrete attention; a row of zeros gives mean zero.
        positions: t. On the line (L,) or (*batch, L); in N dimensions (L, N) or (*batch, L, N). If N = L, a matrix
            means positions on the line: pass (*batch, L, N).
        grid: numbers of cells L_i along the N axes; by default n^(1/N) for all of them, n the number of positions.
        mask: boolean, (L,) or (*batch, L); True = counts, in n too. Masked entries may be anything, even NaN.
        sides: sides of a cell along the N axes, broadcastable to (*batch, N), in place of 1/L_i: for positions in units
            other than those of the unit cube.

    Returns:
        On the line mean and variance, both (*batch); in N dimensions mean (*batch, N) and covariance (*batch, N, N).

    Raises:
        ValueError: if positions do not fit the weights.

    Example:
        >>> import torch, contmax
        >>> contmax.maps.moments(torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([0.125, 0.375, 0.625, 0.875]))
        (tensor(0.3750), tensor(0.0052))

    Reference: Martins et al. 2020, combined attention; there without the cell's own spread.
    """
    require_mask(mask, weights.shape, "weights")
    on_line = (grid is None or len(grid) == 1) and positions.shape[-1:] == weights.shape[-1:]
    on_line = on_line and positions.dim() <= weights.dim()
    points = positions.unsqueeze(-1) if on_line else positions
    length = weights.shape[-1]
    if points.dim() < 2 or points.shape[-2] != length or (grid is not None and len(grid) != points.shape[-1]):
        where = "" if grid is None else f" and a grid of {len(grid)} axes"
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} do not fit weights of shape {tuple(weights.shape)}{where}: "
            f"pass (L,) or (*batch, L) on the line, (L, N) or (*batch, L, N) in N dimensions, with L = {length}."
        )
    dtype = common_dtype(weights.dtype, positions.dtype)
    wide = wide_dtype(dtype)
    p, points = in_dtype(weights.unsqueeze(-1), wide), in_dtype(points, wide)
    if mask is not None:
        may = mask.unsqueeze(-1)
        p, points = torch.where(may, p, 0), torch.where(may, points, 0)
    mean = (p * points).sum(-2)
    offset = points - mean.unsqueeze(-2)
    with without_autocast(weights):
        covariance = (p * offset).mT @ offset
    spread = _cell_spread(p, grid, mask, mean) if sides is None else (in_dtype(sides, wide).square() / 12)
    covariance = covariance + torch.diag_embed(spread.expand_as(mean))
    mean, covariance = in_dtype(mean, dtype), in_dtype(covariance, dtype)
    return (mean.squeeze(-1), covariance[..., 0, 0]) if on_line else (mean, covariance)


def _cell_spread(p: Tensor, grid: tuple[int, ...] | None, mask: Tensor | None, mean: Tensor) -> Tensor:
    """1/(12 L_i²) for each axis i, of L_i cells: the variance within a cell, in the shape of the mean, (*batch, N)."""
    length, dim = p.shape[-2], mean.shape[-1]
    if mask is not None and grid is None:
        count = mask.sum(-1, keepdim=True).clamp(min=1).to(mean.dtype)
        return (1 / (12 * count ** (2 / dim))).expand_as(mean)
    sizes = grid if grid is not None else (length ** (1 / dim),) * dim
    # Fill on the device: a tensor made from a list would be copied to the device while the host waits.
    return torch.stack([mean.new_full((), 1 / (12 * n * n)) for n in sizes]).expand_as(mean)
