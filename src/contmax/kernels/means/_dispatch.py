"""Expectations of Gaussian bases by Triton's kernels: straight where tensors hold numbers, by opaque operators else.

Whether they can be asked at all, `means_are_compiled` says; the caller then gives them their derivatives.
"""

from typing import Any

import torch
from torch import Tensor

from contmax._backend import triton_kernels, triton_takes
from contmax._eager import all_eager, is_exporting
from contmax.kernels.means import _operators as _mean_operators


def means_are_compiled(*tensors: Tensor) -> bool:
    """Whether Triton's kernels take densities and functions with these parameters."""
    for x in tensors:
        if x.dtype != torch.float32:
            return False
    return triton_takes(*tensors) and not is_exporting()


def line_values(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, k: float, raised: bool) -> Tensor:
    """E_p[ψ] on the line, (*batch, K): see `contmax.kernels.triton.line_values`."""
    result: Tensor = _called("line_values", loc, scale, centre, width, k, raised)
    return result


def line_gradients(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    centre: Tensor,
    width: Tensor,
    k: float,
    raised: bool,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of loc, scale, centre and width; the last two are None or empty, (0,), where not needed."""
    result: tuple[Tensor, Tensor, Tensor | None, Tensor | None] = _called(
        "line_gradients", cotangent, loc, scale, centre, width, k, raised, needs_basis
    )
    return result


def any_line_values(
    loc: Tensor, scale: Tensor, index: Tensor | None, number: float | None, centre: Tensor, width: Tensor
) -> Tensor:
    """E_p[ψ] on the line for every α, the tensor `index` or else the number: `contmax.kernels.triton`, as all here."""
    result: Tensor = _called("any_line_values", loc, scale, index, number, centre, width)
    return result


def any_line_gradients(
    cotangent: Tensor,
    loc: Tensor,
    scale: Tensor,
    index: Tensor | None,
    number: float | None,
    centre: Tensor,
    width: Tensor,
    needs_basis: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of loc, scale, α, centre and width; the last two are None or empty, (0,), where not needed."""
    result: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None] = _called(
        "any_line_gradients", cotangent, loc, scale, index, number, centre, width, needs_basis
    )
    return result


def plane_values(loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, k: float) -> Tensor:
    """E_p[ψ] on the plane, (*batch, K): see `contmax.kernels.triton.plane_values`."""
    result: Tensor = _called("plane_values", loc, tril, centre, basis_tril, k)
    return result


def plane_gradients(
    cotangent: Tensor, loc: Tensor, tril: Tensor, centre: Tensor, basis_tril: Tensor, k: float, needs_basis: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of loc, tril, centre and basis_tril; the last two are None or empty, (0,), where not needed."""
    result: tuple[Tensor, Tensor, Tensor | None, Tensor | None] = _called(
        "plane_gradients", cotangent, loc, tril, centre, basis_tril, k, needs_basis
    )
    return result


def _called(name: str, *arguments: Any) -> Any:
    if all_eager(*arguments):
        return getattr(triton_kernels(), name)(*arguments)
    return getattr(_mean_operators, f"{name}_op")(*arguments)
