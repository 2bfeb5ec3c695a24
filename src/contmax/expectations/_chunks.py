"""Expectations by torch's operations in bounded memory: a chunk of the densities at a time.

Each pair of a density and a function takes tensors of all nodes, up to a thousand times its share of the result. The
number of pairs alone decides about chunks. Where torch would save too much of all chunks for the backward pass, nothing
is saved, and the backward pass computes each chunk again, in twice the time.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._by_reference import Reference, gradients_by_reference, needs_reference, tangent_by_reference

_MOST_CHUNKS = 512
# Bytes that an expectation may save for its backward pass.
_MOST_SAVED = 2**26


class Fewest(NamedTuple):
    """Pairs of one chunk, at least: with fewer, overheads of torch's operations would count.

    Attributes:
        on_cpu: their number on a CPU.
        elsewhere: their number on an accelerator.
        saved: bytes that torch saves of a pair for the backward pass, about; 0 for none but the result.
    """

    on_cpu: int
    elsewhere: int
    saved: int

    def densities_of_chunk(self, densities: int, functions: int, device: torch.device) -> int:
        """The number of densities in one chunk."""
        functions = max(functions, 1)
        fewest = self.on_cpu if device.type == "cpu" else self.elsewhere
        return max(1, max(fewest, densities * functions // _MOST_CHUNKS) // functions)


def in_chunks(
    reference: Reference, densities: Sequence[Tensor | None], basis: Sequence[Tensor], batch_dims: int, fewest: Fewest
) -> Tensor:
    """`reference(*densities, *basis)`, (*batch, K), in chunks where there are many pairs.

    Args:
        reference: differentiable to every order; hashable, without tensors of its own.
        densities: parameters of the densities, (*batch, …), all of the same batch; None stays None.
        basis: those of the functions, (K, …).
        batch_dims: the number of dimensions of the batch.
        fewest: pairs of one chunk, at least.
    """
    if torch.compiler.is_compiling():  # a tracer knows no sizes
        return reference(*densities, *basis)
    count = _batch(densities, batch_dims).numel()
    size = fewest.densities_of_chunk(count, basis[0].shape[0], basis[0].device)
    if count <= size:
        return reference(*densities, *basis)
    if count * basis[0].shape[0] * fewest.saved <= _MOST_SAVED:
        return _chunk_by_chunk(reference, densities, basis, batch_dims, size)
    result: Tensor = apply(_InChunks, reference, batch_dims, size, len(densities), *densities, *basis)
    return result


def _chunk_by_chunk(
    reference: Reference, densities: Sequence[Tensor | None], basis: Sequence[Tensor | None], batch_dims: int, size: int
) -> Tensor:
    """`reference(*densities, *basis)`, from `size` densities at a time."""
    parts = [reference(*chunk, *basis) for chunk in _chunks(densities, batch_dims, size)]
    return torch.cat(parts).reshape(*_batch(densities, batch_dims), parts[0].shape[-1])


class _InChunks(torch.autograd.Function):
    """`in_chunks` with every chunk computed again in the backward pass; the first `count` tensors are densities'."""

    generate_vmap_rule = True

    @staticmethod
    def forward(reference: Reference, batch_dims: int, size: int, count: int, *tensors: Tensor | None) -> Tensor:
        return _chunk_by_chunk(reference, tensors[:count], tensors[count:], batch_dims, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.reference, ctx.batch_dims, ctx.size, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needed, count = ctx.saved_tensors, ctx.needs_input_grad[4:], ctx.count
        if needs_reference(cotangent):
            return None, None, None, None, *gradients_by_reference(ctx.reference, tensors, needed, cotangent)
        g = cotangent.reshape(-1, cotangent.shape[-1]).split(ctx.size)
        parts: list[list[Tensor]] = [[] for _ in range(count)]
        sums: list[Tensor | None] = [None] * (len(tensors) - count)
        for at, chunk in enumerate(_chunks(tensors[:count], ctx.batch_dims, ctx.size)):
            found = gradients_by_reference(ctx.reference, (*chunk, *tensors[count:]), needed, g[at])
            for place, gradient in enumerate(found):
                if gradient is None:
                    continue
                if place < count:
                    parts[place].append(gradient)
                else:
                    total = sums[place - count]
                    sums[place - count] = gradient if total is None else total + gradient
        batch = _batch(tensors, ctx.batch_dims)
        own = [torch.cat(x).reshape(*batch, *x[0].shape[1:]) if x else None for x in parts]
        return None, None, None, None, *own, *sums

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        moved: Tensor = tangent_by_reference(ctx.reference, ctx.saved_tensors, tangents[4:])
        return moved


def _batch(tensors: Sequence[Tensor | None], batch_dims: int) -> torch.Size:
    return next(x.shape[:batch_dims] for x in tensors if x is not None)


def _chunks(densities: Sequence[Tensor | None], batch_dims: int, size: int) -> Iterator[tuple[Any, ...]]:
    """The parameters of each chunk, (size, …)."""
    flat = [None if x is None else x.reshape(-1, *x.shape[batch_dims:]).split(size) for x in densities]
    for i in range(next(len(x) for x in flat if x is not None)):
        yield tuple(None if x is None else x[i] for x in flat)
