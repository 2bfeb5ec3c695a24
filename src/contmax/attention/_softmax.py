"""Attention at α = 1 by torch's kernels, and by the reference for derivatives that these kernels do not have."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax._by_reference import refused_by_kernels
from contmax._eager import all_hold_numbers
from contmax.attention._arguments import Inputs, save_inputs, saved_inputs
from contmax.attention._masked import allowed_keys, bias_of_scores
from contmax.attention._reference import reference_gradients


def can_be_softmax(inputs: Inputs) -> bool:
    """Whether α is the float 1, and neither caps, sinks, torch.func nor forward mode need what torch's kernels lack."""
    if not isinstance(inputs.alpha, float) or inputs.alpha != 1 or inputs.sinks is not None or inputs.softcap:
        return False
    return torch.compiler.is_compiling() or (all_hold_numbers(*inputs) and not inputs.have_tangents)


def attend_softmax(inputs: Inputs, dropout_p: float) -> Tensor:
    """Means of the values for all queries, (*batch, H, Q, c), in the dtype of the query."""
    output = _softmax_attention(inputs, dropout_p)
    # The reference does not know which weights were dropped, and a compiled program is not differentiated twice.
    if not output.requires_grad or dropout_p > 0 or torch.compiler.is_compiling():
        return output
    twice: Tensor = _TwiceDifferentiable.apply(output, *inputs)
    return twice


def _softmax_attention(inputs: Inputs, dropout_p: float) -> Tensor:
    """`scaled_dot_product_attention`, with zeros for queries that may attend no key."""
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "scale": inputs.scale,
        "enable_gqa": inputs.key.shape[-3] != inputs.query.shape[-3],
    }
    inputs = inputs._replace(query=_aligned(inputs.query), key=_aligned(inputs.key), value=_aligned(inputs.value))
    bias = inputs.bias
    is_causal = inputs.diagonal == 0 and inputs.mask is None and bias is None and inputs.lengths is None
    allowed = None if is_causal else allowed_keys(inputs)
    if bias is None and allowed is None:
        return F.scaled_dot_product_attention(*inputs[:3], is_causal=is_causal, **options)
    if bias is not None:
        bias = bias_of_scores(bias, *inputs.sizes)
        finite = bias != -torch.inf
        allowed = finite if allowed is None else allowed & finite
    assert allowed is not None
    # torch's backends give different results for a row with every key masked.
    nothing = ~allowed.any(-1, keepdim=True)
    allowed = allowed | nothing
    if bias is not None:
        bias = torch.where(allowed, torch.where(nothing, 0, bias), -torch.inf).to(inputs.query.dtype)
    output = F.scaled_dot_product_attention(*inputs[:3], attn_mask=allowed if bias is None else bias, **options)
    return output.masked_fill(nothing, 0)


def _aligned(x: Tensor) -> Tensor:
    """x, copied if its address is not a multiple of 16 bytes.

    With a mask, torch's kernels fail on such slices: `misaligned address`.
    """
    if x.is_cuda and not torch.compiler.is_compiling() and x.data_ptr() % 16 != 0:
        return x.clone()
    return x


class _TwiceDifferentiable(torch.autograd.Function):
    """Returns `output`. Its gradient comes from torch's kernels, or from the reference if differentiated or vmapped."""

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
        return None, *reference_gradients(inputs, ctx.needs_input_grad[1:], g)
