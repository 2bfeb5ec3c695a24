"""The run-time type checker of the test-suite: beartype, except where it has no meaning, once per kind of call."""

import functools
import re
import threading
import types
from collections.abc import Callable
from typing import Any

import jaxtyping
import torch
from beartype import beartype
from beartype.roar import BeartypeDecorHintPep673Exception

# Annotations such as "n+1", for which more matters than which sizes are equal; and the least size that none names.
_ARITHMETIC = re.compile(r"\w[-+*/]\w")
_UNNAMED = 8


def install(modules: list[str]) -> None:
    """Check the annotations of the modules, which must not have been imported yet."""
    # Where jaxtyping's hook puts the decorator it looks it up by this name.
    jaxtyping.jaxtyped = functools.partial(once_per_kind, jaxtyping.jaxtyped)
    jaxtyping.install_import_hook(modules, "typechecker.checked")


def checked(function):
    """beartype, or the function as it is where it returns typing.Self, which beartype knows on classes only."""
    try:
        return beartype(function)
    except BeartypeDecorHintPep673Exception:
        return function


def once_per_kind(jaxtyped: Callable, function: Callable | None = None, *, typechecker: Callable) -> Callable:
    """`jaxtyped`, but arguments and results of kinds that have passed are not checked again.

    A check takes several times as long as what most functions do, and it reads nothing but types, dtypes and shapes;
    of shapes, which sizes are equal, and the small ones that annotations may name.
    """
    if function is None:
        return functools.partial(once_per_kind, jaxtyped, typechecker=typechecker)
    if isinstance(function, type):
        return jaxtyped(function, typechecker=typechecker)
    passed: dict[tuple, set] = {}
    patterns: dict[tuple, set] = {}
    pattern = _exactly if _ARITHMETIC.search(repr(function.__annotations__)) else _pattern
    # Made when it is first needed: to make all takes seconds, and each process calls few of the functions.
    check_all = functools.cache(lambda: jaxtyped(function, typechecker=typechecker))
    # The shape of a result may depend on what `self` holds. A function that draws must not be called again: what it
    # returned, known by the thread that called it, goes through the check instead.
    known: dict[int, object] = {}
    recalled = functools.partial(_calling, lambda: known.pop(threading.get_ident()), like=function)
    check_result = functools.cache(lambda: jaxtyped(recalled(), typechecker=typechecker))

    @functools.wraps(function)
    def call(*arguments, **options):
        __tracebackhide__ = True
        kinds = tuple([_reader(type(value))(value) for value in arguments])
        if options:
            kinds += (*options, *map(_kind, options.values()))
        results = passed.get(kinds)
        if results is None:
            sizes: dict[int, int] = {}
            like = pattern(kinds, sizes)
            if like not in patterns:
                result = check_all()(*arguments, **options)
                kind = _kind(result)
                passed[kinds], patterns[like] = {kind}, {pattern(kind, sizes)}
                return result
            results = passed[kinds] = set()
        result = function(*arguments, **options)
        kind = _kind(result)
        if kind not in results:
            sizes = {}
            alike = patterns[pattern(kinds, sizes)]
            found = pattern(kind, sizes)
            if found not in alike:
                known[threading.get_ident()] = result
                check_result()(*arguments, **options)
                alike.add(found)
            results.add(kind)
        return result

    return call


def _calling(recall: Callable[[], object], like: Callable) -> Callable:
    """A function that returns what is recalled, with the signature of another and the names its strings mean."""
    given = lambda *_, **__: recall()  # noqa: E731
    return functools.wraps(like)(types.FunctionType(given.__code__, like.__globals__, closure=given.__closure__))


def _kind(value: object) -> object:
    """What a check can see of a value, hashable: a tensor's dtype and shape, the kinds of members, or the type."""
    return _reader(type(value))(value)


@functools.cache
def _reader(kind: type) -> Callable[[Any], object]:
    """How to read values of one type; found once, since every call of every function asks for it."""
    if issubclass(kind, torch.Tensor):
        return lambda value: (kind, value.dtype, value.shape)
    if issubclass(kind, tuple | list):
        return lambda value: (kind, *map(_kind, value))
    if issubclass(kind, dict):
        return lambda value: (kind, *value, *map(_kind, value.values()))
    return (lambda value: (kind, value)) if issubclass(kind, str | int) else lambda _: kind


def _pattern(kind: object, sizes: dict[int, int]) -> object:
    """A kind in which sizes, where they are not small, are told apart by when they came first, and not by number."""
    if isinstance(kind, torch.Size):
        return tuple(size if size < _UNNAMED else ~sizes.setdefault(size, len(sizes)) for size in kind)
    if isinstance(kind, tuple):
        return tuple(_pattern(part, sizes) for part in kind)
    return kind


def _exactly(kind: object, sizes: dict[int, int]) -> object:
    return kind
