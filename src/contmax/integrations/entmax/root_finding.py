"""`entmax.root_finding`: α-entmax for every α, α-normmax and budgets (k-subsets), as functions and as modules."""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from contmax import maps
from contmax._eager import wide_dtype
from contmax._typing import Float
from contmax.deformed import escort
from contmax.integrations.entmax.activations import _Map
from contmax.maps._arguments import checked_scores, output_dtype
from contmax.maps._threshold import below_maximum

# Bisection steps that shrink an interval of length 1 to the rounding of the dtype.
_STEPS = {torch.float32: 24, torch.float64: 53}


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
        X, dim, n_iter: as for :func:`entmax_bisect`.
        alpha: α, a number, or a tensor that broadcasts to X with size 1 along `dim`; differentiable. α = ∞ gives a
            uniform distribution on the support of sparsemax. α ≤ 1 gives one on the largest score, shared by ties.

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
    shifted = below_maximum(x, dim)
    # For α ≤ 1 the norm of a probability vector is least at the vertices of the simplex, so the result is the vertex of
    # the largest score; ties share the mass.
    largest = (shifted == 0).to(x.dtype)
    vertex = largest / largest.sum(dim, keepdim=True).clamp(min=1)
    p = _by_alpha(_real(alpha, X), lambda above: escort(_normmax_powers(shifted, above, dim), 1 / above, dim), vertex)
    return p.to(output_dtype(X))


def budget_bisect(
    X: Float[Tensor, "..."], budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50
) -> Float[Tensor, "..."]:
    r"""Sparsemax with a budget: a relaxed choice of `budget` entries.

    .. math:: p = \arg\max_{0 \le p \le 1,\ \sum p = B} \langle x, p\rangle - \tfrac12 \|p\|^2 = \min(1, [x - \tau]_+)

    Bisection finds the active entries, 0 < p < 1. Given them τ has a closed form, the only part that is differentiated:

    .. math:: \tau = \Bigl(\#\{p = 1\} + \sum_{active} x - B\Bigr) / \#active

    Args:
        X, dim, n_iter: as for :func:`entmax_bisect`.
        budget: B, a number, or a tensor that broadcasts to X with size 1 along `dim`; differentiable. A budget that
            cannot be met, below 0 or above the number of finite scores, is replaced by the nearest that can.

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
    budget = budget.to(x.dtype) if isinstance(budget, Tensor) else x.new_full([1] * x.dim(), budget)
    budget = budget.clamp(min=0).minimum(present.sum(dim, keepdim=True))
    # Subtract the pivot, a score near the threshold τ, not the maximum: this preserves the digits of scores near τ.
    centred = torch.where(present, x - _pivot(x.detach(), budget.detach(), dim), -4)
    p = (centred.detach() - _threshold(centred.detach(), budget.detach(), dim)).clamp(0, 1)
    # The negation makes a NaN active, so that it reaches the result.
    active = ~((p <= 0) | (p >= 1))
    spare = budget - (p >= 1).sum(dim, keepdim=True)
    taken = torch.where(active, centred, 0).sum(dim, keepdim=True)
    threshold = (taken - spare) / active.sum(dim, keepdim=True).clamp(min=1)
    return torch.where(active, (centred - threshold).clamp(0, 1), p).to(output_dtype(X))


def _real(parameter: float | Tensor, scores: Tensor) -> float | Tensor:
    """α as a float, or as a tensor in the dtype of the computation; users may pass an integer or an integer tensor."""
    return parameter.to(wide_dtype(scores.dtype)) if isinstance(parameter, Tensor) else float(parameter)


def _by_alpha(alpha: float | Tensor, above_one: Callable[[float | Tensor], Tensor], at_most_one: Tensor) -> Tensor:
    """`above_one(α)` where α > 1, `at_most_one` elsewhere."""
    if not isinstance(alpha, Tensor):
        return above_one(alpha) if alpha > 1 else at_most_one
    above = alpha > 1
    return torch.where(above, above_one(torch.where(above, alpha, 2)), at_most_one)


def _normmax_powers(shifted: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """w = (p/‖p‖_α)^α of the normmax p of scores with maximum 0."""
    return maps.entmax(shifted / _inverse_kappa(alpha), 1 + _inverse_kappa(alpha), dim)


def _inverse_kappa(alpha: float | Tensor) -> float | Tensor:
    """1/κ = (α − 1)/α in a form that keeps its digits near α = 1 and is 1 at α = ∞."""
    return 1 / (1 + 1 / (alpha - 1))


def _pivot(x: Tensor, budget: Tensor, dim: int) -> Tensor:
    """The ⌈B⌉-th largest score s, or 0 if s = −∞; some threshold τ lies in [s − 1, s].

    For τ > s fewer than ⌈B⌉ entries are positive, too few for a sum of B; for τ < s − 1 at least ⌈B⌉ entries are 1. A
    NaN anywhere in the slice is returned, since NaNs sort first.
    """
    descending = x.sort(dim=dim, descending=True).values
    top = descending.narrow(dim, 0, 1)
    pivot = descending.gather(dim, (budget.ceil().long().clamp(min=1) - 1).expand(top.shape))
    return torch.where(top.isnan(), top, pivot.masked_fill(pivot == -torch.inf, 0))


def _threshold(x: Tensor, budget: Tensor, dim: int) -> Tensor:
    """τ ∈ [−1, 0] with Σ clip(x − τ, 0, 1) = B, up to rounding, by bisection; B has size 1 along `dim`."""
    low, high = torch.full_like(budget, -1), torch.zeros_like(budget)
    for _ in range(_STEPS[x.dtype]):
        middle = (low + high) / 2
        exceeds = (x - middle).clamp(0, 1).sum(dim, keepdim=True) >= budget
        low, high = torch.where(exceeds, middle, low), torch.where(exceeds, high, middle)
    return low


class SparsemaxBisect(_Map, function=sparsemax_bisect, dim=-1, n_iter=None):
    """:func:`sparsemax_bisect` as a module."""


class EntmaxBisect(_Map, function=entmax_bisect, alpha=1.5, dim=-1, n_iter=50):
    """:func:`entmax_bisect` as a module; a Parameter `alpha` is registered and learned."""


class NormmaxBisect(_Map, function=normmax_bisect, alpha=2, dim=-1, n_iter=50):
    """:func:`normmax_bisect` as a module; a Parameter `alpha` is registered and learned."""


class BudgetBisect(_Map, function=budget_bisect, budget=2, dim=-1, n_iter=50):
    """:func:`budget_bisect` as a module; a Parameter `budget` is registered and learned."""


# Stand-ins for autograd functions of `entmax`, which some code calls as `EntmaxBisectFunction.apply(X, alpha, dim)`.
EntmaxBisectFunction = SimpleNamespace(apply=entmax_bisect)
SparsemaxBisectFunction = SimpleNamespace(apply=sparsemax_bisect)
NormmaxBisectFunction = SimpleNamespace(apply=normmax_bisect)
BudgetBisectFunction = SimpleNamespace(apply=budget_bisect)
