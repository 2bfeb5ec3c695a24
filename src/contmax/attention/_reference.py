"""Attention by operations of torch, with all weights in memory, or the weights of one block of queries at a time.

At α = 1 torch's own kernels compute it. `reference_gradients` gives derivatives that compiled kernels do not have.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contmax._autograd import gradients_by_reference, refused_by_kernels
from contmax._eager import all_hold_numbers, without_autocast
from contmax.attention._arguments import Inputs, save_inputs, saved_inputs
from contmax.attention._masked import allowed_keys, bias_of_scores, masked_as_zeros
from contmax.kernels.attention import is_by_distance
from contmax.maps import entmax
from contmax.maps._arguments import widened_scores

# The largest number of weights in memory at once, on a CPU and on a GPU: enough for efficient matrix products.
_WEIGHTS, _WEIGHTS_ON_GPU = 2**22, 2**27


class Attended(NamedTuple):
    """Means of the values (*batch, H, Q, c) and weights (*batch, H, Q, L), both in full precision."""

    output: Tensor
    weights: Tensor


def attend_reference(inputs: Inputs, dropout_p: float) -> Attended:
    """Compute scores, their α-entmax, and means of the values."""
    value = repeated_heads(widened_scores(inputs.value), inputs.query.shape[-3])
    with without_autocast(value):
        scores = scores_of(inputs)
        if scores.shape[-1] == 0:  # without keys all means are 0
            return Attended(scores @ value, scores)
        weights = _weights(scores, inputs)
        remaining = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
        return Attended(remaining @ value, weights)


def scores_of(inputs: Inputs) -> Tensor:
    """Scores with cap and bias, (*batch, H, Q, L), of masked keys too. Autocast must be off."""
    query, key = widened_scores(inputs.query), widened_scores(inputs.key)
    scores = (query * inputs.scale) @ repeated_heads(key, query.shape[-3]).mT
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    if inputs.bias is not None:
        scores = scores + bias_of_scores(inputs.bias, *inputs.sizes()).to(scores.dtype)
    return scores


def _weights(scores: Tensor, inputs: Inputs) -> Tensor:
    """The weights of the keys (*batch, H, Q, L); their sum is less than one if a sink has weight."""
    allowed, sinks = allowed_keys(inputs), inputs.sinks
    if sinks is None:
        return entmax(scores, inputs.alpha, mask=allowed)
    scores = torch.cat([scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)], -1)
    if allowed is not None:
        allowed = F.pad(allowed.expand(*allowed.shape[:-1], inputs.key.shape[-2]), (0, 1), value=True)
    return entmax(scores, inputs.alpha, mask=allowed)[..., :-1]


def repeated_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values x (*batch, G, L, c), each head repeated for H/G neighbouring query heads; H is `heads`."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)


def reference_gradients(inputs: Inputs, needed: Sequence[bool], g: Tensor) -> list[Tensor | None]:
    """Differentiable, vmappable gradients of the inputs that are `needed`, from the cotangent g of the output."""

    def reference(*tensors: Tensor | None) -> Tensor:
        given: list[Any] = [x if tensor is None else tensor for tensor, x in zip(tensors, inputs, strict=True)]
        return attend_reference(masked_as_zeros(Inputs(*given)), 0.0).output.to(g.dtype)

    tensors = [x if isinstance(x, Tensor) else None for x in inputs]
    return gradients_by_reference(reference, tensors, needed, g)


def can_be_softmax(inputs: Inputs) -> bool:
    """Whether torch's attention can be used: α is the float 1, without cap, sinks, torch.func or forward mode."""
    if not isinstance(inputs.alpha, float) or inputs.alpha != 1 or inputs.sinks is not None or inputs.softcap:
        return False
    if 0 in (inputs.query.shape[-3], inputs.key.shape[-3]):
        # On a CPU torch 2.10 divides by the number of heads: with 0 heads the process would crash.
        return False
    return torch.compiler.is_compiling() or (all_hold_numbers(*inputs) and not inputs.have_tangents())


