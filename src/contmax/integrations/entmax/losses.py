"""`entmax.losses`: Fenchel–Young losses of sparsemax, α-entmax and α-normmax, as functions and as modules.

The functions return one loss per sample. Unlike the `entmax` package they take soft targets (rows of probabilities),
ignore labels equal to `ignore_index` (−100 in the functions), stay finite beside −inf scores and differentiate in α.
"""

from types import SimpleNamespace

import torch
from torch import Tensor

from contmax import losses
from contmax._typing import Float, Int
from contmax.integrations.entmax.activations import _Configured
from contmax.integrations.entmax.root_finding import _by_alpha, _inverse_kappa, _normmax_powers, _real
from contmax.maps._arguments import checked_scores, output_dtype
from contmax.maps._threshold import power_on_support

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
    return _entmax_losses(X, target, 2.0)


def sparsemax_bisect_loss(
    X: Float[Tensor, "n classes"], target: Target, n_iter: int | None = 50
) -> Float[Tensor, " n"]:
    """Sparsemax loss, one value per sample: :func:`sparsemax_loss`; `n_iter` has no effect."""
    return _entmax_losses(X, target, 2.0)


def entmax15_loss(X: Float[Tensor, "n classes"], target: Target, k: int | None = None) -> Float[Tensor, " n"]:
    """1.5-entmax loss, one value per sample: :func:`entmax_bisect_loss` at α = 1.5; `k` has no effect."""
    return _entmax_losses(X, target, 1.5)


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
    return _entmax_losses(X, target, alpha)


def normmax_bisect_loss(
    X: Float[Tensor, "n classes"], target: Target, alpha: float | Tensor = 2, n_iter: int | None = 50
) -> Float[Tensor, " n"]:
    r"""α-normmax loss, one value per sample.

    .. math::
        L(x, y) = \max_{p \in \triangle} \bigl(\langle x, p\rangle - \|p\|_\alpha\bigr)
                  + \|y\|_\alpha - \langle x, y\rangle

    Args:
        X, target, n_iter: as for :func:`entmax_bisect_loss`.
        alpha: α > 1, a number, or a tensor of shape () or (n, 1); differentiable.

    Returns:
        Losses of shape (n,).

    Example:
        >>> import torch
        >>> from contmax.integrations import entmax
        >>> entmax.normmax_bisect_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
        tensor([0.])

    Reference: Blondel, Martins & Niculae 2020 (norm-entropies).
    """
    return _normmax_losses(X, target, alpha)


def _entmax_losses(X: Tensor, target: Tensor, alpha: float | Tensor, ignore_index: int = -100) -> Float[Tensor, " n"]:
    return losses.entmax_loss(X, target, _real(alpha, X), ignore_index=ignore_index, reduction="none")


def _normmax_losses(X: Tensor, target: Tensor, alpha: float | Tensor, ignore_index: int = -100) -> Tensor:
    """max_p (⟨x, p⟩ − ‖p‖_α) + ‖y‖_α − ⟨x, y⟩ ≥ 0; +inf with a finite gradient where y has mass on a −inf score.

    On its support the optimal p has x − τ = (p/‖p‖_α)^{α−1} = w^{1/κ}, κ = α/(α − 1), so the maximum is τ. The loss
    is a sum of small terms, (1 − w_max^{1/κ}) + ⟨x_max − x, y⟩ − (1 − ‖y‖_α), w from `_normmax_powers`.
    """
    x = checked_scores(X, -1, "normmax_bisect_loss")
    nothing = (x == -torch.inf).all(-1, keepdim=True)
    x = x.masked_fill(nothing, 0)
    alpha = _real(alpha, X)
    place = x.detach().argmax(-1, keepdim=True)
    top = x.gather(-1, place)
    shifted = x - top.detach()

    def gap(alpha: float | Tensor) -> Tensor:
        largest = _normmax_powers(shifted, alpha, -1).gather(-1, place)
        return -torch.expm1(_inverse_kappa(alpha) * largest.log())

    loss = _by_alpha(alpha, gap, torch.zeros_like(top))
    ignored = torch.zeros_like(nothing)
    if target.is_floating_point():
        y = target.to(x.dtype)
        distance = torch.where((y == 0) & (x == -torch.inf), 0, top - x)
        # Divide by the largest entry, so that high powers of small numbers do not underflow.
        largest = y.detach().amax(-1, keepdim=True)
        scale = torch.where(largest > 0, largest, 1)
        norm = scale * power_on_support(y / scale, alpha).sum(-1, keepdim=True) ** (1 / alpha)
        loss = loss + (y * distance).sum(-1, keepdim=True) - (1 - norm)
    else:
        ignored = (target == ignore_index).unsqueeze(-1)
        loss = loss + top - x.gather(-1, target.unsqueeze(-1).masked_fill(ignored, 0))
    loss = loss.masked_fill(nothing, torch.inf).masked_fill(ignored, 0)
    return loss.squeeze(-1).to(output_dtype(X))


class _GenericLoss(_Configured):
    """Base of the loss modules: Fenchel–Young losses at `alpha`.

    Samples with the label `ignore_index` count neither in the sum nor in the mean. The reduction is "elementwise_mean"
    (over the samples that count; 0 if none does), "sum" or "none".
    """

    alpha: float | Tensor

    ignore_index: int
    reduction: str

    def __init_subclass__(cls, **defaults: object) -> None:
        super().__init_subclass__(**(defaults and {**defaults, "ignore_index": -100, "reduction": "elementwise_mean"}))

    def _check(self) -> None:
        if self.reduction not in ("elementwise_mean", "sum", "none"):
            raise ValueError(f'reduction must be "elementwise_mean", "sum" or "none"; got {self.reduction!r}.')
        self.ignore_index = int(self.ignore_index)

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for ignored samples."""
        return _entmax_losses(X, target, self.alpha, self.ignore_index)

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


class SparsemaxLoss(_GenericLoss, k=None):
    """:func:`sparsemax_loss` as a module."""

    alpha = 2.0


class SparsemaxBisectLoss(_GenericLoss, n_iter=50):
    """:func:`sparsemax_bisect_loss` as a module."""

    alpha = 2.0


class Entmax15Loss(_GenericLoss, k=100):
    """:func:`entmax15_loss` as a module."""

    alpha = 1.5


class EntmaxBisectLoss(_GenericLoss, alpha=1.5, n_iter=50):
    """:func:`entmax_bisect_loss` as a module; a Parameter `alpha` is registered and learned."""


class NormmaxBisectLoss(EntmaxBisectLoss, alpha=2, n_iter=50):
    """:func:`normmax_bisect_loss` as a module; a Parameter `alpha` is registered and learned."""

    def loss(self, X: Float[Tensor, "n classes"], target: Target) -> Float[Tensor, " n"]:
        """One loss per sample, 0 for ignored samples."""
        return _normmax_losses(X, target, self.alpha, self.ignore_index)


# Stand-ins for autograd functions of `entmax`, which some code calls as `SparsemaxLossFunction.apply(X, target, k)`.
SparsemaxLossFunction = SimpleNamespace(apply=sparsemax_loss)
SparsemaxBisectLossFunction = SimpleNamespace(apply=sparsemax_bisect_loss)
Entmax15LossFunction = SimpleNamespace(apply=entmax15_loss)
EntmaxBisectLossFunction = SimpleNamespace(apply=entmax_bisect_loss)
NormmaxBisectLossFunction = SimpleNamespace(apply=normmax_bisect_loss)
