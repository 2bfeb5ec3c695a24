"""Functions chosen by the types of two arguments, the most specific first, as torch.distributions.kl does."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class PairRegistry:
    """A table from pairs of types to functions; a subclass finds what was registered for its ancestors.

    Args:
        name: what the functions are, for error messages: "no {name} is registered for …".
        advice: the end of the error message where there is none.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice
        self._registered: dict[tuple[type, type], Function] = {}
        self._found: dict[tuple[type, type], Function] = {}

    def register(self, first: type, second: type) -> Callable[[Function], Function]:
        """A decorator that enters a function for a pair of types."""

        def decorator(function: Function) -> Function:
            self._registered[first, second] = function
            self._found.clear()
            return function

        return decorator

    def find(self, first: type, second: type) -> Function:
        """The function of the most specific match; an ambiguous one warns and takes the more specific in the first.

        Raises:
            NotImplementedError: if nothing matches.
        """
        pair = first, second
        if pair not in self._found:
            self._found[pair] = self._most_specific(first, second)
        return self._found[pair]

    def _most_specific(self, first: type, second: type) -> Function:
        matches = [pair for pair in self._registered if issubclass(first, pair[0]) and issubclass(second, pair[1])]
        if not matches:
            raise NotImplementedError(
                f"no {self._name} is registered for {first.__name__} and {second.__name__}. {self._advice}"
            )
        left = functools.reduce(lambda a, b: b if _precedes(b, a) else a, matches)
        right = functools.reduce(lambda a, b: b if _precedes(b[::-1], a[::-1]) else a, matches)
        if self._registered[left] is not self._registered[right]:
            warnings.warn(
                f"ambiguous {self._name} for {first.__name__} and {second.__name__}: register "
                f"({left[0].__name__}, {right[1].__name__}) to settle it.",
                RuntimeWarning,
                stacklevel=4,
            )
        return self._registered[left]


def _precedes(pair: tuple[type, type], other: tuple[type, type]) -> bool:
    """Whether a pair is more specific, its first type deciding before its second."""
    first, second = pair[0] is not other[0], pair[1] is not other[1]
    return issubclass(pair[0], other[0]) if first else second and issubclass(pair[1], other[1])
