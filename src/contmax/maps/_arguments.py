"""Arguments of finite maps (scores, temperature, α): checks, with a message for each mistake, and their dtypes."""

import math
from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._eager import device_type, is_eager_cpu, is_exporting, refuse_tracing, wide_dtype
from contmax._mask import broadcasts_to
from contmax._torch_private import autocast_is_on_anywhere
from contmax.maps._threshold import below_maximum

HALF_PRECISION = (torch.float16, torch.bfloat16)


def checked_scores(scores: Tensor, dim: int, name: str) -> Tensor:
    """The scores after `check_scores`, in float32 if they are in half precision."""
    check_scores(scores, dim, name)
    return widened_scores(scores)


def check_scores(scores: Tensor, dim: int, name: str) -> None:
    """Raise unless `scores` are floating-point numbers with an axis `dim` that is not empty; refuse torch.jit.trace."""
    refuse_tracing()
    if not isinstance(scores, Tensor):
        raise TypeError(f"{name} takes a tensor of scores; got {type(scores).__name__}. Pass torch.as_tensor(scores).")
    if not scores.is_floating_point():
        raise TypeError(f"{name} takes real floating-point scores; got {scores.dtype}. Pass scores.float().")
    if scores.is_nested:
        raise TypeError(
            f"{name} takes scores of one length, −inf where masked; got a nested tensor. Pass "
            "torch.nested.to_padded_tensor(scores, -torch.inf)."
        )
    rank = scores.dim()
    if rank == 0:
        raise ValueError(f"{name} takes scores with at least one axis; got a 0-d tensor. Pass scores[None].")
    if not -rank <= dim < rank:
        raise IndexError(f"dim must be in [{-rank}, {rank - 1}] for scores of shape {tuple(scores.shape)}; got {dim}")
    if scores.size(dim) == 0:
        raise ValueError(
            f"{name} over an empty axis: scores of shape {tuple(scores.shape)} have size 0 along dim {dim}, "
            "and no distribution lives on an empty set. Skip such inputs."
        )


def output_dtype(scores: Tensor) -> torch.dtype:
    """The dtype of p: the dtype of the scores, or float32 for half precision under autocast, as for torch.softmax."""
    dtype = scores.dtype
    # First check whether autocast is on for any device: this is quicker than for one device, and mostly it is off.
    if dtype in HALF_PRECISION and autocast_is_on_anywhere() and torch.is_autocast_enabled(device_type(scores)):
        return torch.float32
    return dtype


def tempered(scores: Tensor, temperature: float | Tensor, dim: int) -> Tensor:
    """(scores − their maximum) / temperature; subtracting a constant from all scores changes no result of a map."""
    if isinstance(temperature, Tensor):
        temperature = temperature.to(scores.dtype)
        is_wrong = is_eager_cpu(temperature) and bool((temperature.detach() <= 0).any())
    else:
        is_wrong = not temperature > 0
    if is_wrong:
        raise ValueError(
            f"temperature must be positive; got {_described(temperature)}. Pass 1.0 to leave scores as they are."
        )
    # Raise the temperature to at least `smallest`, which has a finite inverse. Scores less their maximum are at most 0,
    # so the quotient can overflow only to −inf, a score with probability 0.
    smallest, shifted = torch.finfo(scores.dtype).tiny, below_maximum(scores, dim)
    if not isinstance(temperature, Tensor):
        return shifted / max(temperature, smallest)
    temperature = temperature.clamp(min=smallest)
    # Scores whose quotient is −∞ are not divided: they would make the derivative in the temperature NaN. These are
    # masked scores, or the most negative number in place of −∞, divided by a temperature below 1.
    masked = shifted.detach() / temperature.detach() == -torch.inf
    return (shifted.masked_fill(masked, 0) / temperature).masked_fill(masked, -torch.inf)


def checked_alpha(alpha: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """α as a float, or as a tensor with size 1 along `dim`, of the scores' dtype and at least float32."""
    if isinstance(alpha, float) or not isinstance(alpha, Tensor):
        alpha = float(alpha)
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite; got {alpha}. 1 is softmax, 2 is sparsemax.")
        return alpha
    if not alpha.is_floating_point():
        raise TypeError(
            f"a tensor alpha must be floating-point; got {alpha.dtype}. Pass alpha.float() or a Python float."
        )
    axis = dim % scores.dim() - scores.dim()
    has_one = alpha.dim() < -axis or alpha.shape[axis] == 1
    if not (has_one and broadcasts_to(alpha, scores.shape)):
        raise ValueError(
            f"alpha of shape {tuple(alpha.shape)} does not fit scores of shape {tuple(scores.shape)}: it must "
            f"broadcast to them with size 1 along dim {dim}. One alpha per head of (B, H, Q, L) scores: (H, 1, 1)."
        )
    if is_eager_cpu(alpha) and not bool(((alpha.detach() > 0) & (alpha.detach() < torch.inf)).all()):
        raise ValueError(f"alpha must be positive and finite; got {_described(alpha)}. 1 is softmax, 2 is sparsemax.")
    return alpha.to(wide_dtype(scores.dtype))


def _described(value: float | Tensor) -> str:
    if isinstance(value, Tensor):
        low, high = value.detach().aminmax()
        return f"min {low.item():g}, max {high.item():g} in a tensor of shape {tuple(value.shape)}"
    return f"{value:g}"


def widened_scores(scores: Tensor) -> Tensor:
    """Half-precision scores in float32, others unchanged; `narrowed` rounds the gradient."""
    if scores.dtype not in HALF_PRECISION:
        return scores
    if is_exporting():
        return scores.float()
    widened: Tensor = apply(_Widened, scores)
    return widened


def narrowed(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient in `dtype`, the dtype of the scores, clamped to its finite range.

    For α > 2 the gradient of a small probability often exceeds the range of half precision.
    """
    if gradient.dtype == dtype:
        return gradient
    largest = torch.finfo(dtype).max
    return gradient.clamp(-largest, largest).to(dtype)


class _Widened(torch.autograd.Function):
    """`widened_scores` of half precision; its backward pass rounds the gradient by `narrowed`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        return scores.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return narrowed(cotangent, ctx.dtype)

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.float()
