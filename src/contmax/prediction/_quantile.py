"""Where along a line a given share of the mass is reached: the inverse of the cumulated quadrature."""

import torch
from torch import Tensor

from contmax._eager import is_eager
from contmax._typing import Float, Int
from contmax.numerics import (
    gauss_legendre,
    grading,
    legendre_antiderivative,
    legendre_basis,
    legendre_coefficients,
    legendre_sum,
)
from contmax.prediction._live_parts import Parts

# From a bracket between two neighbouring nodes Newton's method arrives in three or four steps; beside the end of the
# support, where the density vanishes, the bracket shrinks by half instead.
_STEPS = 8


def take(field: Tensor, index: Int[Tensor, "..."], rows: torch.Size) -> Tensor:
    """Entry `index` (*sample, *rows) of each row's field (*rows, C, *rest): (*sample, *rows, *rest)."""
    count, *rest = field.shape[len(rows) :]
    if rows:
        index = index + count * torch.arange(rows.numel(), device=field.device).reshape(rows)
    # Whole slices are copied, which takes a fraction of the time of indexing by several tensors.
    return field.reshape((-1, *rest)).index_select(0, index.reshape(-1)).reshape((*index.shape, *rest))


def bucket(masses: Float[Tensor, "*rows P"], level: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Index (*sample, *rows) of the entry within which the running sum of masses passes a level; one that has mass."""
    rows, masses = masses.shape[:-1], masses.detach()
    reached, level = masses.cumsum(-1), level.detach()
    if is_eager(level) and is_eager(masses):
        flat = level.reshape(-1, rows.numel()).T.contiguous()
        index = torch.searchsorted(reached.reshape(rows.numel(), -1), flat, right=True).T.reshape(level.shape)
    else:
        index = (reached <= level[..., None]).sum(-1)
    live = (masses > 0).to(torch.int8)
    last = live.shape[-1] - 1 - live.flip(-1).argmax(-1)
    return torch.minimum(index, last)


def mass_before(parts: Parts) -> Float[Tensor, "*rows P"]:
    """Mass to the left of each piece of the line, P = 2C pieces."""
    masses = parts.mass.sum(-1).flatten(-2)
    return masses.cumsum(-1) - masses


def locate_quantile(parts: Parts, level: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Cell (*sample, *rows) and local coordinate at which the share `level` of each row's mass lies to the left."""
    rows = parts.mass.shape[:-3]
    piece, u = locate_share(parts.mass.flatten(-3, -2), level)
    start, stop = (take(end.detach().flatten(-2), piece, rows) for end in (parts.start, parts.stop))
    return piece // 2, start + (stop - start) * grading(u)


def locate_share(masses: Float[Tensor, "*rows P n"], level: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Piece, and position u in [0, 1] of it, up to which a share of the mass lies; both (*sample, *rows).

    Nothing is differentiated here.

    Args:
        masses: masses at the Gauss nodes in u of consecutive pieces.
        level: shares in [0, 1], (*sample, *rows).
    """
    rows, masses = masses.shape[:-2], masses.detach()
    piece_masses = masses.sum(-1)
    target = level.detach() * piece_masses.sum(-1)
    piece = bucket(piece_masses, target)
    before = take(piece_masses.cumsum(-1) - piece_masses, piece, rows)
    share = _share_of_piece(take(masses, piece, rows), target - before)
    # Where the density vanishes at the ends, rounding would keep their own probabilities away from them.
    return piece, torch.where(level <= 0, 0, torch.where(level >= 1, 1, share))


def _share_of_piece(masses: Float[Tensor, "... n"], target: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """u up to which a piece holds the target mass: in u the density is smooth, its antiderivative a polynomial."""
    nodes, weights = gauss_legendre(masses.shape[-1], masses.device)
    slope = legendre_coefficients(masses / weights)
    value = legendre_antiderivative(slope)
    reached = value @ legendre_basis(nodes, value.shape[-1]).T
    passed = (reached < target[..., None]).sum(-1)
    pad = torch.nn.functional.pad  # a number written into a tensor on a device would wait for it
    fence = pad(pad(nodes, (1, 0), value=-1.0), (0, 1), value=1.0)
    low, high = fence[passed], fence[passed + 1]
    # One coefficient of all parts side by side in memory, since the recurrences run over coefficients.
    slope, value = (table.movedim(-1, 0).contiguous().movedim(0, -1) for table in (slope, value))
    u = (low + high) / 2
    for _ in range(_STEPS):
        excess = legendre_sum(value, u) - target
        low, high = torch.where(excess < 0, u, low), torch.where(excess > 0, u, high)
        newton = u - excess / _or_one(legendre_sum(slope, u))
        u = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    return (u + 1) / 2


def _or_one(value: Tensor) -> Tensor:
    return torch.where(value > 0, value, 1)
