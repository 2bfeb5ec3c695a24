"""Triton's interpreter, but quicker: it patches the language once per launch, remembers types, and reduces whole rows.

It takes less than a quarter of the time. `tests/kernels/test_quick_interpreter.py` compares the results of every kernel
with those of Triton's own interpreter, and `make test-plain` runs the suite in that one. In both, minima and maxima
ignore NaN as they do on a GPU.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

# Properties of types, by the names of the types.
_BLOCKS: dict[tuple, tuple] = {}
_SHAPES: dict[str, tuple] = {}
_NUMPY_TYPES: dict[str, Any] = {}
# Two operands, by the names of their types or as constants, and what they are made into.
_CHECKED: dict[tuple, tuple] = {}
_BROADCAST: dict[tuple, tuple] = {}


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace parts of the interpreter until the test is over."""
    _patch_the_language_once(monkeypatch)
    _make_types_once(monkeypatch)
    _find_types_of_operands_once(monkeypatch)
    _reduce_side_by_side(monkeypatch)
    # Otherwise every sum of integers is computed again in 64 bits, for an assertion that only debugging evaluates.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))


def _patch_the_language_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch Triton's language at a launch, and not again at every call of a helper, which takes half of the time."""
    patch = interpreter._patch_lang

    @functools.cache
    def languages(function):
        return [module for module in (tl, tl.core) if module in function.__globals__.values()]

    def patch_once(function):
        as_it_comes = any(tl.core.is_builtin(module.load) for module in languages(function))
        return patch(function) if as_it_comes else interpreter._LangPatchScope()

    def patch_attribute(owner, name, member, builder, scope):
        def interpreted(*arguments, **named):
            named["_semantic"] = interpreter.interpreter_semantic
            return member(*arguments, **named)

        scope.set_attr(owner, name, interpreted)

    monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
    monkeypatch.setattr(interpreter, "_patch_attr", patch_attribute)


def _make_types_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember properties of types, which the interpreter computes anew at every operation."""
    make, make_tensor, numpy_type = core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype

    def remembered(self, element_ty, shape):
        sizes = shape.values if type(shape) is core.tuple else shape
        known = None if core.constexpr in map(type, sizes) else _BLOCKS.get((element_ty.name, *sizes))
        if known is None:
            make(self, element_ty, shape)
            _BLOCKS[element_ty.name, *self.shape] = self.shape, self.numel, self.name
        else:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known

    def remembered_tensor(self, handle, type):
        known = _SHAPES.get(type.name)
        if known is None:
            make_tensor(self, handle, type)
            _SHAPES[type.name] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    def remembered_numpy_type(triton_type):
        known = _NUMPY_TYPES.get(triton_type.name)
        if known is None:
            known = _NUMPY_TYPES[triton_type.name] = numpy_type(triton_type)
        return known

    monkeypatch.setattr(core.block_type, "__init__", remembered)
    monkeypatch.setattr(core.tensor, "__init__", remembered_tensor)
    monkeypatch.setattr(interpreter, "_get_np_dtype", remembered_numpy_type)


def _find_types_of_operands_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember the types that two operands are made into, by the names of their own, and constants as tensors."""
    check, broadcast = TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value

    def made(given, result, tensor):
        """The tensor of a constant; of any other operand the type that it gets, and whether its numbers are cast."""
        is_tensor = type(given) is tensor
        return None if is_tensor else result, result.type, is_tensor and given.type.scalar is not result.type.scalar

    def remembered_check(self, lhs, rhs, *options):
        tensor = self.tensor
        left = lhs.type.name if type(lhs) is tensor else (type(lhs), lhs)
        right = rhs.type.name if type(rhs) is tensor else (type(rhs), rhs)
        known = _CHECKED.get((left, right, options))
        if known is None:
            results = check(self, lhs, rhs, *options)
            _CHECKED[left, right, options] = made(lhs, results[0], tensor), made(rhs, results[1], tensor)
            return results
        # The numbers stay as few as they are: the operation of NumPy that computes with both repeats them.
        (first, kind, is_cast), (second, other, other_is_cast) = known
        if first is None:
            first = self.cast(lhs, kind.scalar) if is_cast else lhs
            first = first if first.type is kind else tensor(first.handle, kind)
        if second is None:
            second = self.cast(rhs, other.scalar) if other_is_cast else rhs
            second = second if second.type is other else tensor(second.handle, other)
        return first, second

    def widened(self, operand, kind):
        if operand.type.name == kind.name:
            return operand
        if operand.type.is_block():
            handle = self.builder.create_broadcast(operand.handle, kind.shape.values)
        else:
            handle = self.builder.create_splat(kind, operand.handle)
        return self.tensor(handle, kind)

    def remembered_broadcast(self, lhs, rhs):
        names = lhs.type.name, rhs.type.name
        kinds = _BROADCAST.get(names)
        if kinds is None:
            lhs, rhs = broadcast(self, lhs, rhs)
            _BROADCAST[names] = lhs.type, rhs.type
            return lhs, rhs
        return widened(self, lhs, kinds[0]), widened(self, rhs, kinds[1])

    monkeypatch.setattr(TritonSemantic, "binary_op_type_checking_impl", remembered_check)
    monkeypatch.setattr(TritonSemantic, "broadcast_impl_value", remembered_broadcast)


def _reduce_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce all rows of a block at once by a function of the kernels, which the interpreter calls for every number."""
    reduce_all = interpreter.ReduceOps.generic_reduce

    def reduced(self, blocks):
        if self.axis is None or self.keep_dims:
            return reduce_all(self, blocks)
        kinds = [block.dtype for block in blocks]
        steps = zip(*(np.moveaxis(block.handle.data, self.axis, 0) for block in blocks), strict=True)
        first = next(steps)
        totals = [self.to_tensor(data, kind) for data, kind in zip(first, kinds, strict=True)]
        for step in steps:
            found = self.combine_fn.fn(*totals, *map(self.to_tensor, step, kinds))
            found = found if isinstance(found, tuple) else (found,)
            numbers = [total.handle.data.reshape(data.shape) for total, data in zip(found, first, strict=True)]
            totals = [self.to_tensor(data, kind) for data, kind in zip(numbers, kinds, strict=True)]
        return totals

    monkeypatch.setattr(interpreter.ReduceOps, "generic_reduce", reduced)


def lose_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the minimum and the maximum of a number and NaN be the number, unless a kernel propagates NaN."""
    for name, chosen in (("create_minnumf", np.fmin), ("create_maxnumf", np.fmax)):
        operation = lambda self, a, b, chosen=chosen: self.binary_op(a, b, chosen)  # noqa: E731
        monkeypatch.setattr(interpreter.InterpreterBuilder, name, operation)
