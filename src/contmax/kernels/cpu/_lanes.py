"""Compression copies the entries of a row above a threshold side by side; expansion is its inverse. For numba code.

LLVM vectorises most loops by itself, but not a loop whose output position depends on the data. These intrinsics emit
LLVM's compress and expand operations on vectors of 64 bytes, which compile to one instruction per vector on AVX-512,
and elsewhere to a short scalar sequence. A `mask` is an integer with one bit per lane; arrays are C-contiguous, and
offsets are flat indices of elements.
"""

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

_VECTOR_BITS = 512
# The most lanes of a vector: 16 float32. `compress_above` writes whole vectors, so compressed arrays need this many
# spare entries at the end.
LANES = np.uint64(_VECTOR_BITS // 32)


def _lanes_of_the_processor() -> int:
    """A lower bound of the float32 lanes of this processor's vectors: 4 on ARM and old x86, which have 128 bits."""
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot report the features of this system
        return 4
    return 16 if features.get("avx512f") else 8 if features.get("avx") else 4


PROCESSOR_LANES = np.uint64(_lanes_of_the_processor())
_BOOL, _INT32, _INT64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


def _vector_at(context, builder, array_type, array, offset):  # type: ignore[no-untyped-def]
    """(vector type, pointer, alignment, suffix of LLVM's names) of the vector that starts at array[offset]."""
    element, bits = context.get_data_type(array_type.dtype), array_type.dtype.bitwidth
    lanes = _VECTOR_BITS // bits
    vector = ir.VectorType(element, lanes)
    first = builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])
    return vector, builder.bitcast(first, vector.as_pointer()), ir.Constant(_INT32, bits // 8), f"v{lanes}f{bits}"


def _call(builder, name, result, *arguments):  # type: ignore[no-untyped-def]
    """A call of LLVM's function `name`, which returns the type `result`."""
    declared = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, declared, name), arguments)


def _splat(builder, scalar, lanes):  # type: ignore[no-untyped-def]
    """A vector with `scalar` in every lane."""
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_INT32, 0))
    first_lane = ir.Constant(ir.VectorType(_INT32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), first_lane)


def _first_lanes(builder, count, lanes):  # type: ignore[no-untyped-def]
    """A boolean vector, true in lanes 0 … count − 1, or in all `lanes` if `count` is larger."""
    order = ir.Constant(ir.VectorType(_INT32, lanes), list(range(lanes)))
    return builder.icmp_unsigned("<", order, _splat(builder, builder.trunc(count, _INT32), lanes))


def _lanes_of(builder, mask, lanes):  # type: ignore[no-untyped-def]
    """A boolean vector from the bits of a mask."""
    return builder.bitcast(builder.trunc(mask, ir.IntType(lanes)), ir.VectorType(_BOOL, lanes))


def _masked_load(builder, vector, pointer, align, suffix, lanes):  # type: ignore[no-untyped-def]
    """A vector from memory, with 0 where `lanes` is false."""
    return _call(builder, f"llvm.masked.load.{suffix}.p0", vector, pointer, align, lanes, ir.Constant(vector, None))


@intrinsic
def _above(typing_context, array, offset, count, threshold):  # type: ignore[no-untyped-def]
    """The mask of the entries > threshold among the first `count` of the vector at array[offset]."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        vector, pointer, align, suffix = _vector_at(context, builder, signature.args[0], *arguments[:2])
        present = _first_lanes(builder, arguments[2], vector.count)
        values = _masked_load(builder, vector, pointer, align, suffix, present)
        larger = builder.fcmp_ordered(">", values, _splat(builder, arguments[3], vector.count))
        mask = builder.bitcast(builder.and_(larger, present), ir.IntType(vector.count))
        return builder.zext(mask, _INT64)

    return types.uint64(array, types.uint64, types.uint64, array.dtype), generate


@intrinsic
def _compress(typing_context, source, offset, mask, target, position):  # type: ignore[no-untyped-def]
    """Copy the lanes that `mask` selects, of the vector at source[offset], to target[position:] without gaps."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        vector, pointer, align, suffix = _vector_at(context, builder, signature.args[0], *arguments[:2])
        lanes = _lanes_of(builder, arguments[2], vector.count)
        values = _masked_load(builder, vector, pointer, align, suffix, lanes)
        anything = ir.Constant(vector, ir.Undefined)
        packed = _call(builder, f"llvm.experimental.vector.compress.{suffix}", vector, values, lanes, anything)
        _, place, _, _ = _vector_at(context, builder, signature.args[3], *arguments[3:])
        builder.store(packed, place, align=align.constant)
        return context.get_dummy_value()

    return types.none(source, types.uint64, types.uint64, target, types.uint64), generate


