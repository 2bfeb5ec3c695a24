"""Which backend runs: numba rows on a CPU where numba is installed, torch everywhere else."""

import functools
import importlib.util
from types import ModuleType

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu


@functools.cache
def _cpu() -> ModuleType | None:
    """The numba kernels, imported on first use; None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("contmax.kernels.cpu")


def _rows_backend(x: Tensor, alpha: float | Tensor) -> ModuleType | None:
    """The compiled kernels that can take these rows, or None for the torch reference.

    An exported program must not depend on our operators, and α > 2 needs the sorted solver. Whether a tensor α
    exceeds 2 is only known where values may be looked at.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or torch.compiler.is_exporting():
        return None
    if isinstance(alpha, Tensor):
        if not is_eager_cpu(alpha) or bool((alpha > 2).any()):
            return None
    elif alpha > 2:
        return None
    return _cpu()


def regularized_argmax(scores: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor] | None:
    """(p, Ω*) by a compiled kernel, or None where the caller's torch reference must run."""
    backend = _rows_backend(scores, alpha)
    if backend is None:
        return None
    x, per_row = _axis_last(scores, dim), _alpha_rows(alpha, scores, dim)
    p, conjugate = backend.forward(x, per_row) if is_eager_cpu(scores) else backend.forward_op(x, _as_tensor(per_row))
    return _axis_back(p, dim), _axis_back(conjugate, dim)


def pull_back(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, needs_alpha: bool
) -> tuple[Tensor, Tensor | None] | None:
    """(gradient of the scores, gradient of α per slice) by a compiled kernel, or None as above."""
    backend = _rows_backend(p, alpha)
    if backend is None:
        return None
    weight, g, per_row = _axis_last(p, dim), _axis_last(cotangent, dim), _alpha_rows(alpha, p, dim)
    if is_eager_cpu(p) and is_eager_cpu(cotangent):
        grad, grad_alpha = backend.backward(weight, g, per_row, needs_alpha)
    else:
        grad, grad_alpha = backend.backward_op(weight, g, _as_tensor(per_row), needs_alpha)
    return _axis_back(grad, dim), _axis_back(grad_alpha, dim) if needs_alpha else None


def _axis_last(tensor: Tensor, dim: int) -> Tensor:
    """The tensor with the axis of the distribution last."""
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(dim, -1)


def _axis_back(tensor: Tensor, dim: int) -> Tensor:
    """Undo `_axis_last`."""
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(-1, dim)


def _alpha_rows(alpha: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """α for all rows: one number, or a tensor of one number per row."""
    if not isinstance(alpha, Tensor):
        return alpha
    if alpha.numel() > 1:
        shape = list(scores.shape)
        shape[dim] = 1
        alpha = _axis_last(alpha.expand(shape), dim)
    return alpha.reshape(-1)


def _as_tensor(alpha: float | Tensor) -> Tensor:
    return alpha if isinstance(alpha, Tensor) else torch.tensor([alpha], dtype=torch.float64)
