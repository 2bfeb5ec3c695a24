"""One decorator for functions that tracers cannot look into: compiled kernels, and loops of hundreds of operations.

Called with tensors that hold numbers, a decorated function runs as it is. In a trace (torch.compile, fake tensors,
``make_fx``) and under torch.vmap it is one opaque operator ``torch.ops.contmax.<name>``.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from contmax._eager import is_eager

_Function = TypeVar("_Function", bound=Callable[..., Any])


def operator(
    name: str, like: Callable[..., Any], shared: Sequence[str] = (), sums_if: str | None = None
) -> Callable[[_Function], _Function]:
    """Make a function of tensors an operator.

    Arguments are tensors, numbers, dtypes, sequences of these, or a NamedTuple of them; one annotated `float | Tensor`
    is two in the operator's schema: a tensor, and the number that counts where the tensor is None. Results are a
    tensor, a tuple or NamedTuple of tensors, or a list of them; none is a view of an argument. A result that the caller
    does not need has shape (0,). The function has no derivative: an autograd.Function around it has.

    Args:
        name: of the operator.
        like: from the function's arguments to empty tensors of the shapes and dtypes of its results.
        shared: the names of tensors without batch axes, such as a basis. torch.vmap calls the operator once for all
            others, and one by one where it runs over a shared tensor.
        sums_if: the name of a boolean argument; where it is true, a result is a sum over batch axes (the gradient of a
            shared tensor), and torch.vmap calls the operator one by one.

    Returns:
        The decorator. The decorated function takes positional arguments.
    """

    def decorate(function: _Function) -> _Function:
        layout = _Layout(function)

        def node(*flat: Any) -> Any:
            return layout.results(function(*layout.nested(flat)))

        node.__signature__ = layout.signature  # type: ignore[attr-defined]
        sums = None if sums_if is None else layout.positions([sums_if])[0]
        traced = torch.library.custom_op(f"contmax::{name}", node, mutates_args=())
        traced.register_fake(lambda *flat: layout.results(like(*layout.nested(flat))))
        traced.register_vmap(_vmap_rule(traced, layout.positions(shared), sums))

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            if is_eager(*(layout.leaves(arguments) if layout.is_nested else arguments)):
                return function(*arguments)
            results = traced(*layout.flat(arguments))
            return results if layout.group is None else layout.group(*results)

        return typing.cast("_Function", call)

    return decorate


class _Layout:
    """How the arguments and results of a function are laid out in the schema of its operator."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(function)
        result = hints.pop("return")
        self.group: Any = result if _is_group(result) else None
        if self.group is not None:
            result = tuple[tuple(typing.get_type_hints(result).values())]  # type: ignore[misc]
        self._parts = [_Part(name, hints[name]) for name in inspect.signature(function).parameters]
        self.is_nested = any(part.fields or part.is_sequence for part in self._parts)
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hint)
            for part in self._parts
            for name, hint in part.parameters()
        ]
        self.signature = inspect.Signature(parameters, return_annotation=result)

    def flat(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of the operator, from those of the function."""
        return [x for part, value in zip(self._parts, arguments, strict=True) for x in part.flat(value)]

    def leaves(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of the operator, with those of sequences one by one."""
        flat = self.flat(arguments)
        return [leaf for x in flat for leaf in (x if isinstance(x, list | tuple) else (x,))]

    def nested(self, flat: Sequence[Any]) -> list[Any]:
        """The arguments of the function, from those of the operator."""
        values = iter(flat)
        return [part.nested(values) for part in self._parts]

    def results(self, results: Any) -> Any:
        """The results as the operator returns them: in their usual layout in memory."""
        if isinstance(results, Tensor):
            return results.contiguous()
        return (tuple if self.group is not None else type(results))(x.contiguous() for x in results)

    def positions(self, names: Sequence[str]) -> list[int]:
        """Where these arguments are among those of the operator."""
        return [list(self.signature.parameters).index(name) for name in names]


class _Part:
    """An argument of a function, or a field of one: one argument of the operator, two, or one for each field."""

    def __init__(self, name: str, hint: Any) -> None:
        self._name, self._hint = name, hint
        fields = typing.get_type_hints(hint) if _is_group(hint) else {}
        self.fields = [_Part(f"{name}_{field}", kind) for field, kind in fields.items()]
        self.is_sequence = typing.get_origin(hint) in (Sequence, list, tuple)
        self._may_be_number = isinstance(hint, types.UnionType) and set(typing.get_args(hint)) == {float, Tensor}

    def parameters(self) -> list[tuple[str, Any]]:
        """Names and types in the operator's schema."""
        if self.fields:
            return [parameter for field in self.fields for parameter in field.parameters()]
        if self._may_be_number:
            return [(self._name, Tensor | None), (f"{self._name}_number", float)]
        return [(self._name, self._hint)]

    def flat(self, value: Any) -> list[Any]:
        if self.fields:
            return [x for field, part in zip(self.fields, value, strict=True) for x in field.flat(part)]
        if self._may_be_number:
            return [value, 0.0] if isinstance(value, Tensor) else [None, value]
        return [value]

    def nested(self, values: Iterator[Any]) -> Any:
        if self.fields:
            return self._hint(*[field.nested(values) for field in self.fields])
        if self._may_be_number:
            tensor, number = next(values), next(values)
            return number if tensor is None else tensor
        return next(values)


def _is_group(hint: Any) -> bool:
    """Whether a type is a NamedTuple."""
    return isinstance(hint, type) and hasattr(hint, "_fields")


def _vmap_rule(traced: Callable[..., Any], shared: Sequence[int], sums: int | None) -> Callable[..., Any]:
    """The rule of torch.vmap for an operator with these shared arguments, and the one that says whether it sums."""

    def rule(info: Any, places: Sequence[Any], *arguments: Any) -> Any:
        if any(_is_mapped(places[i]) for i in shared) or (sums is not None and arguments[sums]):
            slices = [_select(arguments, places, i) for i in range(info.batch_size)]
            results = [traced(*one) for one in slices]
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
        # A result of shape (0,) is one that nobody needs.
        return results, type(results)(None if x.shape == (0,) else 0 for x in results)

    return rule


def _is_mapped(place: Any) -> bool:
    """Whether vmap runs over a tensor, or over one of a list."""
    return any(map(_is_mapped, place)) if isinstance(place, list | tuple) else place is not None


def _batch_first(x: Any, place: Any, size: int) -> Any:
    """A tensor, or each of a list, with vmap's axis in front; one without that axis is expanded."""
    if isinstance(x, list | tuple):
        places = place if isinstance(place, list | tuple) else [place] * len(x)
        return [_batch_first(part, where, size) for part, where in zip(x, places, strict=True)]
    if not isinstance(x, Tensor):
        return x
    return x.expand(size, *x.shape) if place is None else x.movedim(place, 0)


def _select(arguments: Sequence[Any], places: Sequence[Any], i: int) -> list[Any]:
    """The arguments of one call at one place of vmap's axis."""
    return [
        _select(x, place, i) if isinstance(place, list | tuple) else x if place is None else x.select(place, i)
        for x, place in zip(arguments, places, strict=True)
    ]
