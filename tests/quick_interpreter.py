"""Triton's interpreter, quicker: without what it does over and over at every operation.

`tests/kernels/test_quick_interpreter.py` shows that kernels compute what they compute in the stock interpreter, and
`make test-plain` runs the suite in that one. In both, minima and maxima lose NaN as they do on a GPU.
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

# What Triton's interpreter has found out about types, by their names.
_BLOCKS: dict[tuple, tuple] = {}
_SHAPES: dict[str, tuple] = {}
_NUMPY_TYPES: dict[str, Any] = {}
_NUMPY_SHAPES: dict[str, tuple[int, ...]] = {}
# Types that stay what they are in every operation with their like, and the Python numbers that take on such a type.
_PLAIN = {"fp32": (int, float), "fp64": (int, float), "int32": (int,), "int64": (int,), "int1": ()}


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test is over."""
    _patch_the_language_once(monkeypatch)
    _make_types_once(monkeypatch)
    _pass_like_operands(monkeypatch)
    # Sums of integers would be made again in 64 bits, for an assertion that is made in debugging only.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))


def _patch_the_language_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel's helpers find the language as the kernel's launch has left it.

    Triton's interpreter looks through the whole language at every call of a helper, for what is replaced already:
    nearly half of its time.
    """
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
    """Let Triton's interpreter remember types, which it makes and names anew at every operation."""
    make, make_tensor, numpy_type = core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype

    def remembered(self, element_ty, shape):
        plain = all(type(size) is int for size in shape)
        known = _BLOCKS.get((element_ty.name, *shape)) if plain else None
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


def _pass_like_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two operands of one type and shape, or one and a number, pass without a search for what both can become."""
    check, broadcast = TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value

    def as_tensor_like(semantic, tensor, number):
        scalar = semantic.scalar_constant(number, tensor.dtype)
        if not tensor.type.is_block():
            return scalar
        return core.tensor(semantic.builder.create_splat(tensor.type, scalar.handle), tensor.type)

    def checked(self, lhs, rhs, *options, **named):
        left, right = isinstance(lhs, core.tensor), isinstance(rhs, core.tensor)
        if left and right:
            if lhs.type.name == rhs.type.name and lhs.dtype.name in _PLAIN:
                return lhs, rhs
        elif left and _takes(lhs.dtype, rhs):
            return lhs, as_tensor_like(self, lhs, rhs)
        elif right and _takes(rhs.dtype, lhs):
            return as_tensor_like(self, rhs, lhs), rhs
        return check(self, lhs, rhs, *options, **named)

    def broadcast_unless_alike(self, lhs, rhs):
        if lhs.type.is_block() and rhs.type.is_block() and lhs.handle.data.shape == rhs.handle.data.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    def splat(self, block, number):
        shape = _NUMPY_SHAPES.get(block.name)
        if shape is None:
            shape = _NUMPY_SHAPES[block.name] = tuple(int(size) for size in block.shape)
        data = np.empty(shape, interpreter._get_np_dtype(number.dtype))
        data[...] = number.data[0]
        return interpreter.TensorHandle(data, number.dtype.scalar)

    monkeypatch.setattr(TritonSemantic, "binary_op_type_checking_impl", checked)
    monkeypatch.setattr(TritonSemantic, "broadcast_impl_value", broadcast_unless_alike)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_splat", splat)


def lose_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the smaller and the larger of a number and NaN be the number, unless a kernel asks for NaN."""
    for name, chosen in (("create_minnumf", np.fmin), ("create_maxnumf", np.fmax)):
        operation = lambda self, a, b, chosen=chosen: self.binary_op(a, b, chosen)  # noqa: E731
        monkeypatch.setattr(interpreter.InterpreterBuilder, name, operation)


def _takes(dtype: core.dtype, number: Any) -> bool:
    """Does a number become one of this type beside a tensor of it?"""
    kind = type(number)
    return kind in _PLAIN.get(dtype.name, ()) and (kind is float or -(2**31) <= number < 2**31)
