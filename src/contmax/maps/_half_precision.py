"""Half-precision scores in float32, with gradients rounded back to half precision."""

from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._eager import is_exporting

HALF_PRECISION = (torch.float16, torch.bfloat16)


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
