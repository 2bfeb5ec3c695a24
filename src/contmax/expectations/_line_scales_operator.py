"""β-Gaussians of every α against Gaussian bases on the line as one opaque operator, for torch.compile on a CPU.

Traced through, the law of the scale and its derivatives are so many nodes that they take longer to compile than most
models, and run slower than the kernel.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._vmapped import Places, batch_first, one_by_one
from contmax.expectations._line_scales_reference import scale_mean_reference
from contmax.expectations._scale_law import path_rule


@torch.library.custom_op("contmax::line_scale_means", mutates_args=())
def line_scale_means_op(
    loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
) -> tuple[Tensor, Tensor]:
    """r, (*batch, K), and ∂r/∂(μ, σ, σ_j, α), (4, *batch, K), by the kernel, or by torch if an α is below one."""
    alpha: Any = number if index is None else index
    rule = path_rule(index is not None, loc.dtype == torch.float32)
    known = kernels.line_scale_means(loc, scale, alpha, centre, width, rule)
    return _by_torch(loc, scale, centre, width, index, number) if known is None else known


@line_scale_means_op.register_fake
def _(
    loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
) -> tuple[Tensor, Tensor]:
    shape = (*loc.shape, centre.shape[0])
    return loc.new_empty(shape), loc.new_empty(4, *shape)


@line_scale_means_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    if in_dims[2] is not None or in_dims[3] is not None:  # each has a basis of its own
        return one_by_one(line_scale_means_op, info, in_dims, arguments)
    loc, scale, centre, width, index, number = arguments
    loc, scale, index = batch_first(info, (*in_dims[:2], in_dims[4]), (loc, scale, index))
    return line_scale_means_op(loc, scale, centre, width, index, number), (0, 1)


def _by_torch(
    loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
) -> tuple[Tensor, Tensor]:
    # Inside an operator torch.autograd records nothing, and torch.func fails if a dispatch mode is on, such as torch's
    # counter of operations. Both belong to the thread: a new one starts without them.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_differentiated, loc, scale, centre, width, index, number).result()


def _differentiated(
    loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, index: Tensor | None, number: float | None
) -> tuple[Tensor, Tensor]:
    # Every pair is a density and a basis of one function: so the gradients of the sum are the slopes of each.
    shape = (*loc.shape, centre.shape[0])
    densities = (None if x is None else x.unsqueeze(-1).expand(shape) for x in (loc, scale, index))
    functions = (x.expand(shape).unsqueeze(-1) for x in (centre, width))
    mu, sigma, alpha, mu_j, sigma_j = (
        None if x is None else x.clone().requires_grad_() for x in (*densities, *functions)
    )
    r = scale_mean_reference(mu, sigma, mu_j, sigma_j, alpha, number).squeeze(-1)
    wanted = [x for x in (mu, sigma, sigma_j, alpha) if x is not None]
    slopes = [slope.reshape(shape).to(r.dtype) for slope in torch.autograd.grad(r.sum(), wanted)]
    return r.detach(), torch.stack(slopes if index is not None else [*slopes, torch.zeros_like(slopes[0])])
