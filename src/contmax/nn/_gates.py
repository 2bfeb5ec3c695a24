"""A head (a module that decides where to look) with a gate per position; its density covers where gates are open."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from contmax._autograd import apply, gradients_by_reference, refused_by_kernels, tangent_by_reference
from contmax._typing import Float
from contmax.kernels import means
from contmax.nn._module import check_query, check_values, wide_linear, with_queries
from contmax.nn._place import (
    Cells,
    Place,
    PlacingHead,
    Where,
    ball_covariance,
    cells_of_weights,
    check_least_half_width,
    density_of_moments,
    moments_of_weights,
)
from contmax.signal._observations import check_mask, unmasked

# Offset of the logits, with which gates begin nearly shut. For negative x sigmoid(x) ≈ eˣ, so that nearly shut gates
# compete for the mass as the weights of a softmax do.
_SHUT = -2.0
# Rounds in which gates far from the others are closed: the second is around a mean that the farthest no longer move.
_ROUNDS = 2


class GateHead(PlacingHead):
    r"""Decides where to look by gates: each position matters or not, and the density covers those that matter.

    .. math:: g_\ell = \mathrm{sigmoid}(v^\top\tanh(W h_\ell + U q) + b - 2), \qquad
              p_\ell = \frac{f_\ell g_\ell}{\sum_m f_m g_m}, \qquad \mu = E_p[t]

    On the line the half-width is :math:`a = 2\,E_p|t - \mu|`, in N > 1 dimensions the support is the ellipsoid of
    :math:`T = (N + 2)\,\mathrm{Cov}_p[t]`, where each position is spread over its cell. So gates that are open on an
    interval or an ellipsoid, and shut elsewhere, give exactly that support. This holds for α = 2; for other α the
    density has this mean and covariance.

    A single gate that noise opens far away would move the mean, and widen a narrow support many times. Therefore gates
    count by their distance from the mean: μ and a are computed with f = 1, then with

    .. math:: f_\ell = \min(1, \max(0, 2 - |t_\ell - \mu| / a))

    and so once more. In N > 1 dimensions a is half of a side of the box around the ellipsoid, and f that of the axis
    along which it is smallest. f is a constant in derivatives.

    Labels alone favour a narrow support, because one position that reveals the answer is enough. Therefore
    :meth:`hide_values` leaves the values of some positions out of the context in training. The context is then right on
    average, and its error is small if it depends little on single positions. So the gates of all positions that reveal
    the answer learn to open. Gates see every position, and nothing is hidden in evaluation.

    Args:
        embed_dim: D, channels of the keys, or of the values if there are no keys.
        dim: N; for N > 1 the attention needs `grid` or `positions`.
        query_dim: channels of queries; None for a head without queries.
        hidden_dim: width of the gates' hidden layer; D by default.
        hide: 0 ≤ hide < 1. In training the share of values that is hidden from a sequence is drawn uniformly from
            [0, hide); 0 hides none, for example because the places of some examples are known and teach the width.
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

    _shown = ("embed_dim", "dim", "query_dim", "hide", "least_half_width")

    def __init__(
        self,
        embed_dim: int,
        *,
        dim: int = 1,
        query_dim: int | None = None,
        hidden_dim: int | None = None,
        hide: float = 0.9,
        least_half_width: float | None = None,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1; got {dim}.")
        check_least_half_width(least_half_width)
        if not 0 <= hide < 1:
            raise ValueError(f"hide must be in [0, 1), the largest share of the values hidden in training; got {hide}.")
        self.embed_dim, self.dim, self.query_dim = embed_dim, dim, query_dim
        self.hide, self.least_half_width = hide, least_half_width
        width = embed_dim if hidden_dim is None else hidden_dim
        self.key = torch.nn.Linear(embed_dim, width)
        self.query = None if query_dim is None else torch.nn.Linear(query_dim, width, bias=False)
        self.energy = torch.nn.Linear(width, 1)

    def hide_values(self, values: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        r"""Values for the context: in training, some are 0 and the others larger, so that their mean stays the same.

        .. math:: \tilde v_\ell = \frac{b_\ell}{1 - r} v_\ell, \qquad b_\ell \sim \text{Bernoulli}(1 - r), \qquad
                  r \sim \text{Uniform}[0, \text{hide})

        with one r per sequence. The variance of a mean :math:`\sum_\ell p_\ell \tilde v_\ell` is
        :math:`\tfrac{r}{1 - r}\sum_\ell p_\ell^2 v_\ell^2`: smallest if the weight is spread over all that matter.

        Example:
            >>> import torch, contmax
            >>> _ = torch.manual_seed(0)
            >>> head, values = contmax.nn.GateHead(4, hide=0.5), torch.ones(1, 1000, 4)
            >>> hidden = head.hide_values(values)
            >>> bool((hidden == 0).any()), round(float(hidden.mean()), 1)
            (True, 1.0)
            >>> head.eval().hide_values(values) is values
            True
        """
        if not self.training or self.hide == 0:
            return values
        share = self.hide * torch.rand(values.shape[0], 1, 1, device=values.device)
        remains = torch.rand(*values.shape[:2], 1, device=values.device) >= share
        return values * (remains / (1 - share)).to(values.dtype)

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, where: Where) -> Place:
        mask = where.mask
        check_values(values, self.embed_dim, "values")
        check_query(query, self.query_dim, values)
        check_mask(values.shape[:2], mask)
        keys, queries = self.key(unmasked(values, mask)), None if self.query is None else self.query(query)
        logits = wide_linear(self.energy, torch.tanh(with_queries(keys, queries))).squeeze(-1)
        least = 0.0 if self.least_half_width is None else self.least_half_width**2
        if self.dim == 1 and where.positions is None and where.grid is None:
            weights, mean, variance = default_gate_moments(logits, mask, _SHUT, least)
            return Place(density_of_moments(mean, variance, alpha, 1), weights, None)
        logits, may = logits + _SHUT, _of_rows(mask, logits)
        cells, first = cells_of_weights(logits, self.dim, where)
        if self.dim == 1:
            weights, mean, covariance = line_place(logits, may, cells, least)
            mean = first.squeeze(-1) + mean
        else:
            weights = weights_in_space(logits, may, cells)
            mean, covariance = moments_of_weights(weights, self.dim, where)
            # A truncated paraboloid with T = (N + 2) Cov_p[t] has the covariance T/(N + 4).
            covariance = (self.dim + 2) / (self.dim + 4) * covariance + ball_covariance(least, self.dim, covariance)
        return Place(density_of_moments(mean, covariance, alpha, self.dim), weights, None)


def gate_weights(logits: Tensor, may: Tensor | None, factors: Tensor | None = None) -> Tensor:
    """p = g f/Σ g f of gates g = sigmoid(logits), computed from ln g: accurate even if all gates are nearly shut.

    Args:
        logits: (B, L) or (B, Q, L).
        may: boolean, True = may be attended, broadcastable to the logits; or None.
        factors: f, of the shape of the logits; None for 1.
    """
    logs = logsigmoid(logits)
    if factors is not None:
        may = factors > 0 if may is None else may & (factors > 0)
        logs = logs + torch.where(may, factors, 1).log()
    if may is None:
        return torch.softmax(logs, -1)
    # A fully masked row has weights and gradients of zero.
    return torch.softmax(logs.masked_fill(~may, torch.finfo(logs.dtype).min), -1).masked_fill(~may, 0)


def line_moments(weights: Tensor, cells: Cells, least: float) -> tuple[Tensor, Tensor]:
    """The mean μ of positions t under `weights`, and the variance (a² + `least`)/5 of a truncated parabola.

    Its half-width before `least` is a = 2 E_p|t − μ|, where the weight of a position is spread evenly over its cell.
    """
    p = weights.unsqueeze(-1)
    mean = (p * cells.centers).sum(-2)
    offsets, sides = cells.centers - mean.unsqueeze(-2), cells.sides.unsqueeze(-2)
    # `excess` is E|x + u| − E|u| for x = centre − μ and u uniform in a cell around 0: x²/side for x in this cell,
    # |x| − side/4 outside. The other term of the half-width, 2 E|u|, is side/2.
    near = offsets.clamp(-sides / 2, sides / 2)
    excess = near.square() / sides + torch.relu(offsets.abs() - sides / 2)
    half_width = cells.sides / 2 + 2 * (p * excess).sum(-2)
    return mean.squeeze(-1), (half_width.square() + least).squeeze(-1) / 5


def near(cells: Cells, mean: Tensor, reach: Tensor) -> Tensor:
    """How much each gate counts: f = 1 up to the distance `reach` from the mean, falling to 0 at twice this distance.

    Args:
        cells: where the gates are.
        mean: (B, N) or (B, Q, N).
        reach: half of the sides of the box around the support, of the shape of `mean`.

    Returns:
        f, (B, L) or (B, Q, L), a constant in derivatives: otherwise learning moves what counts instead of the gates.
    """
    far = ((cells.centers - mean.unsqueeze(-2)).abs() / reach.unsqueeze(-2)).amax(-1)
    return (2 - far).clamp(0, 1).detach()


def line_place(logits: Tensor, may: Tensor | None, cells: Cells, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the gates near the others on the line, and `line_moments` of these weights."""
    weights = gate_weights(logits, may)
    for _ in range(_ROUNDS):
        mean, variance = line_moments(weights, cells, 0.0)
        factors = near(cells, mean.unsqueeze(-1), (5 * variance).sqrt().unsqueeze(-1))
        weights = gate_weights(logits, may, factors)
    return weights, *line_moments(weights, cells, least)


def weights_in_space(logits: Tensor, may: Tensor | None, cells: Cells) -> Tensor:
    """Weights of the gates near the others in N > 1 dimensions."""
    weights, dim = gate_weights(logits, may), cells.sides.shape[-1]
    for _ in range(_ROUNDS):
        p = weights.unsqueeze(-1)
        mean = (p * cells.centers).sum(-2)
        variances = (p * (cells.centers - mean.unsqueeze(-2)).square()).sum(-2) + cells.sides.square() / 12
        weights = gate_weights(logits, may, near(cells, mean, ((dim + 2) * variances).sqrt()))
    return weights


def default_gate_moments(
    logits: Tensor, mask: Tensor | None, shift: float, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and variances of gates sigmoid(logits + shift) at the default positions of the line.

    Args:
        logits: (B, L) or (B, Q, L), at least float32.
        mask: boolean, True = may be attended, (L,) or (B, L); or None.
        shift: added to the logits.
        least: added to the squared half-width.
    """
    if not means.gates_are_compiled(logits):
        return _reference(logits, mask, shift, least)
    may = None if mask is None else mask.expand(logits.shape[0], logits.shape[-1]).contiguous()
    result: tuple[Tensor, Tensor, Tensor] = apply(GateMoments, logits, may, shift, least)
    return result


def _reference(logits: Tensor, mask: Tensor | None, shift: float, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """`default_gate_moments` by torch operations."""
    cells = cells_of_weights(logits, 1, Where(None, None, mask))[0]
    return line_place(logits + shift, _of_rows(mask, logits), cells, least)


def _of_rows(mask: Tensor | None, logits: Tensor) -> Tensor | None:
    """A mask (L,) or (B, L), reshaped to broadcast to logits (B, L) or (B, Q, L)."""
    return mask if mask is None or mask.dim() == 1 or logits.dim() == 2 else mask.unsqueeze(1)


class GateMoments(torch.autograd.Function):
    """`default_gate_moments` by one kernel launch forward and one backward.

    `_reference` gives higher derivatives, tangents of forward mode, and gradients under torch.vmap.
    """

    # No `setup_context`: only transforms of torch.func need one, and this Function is called on eager tensors only.
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        may: Tensor | None,
        shift: float,
        least: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from contmax.kernels.means import _gpu_gates

        weights, mean, variance = _gpu_gates.gate_moments(logits.contiguous(), may, shift, least, _ROUNDS)
        ctx.shift, ctx.least = shift, least
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, may, weights, mean)
        ctx.save_for_forward(logits, may)
        return weights, mean, variance

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, may, weights, mean = ctx.saved_tensors
        if all(c is None for c in cotangents):
            return (None,) * 4
        by_weights, by_mean, by_variance = cotangents
        by_mean, by_variance = (torch.zeros_like(mean) if c is None else c for c in (by_mean, by_variance))
        if refused_by_kernels(*cotangents):
            given = torch.zeros_like(weights) if by_weights is None else by_weights
            (gradient,) = gradients_by_reference(_reference_of(ctx), (logits,), (True,), (given, by_mean, by_variance))
        else:
            from contmax.kernels.means import _gpu_gates

            gradient = _gpu_gates.gate_moments_backward(
                logits.contiguous(), may, weights, mean, (by_weights, by_mean, by_variance), ctx.shift
            )
        return gradient, None, None, None

    @staticmethod
    def tangent(ctx: Any, move: Tensor, *others: Any) -> tuple[Tensor, ...]:
        return tangent_by_reference(_reference_of(ctx), ctx.saved_tensors[:1], (move,))


def _reference_of(ctx: Any) -> Callable[[Tensor], tuple[Tensor, ...]]:
    may = ctx.saved_tensors[1]
    return partial(_reference, mask=may, shift=ctx.shift, least=ctx.least)
