"""Derivatives that compiled kernels do not know, from a torch function with the same values."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contmax._eager import is_batch_of_cotangents

# From all arguments, None where one is not a tensor.
Reference = Callable[..., Tensor]


def needs_reference(cotangent: Tensor) -> bool:
    """Whether gradients will be differentiated again, or are asked for by the vmap of torch.autograd.grad."""
    # A compiled backward pass is not differentiated again.
    differentiated = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return differentiated or is_batch_of_cotangents(cotangent)


def gradients_by_reference(
    reference: Reference, inputs: Sequence[Tensor | None], needed: Sequence[bool], cotangent: Tensor
) -> list[Tensor | None]:
    """The gradients of the inputs, differentiable themselves; None for those that are not needed."""
    with torch.enable_grad():
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]
        gradients = iter(torch.autograd.grad(reference(*inputs), wanted, cotangent, create_graph=True))
    return [next(gradients) if need and x is not None else None for x, need in zip(inputs, needed, strict=True)]


def tangent_by_reference(
    reference: Reference, inputs: Sequence[Tensor | None], tangents: Sequence[Tensor | None]
) -> Tensor:
    """The derivative along tangents of the inputs."""
    with torch.enable_grad():
        # What is not being differentiated in reverse becomes so here, for the gradient below.
        inputs = [x if x is None or x.requires_grad else x.detach().requires_grad_() for x in inputs]
        moved = [(x, move) for x, move in zip(inputs, tangents, strict=True) if x is not None and move is not None]
        value = reference(*inputs)
        # The derivative along the tangents is that, in a cotangent, of the gradient in the arguments.
        cotangent = torch.zeros_like(value, requires_grad=True)
        gradients = torch.autograd.grad(value, [x for x, _ in moved], cotangent, create_graph=True)
        (total,) = torch.autograd.grad(gradients, cotangent, [move for _, move in moved], create_graph=True)
    return total
