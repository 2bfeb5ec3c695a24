"""A head that knows where: gates on the positions, and the density that covers the open ones."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._precision import without_autocast
from contmax.nn._gate_moments import default_gate_moments, gate_weights, line_moments
from contmax.nn._parameters import (
    check_least_half_width,
    check_mask,
    check_query,
    check_values,
    density_of_moments,
    wide_linear,
    with_queries,
)
from contmax.nn._place import Cells, Place, PlacingHead, cells_of_weights, unmasked

# Logit of the gates before they have learned anything: nearly shut they compete, as weights of a softmax do.
_SHUT = -2.0


class GateHead(PlacingHead):
    r"""Decides where to look by gates: each position matters or not, and the density covers those that matter.

    .. math:: g_\ell = \mathrm{sigmoid}(v^\top\tanh(W h_\ell + U q) + b - 2), \qquad p = g / \textstyle\sum_\ell g_\ell,
              \qquad \mu = E_p[t]

    On the line the half-width is :math:`a = 2\,E_p|t - \mu|`, in N > 1 dimensions the support is the ellipsoid of
    :math:`T = (N + 2)\,\mathrm{Cov}_p[t]`, where each position is spread over its cell. So gates that are open on an
    interval or an ellipsoid, and shut elsewhere, give exactly that support. This holds for α = 2; for other α the
    density has this mean and covariance.

    Labels alone favour a narrow support, because one position that reveals the answer is enough. Therefore some gates
    are shut at random in training: the answer must then come from any of the positions that reveal it, and all of them
    learn to open. Nothing is dropped in evaluation. The share may be lowered during training (:meth:`drop_gates`); the
    laboratory's task `places` lowers it from .95 to .5 in the first two thirds.

    Args:
        embed_dim: D, channels of the keys, or of the values if there are no keys.
        dim: N; for N > 1 the attention needs `grid` or `positions`.
        query_dim: channels of queries; None for a head without queries.
        hidden_dim: width of the gates' hidden layer; D by default.
        drop: share of the gates that are shut in training, 0 ≤ drop < 1. The higher, the wider the support. It is a
            buffer, `drop_rate`.
        least_half_width: half-width (semi-axis) of the smallest support worth looking at, about the radius of the
            objects, in the unit of the positions: added as a² + least², T + least²·I. Use it where labels cannot teach
            the width, for example because a single value has seen the whole object. None for half a cell.

    Shape:
        values (B, L, D), query (B, query_dim) or (B, Q, query_dim), mask (B, L) or (L,), positions (L,) or (B, L), with
        a last axis N in N > 1 dimensions; density of batch shape (B,) or (B, Q), weights (B, L) or (B, Q, L). A
        sequence with nothing to attend has weights of zero; its density means nothing.

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.GateHead(16, least_half_width=0.05)
        >>> density = head(torch.randn(2, 50, 16), alpha=2.0)
        >>> density.half_width.shape, bool((density.half_width > 0.05).all())
        (torch.Size([2]), True)
    """

    _shown = ("embed_dim", "dim", "query_dim", "drop", "least_half_width")
    drop_rate: Tensor

    def __init__(
        self,
        embed_dim: int,
        *,
        dim: int = 1,
        query_dim: int | None = None,
        hidden_dim: int | None = None,
        drop: float = 0.5,
        least_half_width: float | None = None,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1; got {dim}.")
        check_least_half_width(least_half_width)
        self.embed_dim, self.dim, self.query_dim = embed_dim, dim, query_dim
        self.least_half_width = least_half_width
        self.register_buffer("drop_rate", torch.zeros(()))
        self.drop_gates(drop)
        width = embed_dim if hidden_dim is None else hidden_dim
        self.key = torch.nn.Linear(embed_dim, width)
        self.query = None if query_dim is None else torch.nn.Linear(query_dim, width, bias=False)
        self.energy = torch.nn.Linear(width, 1)

    def drop_gates(self, share: float | Tensor) -> None:
        """Set the share of the gates that are shut in training from now on.

        A tensor, for example from a schedule on a device, is not checked.

        Example:
            >>> import contmax
            >>> head = contmax.nn.GateHead(16)
            >>> for progress in (0.0, 0.3, 1.0):
            ...     head.drop_gates(max(0.5, 0.95 - 0.68 * progress))
            >>> head
            GateHead(
              embed_dim=16, dim=1, query_dim=None, drop=0.5, least_half_width=None
              ...
        """
        if not isinstance(share, Tensor) and not 0 <= share < 1:
            raise ValueError(f"drop must be in [0, 1), the share of gates that are shut in training; got {share}.")
        with torch.no_grad():
            if isinstance(share, Tensor):
                self.drop_rate.copy_(share)
            else:
                self.drop_rate.fill_(share)

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, **where: Any) -> Place:
        positions, grid, mask = where["positions"], where["grid"], where["mask"]
        check_values(values, self.embed_dim, "values")
        check_query(query, self.query_dim, values)
        check_mask(mask, values)
        logits = self._logits(unmasked(values, mask), query)
        noise = torch.rand_like(logits) if self.training else None
        least = 0.0 if self.least_half_width is None else self.least_half_width**2
        if self.dim == 1 and positions is None and grid is None:
            weights, mean, variance = default_gate_moments(logits, mask, noise, self.drop_rate, _SHUT, least)
            return Place(density_of_moments(mean, variance, alpha, 1, "exact"), weights, None)
        cells, first = cells_of_weights(logits, self.dim, **where)
        may = mask if mask is None else mask.expand(values.shape[:2])
        may = may.unsqueeze(1) if may is not None and logits.dim() == 3 else may
        weights = gate_weights(logits + _SHUT, may, noise, self.drop_rate)
        if self.dim == 1:
            mean, variance = line_moments(weights, cells, least)
            return Place(density_of_moments(first.squeeze(-1) + mean, variance, alpha, 1, "exact"), weights, None)
        return Place(self._density_in_space(weights, cells, first, least, alpha), weights, None)

    def _logits(self, values: Tensor, query: Tensor | None) -> Tensor:
        """Logits of the gates without their start, (B, L) or (B, Q, L), in at least float32."""
        queries = None if query is None or self.query is None else self.query(query)
        return wide_linear(self.energy, torch.tanh(with_queries(self.key(values), queries))).squeeze(-1)

    def _density_in_space(
        self, weights: Tensor, cells: Cells, first: Tensor, least: float, alpha: float | Tensor
    ) -> Distribution:
        """The density of the support T for α = 2, and for any other α of its moments."""
        p = weights.unsqueeze(-1)
        mean = (p * cells.centers).sum(-2)
        offsets = cells.centers - mean.unsqueeze(-2)
        with without_autocast(weights):
            covariance = (p * offsets).mT @ offsets
        support = (self.dim + 2) * (covariance + torch.diag_embed(cells.sides.square() / 12).expand_as(covariance))
        support = support + least * torch.eye(self.dim, dtype=mean.dtype, device=mean.device)
        return density_of_moments(first + mean, support / (self.dim + 4), alpha, self.dim, "exact")

    def _show(self, name: str) -> str:
        if name != "drop":
            return super()._show(name)
        return "unknown" if self.drop_rate.is_meta else f"{self.drop_rate.item():.3g}"
