"""Expectations by Triton's kernels as opaque torch operators, for tracers of torch.compile, fake and vmapped tensors.

They are known to torch from the start, while triton is imported only when one of them runs on real numbers.
"""

from typing import Any

import torch
from torch import Tensor

from contmax._vmapped import Places, batch_first, one_by_one


@torch.library.custom_op("contmax::line_values", mutates_args=())
def line_values_op(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, k: float, raised: bool) -> Tensor:
    """`contmax.kernels.triton.line_values` as one opaque node."""
    from contmax.kernels import triton

    return triton.line_values(loc, scale, centre, width, k, raised)


@line_values_op.register_fake
def _(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, k: float, raised: bool) -> Tensor:
    return loc.new_empty(*loc.shape, centre.shape[0])


@line_values_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    tensors, rest = arguments[:4], arguments[4:]
    if in_dims[2] is not None or in_dims[3] is not None:
        return one_by_one(line_values_op, info, in_dims, arguments)
    densities = batch_first(info, in_dims, tensors[:2])
    return line_values_op(*densities, *tensors[2:], *rest), 0


@torch.library.custom_op("contmax::line_gradients", mutates_args=())
def line_gradients_op(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    centre: Tensor,
    width: Tensor,
    k: float,
    raised: bool,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`contmax.kernels.triton.line_gradients` as one opaque node."""
    from contmax.kernels import triton

    return _or_empty(triton.line_gradients(cotangent, loc, scale, centre, width, k, raised, needs_basis))  # type: ignore[no-any-return]


@line_gradients_op.register_fake
def _(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    centre: Tensor,
    width: Tensor,
    k: float,
    raised: bool,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_centre, by_width = (loc.new_empty(centre.shape if needs_basis else 0) for _ in range(2))
    return loc.new_empty(loc.shape), loc.new_empty(loc.shape), by_centre, by_width


@line_gradients_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    tensors, rest = arguments[:5], arguments[5:]
    needs_basis = rest[-1]
    if needs_basis or in_dims[3] is not None or in_dims[4] is not None:
        return one_by_one(line_gradients_op, info, in_dims, arguments)
    densities = batch_first(info, in_dims, tensors[:3])
    return line_gradients_op(*densities, *tensors[3:], *rest), (0, 0, None, None)


@torch.library.custom_op("contmax::any_line_values", mutates_args=())
def any_line_values_op(
    loc: Tensor, scale: Tensor, index: Tensor | None, number: float | None, centre: Tensor, width: Tensor
) -> Tensor:
    """`contmax.kernels.triton.any_line_values` as one opaque node."""
    from contmax.kernels import triton

    return triton.any_line_values(loc, scale, index, number, centre, width)


@any_line_values_op.register_fake
def _(loc: Tensor, scale: Tensor, index: Tensor | None, number: float | None, centre: Tensor, width: Tensor) -> Tensor:
    return loc.new_empty(*loc.shape, centre.shape[0])


@any_line_values_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    if in_dims[4] is not None or in_dims[5] is not None:
        return one_by_one(any_line_values_op, info, in_dims, arguments)
    densities = batch_first(info, in_dims, arguments[:3])
    return any_line_values_op(*densities, *arguments[3:]), 0


@torch.library.custom_op("contmax::any_line_gradients", mutates_args=())
def any_line_gradients_op(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    index: Tensor | None,
    number: float | None,
    centre: Tensor,
    width: Tensor,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`contmax.kernels.triton.any_line_gradients` as one opaque node."""
    from contmax.kernels import triton

    return _or_empty(triton.any_line_gradients(cotangent, loc, scale, index, number, centre, width, needs_basis))  # type: ignore[no-any-return]


@any_line_gradients_op.register_fake
def _(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    index: Tensor | None,
    number: float | None,
    centre: Tensor,
    width: Tensor,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    by_loc, by_scale, by_alpha = (loc.new_empty(loc.shape) for _ in range(3))
    by_centre, by_width = (loc.new_empty(centre.shape if needs_basis else 0) for _ in range(2))
    return by_loc, by_scale, by_alpha, by_centre, by_width


@any_line_gradients_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    needs_basis = arguments[-1]
    if needs_basis or in_dims[5] is not None or in_dims[6] is not None:
        return one_by_one(any_line_gradients_op, info, in_dims, arguments)
    densities = batch_first(info, in_dims, arguments[:4])
    return any_line_gradients_op(*densities, *arguments[4:]), (0, 0, 0, None, None)


@torch.library.custom_op("contmax::plane_values", mutates_args=())
def plane_values_op(loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, k: float) -> Tensor:
    """`contmax.kernels.triton.plane_values` as one opaque node."""
    from contmax.kernels import triton

    return triton.plane_values(loc, tril, centre, basis_tril, k)


@plane_values_op.register_fake
def _(loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, k: float) -> Tensor:
    return loc.new_empty(*loc.shape[:-1], centre.shape[0])


@plane_values_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    if in_dims[2] is not None or in_dims[3] is not None:
        return one_by_one(plane_values_op, info, in_dims, arguments)
    densities = batch_first(info, in_dims, arguments[:2])
    return plane_values_op(*densities, *arguments[2:]), 0


@torch.library.custom_op("contmax::plane_gradients", mutates_args=())
def plane_gradients_op(
    cotangent: Tensor,
    loc: Tensor,
    tril: Tensor,
    centre: Tensor,
    basis_tril: Tensor,
    k: float,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`contmax.kernels.triton.plane_gradients` as one opaque node."""
    from contmax.kernels import triton

    return _or_empty(triton.plane_gradients(cotangent, loc, tril, centre, basis_tril, k, needs_basis))  # type: ignore[no-any-return]


@plane_gradients_op.register_fake
def _(
    cotangent: Tensor,
    loc: Tensor,
    tril: Tensor,
    centre: Tensor,
    basis_tril: Tensor,
    k: float,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_centre, by_basis = (loc.new_empty(x.shape if needs_basis else 0) for x in (centre, basis_tril))
    return loc.new_empty(loc.shape), loc.new_empty(tril.shape), by_centre, by_basis


@plane_gradients_op.register_vmap
def _(info: Any, in_dims: Places, *arguments: Any) -> Any:
    needs_basis = arguments[-1]
    if needs_basis or in_dims[3] is not None or in_dims[4] is not None:
        return one_by_one(plane_gradients_op, info, in_dims, arguments)
    densities = batch_first(info, in_dims, arguments[:3])
    return plane_gradients_op(*densities, *arguments[3:]), (0, 0, None, None)


def _or_empty(gradients: tuple[Tensor | None, ...]) -> Any:
    """Operators return tensors: an empty one, (0,), where a gradient is not needed; that of the location always is."""
    return tuple(gradients[0].new_empty(0) if g is None else g for g in gradients)  # type: ignore[union-attr]
