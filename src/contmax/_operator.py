"""A decorator for functions that must not be traced: compiled kernels, and loops of hundreds of operations.

On eager tensors a decorated function runs unchanged. In a trace (torch.compile, fake tensors, ``make_fx``) and under
torch.vmap it is one opaque operator ``torch.ops.contmax.<name>``.
"""

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling

from contmax._eager import is_eager
from contmax._torch_private import constant_to_tracers

_Function = TypeVar("_Function", bound=Callable[..., Any])


def operator(
    name: str, like: Callable[..., Any], shared: Sequence[str] = (), sums_if: str | None = None
) -> Callable[[_Function], _Function]:
    """Make a function of tensors an operator.

    Arguments are tensors, numbers, dtypes, sequences of these, or NamedTuples of these. In the operator's schema an
    argument annotated `float | Tensor` becomes two: a tensor or None, and the number that replaces None. The result is
    a tensor, or a tuple, NamedTuple or list of tensors; no result is a view of an argument. A result that the caller
    does not need has shape (0,). The operator has no derivative: wrap it in an autograd.Function.

    Args:
        name: name of the operator.
        like: a function of the arguments that returns empty tensors with the shapes and dtypes of the results.
        shared: names of arguments without batch axes, such as the constants of a basis. torch.vmap calls the operator
            once on batches of the other arguments; where it runs over a shared argument, once for each index.
        sums_if: name of a boolean argument; where it is true, a result is a sum over batch axes (the gradient of a
            shared tensor), and torch.vmap calls the operator once for each index.

    Returns:
        The decorator. The decorated function takes positional arguments.
    """

    def decorate(function: _Function) -> _Function:
        hints = typing.get_type_hints(function)
        result = hints.pop("return")
        group: Any = result if _is_group(result) else None
        if group is not None:
            result = tuple[tuple(typing.get_type_hints(group).values())]  # type: ignore[misc]
        parts = [_Part(argument, hints[argument]) for argument in inspect.signature(function).parameters]
        # Search for nested tensors only if there can be any: most functions take only tensors and numbers.
        is_nested = any(part.is_nested for part in parts)
        parameters = [parameter for part in parts for parameter in part.parameters]
        names = [parameter.name for parameter in parameters]
        # Join only arguments that the operator takes as several. Begin with the last: earlier positions stay valid.
        starts = itertools.accumulate((len(part.parameters) for part in parts), initial=0)
        joined = [
            (slice(start, start + len(part.parameters)), part)
            for start, part in zip(starts, parts, strict=False)
            if part.kind is not None
        ][::-1]

        def on_flat(computes: Callable[..., Any]) -> Callable[..., Any]:
            """`computes` as a function of the operator's arguments, with contiguous results."""

            def node(*flat: Any) -> Any:
                arguments = list(flat)
                for places, part in joined:
                    arguments[places] = (part.nested(iter(flat[places])),)
                results = computes(*arguments)
                if isinstance(results, Tensor):
                    return results.contiguous()
                return (type(results) if group is None else tuple)([x.contiguous() for x in results])

            return node

        node = on_flat(function)
        node.__signature__ = inspect.Signature(parameters, return_annotation=result)  # type: ignore[attr-defined]
        sums = None if sums_if is None else names.index(sums_if)
        rule = functools.partial(_vmap_rule, shared=[names.index(argument) for argument in shared], sums=sums)
        traced = _registered(name, node, on_flat(like), rule)
        kinds = tuple(part.kind for part in parts)

        @constant_to_tracers  # torch.compile would check every part of a tuple before each call of its program
        def kinds_of_parts() -> tuple[Any, ...]:
            return kinds

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            if not is_compiling() and is_eager(*(_leaves(_flat(kinds, arguments)) if is_nested else arguments)):
                return function(*arguments)
            results = traced(*_flat(kinds_of_parts(), arguments))
            return results if group is None else group(*results)

        return typing.cast("_Function", call)

    return decorate


