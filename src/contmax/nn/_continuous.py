"""Attention over a continuous domain, alone and beside a discrete one."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.nn._alpha import AlphaModule
from contmax.nn._parameters import Matching, checked_matching, density_of_scale, density_of_weights
from contmax.signal import continuous_attention


class ContinuousAttention(AlphaModule):
    r"""Attention over an interval of time or a region of space.

    .. math:: c = E_p[V(t)], \qquad V = B\psi \text{ the ridge fit of the values}, \qquad
              p = \Omega_\alpha\text{-map of } -\tfrac12 (t-\mu)^\top\Sigma^{-1}(t-\mu)

    The density comes from the caller, as one or as (loc, scale), or from a head.

    Args:
        basis: ψ, K functions in the dimension of the domain.
        alpha: α: 1 is the Gaussian, 2 the truncated parabola or paraboloid; a float or a tensor. A Parameter is learned
            as it is, without bounds. A density that is given keeps its own.
        learnable: whether α is learned inside (1, 2), starting at `alpha`; see :class:`Entmax`.
        head: a module called as ``head(values, alpha=…, query=…, positions=…, grid=…, mask=…)`` that returns a
            density, such as :class:`PooledHead` or :class:`MomentHead`.
        penalty: λ of the ridge fit.

    Shape:
        values (B, L, D), density of batch shape (B,) or (B, Q), mask (B, L) or (L,), positions (L,) or (B, L), with a
        last axis N in N > 1 dimensions; context (B, D) or (B, Q, D).

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(32, scale=(0.1, 0.5))
        >>> attend = contmax.nn.ContinuousAttention(basis, head=contmax.nn.PooledHead(16))
        >>> context, density = attend(torch.randn(2, 50, 16))
        >>> context.shape, density.half_width.shape
        (torch.Size([2, 16]), torch.Size([2]))

    Reference: Martins et al. 2020, Sec. 3.
    """

    def __init__(
        self,
        basis: Basis,
        *,
        alpha: float | Tensor = 2.0,
        learnable: bool = False,
        head: torch.nn.Module | None = None,
        penalty: float = 0.01,
    ) -> None:
        super().__init__(alpha, learnable=learnable)
        self.basis, self.head, self.penalty = basis, head, penalty

    def forward(
        self,
        values: Float[Tensor, "B L D"],
        density: Distribution | tuple[Tensor, Tensor] | None = None,
        *,
        query: Float[Tensor, "..."] | None = None,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        need_density: bool = True,
    ) -> tuple[Float[Tensor, "..."], Distribution | None]:
        """Context, and the density that was attended with (None unless `need_density`).

        Args:
            values: H.
            density: p, or (loc, scale): (μ, σ) on the line, (μ, Σ) in N > 1 dimensions; None to ask the head.
            query: what the head may look at.
            positions: where the values are; see :func:`contmax.fit_signal`.
            grid: sizes of the grid whose cells they are, such as (height, width).
            mask: True = may be attended.
            need_density: a Distribution cannot leave an exported or vmapped function: pass False there.
        """
        if density is None:
            density = self._asked(values, alpha=self.alpha, query=query, positions=positions, grid=grid, mask=mask)
        elif isinstance(density, tuple):
            density = self._given(density)
        elif not isinstance(density, Distribution):
            raise TypeError(f"density must be a Distribution or a pair of tensors (loc, scale); got {type(density)}.")
        context = continuous_attention(
            values, density, self.basis, positions=positions, grid=grid, mask=mask, penalty=self.penalty
        )
        return context, density if need_density else None

    def _given(self, pair: tuple[Tensor, ...]) -> Distribution:
        """The density of a pair (loc, scale)."""
        if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            kinds = ", ".join(type(part).__name__ for part in pair)
            raise TypeError(f"density must be a Distribution or a pair of tensors (loc, scale); got ({kinds}).")
        return density_of_scale(pair[0], pair[1], self.alpha, self.basis.event_dim)

    def _asked(self, values: Tensor, **context: Any) -> Distribution:
        """The density that the head returns."""
        if self.head is None:
            raise ValueError(
                "No density was given and the module has no head; pass a density, (loc, scale), or "
                "head=contmax.nn.PooledHead(embed_dim)."
            )
        density = self.head(values, **context)
        if not isinstance(density, Distribution):
            raise TypeError(f"A head must return a density; got {type(density).__name__} from {self.head}.")
        return density

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"alpha={self._shown_alpha()}, penalty={self.penalty:g}"


class CombinedAttention(torch.nn.Module):
    r"""A discrete attention and, from its moments, a continuous one; their contexts are added. No extra parameters.

    .. math:: c = \sum_\ell p_\ell h_\ell + E_{\hat p}[V(t)], \qquad
              \hat p \text{ the β-Gaussian with the moments of } p

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights).
        basis: ψ, K functions.
        alpha: α of the continuous attention; that of the discrete one is its own.
        learnable: whether it is learned inside (1, 2), starting at `alpha`; see :class:`Entmax`.
        matching: "exact", or "paper" for σ² := variance of p, the same only for α = 1.
        penalty: λ of the ridge fit.

    Shape:
        as :class:`DiscreteAttention` and :class:`ContinuousAttention`.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(32, scale=(0.1, 0.5))
        >>> attend = contmax.nn.CombinedAttention(contmax.nn.DiscreteAttention(16), basis)
        >>> context, (weights, density) = attend(torch.randn(2, 50, 16))
        >>> context.shape, weights.shape, density.batch_shape
        (torch.Size([2, 16]), torch.Size([2, 50]), torch.Size([2]))

    Reference: Martins et al. 2020, combined attention.
    """

    def __init__(
        self,
        discrete: torch.nn.Module,
        basis: Basis,
        *,
        alpha: float | Tensor = 2.0,
        learnable: bool = False,
        matching: Matching = "exact",
        penalty: float = 0.01,
    ) -> None:
        super().__init__()
        self.discrete = discrete
        self.continuous = ContinuousAttention(basis, alpha=alpha, learnable=learnable, penalty=penalty)
        self.matching = checked_matching(matching)

    def forward(
        self,
        values: Float[Tensor, "B L D"],
        query: Float[Tensor, "..."] | None = None,
        *,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        need_density: bool = True,
    ) -> tuple[Float[Tensor, "..."], tuple[Float[Tensor, "..."], Distribution | None]]:
        """Context, and (weights, density) of the two attentions.

        Args:
            values: H.
            query: what the discrete attention may look at.
            positions: where the values are; see :func:`contmax.fit_signal`.
            grid: sizes of the grid whose cells they are, such as (height, width).
            mask: True = may be attended.
            need_density: a Distribution cannot leave an exported or vmapped function: pass False there.
        """
        first, weights = self.discrete(values, query, mask=mask)
        where: dict[str, Any] = {"positions": positions, "grid": grid, "mask": mask}
        attend = self.continuous
        density = density_of_weights(weights, attend.alpha, attend.basis.event_dim, self.matching, **where)
        second, _ = attend(values, density, **where, need_density=False)
        return first + second, (weights, density if need_density else None)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"matching={self.matching!r}"
