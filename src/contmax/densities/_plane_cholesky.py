"""Cholesky factors of 2 × 2 matrices by a Triton kernel, with derivatives to every order."""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, needs_reference, tangent_by_reference


def compiled_cholesky(matrix: Tensor) -> Tensor | None:
    """L of LLᵀ = A, (*batch, 2, 2), NaN where A is not positive definite; None where no kernel fits."""
    if matrix.shape[-1] != 2 or not kernels.means_are_compiled(matrix):
        return None
    result: Tensor = apply(PlaneCholesky, matrix)
    return result


class PlaneCholesky(torch.autograd.Function):
    """The same; the gradient of A is symmetric."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:
        return kernels.plane_cholesky(matrix)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor | None:
        matrix, tril = ctx.saved_tensors
        if needs_reference(cotangent):
            return gradients_by_reference(_reference, (matrix,), (True,), cotangent)[0]
        return kernels.plane_cholesky_gradient(cotangent, tril)

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        return tangent_by_reference(_reference, ctx.saved_tensors[:1], tangents)


def _reference(matrix: Tensor) -> Tensor:
    tril: Tensor = torch.linalg.cholesky_ex(matrix)[0]
    return tril
