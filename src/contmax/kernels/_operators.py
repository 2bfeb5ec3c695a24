"""The CPU kernels as opaque torch operators, for tracers of torch.compile, fake tensors and vmapped tensors.

They are known to torch from the start, while numba is imported only when one of them runs on real numbers: a tracer
can record them, but cannot follow an import.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_Batched = tuple[int | None, ...]


@torch.library.custom_op("contmax::entmax_forward", mutates_args=())
def forward(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """`contmax.kernels.cpu.forward` as one opaque node."""
    from contmax.kernels import cpu

    return cpu.forward(x, alpha)


@forward.register_fake
def _(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=torch.float64)


@forward.register_vmap
def _(info, in_dims: _Batched, x: Tensor, alpha: Tensor):  # type: ignore[no-untyped-def]
    x = _with_batch(x, in_dims[0], info.batch_size)
    return forward(x, _with_batch_per_row(alpha, in_dims[1], x)), (0, 0)


@torch.library.custom_op("contmax::entmax_backward", mutates_args=())
def backward(p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    """`contmax.kernels.cpu.backward` as one opaque node."""
    from contmax.kernels import cpu

    return cpu.backward(p, cotangent, alpha, needs_alpha)


@backward.register_fake
def _(p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool) -> tuple[Tensor, Tensor]:
    return p.new_empty(p.shape), p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,))


@backward.register_vmap
def _(info, in_dims: _Batched, p: Tensor, cotangent: Tensor, alpha: Tensor, needs_alpha: bool):  # type: ignore[no-untyped-def]
    p, cotangent = (_with_batch(t, d, info.batch_size) for t, d in zip((p, cotangent), in_dims, strict=False))
    results = backward(p, cotangent, _with_batch_per_row(alpha, in_dims[2], p), needs_alpha)
    return results, (0, 0 if needs_alpha else None)


@torch.library.custom_op("contmax::plane_means", mutates_args=())
def plane_means_op(form: Tensor, order: float, rule: Sequence[float]) -> Tensor:
    """`contmax.kernels.cpu.plane_means_cpu` as one opaque node."""
    from contmax.kernels import cpu

    return cpu.plane_means_cpu(form, order, rule)


@plane_means_op.register_fake
def _(form: Tensor, order: float, rule: Sequence[float]) -> Tensor:
    return form.new_empty(6, *form.shape[1:])


@plane_means_op.register_vmap
def _(info, in_dims: _Batched, form: Tensor, order: float, rule: Sequence[float]):  # type: ignore[no-untyped-def]
    return plane_means_op(form.movedim(in_dims[0] or 0, 1), order, rule), 1


def _with_batch(tensor: Tensor, batch_dim: int | None, size: int) -> Tensor:
    """The tensor with vmap's axis in front."""
    return tensor.expand(size, *tensor.shape) if batch_dim is None else tensor.movedim(batch_dim, 0)


def _with_batch_per_row(alpha: Tensor, batch_dim: int | None, x: Tensor) -> Tensor:
    """α for each row of x, whose first axis is vmap's; a single one where it is the same for all."""
    if batch_dim is None and alpha.numel() == 1:
        return alpha
    rows = x.shape[1:-1].numel()
    return _with_batch(alpha, batch_dim, x.shape[0]).expand(x.shape[0], rows).reshape(-1)
