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
    x = scores.movedim(dim, -1)
    run = backend.forward if is_eager_cpu(scores) else backend.forward_op
    p, conjugate = run(x.reshape(-1, x.shape[-1]), _alpha_rows(alpha, scores, dim))
    return p.view(x.shape).movedim(-1, dim), conjugate.view(*x.shape[:-1], 1).movedim(-1, dim)


def pull_back(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, needs_alpha: bool
) -> tuple[Tensor, Tensor | None] | None:
    """(gradient of the scores, gradient of α per slice) by a compiled kernel, or None as above."""
    backend = _rows_backend(p, alpha)
    if backend is None:
        return None
    rows = p.movedim(dim, -1)
    n = rows.shape[-1]
    run = backend.backward if is_eager_cpu(p) and is_eager_cpu(cotangent) else backend.backward_op
    grad, grad_alpha = run(
        rows.reshape(-1, n), cotangent.movedim(dim, -1).reshape(-1, n), _alpha_rows(alpha, p, dim), needs_alpha
    )
    grad = grad.view(rows.shape).movedim(-1, dim)
    return grad, grad_alpha.view(*rows.shape[:-1], 1).movedim(-1, dim) if needs_alpha else None


def _alpha_rows(alpha: float | Tensor, scores: Tensor, dim: int) -> Tensor:
    """α as one number per row, or a single one for all."""
    if not isinstance(alpha, Tensor):
        return torch.tensor([alpha], dtype=torch.float64)
    if alpha.numel() == 1:
        return alpha.reshape(1)
    shape = list(scores.shape)
    shape[dim] = 1
    return alpha.expand(shape).movedim(dim, -1).reshape(-1)