def attend_softmax(inputs: Inputs, dropout_p: float) -> Tensor:
    """Means of the values for all queries, (*batch, H, Q, c), in the dtype of the query."""
    output = _softmax_attention(inputs, dropout_p)
    # No second derivatives with dropout, which the reference cannot repeat, nor in torch.compile, which supports none.
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
        bias = bias_of_scores(bias, *inputs.sizes())
        finite = bias != -torch.inf
        allowed = finite if allowed is None else allowed & finite
    assert allowed is not None
    # Torch's backends differ in rows with every key masked: let these rows attend all keys, and set them to 0 below.
    nothing = ~allowed.any(-1, keepdim=True)
    allowed = allowed | nothing
    if bias is not None:
        bias = torch.where(allowed, torch.where(nothing, 0, bias), -torch.inf).to(inputs.query.dtype)
    output = F.scaled_dot_product_attention(*inputs[:3], attn_mask=allowed if bias is None else bias, **options)
    return output.masked_fill(nothing, 0)


def _aligned(x: Tensor) -> Tensor:
    """x, or on a GPU a copy if its address is no multiple of 16 bytes, where torch's kernels with masks would fail."""
    if x.is_cuda and not torch.compiler.is_compiling() and x.data_ptr() % 16 != 0:
        return x.clone()
    return x


class _TwiceDifferentiable(torch.autograd.Function):
    """Returns `output`, with the gradient of torch's kernels.

    Where the gradient is differentiated again or vmapped, the reference computes it instead.
    """

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


def attend_in_blocks(inputs: Inputs, dropout_p: float) -> Tensor:
    """Means of the values for all queries, (*batch, H, Q, c), in full precision; backward recomputes the weights."""
    blocks = list(query_blocks(inputs))
    if len(blocks) <= 1:
        return attend_reference(inputs, dropout_p).output
    # Widen keys and values first: their gradients are summed over blocks in this dtype.
    inputs = inputs._replace(key=widened_scores(inputs.key), value=widened_scores(inputs.value))
    outputs = [
        checkpoint(
            lambda *block: attend_reference(Inputs(*block), dropout_p).output,
            *block_of(inputs, rows),
            use_reentrant=False,
            preserve_rng_state=dropout_p > 0,
        )
        for rows in blocks
    ]
    return torch.cat(outputs, -2)


def query_blocks(inputs: Inputs) -> Iterator[slice]:
    """Blocks of consecutive queries, each with at most `_WEIGHTS` weights (on a GPU `_WEIGHTS_ON_GPU`) or one query."""
    queries, keys = inputs.sizes()
    heads = inputs.query.shape[:-2].numel()
    weights = _WEIGHTS if inputs.query.device.type == "cpu" else _WEIGHTS_ON_GPU
    size = max(1, weights // max(1, heads * keys))
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def block_of(inputs: Inputs, rows: slice) -> Inputs:
    """The inputs of the queries `rows`, with keys up to the last that the causal mask lets them attend."""
    queries, keys = inputs.sizes()
    diagonal, count = inputs.diagonal, keys
    if diagonal is not None:
        count = max(1, min(keys, rows.stop + diagonal))
        diagonal += rows.start

    def part(x: Tensor | None) -> Tensor | None:
        """The rows and columns of the block, of a tensor x that broadcasts to the scores."""
        if x is not None and x.dim() > 1 and x.shape[-2] != 1:
            x = x[..., rows, :]
        return x if x is None or x.dim() < 1 or x.shape[-1] == 1 else x[..., :count]

    bias = inputs.bias
    if bias is not None and is_by_distance(bias, queries, keys):
        bias = bias[..., queries - rows.stop : queries - rows.start + count - 1]
    else:
        bias = part(bias)
    spans = inputs.spans
    if spans is not None and spans.shape[-2] != 1:
        spans = spans[..., rows, :]
    key, value = inputs.key[..., :count, :], inputs.value[..., :count, :]
    return Inputs(
        inputs.query[..., rows, :], key, value, inputs.alpha, part(inputs.mask), bias, inputs.lengths, diagonal,
        inputs.scale, spans, inputs.softcap, inputs.sinks,
    )  # fmt: skip
