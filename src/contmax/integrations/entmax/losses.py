"""`entmax.losses`: Fenchel–Young losses of sparsemax, α-entmax and α-normmax, as functions and as modules.

The functions return one loss per sample. Beyond the original they take soft targets (rows of probabilities), ignore
labels equal to `ignore_index` (−100 in the functions), stay finite beside −inf scores and differentiate in α.
"""

from torch import Tensor, nn

from contmax import losses
from contmax._typing import Float, Int
from contmax.integrations.entmax._normmax import normmax_loss
from contmax.integrations.entmax._parameter import real

Target = Int[Tensor, " n"] | Float[Tensor, "n classes"]


def sparsemax_loss(X: Float[Tensor, "n classes"], target: Target, k: int | None = None) -> Float[Tensor, " n"]:
    r"""Sparsemax loss, one value per sample.

    .. math:: L(x, y) = \Omega_2^*(x) + \Omega_2(y) - \langle x, y\rangle

    Args:
        X: scores x.
        target: class labels, or soft targets y of the shape of X.
        k: accepted for compatibility; it has no effect, since nothing is sorted.

    Returns:
        Losses of shape (n,).

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.sparsemax_loss(torch.tensor([[1.0, 0.5, -1.0]]), torch.tensor([1]))
        tensor([0.5625])

    Reference: Martins & Astudillo 2016.
    """
    return losses.sparsemax_loss(X, target, reduction="none")


def sparsemax_bisect_loss(
    X: Float[Tensor, "n classes"], target: Target, n_iter: int | None = 50
) -> Float[Tensor, " n"]:
    """The same as :func:`sparsemax_loss`; `n_iter` is accepted for compatibility."""
    return sparsemax_loss(X, target)


def entmax15_loss(X: Float[Tensor, "n classes"], target: Target, k: int | None = None) -> Float[Tensor, " n"]:
    """1.5-entmax loss, one value per sample: :func:`entmax_bisect_loss` at α = 1.5; `k` has no effect."""
    return entmax_bisect_loss(X, target, 1.5)


def entmax_bisect_loss(
    X: Float[Tensor, "n classes"], target: Target, alpha: float | Tensor = 1.5, n_iter: int | None = 50
) -> Float[Tensor, " n"]:
    r"""α-entmax loss, one value per sample.

    .. math:: L(x, y) = \Omega_\alpha^*(x) + \Omega_\alpha(y) - \langle x, y\rangle

    Args:
        X: scores x.
        target: class labels, or soft targets y of the shape of X.
        alpha: α > 0, a number, or a tensor of shape () or (n, 1); differentiable. 1 is cross-entropy.
        n_iter: accepted for compatibility; the solver runs to the rounding of the dtype.

    Returns:
        Losses of shape (n,).

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.entmax_bisect_loss(torch.tensor([[1.0, 0.5, -1.0]]), torch.tensor([1]), alpha=2.0)
        tensor([0.5625])

    Reference: Peters, Niculae & Martins 2019.
    """
    return losses.entmax_loss(X, target, real(alpha, X), reduction="none")


def normmax_bisect_loss(
    X: Float[Tensor, "n classes"], target: Target, alpha: float | Tensor = 2, n_iter: int | None = 50
) -> Float[Tensor, " n"]:
    r"""α-normmax loss, one value per sample.

    .. math::
        L(x, y) = \max_{p \in \triangle} \bigl(\langle x, p\rangle - \|p\|_\alpha\bigr)
                  + \|y\|_\alpha - \langle x, y\rangle

    Args:
        X: scores x.
        target: class labels, or soft targets y of the shape of X.
        alpha: α > 1, a number, or a tensor of shape () or (n, 1); differentiable.
        n_iter: accepted for compatibility; the solver runs to the rounding of the dtype.

    Returns:
        Losses of shape (n,).

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.normmax_bisect_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
        tensor([0.])

    Reference: Blondel, Martins & Niculae 2020 (norm-entropies).
    """
    return normmax_loss(X, target, alpha, ignore_index=-100)


class _GenericLoss(nn.Module):
    """What the loss modules share: labels to ignore, and the reduction.

    Args:
        ignore_index: samples with this label count neither in the sum nor in the mean.
        reduction: "elementwise_mean" (over the samples that count; 0 if none does), "sum" or "none".
    """

    def __init__(self, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__()
        if reduction not in ("elementwise_mean", "sum", "none"):
            raise ValueError(f'reduction must be "elementwise_mean", "sum" or "none"; got {reduction!r}.')
        self.ignore_index = int(ignore_index)
        self.reduction = reduction

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for the ignored ones."""
        raise NotImplementedError

    def forward(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, "..."]:
        """The losses of the samples, reduced."""
        values = self.loss(X, target)
        if self.reduction == "none":
            return values
        if self.reduction == "sum":
            return values.sum()
        if target.is_floating_point():
            return values.mean()
        return values.sum() / (target != self.ignore_index).sum().clamp(min=1)


class SparsemaxLoss(_GenericLoss):
    """:func:`sparsemax_loss` as a module."""

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for the ignored ones."""
        return losses.sparsemax_loss(X, target, ignore_index=self.ignore_index, reduction="none")


class SparsemaxBisectLoss(_GenericLoss):
    """:func:`sparsemax_bisect_loss` as a module."""

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for the ignored ones."""
        return losses.sparsemax_loss(X, target, ignore_index=self.ignore_index, reduction="none")


class Entmax15Loss(_GenericLoss):
    """:func:`entmax15_loss` as a module."""

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for the ignored ones."""
        return losses.entmax_loss(X, target, 1.5, ignore_index=self.ignore_index, reduction="none")


class EntmaxBisectLoss(_GenericLoss):
    """:func:`entmax_bisect_loss` as a module; a Parameter `alpha` is registered and learned."""

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha = alpha
        self.n_iter = n_iter

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for the ignored ones."""
        return losses.entmax_loss(X, target, real(self.alpha, X), ignore_index=self.ignore_index, reduction="none")


class NormmaxBisectLoss(_GenericLoss):
    """:func:`normmax_bisect_loss` as a module; a Parameter `alpha` is registered and learned."""

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha = alpha
        self.n_iter = n_iter

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for the ignored ones."""
        return normmax_loss(X, target, self.alpha, self.ignore_index)


class SparsemaxLossFunction:
    """``.apply(X, target, k)`` for code that calls the autograd function."""

    apply = staticmethod(sparsemax_loss)


class SparsemaxBisectLossFunction:
    """``.apply(X, target, n_iter)`` for code that calls the autograd function."""

    apply = staticmethod(sparsemax_bisect_loss)


class Entmax15LossFunction:
    """``.apply(X, target, k)`` for code that calls the autograd function."""

    apply = staticmethod(entmax15_loss)


class EntmaxBisectLossFunction:
    """``.apply(X, target, alpha, n_iter)`` for code that calls the autograd function."""

    apply = staticmethod(entmax_bisect_loss)


class NormmaxBisectLossFunction:
    """``.apply(X, target, alpha, n_iter)`` for code that calls the autograd function."""

    apply = staticmethod(normmax_bisect_loss)
