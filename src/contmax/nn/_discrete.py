"""Attention over a finite set of values."""

import math
from typing import Literal

import torch
from torch import Tensor

from contmax._mask import has_shape, require_boolean
from contmax._typing import Bool, Float
from contmax.maps import entmax
from contmax.nn._module import AlphaModule, check_query, check_values, with_queries
from contmax.nn._place import weighted_mean

Score = Literal["additive", "dot"]


class DiscreteAttention(AlphaModule):
    r"""Attention over L values: scores, α-entmax, weighted mean.

    .. math:: p = \alpha\text{-entmax}(z), \qquad c = \sum_\ell p_\ell h_\ell, \qquad
              z_\ell = v^\top\tanh(W h_\ell + U q) \ \text{(additive)} \quad\text{or}\quad
              z_\ell = \frac{(U q)^\top h_\ell}{\sqrt D} \ \text{(dot)}

    Without queries (``query_dim=None``) U q is a learned constant.

    Args:
        embed_dim: D, channels of the values.
        query_dim: channels of the queries; None for an attention without queries.
        alpha: α > 0: 1 is softmax, 2 is sparsemax; a float or a tensor. A Parameter is learned as it is, without
            bounds.
        learnable: whether α is learned inside (1, 2), starting at `alpha`; see :class:`Entmax`.
        score: "additive" (Bahdanau) or "dot".
        hidden_dim: width of the additive score; D by default.

    Shape:
        values (B, L, D), query (B, query_dim) or (B, Q, query_dim), scores (B, L) or (B, Q, L), mask (L,), (B, L)
        or (B, Q, L); context (B, D) or (B, Q, D), weights (B, L) or (B, Q, L).

    Example:
        >>> import torch, contmax
        >>> attend = contmax.nn.DiscreteAttention(16, query_dim=8, alpha=2.0)
        >>> context, weights = attend(torch.randn(2, 50, 16), torch.randn(2, 8))
        >>> context.shape, weights.shape
        (torch.Size([2, 16]), torch.Size([2, 50]))

    References: Bahdanau et al. 2015; Martins et al. 2020, discrete attention.
    """

    _shown = ("embed_dim", "query_dim", "alpha", "score")
    constant_query: torch.nn.Parameter

    def __init__(
        self,
        embed_dim: int,
        query_dim: int | None = None,
        *,
        alpha: float | Tensor = 1.0,
        learnable: bool = False,
        score: Score = "additive",
        hidden_dim: int | None = None,
    ) -> None:
        super().__init__(alpha, learnable=learnable)
        if score not in ("additive", "dot"):
            raise ValueError(f'score must be "additive" or "dot"; got {score!r}.')
        if hidden_dim is not None and score == "dot":
            raise ValueError("hidden_dim is the width of the additive score; a dot product has none. Leave it out.")
        self.embed_dim, self.query_dim, self.score = embed_dim, query_dim, score
        width = embed_dim if hidden_dim is None else hidden_dim
        if score == "additive":
            self.key = torch.nn.Linear(embed_dim, width)
            self.energy = torch.nn.Linear(width, 1, bias=False)
        self.query = torch.nn.Linear(query_dim, width, bias=score == "dot") if query_dim is not None else None
        if score == "dot" and query_dim is None:
            self.constant_query = torch.nn.Parameter(torch.empty(embed_dim))
            torch.nn.init.normal_(self.constant_query)

    def reset_parameters(self) -> None:
        """Reset α and the constant query; the linear maps have their own `reset_parameters`."""
        super().reset_parameters()
        if self.score == "dot" and self.query is None:
            torch.nn.init.normal_(self.constant_query)

    def forward(
        self,
        values: Float[Tensor, "B L D"],
        query: Float[Tensor, "..."] | None = None,
        *,
        scores: Float[Tensor, "..."] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Context and weights; `scores`, if given, are used instead of the module's own."""
        if scores is None:
            check_values(values, self.embed_dim, "values")
            check_query(query, self.query_dim, values)
        per_query = query if scores is None else scores
        _check(values, per_query, scores, mask)
        if mask is not None and mask.dim() == 2 and per_query is not None and per_query.dim() == 3:
            mask = mask.unsqueeze(-2)
        seen = _with_zeros(values, scores, mask)
        weights = entmax(self._scores(seen, query) if scores is None else scores, self.alpha, mask=mask)
        return weighted_mean(weights, seen), weights

    def _scores(self, values: Tensor, query: Tensor | None) -> Tensor:
        queries = None if query is None or self.query is None else self.query(query)
        if self.score == "additive":
            energies: Tensor = self.energy(torch.tanh(with_queries(self.key(values), queries))).squeeze(-1)
            return energies
        scaled: Tensor = (self.constant_query if queries is None else queries) / math.sqrt(self.embed_dim)
        return scaled @ values.mT if scaled.dim() == 3 else (values @ scaled.unsqueeze(-1)).squeeze(-1)


def _check(values: Tensor, per_query: Tensor | None, scores: Tensor | None, mask: Tensor | None) -> None:
    """Refuse scores and masks that do not fit the values. Q is an axis of `per_query`, the queries or scores."""
    require_boolean(mask)
    batch, length = values.shape[:2]
    if scores is not None and (scores.dim() not in (2, 3) or scores.shape[0] != batch or scores.shape[-1] != length):
        raise ValueError(
            f"scores must have shape (B, L) or (B, Q, L) with B = {batch} and L = {length}; got {tuple(scores.shape)}."
        )
    pairs = () if per_query is None or per_query.dim() != 3 else ((batch, per_query.shape[1], length),)
    if mask is not None and not has_shape(mask, (length,), (1, length), (batch, length), *pairs):
        raise ValueError(
            f"mask must have shape (L,), (B, L) or that of the scores, B = {batch} and L = {length}; got "
            f"{tuple(mask.shape)}. True = may be attended."
        )


def _with_zeros(values: Tensor, scores: Tensor | None, mask: Tensor | None) -> Tensor:
    """Values with 0 at positions where mask or −∞ scores exclude all queries: such values may be NaN."""
    allowed = mask
    if scores is not None:
        finite = scores.detach() != -torch.inf
        allowed = finite if mask is None else mask & finite
    if allowed is None:
        return values
    return torch.where((allowed.any(1) if allowed.dim() == 3 else allowed).unsqueeze(-1), values, 0)
