"""From gates on positions to the density that covers the open ones: its weights and moments."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, refused_by_kernels
from contmax.kernels import means
from contmax.maps import softmax
from contmax.nn._place import Cells, observed_cells


def gate_weights(logits: Tensor, may: Tensor | None, noise: Tensor | None, drop: Tensor) -> Tensor:
    """p = g/Σg of gates g = sigmoid(logits), from ln g: exact where all gates are all but shut.

    Args:
        logits: (B, L) or (B, Q, L).
        may: what may be attended, broadcastable to the logits; or None.
        noise: uniform in [0, 1), of the shape of the logits; where it is below `drop` a gate is shut, unless none that
            may be attended would be left. None to shut none.
        drop: share of the gates, ().
    """
    kept = may
    if noise is not None:
        kept = noise >= drop if may is None else (noise >= drop) & may
        every = ~kept.any(-1, keepdim=True)
        kept = kept | (every if may is None else every & may)
    return softmax(logsigmoid(logits), mask=None if kept is None else kept.expand_as(logits))


def line_moments(weights: Tensor, cells: Cells, least: float) -> tuple[Tensor, Tensor]:
    """Mean, and variance a²/5 of the truncated parabola of half-width a, where a² has the square `least` added."""
    p = weights.unsqueeze(-1)
    mean = (p * cells.centers).sum(-2)
    offsets, sides = cells.centers - mean.unsqueeze(-2), cells.sides.unsqueeze(-2)
    half_width = cells.sides / 2 + 2 * (p * _excess(offsets, sides)).sum(-2)
    return mean.squeeze(-1), (half_width.square() + least).squeeze(-1) / 5


def _excess(offsets: Tensor, sides: Tensor) -> Tensor:
    """E|x + u| − E|u| with u uniform in a cell: |x| − side/4 outside the cell, x²/side in it; smooth at 0."""
    half = sides / 2
    near = offsets.clamp(-half, half)
    return near.square() / sides + torch.relu(offsets.abs() - half)


def default_gate_moments(
    logits: Tensor, mask: Tensor | None, noise: Tensor | None, drop: Tensor, shift: float, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and variances of gates sigmoid(logits + shift) at the default positions of the line.

    Args:
        logits: (B, L) or (B, Q, L), at least float32.
        mask: what may be attended, (L,) or (B, L); or None.
        noise: as for `gate_weights`.
        drop: as for `gate_weights`.
        shift: added to the logits.
        least: added to the squared half-width.
    """
    may = None if mask is None else mask.expand(logits.shape[0], logits.shape[-1])
    if not means.gates_are_compiled(logits):
        return _reference(logits, may, noise, drop, shift, least)
    may = None if may is None else may.contiguous()
    result: tuple[Tensor, Tensor, Tensor] = apply(GateMoments, logits, may, noise, drop, shift, least)
    return result


def _reference(
    logits: Tensor, may: Tensor | None, noise: Tensor | None, drop: Tensor, shift: float, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (logits.shape[0], logits.shape[-1])
    cells = observed_cells(shape, 1, positions=None, grid=None, mask=may, like=logits)
    if logits.dim() == 3:
        # Positions and mask belong to a sequence, and are shared by its queries.
        cells, may = Cells(*(part.unsqueeze(1) for part in cells)), None if may is None else may.unsqueeze(1)
    weights = gate_weights(logits + shift, may, noise, drop)
    return weights, *line_moments(weights, cells, least)


class GateMoments(torch.autograd.Function):
    """The same by a kernel of one launch in each direction; higher derivatives are those of the reference."""

    # Torch looks at the signature of a forward with a `setup_context` in every call: longer than the kernel takes.
    # Transforms of torch.func refuse a forward without one; under them nothing is eager, and this is not called.
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        may: Tensor | None,
        noise: Tensor | None,
        drop: Tensor,
        shift: float,
        least: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from contmax.kernels.means import _gpu_gates

        weights, mean, variance = _gpu_gates.gate_moments(logits.contiguous(), may, noise, drop, shift, least)
        ctx.shift, ctx.least = shift, least
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, may, noise, drop, weights, mean)
        ctx.save_for_forward(logits, may, noise, drop)
        return weights, mean, variance

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, may, noise, drop, weights, mean = ctx.saved_tensors
        if all(c is None for c in cotangents):
            return (None,) * 6
        by_weights, by_mean, by_variance = cotangents
        by_mean, by_variance = (torch.zeros_like(mean) if c is None else c for c in (by_mean, by_variance))
        if refused_by_kernels(*cotangents):
            given = torch.zeros_like(weights) if by_weights is None else by_weights

            def reference(logits: Tensor) -> tuple[Tensor, ...]:
                return _reference(logits, may, noise, drop, ctx.shift, ctx.least)

            (gradient,) = gradients_by_reference(reference, (logits,), (True,), (given, by_mean, by_variance))
        else:
            from contmax.kernels.means import _gpu_gates

            gradient = _gpu_gates.gate_moments_backward(
                logits.contiguous(), may, weights, mean, (by_weights, by_mean, by_variance), ctx.shift
            )
        return gradient, None, None, None, None, None

    @staticmethod
    def tangent(ctx: Any, move: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
        logits, may, noise, drop = ctx.saved_tensors[:4]

        def pull(cotangents: tuple[Tensor, ...]) -> Tensor:
            found: Tensor = torch.func.vjp(lambda x: _reference(x, may, noise, drop, ctx.shift, ctx.least), logits)[1](
                cotangents
            )[0]
            return found

        # Forward mode must not be nested: the derivative along a tangent is that, in a cotangent, of the gradient.
        values = _reference(logits, may, noise, drop, ctx.shift, ctx.least)
        zeros = tuple(torch.zeros_like(value) for value in values)
        result: tuple[Tensor, Tensor, Tensor] = torch.func.vjp(pull, zeros)[1](move)[0]
        return result