class _Part:
    """An argument of the function, and the arguments of the operator that stand for it.

    A NamedTuple becomes its fields, and a `float | Tensor` two arguments. `kind` is None for an argument that the
    operator takes as it is, `_NUMBER_OR_TENSOR`, or the tuple of the kinds of a NamedTuple's fields.
    """

    def __init__(self, name: str, hint: Any) -> None:
        self.kind: Any = None
        self._hint, self._fields = hint, list[_Part]()
        own = {name: hint}
        if _is_group(hint):
            fields = typing.get_type_hints(hint).items()
            self._fields = [_Part(f"{name}_{field}", kind) for field, kind in fields]
            self.kind = tuple(field.kind for field in self._fields)
        elif isinstance(hint, types.UnionType) and set(typing.get_args(hint)) == {float, Tensor}:
            own = {name: Tensor | None, f"{name}_number": float}
            self.kind = _NUMBER_OR_TENSOR
        self.is_nested = _is_group(hint) or typing.get_origin(hint) in (Sequence, list, tuple)
        self.parameters: list[inspect.Parameter] = [
            parameter for field in self._fields for parameter in field.parameters
        ] or [
            inspect.Parameter(argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for argument, kind in own.items()
        ]

    def nested(self, values: Iterator[Any]) -> Any:
        """The argument of the function, joined from the next arguments of the operator."""
        if self.kind is None:
            return next(values)
        if self.kind == _NUMBER_OR_TENSOR:
            tensor, number = next(values), next(values)
            return number if tensor is None else tensor
        return self._hint(*[field.nested(values) for field in self._fields])


_NUMBER_OR_TENSOR = "number or tensor"


def _flat(kinds: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The arguments of the operator for values of these kinds (`_Part.kind`); torch.compile traces this function."""
    flat: list[Any] = []
    for kind, value in zip(kinds, values, strict=True):
        if kind is None:
            flat.append(value)
        elif kind == _NUMBER_OR_TENSOR:
            flat += (value, 0.0) if isinstance(value, Tensor) else (None, value)
        else:
            flat += _flat(kind, value)
    return flat


def _leaves(flat: Sequence[Any]) -> Iterator[Any]:
    """The arguments of the operator, with each sequence replaced by its elements."""
    return (leaf for x in flat for leaf in (x if isinstance(x, list | tuple) else (x,)))


def _is_group(hint: Any) -> bool:
    """Whether a type is a NamedTuple."""
    return isinstance(hint, type) and hasattr(hint, "_fields")


# The registrations of operators, which end when their objects are freed.
_libraries: dict[str, torch.library.Library] = {}


def _registered(
    name: str,
    function: Callable[..., Any],
    like: Callable[..., Any],
    vmap_rule: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[..., Any]:
    """The operator ``contmax::<name>``, which replaces an older one if a module is loaded twice.

    ``torch.library.custom_op`` is not used: it would call several Python functions (for derivatives, and to refuse
    results that are views) before ours, and these take longer than a small map.
    """
    schema = torch.library.infer_schema(function, mutates_args=())
    _libraries.pop(name, None)
    library = _libraries[name] = torch.library.Library("contmax", "FRAGMENT")
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"contmax::{name}", like, lib=library)
    traced: Callable[..., Any] = getattr(torch.ops.contmax, name).default
    torch.library.register_vmap(f"contmax::{name}", vmap_rule(traced), lib=library)
    return traced


def _vmap_rule(traced: Callable[..., Any], shared: Sequence[int], sums: int | None) -> Callable[..., Any]:
    """The rule of torch.vmap for an operator, given the indices of its `shared` arguments and of `sums_if`."""

    def rule(info: Any, places: Sequence[Any], *arguments: Any) -> Any:
        if any(_is_mapped(places[i]) for i in shared) or (sums is not None and arguments[sums]):
            results = [traced(*_select(arguments, places, i)) for i in range(info.batch_size)]
            if isinstance(results[0], Tensor):
                return torch.stack(results), 0
            return tuple(torch.stack(part) for part in zip(*results, strict=True)), (0,) * len(results[0])
        results = traced(
            *(
                x if i in shared else _batch_first(x, place, info.batch_size)
                for i, (x, place) in enumerate(zip(arguments, places, strict=True))
            )
        )
        if isinstance(results, Tensor):
            return results, 0
        # An unneeded result, of shape (0,), has no axis of vmap.
        return results, type(results)(None if x.shape == (0,) else 0 for x in results)

    return rule


def _is_mapped(place: Any) -> bool:
    """Whether vmap runs over a tensor, or over any tensor of a list. A place is vmap's axis, or None."""
    return any(map(_is_mapped, place)) if isinstance(place, list | tuple) else place is not None


def _batch_first(x: Any, place: Any, size: int) -> Any:
    """A tensor, or a list of tensors, with vmap's axis in front; tensors without this axis are expanded."""
    if isinstance(x, list | tuple):
        places = place if isinstance(place, list | tuple) else [place] * len(x)
        return [_batch_first(part, where, size) for part, where in zip(x, places, strict=True)]
    if not isinstance(x, Tensor):
        return x
    return x.expand(size, *x.shape) if place is None else x.movedim(place, 0)


def _select(arguments: Sequence[Any], places: Sequence[Any], i: int) -> list[Any]:
    """The arguments of the call for index i of vmap's axis."""
    return [
        _select(x, place, i) if isinstance(place, list | tuple) else x if place is None else x.select(place, i)
        for x, place in zip(arguments, places, strict=True)
    ]
