"""The CPU kernels as opaque torch operators, for tracers of torch.compile, fake tensors and vmapped tensors.

They are known to torch from the start, while numba is imported only when one of them runs on real numbers: a tracer
can record them, but cannot follow an import.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from contmax._vmapped import Places


@torch.library.custom_op("contmax::plane_means", mutates_args=())
def plane_means_op(form: Tensor, order: float, rule: Sequence[float]) -> Tensor:
    """`contmax.kernels.cpu.plane_means_cpu` as one opaque node."""
    from contmax.kernels import numba as cpu

    return cpu.plane_means_cpu(form, order, rule)


@plane_means_op.register_fake
def _(form: Tensor, order: float, rule: Sequence[float]) -> Tensor:
    return form.new_empty(6, *form.shape[1:])


@plane_means_op.register_vmap
def _(info, in_dims: Places, form: Tensor, order: float, rule: Sequence[float]):  # type: ignore[no-untyped-def]
    return plane_means_op(form.movedim(in_dims[0] or 0, 1), order, rule), 1
