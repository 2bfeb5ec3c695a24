"""How well what is attended to agrees with the truth, for weights and densities alike."""

import dataclasses
from typing import cast

import torch
from torch import Tensor

from contmax.densities import Density
from contmax_lab.tasks.places._attention import Place, Scene

# Points along an axis at which sets are compared, by the number of axes.
_POINTS = {1: 2000, 2: 84}
# What is never zero counts as attended to where it is highest, until so much of the mass is held.
_MASS = 0.95


@dataclasses.dataclass(frozen=True)
class Looked:
    """Where an attention looked, as masses and sets on a fine grid over the unit interval or square.

    Args:
        points: P points, shape (P, N).
        mass: of each, shape (B, P), of sum 1.
        seen: whether it counts as attended to, shape (B, P).
    """

    points: Tensor
    mass: Tensor
    seen: Tensor


@torch.no_grad()
def looked(scene: Scene, place: Place) -> Looked:
    """Masses and sets of an attention with weights, with a density, or with both, half the mass each.

    An observation stands for the points that are nearer to it than to others. Attended to is where a weight or the
    density is above zero; of softmax and of the Gaussian, which are so everywhere, the smallest set of points that
    holds 95 % of the mass. Which of the two it is, the map decides and not the zeros: far away softmax and a narrow
    Gaussian are rounded to zero.

    Args:
        scene: what the attention was given; positions on the line increase.
        place: what it returned; of several densities the mean is taken.
    """
    where, mask, weights, density = scene.where, scene.mask, place.weights, place.density
    dim = where.shape[-1]
    line = (torch.arange(_POINTS[dim], device=where.device) + 0.5) / _POINTS[dim]
    points = torch.cartesian_prod(*[line] * dim).reshape(-1, dim)
    parts = []
    if weights is not None:
        cells = _cells(points, where, mask, scene.grid)
        # The mass of an observation is spread over its cell.
        size = torch.zeros_like(weights).scatter_add(1, cells, torch.ones_like(cells, dtype=weights.dtype))
        height = (weights / size.clamp(min=1)).gather(1, cells)
        parts.append((height, place.sparse))
    if density is not None:
        at = points if dim > 1 else points.squeeze(-1)
        batch = density.batch_shape
        height = density.log_prob(at.reshape(len(points), *[1] * len(batch), *at.shape[1:])).exp()
        bounded = bool(cast(Density, density).area.isfinite().all())
        parts.append((height.flatten(2).mean(-1).mT if len(batch) > 1 else height.mT, bounded))
    masses = [height / height.sum(-1, keepdim=True).clamp(min=1e-12) for height, _ in parts]
    sets = [mass > 0 if sparse else _smallest(mass) for mass, (_, sparse) in zip(masses, parts, strict=True)]
    return Looked(points, torch.stack(masses).mean(0), torch.stack(sets).any(0))


@torch.no_grad()
def agreement(found: Looked, low: Tensor, high: Tensor) -> dict[str, Tensor]:
    """Measures of each example against its true interval or box [low, high], (B, N); each of shape (B,).

    ``iou``: of the set that was attended to; ``hull_iou``: of the smallest interval or box around it; ``inside``: share
    of the mass in the truth; ``coverage``: share of the truth that was attended to; ``centre``: whether the mean of the
    mass lies in the truth; ``size`` and ``true_size``: lengths or areas.
    """
    true = _within(found.points, low, high)
    spot = found.points.expand(len(low), -1, -1)
    far = torch.where(found.seen.unsqueeze(-1), spot, torch.inf).amin(1)
    near = torch.where(found.seen.unsqueeze(-1), spot, -torch.inf).amax(1)
    mean = (found.mass.unsqueeze(1) @ spot).squeeze(1)
    return {
        "iou": _iou(found.seen, true),
        "hull_iou": _iou(_within(found.points, far, near), true),
        "inside": (found.mass * true).sum(-1),
        "coverage": (found.seen & true).sum(-1) / true.sum(-1).clamp(min=1),
        "centre": ((mean >= low) & (mean <= high)).all(-1).float(),
        "size": found.seen.float().mean(-1),
        "true_size": (high - low).prod(-1),
    }


def _within(points: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return ((points >= low.unsqueeze(1)) & (points <= high.unsqueeze(1))).all(-1)


def _iou(one: Tensor, other: Tensor) -> Tensor:
    return (one & other).sum(-1) / (one | other).sum(-1).clamp(min=1)


def _smallest(mass: Tensor) -> Tensor:
    """The points of highest mass that hold 95 % together; of equal ones, as in a cell, the first."""
    ordered, order = mass.sort(dim=-1, descending=True, stable=True)
    held = ordered.cumsum(-1) - ordered < _MASS
    return torch.zeros_like(held).scatter(-1, order, held)


def _cells(points: Tensor, where: Tensor, mask: Tensor, grid: tuple[int, ...] | None) -> Tensor:
    """The observation in whose cell each point lies, (B, P)."""
    if grid is not None:
        index = torch.zeros(len(points), dtype=torch.long, device=points.device)
        for axis, size in enumerate(grid):
            index = index * size + (points[:, axis] * size).long()
        return index.expand(len(where), -1)
    line = torch.where(mask, where.squeeze(-1), torch.inf)
    middles = (line[:, 1:] + line[:, :-1]) / 2
    return torch.searchsorted(middles.contiguous(), points.squeeze(-1).expand(len(where), -1).contiguous())
