"""Sums of values over what a mask leaves."""

from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._by_reference import refused_by_kernels
from contmax.kernels import means


def masked_product(weights: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """W·H, where what is masked in H counts nothing, whatever it is: (*batch, Q, L), (*batch, L, D) → (*batch, Q, D).

    Args:
        weights: W, at least float32.
        values: H, in any dtype; the product is computed in that of the weights.
        mask: boolean, broadcastable to (*batch, L); None if all count.
    """
    if mask is None:
        values = values if values.dtype == weights.dtype else values.to(weights.dtype)
        if weights.dim() == values.dim() == 3 and weights.shape[0] == values.shape[0]:
            return torch.bmm(weights, values)  # what `@` comes to, by way of views that gradients would have to pass
        return weights @ values
    one_each = weights.dim() == values.dim() == 3 and weights.shape[:2] == (values.shape[0], 1)
    if one_each and means.masked_means_are_compiled(weights, values):
        may = mask.expand(values.shape[:2]).contiguous()
        mean: Tensor = apply(MaskedMean, weights.squeeze(1), values, may)
        return mean.unsqueeze(1)
    return weights @ torch.where(mask.unsqueeze(-1), values, 0).to(weights.dtype)


class MaskedMean(torch.autograd.Function):
    """Σ_ℓ w_ℓ h_ℓ, (B, L), (B, L, D), (B, L) → (B, D), by a kernel that reads only what counts."""

    # Torch looks at the signature of a forward with a `setup_context` in every call: longer than the kernel takes.
    # Transforms of torch.func refuse a forward without one; under them nothing is eager, and this is not called.
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(weights, values, mask)
        ctx.save_for_forward(weights, values, mask)
        from contmax.kernels.means import _gpu_masked_mean

        return _gpu_masked_mean.masked_mean(weights.contiguous(), values.contiguous(), mask)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        weights, values, mask = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if refused_by_kernels(cotangent):
            # These are differentiable themselves.
            shown = torch.where(mask.unsqueeze(-1), values, 0).to(weights.dtype)
            by_weights = (shown @ cotangent.unsqueeze(-1)).squeeze(-1)
            outer = weights.unsqueeze(-1) * cotangent.unsqueeze(-2)
            by_values: Tensor | None = torch.where(mask.unsqueeze(-1), outer, 0).to(values.dtype)
        else:
            from contmax.kernels.means import _gpu_masked_mean

            by_weights, by_values = _gpu_masked_mean.masked_mean_backward(
                weights.contiguous(), values.contiguous(), mask, cotangent.contiguous(), needs[1]
            )
        return by_weights if needs[0] else None, by_values if needs[1] else None, None

    @staticmethod
    def tangent(ctx: Any, by_weights: Tensor | None, by_values: Tensor | None, _: None) -> Tensor:
        weights, values, mask = ctx.saved_tensors
        total = torch.zeros_like(values[:, 0], dtype=weights.dtype)
        for w, h in ((by_weights, values), (weights, by_values)):
            if w is not None and h is not None:
                shown = torch.where(mask.unsqueeze(-1), h, 0).to(weights.dtype)
                total = total + (w.unsqueeze(-2) @ shown).squeeze(-2)
        return total
