"""Ridge weights for the default positions: kept, computed, or one opaque operator of a traced graph."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._eager import is_exporting
from contmax.basis import Basis
from contmax.basis._basis import constants_of, living
from contmax.signal._kept_weights import Even, computed_weights, kept_weights


def default_weights(basis: Basis, even: Even, mask: Tensor | None) -> Tensor:
    """G for observations at the centres of equal cells, of a grid or of the unit interval.

    Args:
        basis: ψ.
        even: where the observations stand.
        mask: boolean, (L,) or (*batch, L); None if all count.

    Returns:
        (L, K) without a mask, (*batch, L, K) with one; rows of zeros for what is masked.
    """
    constants = constants_of(basis)
    if any(constant.requires_grad for constant in constants):
        return computed_weights(basis, even, mask)
    if torch.compiler.is_compiling() and not is_exporting():
        device, sizes = even.device, [] if even.grid is None else list(even.grid)
        result: Tensor = default_weights_op(
            constants, mask, even.length, sizes, even.penalty, even.dtype, device, basis._id
        )
        return result
    kept = kept_weights(basis, basis, constants, even, mask)
    return computed_weights(basis, even, mask) if kept is None else kept


@torch.library.custom_op("contmax::default_weights", mutates_args=())
def default_weights_op(
    constants: Sequence[Tensor],
    mask: Tensor | None,
    length: int,
    grid: Sequence[int],
    penalty: float,
    dtype: torch.dtype,
    device: torch.device,
    basis: int,
) -> Tensor:
    """The same as one opaque node, which looks for kept weights whenever it runs.

    Args:
        constants: buffers and parameters of the basis.
        mask: as above.
        length: L.
        grid: sizes; empty for the unit interval.
        penalty: λ.
        dtype: of the weights.
        device: where they are.
        basis: the id of the basis.
    """
    psi = living[basis]
    functions = psi.with_constants(constants)
    even = Even(length, tuple(grid) or None, penalty, dtype, device)
    kept = kept_weights(psi, functions, tuple(constants), even, mask)
    if kept is None:
        return computed_weights(functions, even, mask)
    # An operator must not hand out what others may read: compilers write into its results.
    return kept.clone() if mask is None else kept


@default_weights_op.register_fake
def _(
    constants: Sequence[Tensor],
    mask: Tensor | None,
    length: int,
    grid: Sequence[int],
    penalty: float,
    dtype: torch.dtype,
    device: torch.device,
    basis: int,
) -> Tensor:
    batch = () if mask is None else mask.shape[:-1]
    return torch.empty(*batch, length, living[basis].num_functions, dtype=dtype, device=device)


@default_weights_op.register_vmap
def _(info: Any, in_dims: Any, constants: Any, mask: Tensor | None, *fit: Any) -> tuple[Tensor, int]:
    if any(axis is not None for axis in in_dims[0]) or mask is None:
        raise NotImplementedError("torch.compile cannot fit a signal to a basis whose constants are vmapped.")
    result: Tensor = default_weights_op(constants, mask.movedim(in_dims[1] or 0, 0), *fit)
    return result, 0
