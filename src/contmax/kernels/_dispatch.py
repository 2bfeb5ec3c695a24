"""Which kernel runs: one of numba's for CPU tensors, one of triton's for CUDA tensors, or none."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from contmax._backend import numba_takes, numba_works, triton_takes
from contmax._eager import is_eager, is_eager_cpu, is_exporting
from contmax.kernels import _operators

Rule = tuple[Tensor, Tensor]


def rows_are_compiled(x: Tensor) -> bool:
    """Whether compiled kernels exist for rows on the device and of the dtype of x, at least for α ≤ 2."""
    return numba_takes(x) or triton_takes(x)


def rows_are_fused(x: Tensor) -> bool:
    """Whether rows are taken as they come, in half precision and with a mask: see `contmax.kernels._row_operators`."""
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
    from contmax.kernels import cpu  # numba takes half a second to import: only when it is needed

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
    from contmax.kernels import cpu

    weight, g, per_row = _axis_last(p, dim), _axis_last(cotangent, dim), _alpha_rows(alpha, p, dim)
    grad, grad_alpha = cpu.pull_back_rows(weight, g, per_row, needs_alpha)
    return _axis_back(grad, dim), _axis_back(grad_alpha, dim) if needs_alpha else None


def window_values(
    loc: Tensor, half: Tensor, k: float, constant: float, centre: Tensor, width: Tensor, rule: Rule
) -> Tensor | None:
    """E_p[ψ] on the line, (*batch, K), by a compiled kernel, or None as above."""
    if not windows_are_compiled(loc, half, centre, width):
        return None
    from contmax.kernels import cpu

    return cpu.window_values(loc, half, k, constant, centre, width, rule)


def window_values_and_slopes(
    loc: Tensor, half: Tensor, k: float, constant: float, centre: Tensor, width: Tensor, rule: Rule
) -> tuple[Tensor, Tensor] | None:
    """The same with its derivatives in location, half-width and the widths of the basis, (3, *batch, K), or None."""
    if not windows_are_compiled(loc, half, centre, width):
        return None
    from contmax.kernels import cpu

    return cpu.window_values_and_slopes(loc, half, k, constant, centre, width, rule)


def windows_are_compiled(loc: Tensor, half: Tensor, centre: Tensor, width: Tensor) -> bool:
    """Whether the compiled windows can take these densities."""
    return centre.dim() == 1 and is_eager_cpu(loc, half, centre, width) and numba_takes(loc)


def line_scale_means(
    loc: Tensor, scale: Tensor, alpha: float | Tensor, centre: Tensor, width: Tensor, rule: Sequence[float]
) -> tuple[Tensor, Tensor] | None:
    """E_p[ψ] of β-Gaussians of any α ≥ 1 on the line and its derivatives by a compiled kernel, or None as above.

    Args:
        loc: μ, (*batch), float32 or float64 as all others.
        scale: σ, (*batch).
        alpha: α, a number or a tensor (*batch).
        centre: μ_j, (K,).
        width: σ_j, (K,).
        rule: the path: nodes, end, stretch, lean and curvature of a :class:`contmax.numerics.Hyperbola`.

    Returns:
        r, (*batch, K), and ∂r/∂(μ, σ, σ_j, α), (4, *batch, K).
    """
    if not windows_are_compiled(loc, scale, centre, width) or not is_eager_cpu(alpha):
        return None
    # Heavy tails have a law of the scale of another kind; so close to one as rounding they have none.
    lowest = float(alpha.detach().min()) if isinstance(alpha, Tensor) and alpha.numel() else alpha
    if isinstance(lowest, Tensor) or not lowest >= 1:
        return None
    from contmax.kernels import cpu

    return cpu.line_scale_means(loc, scale, alpha, centre, width, rule)


def line_scales_are_one_node(loc: Tensor, centre: Tensor) -> bool:
    """Whether torch.compile is tracing, on a CPU where the kernel above can run: it is best not looked into."""
    return is_compiling() and not is_exporting() and centre.dim() == 1 and numba_takes(loc)


def plane_means_compiled(form: Tensor, order: float, rule: Sequence[float]) -> Tensor | None:
    """The mean of a Gaussian over the law of its scale and its slopes by a compiled kernel, or None as above.

    Args:
        form: the five numbers of the Gaussian of each pair, (5, *pairs).
        order: ν > 1 of the law.
        rule: the path: nodes, end, stretch, lean and curvature of a :class:`contmax.numerics.Hyperbola`.

    Returns:
        The mean and its slope in each of the five, (6, *pairs).
    """
    if form.device.type != "cpu" or form.dtype != torch.float32 or is_exporting():
        return None
    if not numba_works():
        return None
    if is_eager_cpu(form):
        from contmax.kernels import cpu

        return cpu.plane_means_cpu(form, order, rule)
    result: Tensor = _operators.plane_means_op(form, order, rule)
    return result


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
