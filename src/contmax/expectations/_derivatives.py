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


class Rule(NamedTuple):
    """How E_p[ψ] is computed from (loc, scale, index, centre, width) and a number.

    On the line these are μ, σ or a half-width, (*batch), α as a tensor (*batch) or None, and μ_j, σ_j, (K,); on the
    plane μ, (*batch, 2), L, (*batch, 2, 2), None, and μ_j, L_j. The number is k = 1/(α−1) or α.
    """

    # r, (*batch, K), differentiable to every order.
    reference: Callable[..., Tensor]
    # r. Where it is None, Triton's kernels of this family compute r and its gradients.
    values: Callable[..., Tensor] | None = None
    # ∂r/∂(μ, σ, σ_j), on the line, each (*batch, K).
    slopes: Callable[..., tuple[Tensor, ...]] | None = None


# r and its slopes, (*batch, 3 or 4, K), where a kernel has computed both already, or r alone.
Known = tuple[Tensor, Tensor | None]

RULES: dict[str, Rule] = {}
"""By name: that of the family where Triton's kernels compute."""


def expectation_by(
    rule: str,
    number: float,
    loc: Tensor,
    scale: Tensor,
    index: Tensor | None,
    centre: Tensor,
    width: Tensor,
    known: Known | None = None,
) -> Tensor:
    """r, (*batch, K), by a rule."""
    result: Tensor = apply(Expectation, rule, number, known, loc, scale, index, centre, width)
    return result


class Expectation(torch.autograd.Function):
    """E_p[ψ] by the rule of this name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        name: str,
        number: float,
        known: Known | None,
        loc: Tensor,
        scale: Tensor,
        index: Tensor | None,
        centre: Tensor,
        width: Tensor,
    ) -> Tensor:
        if known is not None:
            return known[0]
        values = RULES[name].values
        if values is None:
            return means.gaussian_means(loc, scale, index, centre, width, name, number)
        return values(loc, scale, index, centre, width, number)

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
        loc, scale, index, centre, width, slopes = ctx.saved_tensors
        inputs = (loc, scale, index, centre, width)
        needed, rule, number = ctx.needs_input_grad[3:], RULES[ctx.rule], ctx.number
        gradients: Sequence[Tensor | None]
        if needs_reference(cotangent):
            gradients = gradients_by_reference(partial(rule.reference, number=number), inputs, needed, cotangent)
        elif slopes is None and rule.slopes is None:
            gradients = means.gaussian_mean_gradients(
                cotangent, loc, scale, index, centre, width, ctx.rule, number, any(needed[3:])
            )
        else:
            known = rule.slopes(*inputs, number) if rule.slopes is not None and slopes is None else slopes.unbind(-2)
            gradients = _gradients_of_slopes(cotangent, known, needed)
        if needed[2]:
            gradients = [*gradients[:2], gradients[2].to(index.dtype), *gradients[3:]]  # type: ignore[union-attr]
        return None, None, None, *(g if need else None for g, need in zip(gradients, needed, strict=True))

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        reference = partial(RULES[ctx.rule].reference, number=ctx.number)
        return tangent_by_reference(reference, ctx.saved_tensors[:5], tangents[3:])


def _gradients_of_slopes(
    cotangent: Tensor, slopes: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """The gradients of a rule on the line from its slopes ∂r/∂(μ, σ, σ_j) and, where it moves, α, each (*batch, K)."""
    by_loc, by_scale, by_width = slopes[:3]
    rows = (by_loc, by_scale, slopes[3] if needed[2] else None)
    columns = ((-by_loc, needed[3]), (by_width, needed[4]))
    return (
        *((cotangent * x).sum(-1) if need and x is not None else None for x, need in zip(rows, needed, strict=False)),
        *((cotangent * x).sum_to_size(x.shape[-1:]) if need else None for x, need in columns),
    )
