"""Which backend runs: numba rows on a CPU where numba can be imported, torch everywhere else."""

import importlib.util
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.kernels import _operators

Rule = tuple[Tensor, Tensor]
_NUMBA = importlib.util.find_spec("numba") is not None
_import_tried = False


def _numba_works() -> bool:
    """Whether the compiled kernels can be imported; the first call finds out and says why not, the others remember."""
    global _NUMBA, _import_tried
    if _NUMBA and not _import_tried:
        _NUMBA, _import_tried = _kernels_import(), True
    return _NUMBA


# As torch.compiler.assume_constant_result, which would import the compiler here: a tracer cannot follow the import.
_numba_works._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _kernels_import() -> bool:
    try:
        from contmax.kernels import cpu as cpu
    except Exception as error:  # a numba that does not fit its NumPy or llvmlite raises whatever it meets first
        warnings.warn(
            f"numba is installed but cannot be imported ({type(error).__name__}: {error}), so CPU tensors take the "
            "slower torch path. Install versions that fit each other: pip install --upgrade 'contmax[cpu]', or remove "
            "numba.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def _rows_fit(x: Tensor, alpha: float | Tensor) -> bool:
    """Whether the compiled kernels can take these rows.

    An exported program must not depend on our operators, and α > 2 needs the sorted solver. Whether a tensor α
    exceeds 2 is only known where values may be looked at.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return False
    if torch.compiler.is_exporting() or not _numba_works():
        return False
    if isinstance(alpha, Tensor):
        return is_eager_cpu(alpha) and not alpha.detach().max().item() > 2
    return alpha <= 2


def regularized_argmax(scores: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor] | None:
    """(p, Ω*) by a compiled kernel, or None where the caller's torch reference must run."""
    if not _rows_fit(scores, alpha):
        return None
    x, per_row = _axis_last(scores, dim), _alpha_rows(alpha, scores, dim)
    if is_eager_cpu(scores):
        from contmax.kernels import cpu  # numba takes half a second to import: only when it is needed

        p, conjugate = cpu.forward(x, per_row)
    else:
        p, conjugate = _operators.forward(x, _as_tensor(per_row, x))
    return _axis_back(p, dim), _axis_back(conjugate, dim)


def pull_back(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, needs_alpha: bool
) -> tuple[Tensor, Tensor | None] | None:
    """(gradient of the scores, gradient of α per slice) by a compiled kernel, or None as above."""
    if not _rows_fit(p, alpha):
        return None
    weight, g, per_row = _axis_last(p, dim), _axis_last(cotangent, dim), _alpha_rows(alpha, p, dim)
    if is_eager_cpu(p, cotangent):
        from contmax.kernels import cpu

        grad, grad_alpha = cpu.backward(weight, g, per_row, needs_alpha)
    else:
        grad, grad_alpha = _operators.backward(weight, g, _as_tensor(per_row, p), needs_alpha)
    return _axis_back(grad, dim), _axis_back(grad_alpha, dim) if needs_alpha else None


def window_values(
    loc: Tensor, half: Tensor, k: float | Tensor, constant: float | Tensor, centre: Tensor, width: Tensor, rule: Rule
) -> Tensor | None:
    """E_p[ψ] on the line, (*batch, K), by a compiled kernel, or None as above."""
    if isinstance(k, Tensor) or isinstance(constant, Tensor) or not _windows_fit(loc, half, k, centre, width):
        return None
    from contmax.kernels import cpu

    return cpu.window_values(loc, half, k, constant, centre, width, rule)


def window_values_and_slopes(
    loc: Tensor, half: Tensor, k: float | Tensor, constant: float | Tensor, centre: Tensor, width: Tensor, rule: Rule
) -> tuple[Tensor, Tensor] | None:
    """The same with its derivatives in location, half-width and the widths of the basis, (3, *batch, K), or None."""
    if isinstance(k, Tensor) or isinstance(constant, Tensor) or not _windows_fit(loc, half, k, centre, width):
        return None
    from contmax.kernels import cpu

    return cpu.window_values_and_slopes(loc, half, k, constant, centre, width, rule)


def _windows_fit(loc: Tensor, half: Tensor, k: float, centre: Tensor, width: Tensor) -> bool:
    """Whether the compiled windows can take these densities: from k = 5 on they are placed in another way."""
    return (
        k < 5
        and loc.dtype in (torch.float32, torch.float64)
        and centre.dim() == 1
        and is_eager_cpu(loc, half, centre, width)
        and _numba_works()
    )


def plane_means(form: Tensor, order: float, rule: Sequence[float]) -> Tensor | None:
    """The mean of a Gaussian over the law of its scale and its slopes by a compiled kernel, or None as above.

    Args:
        form: the five numbers of the Gaussian of each pair, (5, *pairs).
        order: ν > 1 of the law.
        rule: the path: nodes, end, stretch, lean and curvature of a :class:`contmax.numerics.Hyperbola`.

    Returns:
        The mean and its slope in each of the five, (6, *pairs).
    """
    if form.device.type != "cpu" or form.dtype != torch.float32 or torch.compiler.is_exporting():
        return None
    if not _numba_works():
        return None
    if is_eager_cpu(form):
        from contmax.kernels import cpu

        return cpu.plane_means(form, order, rule)
    result: Tensor = _operators.plane_means(form, order, rule)
    return result


def _axis_last(tensor: Tensor, dim: int) -> Tensor:
    """The tensor with the axis of the distribution last."""
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(dim, -1)


def _axis_back(tensor: Tensor, dim: int) -> Tensor:
    """Undo `_axis_last`."""
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(-1, dim)


def _alpha_rows(alpha: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """α for all rows: one number, or a tensor of one number per row, in the order of the rows."""
    if not isinstance(alpha, Tensor) or alpha.numel() == 1:
        return alpha
    shape = list(scores.shape)
    shape[dim] = 1
    return _axis_last(alpha if list(alpha.shape) == shape else alpha.expand(shape), dim)


def _as_tensor(alpha: float | Tensor, like: Tensor) -> Tensor:
    return alpha.reshape(-1) if isinstance(alpha, Tensor) else like.new_full((1,), alpha, dtype=torch.float64)
