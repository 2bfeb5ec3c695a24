"""The attentions that tasks compare, and which observations they look at."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import contmax
from contmax.basis import Basis
from contmax_lab.errors import UsageError
from contmax_lab.settings import AttentionKind


@dataclasses.dataclass(frozen=True)
class Attended:
    """What an attention looked at.

    Args:
        context: c, shape (B, D).
        weights: of the discrete attention, shape (B, L), or None.
        density: of the continuous attention, batch shape (B,), or None; (B, H, 1) for several heads.
        sparse: whether a task has found that the weights come from a map that leaves observations out.
    """

    context: Tensor
    weights: Tensor | None = None
    density: Distribution | None = None
    sparse: bool = False

    @classmethod
    def of(cls, context: Tensor, found: Any) -> "Attended":
        """From the two results of an attention of the library; the second is weights, a density, or both as a pair."""
        weights, density = found if isinstance(found, tuple) else (found, None)
        return cls(context, None, weights) if isinstance(weights, Distribution) else cls(context, weights, density)


class Attention(nn.Module):
    """One of the kinds, with one face: values in, context and where it came from out.

    Args:
        kind: discrete = over the positions; continuous = over the interval or the plane they lie in, with a density
            that covers the open ones of gates on the positions; combined = both, the density having the moments of the
            weights.
        embed_dim: D, channels of the values.
        alpha: α: 1 for softmax and Gaussians, 2 for sparsemax and truncated parabolas.
        basis: ψ of the continuous attention, in the dimension of the domain.
        penalty: λ of the ridge fit.
        learnable: whether α is learned inside (1, 2), beginning with `alpha`.

    Example:
        >>> basis = contmax.basis.GaussianBasis.linspace(16, scale=0.1)
        >>> attend = Attention("combined", 8, 2.0, basis)
        >>> attended = attend(torch.randn(3, 20, 8), mask=torch.ones(3, 20, dtype=torch.bool))
        >>> attended.context.shape, attended.weights.shape, attended.density.batch_shape
        (torch.Size([3, 8]), torch.Size([3, 20]), torch.Size([3]))
    """

    def __init__(
        self,
        kind: AttentionKind,
        embed_dim: int,
        alpha: float,
        basis: Basis,
        *,
        penalty: float = 0.01,
        learnable: bool = False,
    ) -> None:
        super().__init__()
        self.kind = kind
        options: dict[str, Any] = {"alpha": alpha, "penalty": penalty, "learnable": learnable}
        if kind == "continuous":
            self.attend: nn.Module = contmax.nn.ContinuousAttention(basis, embed_dim=embed_dim, **options)
        else:
            discrete = contmax.nn.DiscreteAttention(embed_dim, alpha=alpha, learnable=learnable)
            self.attend = discrete if kind == "discrete" else contmax.nn.CombinedAttention(discrete, basis, **options)

    def forward(
        self,
        values: Tensor,
        *,
        mask: Tensor | None = None,
        grid: tuple[int, ...] | None = None,
        positions: Tensor | None = None,
    ) -> Attended:
        """Attend to values (B, L, D).

        Args:
            values: what is attended to.
            mask: (B, L), True = may be attended.
            grid: (H, W) with HW = L on the plane.
            positions: of the values, (B, L) on the line; by default they are evenly spaced over the unit interval.
        """
        where = {} if self.kind == "discrete" else {"grid": grid, "positions": positions}
        return Attended.of(*self.attend(values, mask=mask, **where))


class AttentionHeads(nn.Module):
    """Several attentions side by side, each with weights and an α of its own; their contexts stand one after another.

    Args:
        count: heads.
        kind, embed_dim, alpha, basis, learnable: of each, as in `Attention`.

    Example:
        >>> heads = AttentionHeads(2, "continuous", 8, 1.5, contmax.basis.GaussianBasis.covering(16), learnable=True)
        >>> context, attended = heads(torch.randn(3, 20, 8))
        >>> context.shape, len(attended)
        (torch.Size([3, 16]), 2)
    """

    def __init__(
        self, count: int, kind: AttentionKind, embed_dim: int, alpha: float, basis: Basis, *, learnable: bool = False
    ) -> None:
        super().__init__()
        if learnable and not 1 < alpha < 2:
            raise UsageError(f"a learned α must begin between 1 and 2, got {alpha:g}; pass --model.alpha 1.5")
        self.heads = nn.ModuleList(
            Attention(kind, embed_dim, alpha, copy.deepcopy(basis), learnable=learnable) for _ in range(count)
        )
        self.width = count * embed_dim

    def forward(self, values: Tensor, **where: Any) -> tuple[Tensor, list[Attended]]:
        """Contexts (B, count·D) and what each head looked at; arguments as of `Attention`."""
        attended = [head(values, **where) for head in self.heads]
        return torch.cat([head.context for head in attended], -1), attended


@torch.no_grad()
def attended_observations(heads: Sequence[Attended], positions: Tensor, mask: Tensor) -> Tensor:
    """Which observations any of the heads attends to at all, (B, L): by a weight, or in the support of a density.

    Args:
        heads: what they looked at.
        positions: of the observations, (B, L) on the line, (B, L, N) in N > 1 dimensions.
        mask: which of them are there, (B, L).

    Example:
        >>> head = Attended(torch.zeros(1, 3), torch.tensor([[0.5, 0.0, 0.5]]))
        >>> attended_observations([head], torch.tensor([[0.1, 0.2, 0.9]]), torch.ones(1, 3, dtype=torch.bool))
        tensor([[ True, False,  True]])
    """
    inside = torch.zeros_like(mask)
    for head in heads:
        if head.weights is not None:
            inside = inside | (head.weights > 0)
        if head.density is not None:
            inside = inside | (head.density.log_prob(positions.transpose(0, 1)).mT > -math.inf)
    return inside & mask
