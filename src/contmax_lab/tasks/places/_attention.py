"""The attentions that are compared, and how well what they attend to agrees with the truth."""

import dataclasses
from typing import Any, cast

import torch
from torch import Tensor, nn

import contmax
from contmax.basis import Basis
from contmax.densities import Density
from contmax_lab.attention import Attended
from contmax_lab.labelled import heaviest
from contmax_lab.tasks.places import PlacesModel

# Points along an axis at which sets are compared, by the number of axes.
_POINTS = {1: 2000, 2: 84}
# The share of the mass that the smallest set holds, where an attention is positive everywhere.
_MASS = 0.95


@dataclasses.dataclass(frozen=True)
class Scene:
    """What an attention is given.

    Args:
        values: shape (B, L, D).
        keys: what decides where to look, shape (B, L, D).
        where: positions, shape (B, L, N).
        mask: which are there, shape (B, L).
        query: shape (B, Q), or None.
        grid: sizes of the grid that the values are the cells of, or None.
        irregular: whether the positions are others than those of cells side by side.
    """

    values: Tensor
    keys: Tensor
    where: Tensor
    mask: Tensor
    query: Tensor | None = None
    grid: tuple[int, ...] | None = None
    irregular: bool = False

    @property
    def placed(self) -> dict[str, Any]:
        """Positions, grid and mask as the library's attentions take them."""
        if self.grid is not None:
            return {"grid": self.grid}
        return {"positions": self.where.squeeze(-1) if self.irregular else None, "mask": self.mask}


class PlaceAttention(nn.Module):
    """The attention that the settings name: from a scene to a context and where it came from.

    Args:
        model: the settings.
        query_dim: channels of the query, or None.
        dim: axes of the domain.
    """

    def __init__(self, model: PlacesModel, query_dim: int | None, dim: int) -> None:
        super().__init__()
        self.kind, self.by_time, width = model.attention, model.by_time, int(model.hidden_dim)
        # A learned α stays above 1.
        self.sparse = model.attention == "discrete" and (model.learn_alpha or model.alpha > 1)
        options: dict[str, Any] = {"alpha": float(model.alpha), "learnable": model.learn_alpha}
        if self.kind == "mean":
            return
        if self.kind == "discrete":
            self.attend: nn.Module = contmax.nn.DiscreteAttention(width, query_dim, **options)
            return
        count, options["penalty"] = int(model.functions), float(model.penalty)
        # The Gaussians are as wide as the distance between neighbours.
        basis: Basis = contmax.basis.GaussianBasis.linspace(count, scale=1 / count)
        if dim > 1:
            basis = contmax.basis.MultivariateGaussianBasis.grid(count, scale=1 / count, dim=dim)
        if self.kind == "multihead":
            self.query = nn.Linear(query_dim or 1, width)
            self.attend = contmax.nn.MultiheadContinuousAttention(width, int(model.heads), basis, **options)
            return
        least = float(model.least_half_width) or None
        hide = float(model.hide)
        head = contmax.nn.GateHead(width, dim=dim, query_dim=query_dim, hide=hide, least_half_width=least)
        options["head"] = head
        if self.kind == "combined":
            self.attend = contmax.nn.CombinedAttention(None, basis, **options)
        else:
            self.attend = contmax.nn.ContinuousAttention(basis, **options)

    def forward(self, scene: Scene) -> Attended:
        """Weights and densities from the keys and the query, the context from the values."""
        if self.kind == "multihead":
            # Without a query every head compares a learned constant with the signal.
            query = scene.values.new_ones(len(scene.values), 1) if scene.query is None else scene.query
            output, density = self.attend(self.query(query).unsqueeze(1), scene.values, **scene.placed)
            return Attended(output.squeeze(1), density=density)
        if self.kind in ("continuous", "combined"):
            context, found = self.attend(scene.values, keys=scene.keys, query=scene.query, **scene.placed)
            return Attended.of(context, found)
        if self.kind == "mean":
            weights = scene.mask / scene.mask.sum(-1, keepdim=True)
        else:
            _, weights = self.attend(scene.keys, scene.query, mask=scene.mask)
            if self.by_time:
                weights = weights * _durations(scene.where.squeeze(-1), scene.mask)
                weights = weights / weights.sum(-1, keepdim=True)
        return Attended((weights.unsqueeze(1) @ scene.values).squeeze(1), weights, sparse=self.sparse)


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
def looked(scene: Scene, place: Attended) -> Looked:
    """Masses and sets of an attention with weights, with a density, or with both, half the mass each.

    An observation stands for the points that are nearer to it than to others; positions on the line increase. Attended
    to is where a weight or the density is above zero; softmax and the Gaussian are so everywhere, and the smallest set
    of points that holds 95 % of their mass counts. The map decides which rule holds, not the zeros: far away softmax
    and a narrow Gaussian are rounded to zero. Several densities count by their mean.
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
    sets = [mass > 0 if sparse else heaviest(mass, _MASS) for mass, (_, sparse) in zip(masses, parts, strict=True)]
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


def _durations(where: Tensor, mask: Tensor) -> Tensor:
    """The length of the part of [0, 1] that is nearest to each observation, (B, L); positions increase, 0 if masked.

    Example:
        >>> _durations(torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[True, True, False]]))
        tensor([[0.3000, 0.7000, 0.0000]])
    """
    middles = (where[:, 1:] + where[:, :-1]) / 2
    # The last observation stands for all up to the end.
    middles = torch.where(mask[:, 1:], middles, 1.0)
    border = torch.zeros_like(where[:, :1])
    return torch.cat([middles, border + 1], -1).sub(torch.cat([border, middles], -1)).masked_fill(~mask, 0)


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
