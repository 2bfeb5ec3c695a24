"""Attention that reduces the cells of an image to one vector, and the places that it attends to."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import contmax
from contmax_lab.attention import Attended
from contmax_lab.labelled import cell_centres, heaviest
from contmax_lab.tasks.vqa import VqaModel

# Points along a side of a cell at which attention is measured.
_FINER = 3
# The mass outside the region of an attention that is positive everywhere.
_LEFT_OUT = 0.05


class Scores(nn.Module):
    """`count` scores for each value: a layer, a rectifier, dropout, a layer."""

    def __init__(self, embed_dim: int, hidden_dim: int, dropout: float, count: int = 1) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(embed_dim, hidden_dim), nn.Linear(hidden_dim, count)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        """(B, count, L) of values (B, L, D)."""
        scores: Tensor = self.score(self.dropout(torch.relu(self.hidden(values))))
        return scores.mT


class FlatAttention(nn.Module):
    """α-entmax of a score for each value, and the weighted mean; the values already know the question."""

    def __init__(self, scores: Scores, alpha: float) -> None:
        super().__init__()
        self.scores, self.alpha = scores, alpha

    def forward(self, values: Tensor, query: None = None, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Context (B, D) and weights (B, L)."""
        weights = contmax.entmax(self.scores(values).squeeze(1), self.alpha, mask=mask)
        return (weights.unsqueeze(1) @ values).squeeze(1), weights


class MixtureHead(nn.Module):
    r"""Several regions: a softmax over cells and components at once, and a density for each component.

    .. math:: p_{j\ell} \propto e^{z_{j\ell}}, \qquad w_j = \sum_\ell p_{j\ell}, \qquad
              p = \sum_j w_j\, p_j, \quad p_j \text{ with the moments of } p_{j\cdot} / w_j
    """

    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores = scores

    def forward(
        self,
        values: Tensor,
        *,
        alpha: float | Tensor,
        query: Tensor | None = None,
        positions: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        mask: Tensor | None = None,
    ) -> contmax.densities.Mixture:
        """The mixture, of batch shape (B,)."""
        scores = self.scores(values).float()
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(1), -torch.inf)
        if positions is None:
            assert grid is not None
            positions = cell_centres(grid, values)
        places = positions if positions.dim() == 2 else positions.unsqueeze(1).expand(-1, scores.shape[1], -1, -1)
        weights = scores.softmax(-1)
        spread = None if mask is None else mask.unsqueeze(1).expand_as(scores)
        mean, covariance = contmax.maps.moments(weights, places, grid=grid, mask=spread)
        components = contmax.densities.MultivariateBetaGaussian.from_moments(mean, covariance, alpha)
        shares = Categorical(logits=scores.logsumexp(-1), validate_args=False)
        return contmax.densities.Mixture(shares, components)


