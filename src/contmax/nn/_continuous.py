"""Attention over a continuous domain, alone or added to a discrete attention."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._backend import triton_runs_on
from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.nn._gates import GateHead
from contmax.nn._module import AlphaModule, ShownModule, basis_comes_last, check_keys, checked_grid
from contmax.nn._place import (
    Matching,
    Place,
    Where,
    checked_matching,
    density_of_moments,
    density_of_scale,
    moments_of_weights,
    weighted_mean,
)
from contmax.signal import continuous_attention
from contmax.signal._fused_context import fused_context
from contmax.signal._observations import unmasked


class ContinuousAttention(AlphaModule):
    r"""Attention over an interval of time or a region of space.

    .. math:: c = E_p[V(t)], \qquad V = B\psi \text{ the ridge fit of the values}, \qquad
              p = \Omega_\alpha\text{-map of } -\tfrac12 (t-\mu)^\top\Sigma^{-1}(t-\mu)

    With ``embed_dim=D`` a :class:`GateHead` learns where to look: begin with this. Otherwise pass a density or (loc,
    scale) in each call, or your own head.

    Args:
        basis: ψ, K functions in the dimension of the domain.
        embed_dim: D, channels of the keys, or of the values if there are no keys; makes a :class:`GateHead` for them.
        query_dim: channels of the queries for that head; None for a head without queries.
        grid: if the values are the cells of a grid, its sizes, such as (height, width); used in all calls without
            `positions`.
        alpha: α: 1 is the Gaussian, 2 the truncated parabola or paraboloid; a float or a tensor. A Parameter is learned
            as it is, without bounds. A density that is passed to a call keeps its own α.
        learnable: whether α is learned inside (1, 2), starting at `alpha`; see :class:`Entmax`.
        head: instead of `embed_dim`, a module called as ``head(values, alpha=…, query=…, positions=…, grid=…,
            mask=…)``, or with the keys, that returns a density: a :class:`GateHead` with other options, a
            :class:`MomentHead`, a :class:`PooledHead`. If it has a method ``hide_values(values)``, the context is a
            mean of what this returns, as of :meth:`GateHead.hide_values` in training.
        penalty: λ of the ridge fit.

    Shape:
        values (B, L, D), keys (B, L, embed_dim), query (B, query_dim) or (B, Q, query_dim), density of batch shape (B,)
        or (B, Q), mask (B, L) or (L,), positions (L,) or (B, L), with a last axis N in N > 1 dimensions; context (B, D)
        or (B, Q, D).

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(32, scale=(0.1, 0.5))
        >>> attend = contmax.nn.ContinuousAttention(basis, embed_dim=16)
        >>> context, density = attend(torch.randn(2, 50, 16))
        >>> context.shape, density.half_width.shape
        (torch.Size([2, 16]), torch.Size([2]))

    Reference: Martins et al. 2020, Sec. 3.
    """

    _shown = ("alpha", "penalty")

    @basis_comes_last
    def __init__(
        self,
        basis: Basis,
        *,
        embed_dim: int | None = None,
        query_dim: int | None = None,
        grid: tuple[int, ...] | None = None,
        alpha: float | Tensor = 2.0,
        learnable: bool = False,
        head: torch.nn.Module | None = None,
        penalty: float = 0.01,
    ) -> None:
        super().__init__(alpha, learnable=learnable)
        if head is not None and (embed_dim is not None or query_dim is not None):
            raise ValueError("embed_dim and query_dim make a head, but head= was given too. Pass only one of them.")
        if embed_dim is None and query_dim is not None:
            raise ValueError(f"query_dim={query_dim} is for the head that embed_dim makes. Pass embed_dim=… as well.")
        if embed_dim is not None:
            head = GateHead(embed_dim, dim=basis.event_dim, query_dim=query_dim)
        self.basis, self.head, self.penalty = basis, head, penalty
        self.grid = checked_grid(grid, basis.event_dim)

    def forward(
        self,
        values: Float[Tensor, "B L D"],
        density: Distribution | tuple[Tensor, Tensor] | None = None,
        *,
        keys: Float[Tensor, "..."] | None = None,
        query: Float[Tensor, "..."] | None = None,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        need_density: bool = True,
    ) -> tuple[Float[Tensor, "..."], Distribution | None]:
        """Context, and the density it is the mean under (None unless `need_density`).

        Args:
            values: H.
            density: p, or (loc, scale): (μ, σ) on the line, (μ, Σ) in N > 1 dimensions; None to use the head.
            keys: read by the head instead of the values, such as the states of a recurrent network. The context is
                still a mean of the values: if each of them depends on its own surroundings only, then positions
                farther from the support than the width of a basis function hardly matter.
            query: queries for the head.
            positions: where the values are; see :func:`contmax.fit_signal`.
            grid: sizes of the grid, such as (height, width), if they differ from those the module was made with.
            mask: True = may be attended.
            need_density: whether to return the density. Pass False in an exported or vmapped function, which cannot
                return a Distribution.
        """
        grid = self.grid if grid is None and positions is None else grid
        if density is None:
            check_keys(keys, values)
            if self.head is None:
                raise ValueError(
                    "No density was given and the module has no head. Make it with embed_dim=…, the channels of the "
                    "values, to learn where to look; or pass a density, or (loc, scale)."
                )
            looked_at = values if keys is None else keys
            density = self.head(looked_at, alpha=self.alpha, query=query, positions=positions, grid=grid, mask=mask)
            if not isinstance(density, Distribution):
                raise TypeError(f"A head must return a density; got {type(density).__name__} from {self.head}.")
            values = self.seen(values)
        elif isinstance(density, tuple):
            if positions is None and mask is None and triton_runs_on(values):
                context = fused_context(values, density, self.basis, grid, self.penalty, self.alpha)
                if context is not None:
                    return context, self._from_pair(density) if need_density else None
            density = self._from_pair(density)
        elif not isinstance(density, Distribution):
            raise TypeError(f"density must be a Distribution or a pair of tensors (loc, scale); got {type(density)}.")
        context = continuous_attention(
            values, density, self.basis, positions=positions, grid=grid, mask=mask, penalty=self.penalty
        )
        return context, density if need_density else None

    def seen(self, values: Tensor) -> Tensor:
        """The values that the context is a mean of: in training some heads hide a part of the values."""
        hide: Any = getattr(self.head, "hide_values", None)
        return values if hide is None else hide(values)

    def _from_pair(self, pair: tuple[Tensor, ...]) -> Distribution:
        """The density of a pair (loc, scale)."""
        if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            kinds = ", ".join(type(part).__name__ for part in pair)
            raise TypeError(f"density must be a Distribution or a pair of tensors (loc, scale); got ({kinds}).")
        return density_of_scale(pair[0], pair[1], self.alpha, self.basis.event_dim)


class CombinedAttention(ShownModule):
    r"""A discrete attention and a continuous one; their contexts are added.

    .. math:: c = \sum_\ell p_\ell h_\ell + E_{\hat p}[V(t)], \qquad
              \hat p \text{ the β-Gaussian with the moments of } p \text{, or the density of a head}

    Without a head the continuous attention adds no parameters. With a head and ``discrete=None`` the discrete part
    comes from the head: its weights, and the mean of the values under them.

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights); None to use
            the weights of the head, such as a :class:`GateHead`.
        basis: ψ, K functions.
        alpha: α of the continuous attention; the discrete attention has its own.
        learnable: whether this α is learned inside (1, 2), starting at `alpha`; see :class:`Entmax`.
        head: a module that returns a density, as in :class:`ContinuousAttention`; None for the moments of the discrete
            weights.
        grid: if the values are the cells of a grid, its sizes, such as (height, width); used in all calls without
            `positions`.
        matching: how the moments are matched: "exact", or "paper" for σ² := variance of p,
            which agrees with "exact" only for α = 1.
        penalty: λ of the ridge fit.

    Shape:
        as :class:`DiscreteAttention` and :class:`ContinuousAttention`.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(32, scale=(0.1, 0.5))
        >>> attend = contmax.nn.CombinedAttention(None, basis, head=contmax.nn.GateHead(16))
        >>> context, (weights, density) = attend(torch.randn(2, 50, 16))
        >>> context.shape, weights.shape, density.batch_shape
        (torch.Size([2, 16]), torch.Size([2, 50]), torch.Size([2]))

    Reference: Martins et al. 2020, combined attention.
    """

    _shown = ("matching",)

    @basis_comes_last
    def __init__(
        self,
        discrete: torch.nn.Module | None,
        basis: Basis,
        *,
        alpha: float | Tensor = 2.0,
        learnable: bool = False,
        head: torch.nn.Module | None = None,
        grid: tuple[int, ...] | None = None,
        matching: Matching = "exact",
        penalty: float = 0.01,
    ) -> None:
        super().__init__()
        if discrete is None and not hasattr(head, "attend"):
            raise ValueError(
                f"discrete=None uses the weights of the head, but {type(head).__name__} has none: it has no method "
                "`attend`. Pass head=contmax.nn.GateHead(embed_dim), or a discrete attention."
            )
        if head is not None and matching != "exact":
            raise ValueError(
                f"matching={matching!r} is for the moments of discrete weights, not for a head. Leave out one."
            )
        self.discrete = discrete
        self.continuous = ContinuousAttention(
            basis, alpha=alpha, learnable=learnable, head=head, grid=grid, penalty=penalty
        )
        self.matching = checked_matching(matching)

    def forward(
        self,
        values: Float[Tensor, "B L D"],
        query: Float[Tensor, "..."] | None = None,
        *,
        keys: Float[Tensor, "..."] | None = None,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        need_density: bool = True,
    ) -> tuple[Float[Tensor, "..."], tuple[Float[Tensor, "..."], Distribution | None]]:
        """Context, and (weights, density) of the two attentions.

        Args:
            values: H; `positions`, `grid`, `mask` and `need_density` as in :class:`ContinuousAttention`.
            query: queries for both attentions.
            keys: scored by both attentions instead of the values; the contexts are still means of the values.
        """
        check_keys(keys, values)
        grid = self.continuous.grid if grid is None and positions is None else grid
        where = Where(positions, grid, mask)
        density, weights, first = self._place(values if keys is None else keys, query, where)
        seen = self.continuous.seen(values)
        if weights is None:
            raise ValueError(
                f"The head returned no weights and there is no discrete attention. Pass discrete=…; got {self}."
            )
        if first is None or keys is not None or seen is not values:
            first = weighted_mean(weights, unmasked(seen, mask))
        second, _ = self.continuous(seen, density, **where._asdict(), need_density=False)
        return first + second, (weights, density if need_density else None)

    def _place(self, looked_at: Tensor, query: Tensor | None, where: Where) -> Place:
        """The density of the continuous attention, and weights and context of the discrete attention."""
        head: Any = self.continuous.head
        options: dict[str, Any] = {"alpha": self.continuous.alpha, "query": query, **where._asdict()}
        if self.discrete is None:
            place: Place = head.attend(looked_at, **options)
            return place
        context, weights = self.discrete(looked_at, query, mask=where.mask)
        if head is not None:
            return Place(head(looked_at, **options), weights, context)
        dim = self.continuous.basis.event_dim
        mean, covariance = moments_of_weights(weights, dim, where)
        return Place(density_of_moments(mean, covariance, options["alpha"], dim, self.matching), weights, context)
