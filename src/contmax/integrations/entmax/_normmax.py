r"""α-normmax: the probabilities that trade the score against the α-norm, max ⟨x, p⟩ − ‖p‖_α.

At the optimum x − τ = (p/‖p‖_α)^{α−1} on the support, so the powers w = (p/‖p‖_α)^α add up to one and satisfy

    w = [x − τ]_+^κ,    Σ w = 1,    κ = α/(α−1) ≥ 1,

which is α'-entmax of the scores κx with α' = 1 + 1/κ = 2 − 1/α ∈ (1, 2). Hence p is the 1/α-escort of w: no solver and
no derivative of its own. Norm-entropies: Blondel, Martins & Niculae 2020.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from contmax._typing import Float, Int
from contmax.deformed import escort
from contmax.integrations.entmax._parameter import real
from contmax.maps import entmax
from contmax.maps._arguments import checked_scores, output_dtype


def normmax(scores: Float[Tensor, "..."], alpha: float | Tensor, dim: int) -> Float[Tensor, "..."]:
    """argmax ⟨x, p⟩ − ‖p‖_α over the simplex, differentiable in the scores and in α.

    Args:
        scores: x of any floating dtype; −inf entries get p = 0, a slice of them zeros.
        alpha: α, a float or a tensor that broadcasts to the scores with size 1 along `dim`. For α ≤ 1 the norm of a
            probability vector is least at a vertex, and the result is one on the largest score (shared by ties).
        dim: the axis of the distribution.

    Returns:
        p of the shape of the scores.
    """
    x = checked_scores(scores, dim, "normmax_bisect")
    alpha = real(alpha, scores)
    top = x.detach().amax(dim, keepdim=True)
    shifted = x - torch.where(top == -torch.inf, 0, top)
    p = _by_alpha(alpha, lambda above: escort(_powers(shifted, above, dim), 1 / above, dim), _largest(shifted, dim))
    return p.to(output_dtype(scores))


def normmax_loss(
    scores: Float[Tensor, "n classes"],
    target: Int[Tensor, " n"] | Float[Tensor, "n classes"],
    alpha: float | Tensor,
    ignore_index: int,
) -> Float[Tensor, " n"]:
    """max_p (⟨x, p⟩ − ‖p‖_α) + ‖y‖_α − ⟨x, y⟩ ≥ 0 for labels or soft targets y, differentiable in all and in α.

    ⟨x, p⟩ = τ + ‖p‖_α at the optimum, so the maximum is τ, and the largest score stands x_max − τ = w_max^{1/κ} ≤ 1
    above it. The loss is then a sum of small terms: (1 − w_max^{1/κ}) + ⟨x_max − x, y⟩ − (1 − ‖y‖_α).

    Args:
        scores: x of any floating dtype; −inf entries have p = 0.
        target: class labels, or probabilities y.
        alpha: α, a float or a tensor that broadcasts to the scores with size 1 along the last axis.
        ignore_index: the label of samples whose loss is 0.

    Returns:
        One loss per sample; +inf with a finite gradient where y has mass on a −inf score.
    """
    x = checked_scores(scores, -1, "normmax_bisect_loss")
    nothing = (x == -torch.inf).all(-1, keepdim=True)
    x = x.masked_fill(nothing, 0)
    alpha = real(alpha, scores)
    place = x.detach().argmax(-1, keepdim=True)
    top = x.gather(-1, place)
    shifted = x - top.detach()
    loss = _by_alpha(alpha, lambda above: _gap(shifted, place, above), torch.zeros_like(top))
    ignored = torch.zeros_like(nothing)
    if target.is_floating_point():
        y = target.to(x.dtype)
        distance = torch.where((y == 0) & (x == -torch.inf), 0, top - x)
        loss = loss + (y * distance).sum(-1, keepdim=True) - (1 - _norm(y, alpha))
    else:
        ignored = (target == ignore_index).unsqueeze(-1)
        loss = loss + top - x.gather(-1, target.unsqueeze(-1).masked_fill(ignored, 0))
    loss = loss.masked_fill(nothing, torch.inf).masked_fill(ignored, 0)
    return loss.squeeze(-1).to(output_dtype(scores))


def _by_alpha(alpha: float | Tensor, above_one: Callable[[float | Tensor], Tensor], at_most_one: Tensor) -> Tensor:
    """`above_one(α)` where α > 1, `at_most_one` elsewhere."""
    if not isinstance(alpha, Tensor):
        return above_one(alpha) if alpha > 1 else at_most_one
    above = alpha > 1
    return torch.where(above, above_one(torch.where(above, alpha, 2)), at_most_one)


def _powers(shifted: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """w = (p/‖p‖_α)^α."""
    return entmax(shifted / _inverse_kappa(alpha), 1 + _inverse_kappa(alpha), dim)


def _gap(shifted: Tensor, place: Tensor, alpha: float | Tensor) -> Tensor:
    """1 − w_max^{1/κ}, with the maximum at `place`."""
    largest = _powers(shifted, alpha, -1).gather(-1, place)
    return -torch.expm1(_inverse_kappa(alpha) * largest.log())


def _norm(y: Tensor, alpha: float | Tensor) -> Tensor:
    """‖y‖_α of y ≥ 0, scaled by the largest entry: a high power of a small number underflows."""
    top = y.detach().amax(-1, keepdim=True)
    scale = torch.where(top > 0, top, 1)
    inside = y > 0
    powers = torch.where(inside, torch.where(inside, y / scale, 1) ** alpha, 0)
    return scale * powers.sum(-1, keepdim=True) ** (1 / alpha)


def _inverse_kappa(alpha: float | Tensor) -> float | Tensor:
    """(α − 1)/α in a form that keeps its digits near α = 1 and is 1 at α = ∞."""
    return 1 / (1 + 1 / (alpha - 1))


def _largest(shifted: Tensor, dim: int) -> Tensor:
    """The indicator of the maximum, shared equally by ties; zeros for a slice of −inf."""
    largest = (shifted == 0).to(shifted.dtype)
    return largest / largest.sum(dim, keepdim=True).clamp(min=1)
