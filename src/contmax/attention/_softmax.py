"""Attention at α = 1: torch's own kernels, and the reference for derivatives that these do not know."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax._by_reference import gradients_by_reference, refused_by_kernels
from contmax._eager import all_hold_numbers
from contmax.attention._arguments import Inputs, save_inputs, saved_inputs
from contmax.attention._distances import bias_of_scores
from contmax.attention._reference import allowed_keys, attend_reference


def can_be_softmax(inputs: Inputs) -> bool:
    """Whether α is the number one, and torch's kernels know the derivatives that may be asked for."""
    if not isinstance(inputs.alpha, float) or inputs.alpha != 1:
        return False
    return torch.compiler.is_compiling() or (all_hold_numbers(*inputs) and not inputs.have_tangents)


def attend_softmax(inputs: Inputs, dropout_p: float) -> Tensor:
    """Means of the values for all queries, (*batch, H, Q, c), in the dtype of the query."""
    output = _softmax_attention(inputs, dropout_p)
    # What was dropped is not known to the reference, and a compiled program is not differentiated twice.
    if not output.requires_grad or dropout_p > 0 or torch.compiler.is_compiling():
        return output
    twice: Tensor = _TwiceDifferentiable.apply(output, *inputs)
    return twice


def _softmax_attention(inputs: Inputs, dropout_p: float) -> Tensor:
    """`scaled_dot_product_attention`, with zeros where a query has nothing to attend."""
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "scale": inputs.scale,
        "enable_gqa": inputs.key.shape[-3] != inputs.query.shape[-3],
    }
    inputs = inputs._replace(query=_aligned(inputs.query), key=_aligned(inputs.key), value=_aligned(inputs.value))
    plain = inputs.mask is None and inputs.bias is None and inputs.lengths is None
    if plain and inputs.diagonal in (None, 0):
        return F.scaled_dot_product_attention(*inputs[:3], is_causal=inputs.diagonal == 0, **options)
    allowed, bias = allowed_keys(inputs), inputs.bias
    if bias is not None:
        bias = bias_of_scores(bias, *inputs.sizes)
    if bias is None and allowed is None:
        return F.scaled_dot_product_attention(*inputs[:3], **options)
    if bias is not None:
        finite = bias != -torch.inf
        allowed = finite if allowed is None else allowed & finite
    assert allowed is not None
    # Backends differ in what they make of a row with every key masked.
    nothing = ~allowed.any(-1, keepdim=True)
    allowed = allowed | nothing
    if bias is not None:
        bias = torch.where(allowed, torch.where(nothing, 0, bias), -torch.inf).to(inputs.query.dtype)
    output = F.scaled_dot_product_attention(*inputs[:3], attn_mask=allowed if bias is None else bias, **options)
    return output.masked_fill(nothing, 0)


def _aligned(x: Tensor) -> Tensor:
    """The same numbers at an address that torch's kernels can take: with a mask they read 16 bytes at a time, and fail
    with `misaligned address` on a slice that begins between these.
    """
    if x.is_cuda and not torch.compiler.is_compiling() and x.data_ptr() % 16 != 0:
        return x.clone()
    return x


class _TwiceDifferentiable(torch.autograd.Function):
    """The output itself. Its gradient goes to torch's kernel, or to the reference, to be differentiated or vmapped."""

    @staticmethod
    def forward(output: Tensor, *arguments: Any) -> Tensor:
        return output.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, inputs[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if not refused_by_kernels(g):
            return g, *(None,) * len(ctx.fixed)
        inputs, _ = saved_inputs(ctx)

        def reference(*tensors: Tensor | None) -> Tensor:
            given: list[Any] = [x if tensor is None else tensor for tensor, x in zip(tensors, inputs, strict=True)]
            return attend_reference(Inputs(*given), 0.0).output.to(g.dtype)

        tensors = [x if isinstance(x, Tensor) else None for x in inputs]
        return None, *gradients_by_reference(reference, tensors, ctx.needs_input_grad[1:], g)
