"""The maps as opaque torch operators, one node each, for tracers of torch.compile, fake tensors and vmapped tensors.

α is a tensor, or, where that is None, the number after it.
"""

from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._vmapped import Places
from contmax.maps._jacobian import pull_back_reference
from contmax.maps._regularized import regularized_max_reference


def regularized_max_untraced(
    scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(p, Ω* − max x) by a compiled kernel where one fits, else by the torch reference."""
    compiled = None if weights is not None else kernels.regularized_max_compiled(scores, alpha, dim)
    return regularized_max_reference(scores, alpha, dim, weights) if compiled is None else compiled


def pull_back_untraced(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """(gradient of the scores, gradient of α per slice) by a compiled kernel where one fits, else by the reference."""
    compiled = None if weights is not None else kernels.pull_back_compiled(p, cotangent, alpha, dim, needs_alpha)
    return pull_back_reference(p, cotangent, alpha, dim, weights, needs_alpha) if compiled is None else compiled


@torch.library.custom_op("contmax::regularized_max", mutates_args=())
def regularized_max_op(
    scores: Tensor, alpha: Tensor | None, fixed_alpha: float, dim: int, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`regularized_max_untraced` as one opaque node."""
    p, gain = regularized_max_untraced(scores, fixed_alpha if alpha is None else alpha, dim, weights)
    return p.contiguous(), gain.contiguous()


@regularized_max_op.register_fake
def _(
    scores: Tensor, alpha: Tensor | None, fixed_alpha: float, dim: int, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape), scores.new_empty(one_along(scores, dim), dtype=torch.float64)


@regularized_max_op.register_vmap
def _(info: Any, in_dims: Places, scores: Tensor, alpha: Any, fixed_alpha: float, dim: int, weights: Any) -> Any:
    rank = scores.dim() - (in_dims[0] is not None)
    scores = _batch_first(scores, in_dims[0], rank, info.batch_size)
    alpha, weights = (_batch_first(t, d, rank) for t, d in ((alpha, in_dims[1]), (weights, in_dims[4])))
    return regularized_max_op(scores, alpha, fixed_alpha, _after_batch(dim), weights), (0, 0)


@torch.library.custom_op("contmax::pull_back", mutates_args=())
def pull_back_op(
    p: Tensor,
    cotangent: Tensor,
    alpha: Tensor | None,
    fixed_alpha: float,
    dim: int,
    weights: Tensor | None,
    needs_alpha: bool,
) -> tuple[Tensor, Tensor]:
    """`pull_back_untraced` as one opaque node; where it is not needed, the gradient of α is empty, (0,)."""
    index = fixed_alpha if alpha is None else alpha
    grad, grad_alpha = pull_back_untraced(p, cotangent, index, dim, weights, needs_alpha)
    return grad.contiguous(), p.new_empty(0) if grad_alpha is None else grad_alpha.contiguous()


@pull_back_op.register_fake
def _(
    p: Tensor,
    cotangent: Tensor,
    alpha: Tensor | None,
    fixed_alpha: float,
    dim: int,
    weights: Tensor | None,
    needs_alpha: bool,
) -> tuple[Tensor, Tensor]:
    return p.new_empty(p.shape), p.new_empty(one_along(p, dim) if needs_alpha else (0,))


@pull_back_op.register_vmap
def _(
    info: Any,
    in_dims: Places,
    p: Tensor,
    cotangent: Tensor,
    alpha: Any,
    fixed_alpha: float,
    dim: int,
    weights: Any,
    needs_alpha: bool,
) -> Any:
    rank = p.dim() - (in_dims[0] is not None)
    p, cotangent = (_batch_first(t, d, rank, info.batch_size) for t, d in zip((p, cotangent), in_dims, strict=False))
    alpha, weights = (_batch_first(t, d, rank) for t, d in ((alpha, in_dims[2]), (weights, in_dims[5])))
    results = pull_back_op(p, cotangent, alpha, fixed_alpha, _after_batch(dim), weights, needs_alpha)
    return results, (0, 0 if needs_alpha else None)


def one_along(x: Tensor, dim: int) -> list[int]:
    """The shape of x with size 1 along `dim`."""
    shape = list(x.shape)
    shape[dim] = 1
    return shape


def _after_batch(dim: int) -> int:
    """`dim` where one more axis is in front."""
    return dim + 1 if dim >= 0 else dim


def _batch_first(tensor: Any, batch_dim: int | None, rank: int, size: int | None = None) -> Any:
    """The tensor with vmap's axis in front of `rank` others; one without that axis is expanded if a size is given."""
    if batch_dim is None:
        return tensor if size is None else tensor.expand(size, *tensor.shape)
    moved = tensor.movedim(batch_dim, 0)
    return moved.reshape(moved.shape[0], *[1] * (rank + 1 - moved.dim()), *moved.shape[1:])
