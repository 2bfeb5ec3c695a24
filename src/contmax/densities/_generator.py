r"""Convex functions g that generate location–scale families, with the half-width a of the standard member.

The density :math:`[g'(a) - g'(|x|)]_+` integrates to one iff :math:`a\,g'(a) - g(a) + g(0) = \tfrac12`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from contmax.numerics import implicit_root, monotone_root

Function = Callable[[Tensor], Tensor]
_FIRST_POWER, _LAST_POWER = -64, 64


class Generator(ABC):
    """A convex g on [0, ∞) with its derivative."""

    name: str

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """g(x)."""

    @abstractmethod
    def slope(self, x: Tensor) -> Tensor:
        """g'(x)."""

    @abstractmethod
    def reach(self, device: torch.device) -> Tensor:
        """a, a float64 scalar; differentiable in whatever g depends on."""


class NamedGenerator(Generator):
    """One of the built-in g, whose a is a constant."""

    def __init__(self, name: str, value: Function, slope: Function, reach: float) -> None:
        self.name, self._value, self._slope, self._reach = name, value, slope, reach

    def value(self, x: Tensor) -> Tensor:
        return self._value(x)

    def slope(self, x: Tensor) -> Tensor:
        return self._slope(x)

    def reach(self, device: torch.device) -> Tensor:
        return torch.full((), self._reach, dtype=torch.float64, device=device)

    def __reduce__(self) -> tuple[Callable[[str], Generator], tuple[str]]:
        return named_generator, (self.name,)


class CallableGenerator(Generator):
    """A user's g: a function of tensors, element by element, that torch can differentiate twice.

    Args:
        function: g.
        device: where to evaluate it.
        validate: refuse a g for which no a exists, or that is not convex up to it.
    """

    def __init__(self, function: Function, device: torch.device, validate: bool) -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        with torch.no_grad():
            self._root = self._search(device)
        if validate:
            self._check()

    def value(self, x: Tensor) -> Tensor:
        return self._function(x)

    def slope(self, x: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(self._summed_value, has_aux=True)(x)[0]
        return slope

    def reach(self, device: torch.device) -> Tensor:
        return implicit_root(self._root.to(device), self._residual)

    def _residual(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """a g'(a) − g(a) + g(0) − ½, and its derivative a g''(a)."""
        bend, (slope, value) = torch.func.grad(self._summed_slope, has_aux=True)(a)
        return a * slope - value + self.value(torch.zeros_like(a)) - 0.5, a * bend

    def _summed_slope(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Σ g'(x), with g'(x) and g(x), for which g is called once."""
        slope, value = torch.func.grad(self._summed_value, has_aux=True)(x)
        return slope.sum(), (slope, value)

    def _summed_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = self._function(x)
        return value.sum(), value

    def _search(self, device: torch.device) -> Tensor:
        # All powers of two at once: what g does beyond the first that is too large, even overflow, does not matter.
        powers = 2.0 ** torch.arange(_FIRST_POWER, _LAST_POWER, dtype=torch.float64, device=device)
        value = self._residual(powers)[0]
        short = (value < 0).to(torch.int64).cumprod(0).sum()
        high = powers[0] * 2.0 ** short.double()
        return monotone_root(self._residual, 0.5 * high, high, tolerance=1e-12)

    def _check(self) -> None:
        a = self._root
        gap = self._residual(a)[0].abs()
        if not bool(gap < 1e-6):
            raise ValueError(
                f"g must make a·g'(a) − g(a) + g(0) reach 1/2; got g = {self.name}, for which it does not. "
                "Pass a convex g that grows faster than linearly, e.g. 'cosh'."
            )
        slopes = self.slope(a * torch.linspace(0, 1, 65, dtype=a.dtype, device=a.device))
        if bool((slopes.diff() < -1e-9 * slopes.abs().amax()).any()):
            raise ValueError(
                f"g must be convex; got g = {self.name}, whose derivative decreases before {float(a):.4g}."
            )


_NAMED = {
    "cube": (lambda x: x**3 / 6, lambda x: x**2 / 2, 1.5 ** (1 / 3)),
    "square": (lambda x: x**2 / 2, lambda x: x, 1.0),
    "cosh": (torch.cosh, torch.sinh, 0.90710329357628993426),
    "quartic": (lambda x: x**4 / 12 + x**2, lambda x: x**3 / 3 + 2 * x, math.sqrt(math.sqrt(6) - 2)),
    "exp": (torch.exp, torch.exp, 0.76803904701346556526),
}


def named_generator(name: str) -> Generator:
    """The built-in g of this name."""
    if name not in _NAMED:
        raise ValueError(f"g must be one of {', '.join(_NAMED)} or a callable; got {name!r}.")
    return NamedGenerator(name, *_NAMED[name])


def as_generator(g: str | Function, device: torch.device, validate: bool) -> Generator:
    """A name or a callable as a generator."""
    if isinstance(g, str):
        return named_generator(g)
    if not callable(g):
        raise TypeError(f"g must be a name or a callable; got {type(g).__name__}.")
    return CallableGenerator(g, device, validate)
