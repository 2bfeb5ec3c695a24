"""`entmax.activations`: sparsemax and 1.5-entmax, as functions and as modules."""

import torch
from torch import Tensor, nn

from contmax import maps
from contmax._typing import Float, Int


def sparsemax(X: Float[Tensor, "..."], dim: int = -1, k: int | None = None) -> Float[Tensor, "..."]:
    r"""Sparsemax: the Euclidean projection of the scores onto the simplex.

    .. math:: p = \arg\min_{p \in \triangle} \|p - x\|^2

    Args:
        X: scores x, any shape; −inf counts as masked.
        dim: the axis of the distribution.
        k: accepted for compatibility; it has no effect, since nothing is sorted.

    Returns:
        Probabilities of the shape of X, as :func:`contmax.sparsemax`.

    Example:
        >>> from contmax.integrations import entmax
        >>> entmax.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])

    Reference: Martins & Astudillo 2016.
    """
    return maps.sparsemax(X, dim)


def entmax15(X: Float[Tensor, "..."], dim: int = -1, k: int | None = None) -> Float[Tensor, "..."]:
    r"""1.5-entmax: sparse probabilities, smoother than those of sparsemax.

    .. math:: p = \arg\max_{p \in \triangle} \langle x, p\rangle - \Omega_{3/2}(p) = [x/2 - \tau]_+^2

    Args:
        X: scores x, any shape; −inf counts as masked.
        dim: the axis of the distribution.
        k: accepted for compatibility; it has no effect, since nothing is sorted.

    Returns:
        Probabilities of the shape of X, as :func:`contmax.entmax` with α = 1.5.

    Example:
        >>> from contmax.integrations import entmax
        >>> entmax.entmax15(torch.tensor([2.0, 1.0, 0.1, -1.0]))
        tensor([0.8307, 0.1693, 0.0000, 0.0000])

    Reference: Peters, Niculae & Martins 2019.
    """
    return maps.entmax(X, 1.5, dim)


class Sparsemax(nn.Module):
    """:func:`sparsemax` as a module."""

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.k = k

    def forward(self, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Probabilities along `dim`."""
        return sparsemax(X, dim=self.dim, k=self.k)


class Entmax15(nn.Module):
    """:func:`entmax15` as a module."""

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.k = k

    def forward(self, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Probabilities along `dim`."""
        return entmax15(X, dim=self.dim, k=self.k)


class SparsemaxFunction:
    """``SparsemaxFunction.apply(X, dim, k)`` for code that calls the autograd function: it is :func:`sparsemax`."""

    apply = staticmethod(sparsemax)


class Entmax15Function:
    """``Entmax15Function.apply(X, dim, k)`` for code that calls the autograd function: :func:`entmax15`."""

    @staticmethod
    def apply(X: Float[Tensor, "..."], dim: int = 0, k: int | None = None) -> Float[Tensor, "..."]:
        """Note the default: the first axis, as in the original, where :func:`entmax15` takes the last."""
        return entmax15(X, dim, k)


def _sparsemax_threshold_and_support(
    X: Float[Tensor, "..."], dim: int = -1, k: int | None = None
) -> tuple[Float[Tensor, "..."], Int[Tensor, "..."]]:
    """τ with p = [X − τ]_+, and how many p are positive; both have size 1 along `dim`."""
    p = maps.sparsemax(X, dim)
    # p_max = x_max − τ, a difference in which nothing cancels.
    return X.amax(dim, keepdim=True) - p.amax(dim, keepdim=True), (p > 0).sum(dim, keepdim=True)


def _entmax_threshold_and_support(
    X: Float[Tensor, "..."], dim: int = -1, k: int | None = None
) -> tuple[Float[Tensor, "..."], Int[Tensor, "..."]]:
    """τ with p = [X − τ]_+², and how many p are positive; X are *half* the scores, as in the original."""
    p = maps.entmax(2 * X, 1.5, dim)
    return X.amax(dim, keepdim=True) - torch.sqrt(p.amax(dim, keepdim=True)), (p > 0).sum(dim, keepdim=True)
