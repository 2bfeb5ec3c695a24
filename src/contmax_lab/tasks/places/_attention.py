"""The attentions that are compared, with one face."""

import dataclasses
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

import contmax
from contmax.basis import Basis


@dataclasses.dataclass(frozen=True)
class Place:
    """What an attention returns.

    Args:
        context: shape (B, D).
        weights: of single observations, shape (B, L), or None.
        density: of batch shape (B,), or (B, H, 1) for several heads, or None.
        sparse: whether the weights come from a map that leaves observations out, such as sparsemax.
    """

    context: Tensor
    weights: Tensor | None = None
    density: Distribution | None = None
    sparse: bool = False


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


@dataclasses.dataclass(frozen=True)
class Fit:
    """How values become a signal.

    Args:
        basis: ψ.
        penalty: λ of the ridge fit.
    """

    basis: Basis
    penalty: float


class Everything(nn.Module):
    """The mean of all observations."""

    def forward(self, scene: Scene) -> Place:
        """Weights 1/n."""
        weights = scene.mask / scene.mask.sum(-1, keepdim=True)
        return Place((weights.unsqueeze(1) @ scene.values).squeeze(1), weights)


class Discrete(nn.Module):
    """Additive attention over the observations.

    Args:
        embed_dim, query_dim, alpha, learnable: of :class:`contmax.nn.DiscreteAttention`.
    """

    def __init__(self, embed_dim: int, query_dim: int | None, alpha: float, learnable: bool) -> None:
        super().__init__()
        self.attend = contmax.nn.DiscreteAttention(embed_dim, query_dim, alpha=alpha, learnable=learnable)
        # A learned α stays above 1.
        self.sparse = learnable or alpha > 1

    def forward(self, scene: Scene) -> Place:
        """Weights from the keys, context of the values."""
        _, weights = self.attend(scene.keys, scene.query, mask=scene.mask)
        return Place((weights.unsqueeze(1) @ scene.values).squeeze(1), weights, sparse=self.sparse)


class Gated(nn.Module):
    """Continuous attention with a density from gates.

    Args:
        head: decides where to look.
        fit, alpha, learnable: of :class:`contmax.nn.ContinuousAttention`.
    """

    def __init__(self, head: contmax.nn.GateHead, fit: Fit, alpha: float, learnable: bool) -> None:
        super().__init__()
        self.attend = contmax.nn.ContinuousAttention(
            fit.basis, alpha=alpha, learnable=learnable, head=head, penalty=fit.penalty
        )

    def forward(self, scene: Scene) -> Place:
        """Density from the keys, context of the values."""
        context, density = self.attend(scene.values, keys=scene.keys, query=scene.query, **scene.placed)
        return Place(context, density=density)


class Combined(nn.Module):
    """The same, and the mean of the values under the weights of the gates.

    Args:
        head, fit, alpha, learnable: as for `Gated`.
    """

    def __init__(self, head: contmax.nn.GateHead, fit: Fit, alpha: float, learnable: bool) -> None:
        super().__init__()
        self.attend = contmax.nn.CombinedAttention(
            None, fit.basis, alpha=alpha, learnable=learnable, head=head, penalty=fit.penalty
        )

    def forward(self, scene: Scene) -> Place:
        """Density and weights from the keys, context of the values."""
        context, (weights, density) = self.attend(scene.values, scene.query, keys=scene.keys, **scene.placed)
        return Place(context, weights, density)


class Multihead(nn.Module):
    """Several densities, each from its own comparison of the query, or of a learned constant, with the signal.

    Args:
        embed_dim, heads, fit, alpha, learnable: of :class:`contmax.nn.MultiheadContinuousAttention`.
        query_dim: channels of the query, or None.
    """

    def __init__(
        self, embed_dim: int, query_dim: int | None, heads: int, fit: Fit, alpha: float, learnable: bool
    ) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim or 1, embed_dim)
        self.attend = contmax.nn.MultiheadContinuousAttention(
            embed_dim, heads, fit.basis, alpha=alpha, learnable=learnable, penalty=fit.penalty
        )

    def forward(self, scene: Scene) -> Place:
        """One query per example."""
        asked = scene.values.new_ones(len(scene.values), 1) if scene.query is None else scene.query
        output, density = self.attend(self.query(asked).unsqueeze(1), scene.values, **scene.placed)
        return Place(output.squeeze(1), density=density)
