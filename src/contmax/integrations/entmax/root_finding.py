"""`entmax.root_finding`: α-entmax for every α, α-normmax and budgets (k-subsets), as functions and as modules."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from contmax import maps
from contmax._eager import is_eager_cpu, is_exporting
from contmax._operator import operator
from contmax._precision import wide_dtype
from contmax._typing import Float
from contmax.deformed import escort
from contmax.integrations.entmax.activations import _Map
from contmax.maps._arguments import checked_scores, output_dtype

# Steps of the search for a threshold where their number must be fixed (traced graphs, accelerators). Six are typical.
# The worst cases found over 2 ≤ L ≤ 50,000, scores from flat to peaked, geometric and tied, and all budgets: 22 and 31.
_FIXED_STEPS = {torch.float32: 24, torch.float64: 32}
_MOST_STEPS = 512


def entmax_bisect(
    X: Float[Tensor, "..."],
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    n_iter: int | None = 50,
    ensure_sum_one: bool = True,
) -> Float[Tensor, "..."]:
    r"""α-entmax: softmax at α = 1, sparser as α grows, sparsemax at α = 2.

    .. math:: p = \arg\max_{p \in \triangle} \langle x, p\rangle - \Omega_\alpha(p)

    Args:
        X: scores x, any shape; −inf counts as masked.
        alpha: α > 0, a number, or a tensor that broadcasts to X with size 1 along `dim`; differentiable.
        dim: the axis of the distribution.
        n_iter: accepted for compatibility; the solver runs to the rounding of the dtype.
        ensure_sum_one: accepted for compatibility; probabilities always add up to one.

    Returns:
        Probabilities of the shape of X, as :func:`contmax.entmax`.

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.entmax_bisect(torch.tensor([2.0, 1.0, 0.1, -1.0]), alpha=1.25)
        tensor([0.7442, 0.2123, 0.0424, 0.0010])

    References: Peters, Niculae & Martins 2019; Correia, Niculae & Martins 2019 (learned α).
    """
    return maps.entmax(X, _real(alpha, X), dim)


def sparsemax_bisect(
    X: Float[Tensor, "..."], dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Float[Tensor, "..."]:
    """Sparsemax: :func:`contmax.sparsemax`; `n_iter` and `ensure_sum_one` have no effect."""
    return maps.sparsemax(X, dim)


def normmax_bisect(
    X: Float[Tensor, "..."], alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50
) -> Float[Tensor, "..."]:
    r"""α-normmax: probabilities that trade the score against the α-norm.

    .. math:: p = \arg\max_{p \in \triangle} \langle x, p\rangle - \|p\|_\alpha

    At the optimum :math:`x - \tau = (p/\|p\|_\alpha)^{\alpha-1}` on the support, so that with κ = α/(α − 1) the powers
    :math:`w = (p/\|p\|_\alpha)^\alpha = [x - \tau]_+^\kappa` add up to one: they are (1 + 1/κ)-entmax of κx, and p
    is the 1/α-escort of w.

    Args:
        X: scores x, any shape; −inf counts as masked.
        alpha: α, a number, or a tensor that broadcasts to X with size 1 along `dim`; differentiable. α = ∞ gives a
            uniform distribution on the support of sparsemax. α ≤ 1 gives one on the largest score, shared by ties.
        dim: the axis of the distribution.
        n_iter: accepted for compatibility; the solver runs to the rounding of the dtype.

    Returns:
        Probabilities of the shape of X.

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.normmax_bisect(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
        tensor([0.0000, 0.0239, 0.1746, 0.3254, 0.4761])

    Reference: Blondel, Martins & Niculae 2020 (norm-entropies).
    """
    x = checked_scores(X, dim, "normmax_bisect")
    top = x.detach().amax(dim, keepdim=True)
    shifted = x - torch.where(top == -torch.inf, 0, top)
    # For α ≤ 1 the norm of a probability vector is least at a vertex.
    largest = (shifted == 0).to(x.dtype)
    vertex = largest / largest.sum(dim, keepdim=True).clamp(min=1)
    p = _by_alpha(_real(alpha, X), lambda above: escort(_normmax_powers(shifted, above, dim), 1 / above, dim), vertex)
    return p.to(output_dtype(X))


def budget_bisect(
    X: Float[Tensor, "..."], budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50
) -> Float[Tensor, "..."]:
    r"""Sparsemax with a budget: a relaxed choice of `budget` entries.

    .. math:: p = \arg\max_{0 \le p \le 1,\ \sum p = B} \langle x, p\rangle - \tfrac12 \|p\|^2 = \min(1, [x - \tau]_+)

    A search finds the active entries, 0 < p < 1. Given those τ has a closed form, the only part that is differentiated:

    .. math:: \tau = \Bigl(\#\{p = 1\} + \sum_{active} x - B\Bigr) / \#active

    Args:
        X: scores x, any shape; −inf counts as masked.
        budget: B, a number, or a tensor that broadcasts to X with size 1 along `dim`; differentiable. A budget that
            cannot be met, below 0 or above the number of finite scores, is replaced by the nearest that can.
        dim: the axis of the budget.
        n_iter: accepted for compatibility; the solver is exact.

    Returns:
        A tensor of the shape of X with entries in [0, 1] that add up to the budget.

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.budget_bisect(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), budget=2)
        tensor([0.0000, 0.1250, 0.3750, 0.6250, 0.8750])
    """
    x = checked_scores(X, dim, "budget_bisect")
    present = x != -torch.inf
    pivot = _pivot(x.detach(), budget, dim)
    budget = budget.to(x.dtype) if isinstance(budget, Tensor) else x.new_full([1] * x.dim(), budget)
    budget = budget.clamp(min=0).minimum(present.sum(dim, keepdim=True))
    # Scores near the threshold keep their digits when centred at the pivot, not always when centred at the maximum.
    # Scores 2 or more below the pivot get no mass.
    centred = torch.where(present, x - pivot, -4)
    # A compiled graph holds the search as one node; an exported graph must not depend on our operators.
    search = _threshold if is_exporting() else _traced_threshold
    last = dim % x.dim() - x.dim()  # torch.vmap puts its axis in front
    p = (centred.detach() - search(centred.detach(), budget.detach(), last)).clamp(0, 1)
    # The negation makes a NaN active, so that it reaches the result.
    active = ~((p <= 0) | (p >= 1))
    spare = budget - (p >= 1).sum(dim, keepdim=True)
    taken = torch.where(active, centred, 0).sum(dim, keepdim=True)
    threshold = (taken - spare) / active.sum(dim, keepdim=True).clamp(min=1)
    return torch.where(active, (centred - threshold).clamp(0, 1), p).to(output_dtype(X))


def _real(parameter: float | Tensor, scores: Tensor) -> float | Tensor:
    """α as a float, or as a tensor in the dtype of the computation: the original takes integers and integer tensors."""
    return parameter.to(wide_dtype(scores.dtype)) if isinstance(parameter, Tensor) else float(parameter)


def _by_alpha(alpha: float | Tensor, above_one: Callable[[float | Tensor], Tensor], at_most_one: Tensor) -> Tensor:
    """`above_one(α)` where α > 1, `at_most_one` elsewhere."""
    if not isinstance(alpha, Tensor):
        return above_one(alpha) if alpha > 1 else at_most_one
    above = alpha > 1
    return torch.where(above, above_one(torch.where(above, alpha, 2)), at_most_one)


def _normmax_powers(shifted: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """w = (p/‖p‖_α)^α of the normmax p."""
    return maps.entmax(shifted / _inverse_kappa(alpha), 1 + _inverse_kappa(alpha), dim)


def _inverse_kappa(alpha: float | Tensor) -> float | Tensor:
    """1/κ = (α − 1)/α in a form that keeps its digits near α = 1 and is 1 at α = ∞."""
    return 1 / (1 + 1 / (alpha - 1))


def _pivot(x: Tensor, budget: float | Tensor, dim: int) -> Tensor:
    """The ⌈B⌉-th largest score, or the smallest finite one: a threshold lies at most 2 below it, and none above it.

    More than ⌊B⌋ scores one above the threshold would exceed the budget; fewer than ⌈B⌉ above it could not fill it. A
    NaN anywhere in the slice is the result, since NaNs sort first.
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
    """τ ∈ [−2, 0] with Σ clip(x − τ, 0, 1) = B, by Newton's method with a bracket; B has size 1 along `dim`.

    The sum is piecewise linear in τ, so a Newton step on the right piece is exact. Every eighth step halves the bracket
    instead, which bounds the number of steps. A row stops when its sum is the budget up to rounding.
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


_traced_threshold = operator("budget_threshold", like=lambda x, budget, dim: torch.empty_like(budget))(_threshold)


class SparsemaxBisect(_Map, function=sparsemax_bisect, dim=-1, n_iter=None):
    """:func:`sparsemax_bisect` as a module."""


class EntmaxBisect(_Map, function=entmax_bisect, alpha=1.5, dim=-1, n_iter=50):
    """:func:`entmax_bisect` as a module; a Parameter `alpha` is registered and learned."""


class NormmaxBisect(_Map, function=normmax_bisect, alpha=2, dim=-1, n_iter=50):
    """:func:`normmax_bisect` as a module; a Parameter `alpha` is registered and learned."""


class BudgetBisect(_Map, function=budget_bisect, budget=2, dim=-1, n_iter=50):
    """:func:`budget_bisect` as a module; a Parameter `budget` is registered and learned."""


# Some code calls the autograd functions of the original, as `EntmaxBisectFunction.apply(X, alpha, dim)`.
EntmaxBisectFunction = SimpleNamespace(apply=entmax_bisect)
SparsemaxBisectFunction = SimpleNamespace(apply=sparsemax_bisect)
NormmaxBisectFunction = SimpleNamespace(apply=normmax_bisect)
BudgetBisectFunction = SimpleNamespace(apply=budget_bisect)
