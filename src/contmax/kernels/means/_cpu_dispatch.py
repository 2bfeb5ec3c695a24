"""Which kernel runs: one of numba's for CPU tensors, one of triton's for CUDA tensors, or none."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from contmax._backend import numba_takes, numba_works
from contmax._eager import is_eager_cpu, is_exporting
from contmax.kernels.means import _cpu_operators as _operators

Rule = tuple[Tensor, Tensor]


def window_values(
    loc: Tensor, half: Tensor, k: float, constant: float, centre: Tensor, width: Tensor, rule: Rule
) -> Tensor | None:
    """E_p[ψ] on the line, (*batch, K), by a compiled kernel, or None as above."""
    if not windows_are_compiled(loc, half, centre, width):
        return None
    from contmax.kernels import numba as cpu

    return cpu.window_values(loc, half, k, constant, centre, width, rule)


def window_values_and_slopes(
    loc: Tensor, half: Tensor, k: float, constant: float, centre: Tensor, width: Tensor, rule: Rule
) -> tuple[Tensor, Tensor] | None:
    """The same with its derivatives in location, half-width and the widths of the basis, (3, *batch, K), or None."""
    if not windows_are_compiled(loc, half, centre, width):
        return None
    from contmax.kernels import numba as cpu

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
    from contmax.kernels import numba as cpu

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
        from contmax.kernels import numba as cpu

        return cpu.plane_means_cpu(form, order, rule)
    result: Tensor = _operators.plane_means_op(form, order, rule)
    return result
