"""Functions chosen by the types of two arguments, the most specific first, as torch.distributions.kl does."""

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
        lines = first.__mro__, second.__mro__
        # How far up the ancestors of each type a pair stands.
        steps = {
            pair: (lines[0].index(pair[0]), lines[1].index(pair[1]))
            for pair in self._registered
            if pair[0] in lines[0] and pair[1] in lines[1]
        }
        if not steps:
            raise NotImplementedError(
                f"no {self._name} is registered for {first.__name__} and {second.__name__}. {self._advice}"
            )
        left = min(steps, key=lambda pair: steps[pair])
        right = min(steps, key=lambda pair: steps[pair][::-1])
        if self._registered[left] is not self._registered[right]:
            warnings.warn(
                f"ambiguous {self._name} for {first.__name__} and {second.__name__}: register "
                f"({left[0].__name__}, {right[1].__name__}) to settle it.",
                RuntimeWarning,
                stacklevel=4,
            )
        return self._registered[left]
