"""`entmax.root_finding`: α-entmax for every α, α-normmax and budgets (k-subsets), as functions and as modules."""

from torch import Tensor, nn

from contmax import maps
from contmax._typing import Float
from contmax.integrations.entmax._budget import budgeted_sparsemax
from contmax.integrations.entmax._normmax import normmax
from contmax.integrations.entmax._parameter import real


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
    return maps.entmax(X, real(alpha, X), dim)


def sparsemax_bisect(
    X: Float[Tensor, "..."], dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Float[Tensor, "..."]:
    """Sparsemax: the Euclidean projection of the scores onto the simplex.

    Args:
        X: scores x, any shape; −inf counts as masked.
        dim: the axis of the distribution.
        n_iter: accepted for compatibility; the solver runs to the rounding of the dtype.
        ensure_sum_one: accepted for compatibility; probabilities always add up to one.

    Returns:
        Probabilities of the shape of X, as :func:`contmax.sparsemax`.

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.sparsemax_bisect(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])

    Reference: Martins & Astudillo 2016.
    """
    return maps.sparsemax(X, dim)


def normmax_bisect(
    X: Float[Tensor, "..."], alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50
) -> Float[Tensor, "..."]:
    r"""α-normmax: probabilities that trade the score against the α-norm.

    .. math:: p = \arg\max_{p \in \triangle} \langle x, p\rangle - \|p\|_\alpha

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
    return normmax(X, alpha, dim)


def budget_bisect(
    X: Float[Tensor, "..."], budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50
) -> Float[Tensor, "..."]:
    r"""Sparsemax with a budget: a relaxed choice of `budget` entries.

    .. math:: p = \arg\max_{0 \le p \le 1,\ \sum p = B} \langle x, p\rangle - \tfrac12 \|p\|^2

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
    return budgeted_sparsemax(X, budget, dim)


class SparsemaxBisect(nn.Module):
    """:func:`sparsemax_bisect` as a module."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter

    def forward(self, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Probabilities along `dim`."""
        return sparsemax_bisect(X, dim=self.dim, n_iter=self.n_iter)


class EntmaxBisect(nn.Module):
    """:func:`entmax_bisect` as a module; a Parameter `alpha` is registered and learned."""

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter
        self.alpha = alpha

    def forward(self, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Probabilities along `dim`."""
        return entmax_bisect(X, alpha=self.alpha, dim=self.dim, n_iter=self.n_iter)


class NormmaxBisect(nn.Module):
    """:func:`normmax_bisect` as a module; a Parameter `alpha` is registered and learned."""

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter
        self.alpha = alpha

    def forward(self, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Probabilities along `dim`."""
        return normmax_bisect(X, alpha=self.alpha, dim=self.dim, n_iter=self.n_iter)


class BudgetBisect(nn.Module):
    """:func:`budget_bisect` as a module; a Parameter `budget` is registered and learned."""

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter
        self.budget = budget

    def forward(self, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Entries in [0, 1] that add up to the budget along `dim`."""
        return budget_bisect(X, budget=self.budget, dim=self.dim, n_iter=self.n_iter)


class EntmaxBisectFunction:
    """``.apply(X, alpha, dim, n_iter, ensure_sum_one)`` for code that calls the autograd function."""

    apply = staticmethod(entmax_bisect)


class SparsemaxBisectFunction:
    """``.apply(X, dim, n_iter, ensure_sum_one)`` for code that calls the autograd function."""

    apply = staticmethod(sparsemax_bisect)


class NormmaxBisectFunction:
    """``.apply(X, alpha, dim, n_iter)`` for code that calls the autograd function."""

    apply = staticmethod(normmax_bisect)


class BudgetBisectFunction:
    """``.apply(X, budget, dim, n_iter)`` for code that calls the autograd function."""

    apply = staticmethod(budget_bisect)
