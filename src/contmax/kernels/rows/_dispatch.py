"""Which kernel computes the map of rows: one of numba's for CPU tensors, one of triton's for CUDA tensors, or none."""

from torch import Tensor

from contmax._backend import numba_takes, triton_takes
from contmax._eager import is_eager, is_eager_cpu, is_exporting


def rows_are_compiled(x: Tensor) -> bool:
    """Whether compiled kernels exist for rows on the device and of the dtype of x, at least for α ≤ 2."""
    return numba_takes(x) or triton_takes(x)


def rows_are_fused(x: Tensor) -> bool:
    """Whether rows are taken as they come, in half precision and with a mask: see `contmax.kernels.rows._operators`."""
    return triton_takes(x) and not is_exporting()


def _rows_fit(x: Tensor, alpha: float | Tensor) -> bool:
    """Whether the compiled kernels can take these rows, which must hold numbers; α > 2 needs the sorted solver."""
    if not numba_takes(x) or not is_eager_cpu(x, alpha):
        return False
    return not (alpha.detach() > 2).any().item() if isinstance(alpha, Tensor) else alpha <= 2


def regularized_max_compiled(scores: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor] | None:
    """(p, Ω* − max x) by a compiled kernel, or None where the caller's torch reference must run."""
    if triton_takes(scores) and is_eager(scores):
        from contmax.kernels import triton

        x, index = _axis_last(scores, dim), _alpha_rows(alpha, scores, dim)
        p, gain = triton.entmax_rows(x, index, None, scores.dtype, needs_omega=True)
        assert gain is not None
        return _axis_back(p, dim), _axis_back(gain, dim)
    if not _rows_fit(scores, alpha):
        return None
    from contmax.kernels import numba as cpu  # numba takes half a second to import: only when it is needed

    p, gain = cpu.regularized_max_rows(_axis_last(scores, dim), _alpha_rows(alpha, scores, dim))
    return _axis_back(p, dim), _axis_back(gain, dim)


def pull_back_compiled(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, needs_alpha: bool
) -> tuple[Tensor, Tensor | None] | None:
    """(gradient of the scores, gradient of α per slice) by a compiled kernel, or None as above."""
    if triton_takes(p) and is_eager(p) and is_eager(cotangent):
        from contmax.kernels import triton

        weight, g, per_row = _axis_last(p, dim), _axis_last(cotangent, dim), _alpha_rows(alpha, p, dim)
        grad, grad_alpha = triton.entmax_rows_backward(weight, g, per_row, p.dtype, needs_alpha)
        return _axis_back(grad, dim), None if grad_alpha is None else _axis_back(grad_alpha, dim)
    if not _rows_fit(p, alpha) or not is_eager_cpu(cotangent):
        return None
    from contmax.kernels import numba as cpu

    weight, g, per_row = _axis_last(p, dim), _axis_last(cotangent, dim), _alpha_rows(alpha, p, dim)
    grad, grad_alpha = cpu.pull_back_rows(weight, g, per_row, needs_alpha)
    return _axis_back(grad, dim), _axis_back(grad_alpha, dim) if needs_alpha else None


def _axis_last(tensor: Tensor, dim: int) -> Tensor:
    """The tensor with the axis of the distribution last."""
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(dim, -1)


def _axis_back(tensor: Tensor, dim: int) -> Tensor:
    """Undo `_axis_last`; what comes back is no view, of which torch would want tangents in the same layout."""
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(-1, dim).detach()


def _alpha_rows(alpha: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """α for all rows: one number, or a tensor of one number per row, in the order of the rows."""
    if not isinstance(alpha, Tensor) or alpha.numel() == 1:
        return alpha
    shape = list(scores.shape)
    shape[dim] = 1
    return _axis_last(alpha if list(alpha.shape) == shape else alpha.expand(shape), dim)
