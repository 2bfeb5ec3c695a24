"""The one autograd Function of expectations whose first derivatives are written by hand or computed by kernels.

A rule computes r and its first derivatives from the parameters alone, so nothing of the size of pairs times nodes is
saved. Higher derivatives, forward mode and batches of cotangents go through a differentiable reference of torch's
operations.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, needs_reference, tangent_by_reference
from contmax.kernels import means

Gradients = Sequence[Tensor | None]


class Rule(NamedTuple):
    """How E_p[ψ] is computed from (loc, scale, index, centre, width) and a number.

    On the line these are μ, σ or a half-width, (*batch), α as a tensor (*batch) or None, and μ_j, σ_j, (K,); on the
    plane μ, (*batch, 2), L, (*batch, 2, 2), None, and μ_j, L_j. The number is k = 1/(α−1) or α.
    """

    values: Callable[..., Tensor]  # (*inputs, number) → r, (*batch, K)
    gradients: Callable[..., Gradients]  # (cotangent, *inputs, number, slopes, needed) → one for each input
    reference: Callable[..., Tensor]  # (*inputs, number) → r, differentiable to every order


RULES: dict[str, Rule] = {}
"""By name; the families of `contmax.kernels.means` have their own names."""


def expectation_by(
    rule: str,
    number: float,
    loc: Tensor,
    scale: Tensor,
    index: Tensor | None,
    centre: Tensor,
    width: Tensor,
    known: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """r, (*batch, K), by a rule; `known` holds r and its slopes where a kernel has computed both already."""
    result: Tensor = apply(Expectation, rule, number, known, loc, scale, index, centre, width)
    return result


class Expectation(torch.autograd.Function):
    """E_p[ψ] by the rule of this name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rule: str, number: float, known: tuple[Tensor, Tensor] | None, *inputs: Tensor | None) -> Tensor:
        return RULES[rule].values(*inputs, number) if known is None else known[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rule, ctx.number, known, *tensors = inputs
        # Slopes are saved with the inputs, so that hooks on saved tensors see them too. Under vmap torch expects both
        # modes to save one list.
        saved = (*tensors, None if known is None else known[1])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, slopes = ctx.saved_tensors
        needed, rule = ctx.needs_input_grad[3:], RULES[ctx.rule]
        if needs_reference(cotangent):
            gradients: Gradients = gradients_by_reference(
                partial(rule.reference, number=ctx.number), inputs, needed, cotangent
            )
        else:
            gradients = rule.gradients(cotangent, *inputs, ctx.number, slopes, needed)
        return None, None, None, *(g if need else None for g, need in zip(gradients, needed, strict=True))

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        reference = partial(RULES[ctx.rule].reference, number=ctx.number)
        return tangent_by_reference(reference, ctx.saved_tensors[:5], tangents[3:])


def gradients_of_slopes(
    cotangent: Tensor,
    by_loc: Tensor,
    by_scale: Tensor,
    by_width: Tensor,
    by_index: Tensor | None,
    needed: Sequence[bool],
) -> Gradients:
    """The gradients of a rule on the line from its slopes ∂r/∂(μ, σ, σ_j, α), each (*batch, K)."""
    rows = [
        (cotangent * slope).sum(-1) if need and slope is not None else None
        for slope, need in zip((by_loc, by_scale, by_index), needed, strict=False)
    ]
    columns = [
        (cotangent * slope).sum_to_size(slope.shape[-1:]) if need else None
        for slope, need in zip((-by_loc, by_width), needed[3:], strict=True)
    ]
    return *rows, *columns


def register_family(family: str, reference: Callable[..., Tensor]) -> None:
    """Make a family of Triton's kernels a rule."""

    def values(*inputs: Any) -> Tensor:
        *tensors, number = inputs
        return means.gaussian_means(*tensors, family, number)

    def gradients(cotangent: Tensor, *inputs: Any) -> Gradients:
        *tensors, number, _, needed = inputs
        loc, scale, by_index, *basis = means.gaussian_mean_gradients(
            cotangent, *tensors, family, number, any(needed[3:])
        )
        index = tensors[2]
        return loc, scale, None if index is None else by_index.to(index.dtype), *basis

    RULES[family] = Rule(values, gradients, reference)
