"""Modules for finite sets: sparsemax and α-entmax, their loss, attention over a set of values, pooling of a bag."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from contmax._mask import has_shape, require_boolean
from contmax._typing import Bool, Float, Shaped
from contmax.losses import entmax_loss
from contmax.maps import entmax, sparsemax
from contmax.nn._module import AlphaModule, ShownModule, check_query, check_values, shape_of, with_queries
from contmax.nn._place import weighted_mean
from contmax.signal._observations import unmasked

Score = Literal["additive", "dot"]


class Sparsemax(ShownModule):
    r"""Sparsemax over an axis: :func:`contmax.sparsemax` as a module.

    Args:
        dim: the axis of the distribution.

    Example:
        >>> import torch, contmax
        >>> contmax.nn.Sparsemax()(torch.tensor([[1.0, 0.5, -1.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    _shown = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(
        self,
        scores: Float[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        temperature: float | Tensor = 1.0,
    ) -> Float[Tensor, "..."]:
        """Probabilities of the shape of the scores."""
        return sparsemax(scores, self.dim, mask=mask, temperature=temperature)


class Entmax(AlphaModule):
    r"""α-entmax over an axis, with α fixed or learned, one for all or one per head.

    A learned α is 1 + sigmoid(a), bounded inside (1, 2): from nearly softmax to nearly sparsemax, decided by the data.
    The parameter a is in the state dict; so are fixed α's given per head.

    Args:
        alpha: α, or its starting value; a float, a tensor, or one value per head. A learned one must start inside
            (1, 2). A Parameter is learned as it is, without bounds.
        dim: the axis of the distribution.
        learnable: whether α is learned inside (1, 2).
        num_heads: number of heads, each with its own α; None for one α for all.
        head_dim: the axis of heads in the scores; 1 by default, as in scores (B, H, Q, L).

    Example:
        >>> import torch, contmax
        >>> attend = contmax.nn.Entmax(1.5, learnable=True, num_heads=4)
        >>> attend(torch.randn(2, 4, 5, 7)).shape
        torch.Size([2, 4, 5, 7])
        >>> attend
        Entmax(alpha=learnable(1.5, 1.5, 1.5, 1.5), dim=-1, learnable=True, num_heads=4, head_dim=1)

    Reference: Correia, Niculae & Martins 2019.
    """

    def __init__(
        self,
        alpha: float | Sequence[float] | Tensor = 1.5,
        dim: int = -1,
        *,
        learnable: bool = False,
        num_heads: int | None = None,
        head_dim: int | None = None,
    ) -> None:
        if num_heads is not None and not learnable and isinstance(alpha, (int, float)):
            alpha = [alpha] * num_heads
        super().__init__(alpha, learnable=learnable, num_heads=num_heads)
        shape, start = shape_of(alpha), self._start
        if num_heads is None and shape:
            raise ValueError(f"alpha has shape {shape} but num_heads is None. Pass one float, or one value per head.")
        if not learnable and start is not None and not 0 < start.min().item() <= start.max().item() < math.inf:
            raise ValueError(f"alpha must be positive and finite; got {alpha}. 1 is softmax, 2 is sparsemax.")
        self.dim, self.num_heads = dim, num_heads
        self.head_dim = 1 if head_dim is None else head_dim

    def forward(
        self,
        scores: Float[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        temperature: float | Tensor = 1.0,
    ) -> Float[Tensor, "..."]:
        """Probabilities of the shape of the scores."""
        alpha = self.alpha
        if self.num_heads is not None:
            rank = scores.dim()
            if not -rank <= self.head_dim < rank or scores.shape[self.head_dim] != self.num_heads:
                raise ValueError(
                    f"scores of shape {tuple(scores.shape)} do not have {self.num_heads} heads along axis "
                    f"{self.head_dim}. Pass scores such as (B, H, Q, L), or set head_dim."
                )
        if isinstance(alpha, Tensor) and alpha.dim():
            alpha = alpha.view([-1 if d == self.head_dim % scores.dim() else 1 for d in range(scores.dim())])
        return entmax(scores, alpha, self.dim, mask=mask, temperature=temperature)

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}, head_dim={self.head_dim}"
        return f"alpha={self._show('alpha')}, dim={self.dim}, learnable={self.alpha_logit is not None}{heads}"


class FenchelYoungLoss(AlphaModule):
    r"""The loss of α-entmax as a module: :func:`contmax.losses.entmax_loss`, in place of nn.CrossEntropyLoss (α = 1).

    Args:
        alpha: α > 0, a float or a tensor; a Parameter is learned as it is, without bounds.
        learnable: whether α is learned inside (1, 2), starting at `alpha`. The loss itself falls as α grows: learn it
            only with something that holds it back, such as an attention that shares it or a penalty.
        weight: one weight per class, (C,).
        ignore_index: class id of examples to ignore.
        label_smoothing: ε in [0, 1].
        reduction: "none", "sum" or "mean".

    Example:
        >>> import torch, contmax
        >>> loss = contmax.nn.FenchelYoungLoss(alpha=2.0)
        >>> loss(torch.tensor([[1.0, 0.5]]), torch.tensor([0]))
        tensor(0.0625)
    """

    _shown = ("alpha", "ignore_index", "label_smoothing", "reduction")
    weight: Tensor | None

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        *,
        learnable: bool = False,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(alpha, learnable=learnable)
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction
        self.register_buffer("weight", weight)

    def forward(
        self,
        scores: Float[Tensor, "..."],
        target: Shaped[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """The loss of logits (N, C, …) against class ids (N, …) or soft targets (N, C, …)."""
        options: dict[str, Any] = {name: getattr(self, name) for name in self._shown}
        return entmax_loss(scores, target, mask=mask, weight=self.weight, **options)


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
        # Replace values that no query may attend, by the mask or by scores of −∞, with zeros: they may be NaN.
        finite = None if scores is None else scores.detach() != -torch.inf
        allowed = mask if finite is None else finite if mask is None else mask & finite
        seen = unmasked(values, allowed.any(1) if allowed is not None and allowed.dim() == 3 else allowed)
        weights = entmax(self._scores(seen, query) if scores is None else scores, self.alpha, mask=mask)
        return weighted_mean(weights, seen), weights

    def _scores(self, values: Tensor, query: Tensor | None) -> Tensor:
        queries = None if query is None or self.query is None else self.query(query)
        if self.score == "additive":
            energies: Tensor = self.energy(torch.tanh(with_queries(self.key(values), queries))).squeeze(-1)
            return energies
        scaled: Tensor = (self.constant_query if queries is None else queries) / math.sqrt(self.embed_dim)
        return scaled @ values.mT if scaled.dim() == 3 else (values @ scaled.unsqueeze(-1)).squeeze(-1)


class BagPooling(AlphaModule):
    r"""A bag of instances without order → one vector: multiple-instance pooling that rules instances out exactly.

    .. math:: z_\ell = w^\top\big(\tanh(V h_\ell) \odot \mathrm{sigmoid}(U h_\ell)\big), \qquad
              p = \alpha\text{-entmax}(z), \qquad c = \sum_\ell p_\ell h_\ell

    The weights move with the instances when these change places, and the pooled vector stays as it is. With α > 1 an
    instance may get the weight 0: then the result does not depend on it at all. α = 1 is the gated attention of the
    reference, whose weights are all positive. An empty bag gives zeros.

    Args:
        embed_dim: D, channels of the instances.
        alpha: α > 0: 1 is softmax, 2 is sparsemax; a float or a tensor. A Parameter is learned as it is, without
            bounds.
        learnable: whether α is learned inside (1, 2), starting at `alpha`; see :class:`Entmax`.

    Shape:
        values (B, L, D), mask (L,) or (B, L); pooled (B, D), weights (B, L).

    Example:
        >>> import torch, contmax
        >>> pool = contmax.nn.BagPooling(16)
        >>> exists = torch.arange(9) < torch.tensor([[9], [4]])  # bags of nine and of four instances
        >>> pooled, weights = pool(torch.randn(2, 9, 16), mask=exists)
        >>> pooled.shape, weights.shape
        (torch.Size([2, 16]), torch.Size([2, 9]))

    Reference: Ilse, Tomczak & Welling 2018, gated attention.
    """

    _shown = ("embed_dim", "alpha")

    def __init__(self, embed_dim: int, *, alpha: float | Tensor = 1.5, learnable: bool = False) -> None:
        super().__init__(alpha, learnable=learnable)
        self.embed_dim = embed_dim
        self.content = torch.nn.Linear(embed_dim, embed_dim, bias=False)
        self.gate = torch.nn.Linear(embed_dim, embed_dim, bias=False)
        self.energy = torch.nn.Linear(embed_dim, 1, bias=False)

    def forward(
        self, values: Float[Tensor, "B L D"], *, mask: Bool[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B L"]]:
        """The pooled vectors, and the weights of the instances.

        Args:
            values: the instances of each bag.
            mask: True = an instance of the bag, False = padding.
        """
        check_values(values, self.embed_dim, "values")
        _check(values, None, None, mask)
        seen = unmasked(values, mask)
        gated = torch.tanh(self.content(seen)) * torch.sigmoid(self.gate(seen))
        weights = entmax(self.energy(gated).squeeze(-1), self.alpha, mask=mask)
        return weighted_mean(weights, seen), weights


def _check(values: Tensor, per_query: Tensor | None, scores: Tensor | None, mask: Tensor | None) -> None:
    """Refuse scores and masks that do not fit the values.

    `per_query` holds the scores, or without them the queries: it tells whether there is an axis of Q queries.
    """
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
