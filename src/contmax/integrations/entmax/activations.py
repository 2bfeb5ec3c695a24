"""`entmax.activations`: sparsemax and 1.5-entmax, as functions and as modules."""

from collections.abc import Callable
from inspect import Parameter, Signature
from types import SimpleNamespace

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
        X, dim, k: as for :func:`sparsemax`.

    Returns:
        Probabilities of the shape of X, as :func:`contmax.entmax` with α = 1.5.

    Example:
        >>> from contmax.integrations import entmax
        >>> entmax.entmax15(torch.tensor([2.0, 1.0, 0.1, -1.0]))
        tensor([0.8307, 0.1693, 0.0000, 0.0000])

    Reference: Peters, Niculae & Martins 2019.
    """
    return maps.entmax(X, 1.5, dim)


class _Configured(nn.Module):
    """A module that stores its constructor arguments as attributes; `nn.Parameter`s among these are learned.

    A subclass declares the arguments with defaults, as in ``class Entmax15Loss(_GenericLoss, k=100)``.
    """

    def __init_subclass__(cls, **defaults: object) -> None:
        super().__init_subclass__()
        if not defaults:
            return
        kind = Parameter.POSITIONAL_OR_KEYWORD
        parameters = [Parameter(name, kind, default=value) for name, value in defaults.items()]
        signature = Signature(parameters)

        def initialise(self: _Configured, *given: object, **named: object) -> None:
            nn.Module.__init__(self)
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            for name, value in bound.arguments.items():
                setattr(self, name, value)
            self._check()

        # Give the constructor the signature that it has in the `entmax` package.
        initialise.__signature__ = Signature([Parameter("self", kind), *parameters])  # type: ignore[attr-defined]
        cls.__init__ = initialise  # type: ignore[assignment,method-assign]

    def _check(self) -> None:
        """Refuse arguments that are wrong; subclasses override it."""


class _Map(_Configured):
    """A function of this package as a module; a subclass names the function and its arguments with their defaults."""

    _function: Callable[..., Tensor]
    _names: tuple[str, ...]

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None, **defaults: object) -> None:
        super().__init_subclass__(**defaults)
        if function is not None:
            cls._function, cls._names = staticmethod(function), tuple(defaults)

    def forward(self, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The map of the scores along `dim`."""
        return self._function(X, **{name: getattr(self, name) for name in self._names})


class Sparsemax(_Map, function=sparsemax, dim=-1, k=None):
    """:func:`sparsemax` as a module."""


class Entmax15(_Map, function=entmax15, dim=-1, k=None):
    """:func:`entmax15` as a module."""


# Stand-ins for autograd functions of `entmax`, which some code calls as `SparsemaxFunction.apply(X, dim, k)`. In that
# package the default `dim` of `Entmax15Function` is 0, although the default of `entmax15` is −1.
SparsemaxFunction = SimpleNamespace(apply=sparsemax)
Entmax15Function = SimpleNamespace(apply=lambda X, dim=0, k=None: entmax15(X, dim, k))


def _sparsemax_threshold_and_support(
    X: Float[Tensor, "..."], dim: int = -1, k: int | None = None
) -> tuple[Float[Tensor, "..."], Int[Tensor, "..."]]:
    """τ with p = [X − τ]_+, and the size of the support; both have size 1 along `dim`."""
    p = maps.sparsemax(X, dim)
    # The largest probability is p_max = x_max − τ, so τ = x_max − p_max, which loses no digits to cancellation.
    return X.amax(dim, keepdim=True) - p.amax(dim, keepdim=True), (p > 0).sum(dim, keepdim=True)


def _entmax_threshold_and_support(
    X: Float[Tensor, "..."], dim: int = -1, k: int | None = None
) -> tuple[Float[Tensor, "..."], Int[Tensor, "..."]]:
    """τ with p = [X − τ]_+², and the size of the support; X is *half* the scores, as in the `entmax` package."""
    p = maps.entmax(2 * X, 1.5, dim)
    return X.amax(dim, keepdim=True) - torch.sqrt(p.amax(dim, keepdim=True)), (p > 0).sum(dim, keepdim=True)