class Reduction(nn.Module):
    """An attention over the cells or regions of an image.

    Discrete = over cells; continuous = over an ellipse, whose centre and shape are the moments of a discrete attention;
    windows = over such an ellipse in each window of the image; mixture = over several ellipses with scores of their
    own; combined = a discrete and a continuous one, added.

    Args:
        model: its settings.
        grid: (H, W) of the cells; None for regions, whose positions come with each call.

    Example:
        >>> reduce = Reduction(VqaModel(hidden_dim=8, flat_dim=8), grid=(14, 14))
        >>> attended = reduce(torch.randn(2, 196, 8))
        >>> attended.context.shape, attended.density.batch_shape
        (torch.Size([2, 8]), torch.Size([2]))
    """

    def __init__(self, model: VqaModel, grid: tuple[int, int] | None = None) -> None:
        super().__init__()
        kind = self.kind = model.attention
        basis = contmax.basis.MultivariateGaussianBasis.grid(model.functions, scale=model.variance**0.5)
        options: dict[str, Any] = {"alpha": model.alpha, "grid": grid, "penalty": model.penalty}
        count = model.components if kind == "mixture" else 1
        scores = Scores(model.hidden_dim, model.flat_dim, model.dropout, count)
        if kind in ("discrete", "combined"):
            flat = FlatAttention(scores, model.alpha)
            is_flat = kind == "discrete"
            self.attend: nn.Module = flat if is_flat else contmax.nn.CombinedAttention(flat, basis, **options)
            return
        head: nn.Module = MixtureHead(scores)
        if kind == "continuous":
            head = contmax.nn.MomentHead(FlatAttention(scores, model.weights_alpha), dim=2)
        elif kind == "windows":
            head = contmax.nn.WindowHead(FlatAttention(scores, model.weights_alpha), windows=model.windows, dim=2)
        self.attend = contmax.nn.ContinuousAttention(basis, head=head, **options)

    def forward(self, values: Tensor, *, positions: Tensor | None = None, mask: Tensor | None = None) -> Attended:
        """Attend to values (B, L, D); `positions` (B, L, 2) and `mask` (B, L) of regions."""
        where = {} if self.kind == "discrete" else {"positions": positions}
        return Attended.of(*self.attend(values, mask=mask, **where))


@torch.no_grad()
def attention_map(place: Attended, grid: tuple[int, int]) -> Tensor:
    """The attention as shares of 3 × 3 points in each cell, (B, P), row by row; of a combined one the mean of both."""
    fine = (_FINER * grid[0], _FINER * grid[1])
    maps = []
    if place.weights is not None:
        cells = place.weights.float().unflatten(-1, grid)
        maps.append(cells.repeat_interleave(_FINER, 1).repeat_interleave(_FINER, 2).flatten(1) / _FINER**2)
    if place.density is not None:
        points = cell_centres(fine, place.context)
        density = place.density.log_prob(points.unsqueeze(1)).mT.exp().float()
        # Mass outside the image is left out; a density narrower than the grid counts at the point nearest to its mean.
        total = density.sum(-1, keepdim=True)
        nearest = torch.cdist(place.density.mean.float(), points).argmin(-1)
        alone = torch.zeros_like(density).scatter_(1, nearest.unsqueeze(1), 1.0)
        maps.append(torch.where(total > 0, density / total.clamp(min=1e-30), alone))
    return torch.stack(maps).mean(0)


def attended_region(shares: Tensor, *, sparse: bool) -> Tensor:
    """Which points are attended to, (B, P): all with any attention, or of one without zeros the fewest with 95 %."""
    return shares > 0 if sparse else heaviest(shares, 1 - _LEFT_OUT)


@torch.no_grad()
def where_measures(
    place: Attended, grid: tuple[int, int], *, sparse: bool, box: Tensor | None = None, other_box: Tensor | None = None
) -> dict[str, Tensor]:
    """The share of the image that is attended to, and where objects are known, how much attention they get.

    Boxes, (B, 2, 2), are low and high corner of the object that the question is about and of the other one, as shares
    of the image. ``area``; with boxes also ``iou`` of the region and the box, ``inside`` and ``inside_other``, the
    attention in either box, and ``chosen``, whether there is more in the first; each (B,).
    """
    shares = attention_map(place, grid)
    region = attended_region(shares, sparse=sparse)
    measured = {"area": region.float().mean(-1)}
    if box is None or other_box is None:
        return measured
    points = cell_centres((_FINER * grid[0], _FINER * grid[1]), shares)
    inside, other = (
        ((points >= corners[:, None, 0]) & (points <= corners[:, None, 1])).all(-1) for corners in (box, other_box)
    )
    measured["iou"] = (region & inside).sum(-1) / (region | inside).sum(-1)
    measured["inside"], measured["inside_other"] = (shares * inside).sum(-1), (shares * other).sum(-1)
    measured["chosen"] = (measured["inside"] > measured["inside_other"]).float()
    return measured
