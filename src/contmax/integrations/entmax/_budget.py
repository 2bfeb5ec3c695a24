r"""Projection onto k-subsets: the sparsemax whose entries may each be as large as one and add up to a budget.

The optimum of ⟨x, p⟩ − ½‖p‖² over 0 ≤ p ≤ 1, Σp = B is p = clip(x − τ, 0, 1). A search finds which entries lie strictly
between 0 and 1; given those, τ has a closed form, and only that closed form is differentiated:

    τ = (#{p = 1} + Σ_active x − B) / #active,        active = {0 < p < 1}.
"""

import math
from typing import Any

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, is_exporting
from contmax._typing import Float
from contmax._vmapped import Places, batch_first
from contmax.maps._arguments import checked_scores, output_dtype

# Steps of the search where their number must be fixed (traced graphs, accelerators). Six are typical; the worst case
# found over 2 ≤ L ≤ 50,000, scores from flat to peaked, geometric and tied, and all budgets was 22 and 31.
_FIXED_STEPS = {torch.float32: 24, torch.float64: 32}
_MOST_STEPS = 512


def budgeted_sparsemax(scores: Float[Tensor, "..."], budget: float | Tensor, dim: int) -> Float[Tensor, "..."]:
    """The point of {0 ≤ p ≤ 1, Σp = B} nearest to the scores, differentiable in the scores and in B.

    Args:
        scores: x of any floating dtype; −inf entries get p = 0.
        budget: B, a float or a tensor that broadcasts to the scores with size 1 along `dim`. Outside [0, number of
            finite scores] no p exists; the nearest budget that has one is used.
        dim: the axis of the budget.

    Returns:
        p of the shape of the scores.
    """
    x = checked_scores(scores, dim, "budget_bisect")
    present = x != -torch.inf
    pivot = _pivot(x.detach(), budget, dim)
    budget = budget.to(x.dtype) if isinstance(budget, Tensor) else x.new_full([1] * x.dim(), budget)
    budget = budget.clamp(min=0).minimum(present.sum(dim, keepdim=True))
    # Differences to a score at the threshold are exact where it matters; differences to the maximum need not be.
    # Nothing of 2 or more below the pivot gets mass.
    centred = torch.where(present, x - pivot, -4)
    # Hundreds of operations do not belong in a compiled graph, and an exported one must not depend on our operators.
    search = _threshold_op if torch.compiler.is_compiling() and not is_exporting() else _threshold
    p = (centred.detach() - search(centred.detach(), budget.detach(), dim)).clamp(0, 1)
    # Said in the negative so that a NaN counts as active and reaches the result.
    active = ~((p <= 0) | (p >= 1))
    spare = budget - (p >= 1).sum(dim, keepdim=True)
    taken = torch.where(active, centred, 0).sum(dim, keepdim=True)
    threshold = (taken - spare) / active.sum(dim, keepdim=True).clamp(min=1)
    return torch.where(active, (centred - threshold).clamp(0, 1), p).to(output_dtype(scores))


def _pivot(x: Tensor, budget: float | Tensor, dim: int) -> Tensor:
    """The ⌈B⌉-th largest score, or the smallest finite one: some threshold lies at most 2 below it, and none above.

    More than ⌊B⌋ scores one above the threshold would exceed the budget, fewer than ⌈B⌉ above it cannot fill it. A NaN
    sorts first and is returned for the whole slice.
    """
    length = x.shape[dim]
    if isinstance(budget, Tensor):
        shape = list(x.shape)
        shape[dim] = 1
        rank = (budget.detach().ceil().long() - 1).clamp(0, length - 1).expand(shape)
        descending = x.sort(dim=dim, descending=True).values
        pivot = descending.gather(dim, rank)
    else:
        count = math.ceil(min(max(budget, 1), length))
        descending = x.topk(count, dim).values
        pivot = descending.narrow(dim, count - 1, 1)
    top = descending.narrow(dim, 0, 1)
    least = torch.where(x == -torch.inf, torch.inf, x).amin(dim, keepdim=True)
    pivot = torch.where(pivot == -torch.inf, torch.where(least == torch.inf, 0, least), pivot)
    return torch.where(top.isnan(), top, pivot)


def _threshold(x: Tensor, budget: Tensor, dim: int) -> Tensor:
    """τ ∈ [−2, 0] with Σ clip(x − τ, 0, 1) = B: Newton's method on a piecewise linear function, kept in a bracket.

    Newton is exact once it meets the right piece. Every eighth step halves the bracket instead, so that no arrangement
    of pieces can hold it up for ever. A row rests when its mass is the budget up to the rounding of a sum.
    """
    low, high = torch.full_like(budget, -2), torch.zeros_like(budget)
    threshold = torch.full_like(budget, -0.5)
    eager = is_eager_cpu(x)
    rounding = 4 * torch.finfo(x.dtype).eps
    for step in range(_MOST_STEPS if eager else _FIXED_STEPS[x.dtype]):
        above = x - threshold
        clipped = above.clamp(0, 1)
        excess = clipped.sum(dim, keepdim=True) - budget
        open_rows = (excess.abs() > rounding * (1 + budget)) & (high - low > rounding)
        if eager and not bool(open_rows.any()):
            break
        slope = (clipped == above).sum(dim, keepdim=True)
        low, high = torch.where(excess >= 0, threshold, low), torch.where(excess <= 0, threshold, high)
        newton = threshold + excess / slope.clamp(min=1)
        halve = (newton <= low) | (newton >= high) | (step % 8 == 7)
        threshold = torch.where(open_rows, torch.where(halve, (low + high) / 2, newton), threshold)
    return threshold


@torch.library.custom_op("contmax::budget_threshold", mutates_args=())
def _threshold_op(x: Tensor, budget: Tensor, dim: int) -> Tensor:
    """`_threshold` as one opaque node; the budget has the shape of x with size 1 along `dim`."""
    return _threshold(x, budget, dim).contiguous()


@_threshold_op.register_fake
def _(x: Tensor, budget: Tensor, dim: int) -> Tensor:
    return budget.new_empty(budget.shape)


@_threshold_op.register_vmap
def _(info: Any, in_dims: Places, x: Tensor, budget: Tensor, dim: int) -> Any:
    rank = x.dim() - (in_dims[0] is not None)
    return _threshold_op(*batch_first(info, in_dims, (x, budget)), dim % rank + 1), 0