@intrinsic
def _expand(typing_context, source, position, mask, factor, target, offset, count):  # type: ignore[no-untyped-def]
    """Fill at most `count` lanes at target[offset]: those in `mask` get factor·source[position:] in turn, others 0."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        vector, pointer, align, suffix = _vector_at(context, builder, signature.args[0], *arguments[:2])
        lanes = _lanes_of(builder, arguments[2], vector.count)
        packed = builder.bitcast(pointer, vector.element.as_pointer())
        name = f"llvm.masked.expandload.{suffix}"
        values = _call(builder, name, vector, packed, lanes, ir.Constant(vector, None))
        values = builder.fmul(values, _splat(builder, arguments[3], vector.count))
        _, place, _, _ = _vector_at(context, builder, signature.args[4], *arguments[4:6])
        present = _first_lanes(builder, arguments[6], vector.count)
        _call(builder, f"llvm.masked.store.{suffix}.p0", ir.VoidType(), values, place, align, present)
        return context.get_dummy_value()

    kinds = (source, types.uint64, types.uint64, source.dtype, target, types.uint64, types.uint64)
    return types.none(*kinds), generate


@intrinsic
def _ones(typing_context, mask):  # type: ignore[no-untyped-def]
    """The number of set bits of a mask."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def wide_vectors(typing_context):  # type: ignore[no-untyped-def]
    """Let LLVM use vectors of 512 bits in the calling function, where the processor has them.

    LLVM's default is 256 bits, because 512 bits slow old processors down. With 256 bits polynomials take twice as long.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        # llvmlite has no public way to add an attribute that it does not know.
        set.add(builder.function.attributes, f'"prefer-vector-width"="{_VECTOR_BITS}"')
        return context.get_dummy_value()

    return types.none(), generate


@njit
def compress_above(key, start, columns, threshold, target, j, other=None, other_target=None):  # type: ignore[no-untyped-def]
    """Copy the entries > threshold among key[start:start + columns] to the front of target[j], and return their number.

    If `other` is given, its entries at the copied positions go to other_target[j].
    """
    lanes = np.uint64(_VECTOR_BITS // 8 // key.itemsize)
    place = j * np.uint64(target.shape[1])
    count = np.uint64(0)
    for i in range(np.uint64(0), columns, lanes):
        mask = _above(key, start + i, columns - i, threshold)
        _compress(key, start + i, mask, target, place + count)
        if other is not None:  # resolved at compile time
            _compress(other, start + i, mask, other_target, place + count)
        count += _ones(mask)
    return count


@njit
def expand_above(key, key_start, columns, threshold, packed, j, factor, target, start):  # type: ignore[no-untyped-def]
    """The inverse of `compress_above`: target, from `start` on, gets factor·packed[j] where key > threshold, else 0."""
    lanes = np.uint64(_VECTOR_BITS // 8 // key.itemsize)
    taken = j * np.uint64(packed.shape[1])
    for i in range(np.uint64(0), columns, lanes):
        mask = _above(key, key_start + i, columns - i, threshold)
        _expand(packed, taken, mask, factor, target, start + i, columns - i)
        taken += _ones(mask)
