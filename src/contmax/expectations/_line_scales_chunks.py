"""The torch reference for every α on the line in bounded memory: a part of the densities at a time.

Each pair of a density and a function takes tensors of all nodes, some hundred times its share of the result. Many pairs
are cut into chunks, by their number alone; the backward pass computes each chunk again instead of keeping it.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, needs_reference, tangent_by_reference
from contmax.expectations._line_scales_reference import scale_mean_reference

# Pairs of one chunk, at least, and chunks, at most. A pair takes about 12 kB while gradients are computed.
_LEAST_CPU, _LEAST_ACCELERATOR, _MOST_CHUNKS = 2**12, 2**15, 512


def scale_mean_in_chunks(
    loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
) -> Tensor:
    """As :func:`scale_mean_reference`, which it is where there are few pairs or a tracer knows no sizes."""
    if torch.compiler.is_compiling() or loc.numel() <= _densities_of_chunk(loc, centre):
        return scale_mean_reference(loc, scale, centre, width, index, number)
    result: Tensor = apply(ChunkedScaleMean, loc, scale, centre, width, index, number)
    return result


class ChunkedScaleMean(torch.autograd.Function):
    """The same, chunk by chunk."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
    ) -> Tensor:
        parts = [
            scale_mean_reference(mu, sigma, centre, width, alpha, number)
            for mu, sigma, alpha in _chunks(_densities_of_chunk(loc, centre), loc, scale, index)
        ]
        return torch.cat(parts).reshape(*loc.shape, centre.shape[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.number = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[:5]
        reference = partial(scale_mean_reference, number=ctx.number)
        if needs_reference(cotangent):
            return *gradients_by_reference(reference, inputs, needed, cotangent), None
        loc, scale, centre, width, index = inputs
        size = _densities_of_chunk(loc, centre)
        g = cotangent.reshape(-1, centre.shape[0])
        of_chunks = []
        for at, (mu, sigma, alpha) in enumerate(_chunks(size, loc, scale, index)):
            arguments = (mu, sigma, centre, width, alpha)
            of_chunks.append(gradients_by_reference(reference, arguments, needed, g[at * size : (at + 1) * size]))
        by_loc, by_scale, by_centre, by_width, by_index = (
            [x for x in parts if x is not None] for parts in zip(*of_chunks, strict=True)
        )
        rows = [torch.cat(x).reshape(loc.shape) if x else None for x in (by_loc, by_scale, by_index)]
        basis = [torch.stack(x).sum(0) if x else None for x in (by_centre, by_width)]
        return rows[0], rows[1], *basis, rows[2], None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        reference = partial(scale_mean_reference, number=ctx.number)
        return tangent_by_reference(reference, ctx.saved_tensors, tangents[:5])


def _densities_of_chunk(loc: Tensor, centre: Tensor) -> int:
    functions = max(centre.shape[-1], 1)
    least = _LEAST_CPU if loc.device.type == "cpu" else _LEAST_ACCELERATOR
    return max(1, max(least, loc.numel() * functions // _MOST_CHUNKS) // functions)


def _chunks(size: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The densities of each chunk, (size,); None stays None."""
    flat = [None if x is None else x.reshape(-1).split(size) for x in tensors]
    count = next(len(x) for x in flat if x is not None)
    for i in range(count):
        yield tuple(None if x is None else x[i] for x in flat)
