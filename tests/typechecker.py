"""The run-time type checker of the test-suite: beartype, except where it has no meaning, once per kind of call."""

import dataclasses
import functools
import re
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
import torch
from beartype import beartype
from beartype.roar import (
    BeartypeCallHintParamViolation,
    BeartypeCallHintReturnViolation,
    BeartypeDecorHintPep673Exception,
)

# Annotations such as "n+1", for which more matters than which sizes are equal; and the least size that none names.
_ARITHMETIC = re.compile(r"\w[-+*/]\w")
_UNNAMED = 8
# Types by their names: all else that annotations show in quotes may ask for shapes, or for certain words.
_CLASSES = re.compile(r"<class '[\w.]+'>")

Kinds = dict[tuple, set]


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
        return _with_checked_fields(jaxtyped, function, typechecker)
    readers, pattern, passed, patterns = _memory(function)
    # Made when it is first needed: to make all takes seconds, and each process calls few of the functions.
    check: Callable | None = None

    def checking() -> Callable:
        nonlocal check
        check = check or _check(jaxtyped, function, typechecker)
        return check

    @functools.wraps(function)
    def call(*arguments, **options):
        __tracebackhide__ = True
        kinds = tuple([type(x) if (read := readers[type(x)]) is None else read(x) for x in arguments])
        if options:
            kinds += (*options, *[readers.kind(value) for value in options.values()])
        results = passed.get(kinds)
        if results is None:
            sizes: dict[int, int] = {}
            like = pattern(kinds, sizes)
            if like not in patterns:
                result = checking()(arguments, options)
                kind = readers.kind(result)
                passed[kinds], patterns[like] = {kind}, {pattern(kind, sizes)}
                return result
            results = passed[kinds] = set()
        result = function(*arguments, **options)
        kind = type(result) if (read := readers[type(result)]) is None else read(result)
        if kind not in results:
            sizes = {}
            alike = patterns[pattern(kinds, sizes)]
            found = pattern(kind, sizes)
            if found not in alike:
                checking()(arguments, options, result)
                alike.add(found)
            results.add(kind)
        return result

    call.is_checked = True
    return call


def _with_checked_fields(jaxtyped: Callable, kind: type, typechecker: Callable) -> type:
    """The class; what a dataclass is made of is checked once per kind too."""
    if dataclasses.is_dataclass(kind) and not hasattr(kind.__init__, "is_checked"):
        kind.__init__ = once_per_kind(jaxtyped, kind.__init__, typechecker=typechecker)
    return kind


class _Readers(dict):
    """Type → how to read what a check can see of its values, hashable; none where it sees the type alone.

    Found once, since every call of every function asks for it.

    Args:
        beyond_types: whether dtypes and shapes of tensors count, and which number or word a value is.
    """

    def __init__(self, beyond_types: bool) -> None:
        super().__init__()
        self._beyond_types = beyond_types

    def __missing__(self, kind: type) -> Callable[[Any], object] | None:
        self[kind] = self._reader(kind)
        return self[kind]

    def kind(self, value: object) -> object:
        read = self[type(value)]
        return type(value) if read is None else read(value)

    def _reader(self, kind: type) -> Callable[[Any], object] | None:
        if issubclass(kind, tuple | list):
            return lambda value: (kind, *map(self.kind, value))
        if issubclass(kind, dict):
            return lambda value: (kind, *value, *map(self.kind, value.values()))
        if self._beyond_types and issubclass(kind, torch.Tensor):
            return lambda value: (kind, value.dtype, value.shape)
        return (lambda value: (kind, value)) if self._beyond_types and issubclass(kind, str | int) else None


_ALL, _TYPES = _Readers(beyond_types=True), _Readers(beyond_types=False)
_OF_INNER: dict[tuple, tuple] = {}


def _memory(function: Callable) -> tuple[_Readers, Callable, Kinds, Kinds]:
    """How to read values for a function, how to compare kinds, and the kinds and patterns of them that have passed.

    A function inside another is made anew at every call of that one; all of them share what is known.
    """
    code = getattr(function, "__code__", None)
    key = (function.__module__, function.__qualname__, code)
    if key in _OF_INNER:
        return _OF_INNER[key]
    annotations = _CLASSES.sub("", repr([*function.__annotations__.values()]))
    pattern = _exactly if _ARITHMETIC.search(annotations) else _pattern
    memory = _ALL if "Literal" in annotations or "'" in annotations or '"' in annotations else _TYPES, pattern, {}, {}
    if "<locals>" in function.__qualname__:
        _OF_INNER[key] = memory
    return memory


_NONE = object()


def _check(jaxtyped: Callable, function: Callable, typechecker: Callable) -> Callable:
    """A function of arguments, options and perhaps a result: checks all, and calls the function for want of a result.

    The shape of a result may depend on what `self` holds. A function that draws must not be called again: what it
    returned, known by the thread that called it, goes through the check instead.
    """
    known: dict[int, object] = {}

    def run(*arguments, **options):
        thread = threading.get_ident()
        if thread not in known:
            known[thread] = function(*arguments, **options)
        return known[thread]

    quick = _checked_once(_calling(run, function), typechecker)

    def check(arguments: tuple, options: dict, result: object = _NONE) -> object:
        __tracebackhide__ = True
        thread = threading.get_ident()
        if result is not _NONE:
            known[thread] = result
        try:
            with jaxtyped("context"):  # sizes of the same name are equal in one call
                return quick(*arguments, **options)
        except (BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation):
            # jaxtyping's own check, which takes twice as long to make, says what is wrong in better words.
            given = _calling(run, function) if thread in known else function
            return jaxtyped(given, typechecker=typechecker)(*arguments, **options)
        finally:
            known.pop(thread, None)

    return check


def _checked_once(function: Callable, typechecker: Callable) -> Callable:
    """The function under the checker; its arguments alone where the checker cannot read what it returns."""
    done = typechecker(function)
    if done is function:
        function.__annotations__["return"] = Any
        done = typechecker(function)
    return done


def _calling(other: Callable, function: Callable) -> Callable:
    """A function that calls another, with the signature of a third and the types that its annotations mean."""
    given = lambda *arguments, **options: other(*arguments, **options)  # noqa: E731
    caller = types.FunctionType(given.__code__, function.__globals__, closure=given.__closure__)
    caller = functools.wraps(function)(caller)
    caller.__annotations__ = {name: _meant(hint, function) for name, hint in function.__annotations__.items()}
    return caller


def _meant(annotation: object, function: Callable) -> object:
    """An annotation without strings; anything where these name what is imported for static checks alone."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, function.__globals__, include_extras=True)["it"]
    except NameError:
        return Any


def _pattern(kind: object, sizes: dict[int, int]) -> object:
    """A kind in which sizes, where they are not small, are told apart by when they came first, and not by number."""
    if isinstance(kind, torch.Size):
        return tuple(size if size < _UNNAMED else ~sizes.setdefault(size, len(sizes)) for size in kind)
    if isinstance(kind, tuple):
        return tuple(_pattern(part, sizes) for part in kind)
    return kind


def _exactly(kind: object, sizes: dict[int, int]) -> object:
    return kind
