"""Scores in half precision, computed with in float32."""

from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._eager import is_exporting


def widened_scores(scores: Tensor) -> Tensor:
    """Scores in float32 if they come in half precision, as they are otherwise.

    A gradient that half precision cannot hold, as of α > 2 where a probability is small, becomes the largest number
    that it can.
    """
    if scores.dtype not in (torch.float16, torch.bfloat16):
        return scores
    if is_exporting():
        return scores.float()
    widened: Tensor = apply(_Widened, scores)
    return widened


class _Widened(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        return scores.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        largest = torch.finfo(ctx.dtype).max
        return cotangent.clamp(-largest, largest).to(ctx.dtype)

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.float()
