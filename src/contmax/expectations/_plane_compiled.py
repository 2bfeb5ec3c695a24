"""β-Gaussians against Gaussian bases on the plane by Triton's kernels.

One launch computes r; one more the gradients, from the parameters again: nothing is kept of the size of r. Higher
derivatives are those of the torch rule.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import gradients_by_reference, needs_reference, tangent_by_reference
from contmax.densities import MultivariateBetaGaussian
from contmax.expectations._plane_form import plane_form
from contmax.expectations._scale_mean import mean_over_scales


def compiled_plane_expectation(
    loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, k: float
) -> Tensor | None:
    """r from (μ, L, μ_j, L_j): (*batch, 2), (*batch, 2, 2), (K, 2), (K, 2, 2) → (*batch, K), or None as above.

    Args:
        loc: μ.
        tril: L, Σ = LLᵀ.
        centre: μ_j.
        basis_tril: L_j, Σ_j = L_jL_jᵀ.
        k: 1/(α−1), 1 ≤ k ≤ 30 or ∞.
    """
    if not kernels.means_are_compiled(loc, tril, centre, basis_tril):
        return None
    result: Tensor = apply(PlaneExpectation, loc, tril, centre, basis_tril, k)
    return result


class PlaneExpectation(torch.autograd.Function):
    """The same."""

    generate_vmap_rule = True

    @staticmethod
    def forward(loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, k: float) -> Tensor:
        return kernels.plane_values(loc, tril, centre, basis_tril, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.k = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:4]
        if needs_reference(cotangent):
            reference = partial(_reference, k=ctx.k)
            return *gradients_by_reference(reference, ctx.saved_tensors, needed, cotangent), None
        loc, tril, centre, basis_tril = ctx.saved_tensors
        gradients = kernels.plane_gradients(cotangent, loc, tril, centre, basis_tril, ctx.k, any(needed[2:]))
        return *(g if need else None for g, need in zip(gradients, needed, strict=True)), None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        return tangent_by_reference(partial(_reference, k=ctx.k), ctx.saved_tensors, tangents[:4])


def _reference(loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, k: float) -> Tensor:
    alpha = 1 + 1 / k
    density = MultivariateBetaGaussian(loc, scale_tril=tril, alpha=alpha, validate_args=False)
    factor = tril * density.variance_factor.sqrt()[..., None, None]
    form, size = plane_form(factor.unsqueeze(-3), loc.unsqueeze(-2) - centre, basis_tril, diagonal=False)
    if math.isinf(k):
        return size * torch.exp(-0.5 * (form.near + form.far))
    return size * mean_over_scales(form, alpha, 2, single=True)
