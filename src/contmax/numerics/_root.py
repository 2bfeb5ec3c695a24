"""Roots of increasing functions: found without gradients, then given the gradients of the implicit function."""

from collections.abc import Callable

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax._typing import Float

Residual = Callable[[Tensor], tuple[Tensor, Tensor]]

# Newton needs about 8 steps; a function on which every step fails is bisected to float64 in these.
_STEPS = 60
# Eight sections into 17 parts shrink a bracket by 7e9; the two Newton steps of implicit_root do the rest.
_SECTIONS, _CUTS = 8, 16


def monotone_root(
    residual: Residual, low: Float[Tensor, "..."], high: Float[Tensor, "..."], *, tolerance: float = 1e-9
) -> Float[Tensor, "..."]:
    """The root of an increasing function in a bracket, to about nine digits; :func:`implicit_root` adds the others.

    Where values can be looked at, Newton steps that may not leave the bracket, until none is longer than the
    tolerance. Elsewhere (on a device, under torch.compile or torch.func) the bracket is cut into many parts at once, a
    fixed number of times: nothing waits, and the traced program stays short.

    Args:
        residual: x ↦ (f(x), f′(x)), element by element, f increasing; x may come with a further leading dimension.
        low: lower ends, where f ≤ 0.
        high: upper ends, where f ≥ 0.
        tolerance: stop when no Newton step exceeds this times 1 + |x|.

    Returns:
        The roots, without gradient.

    Example:
        >>> monotone_root(lambda x: (x**3 - 8, 3 * x**2), torch.tensor(0.0), torch.tensor(100.0))
        tensor(2.)
    """
    with torch.no_grad():
        low, high = torch.broadcast_tensors(low.detach(), high.detach())
        if is_eager_cpu(low + high):
            return _newton(residual, low, high, tolerance)
        return _sections(residual, low, high)


def _newton(residual: Residual, low: Tensor, high: Tensor, tolerance: float) -> Tensor:
    """Newton where a step falls inside the bracket and the step before it at least halved, else bisection."""
    x = 0.5 * (low + high)
    step = high - low
    for _ in range(_STEPS):
        value, slope = residual(x)
        low, high = torch.where(value < 0, x, low), torch.where(value < 0, high, x)
        newton = x - value / slope
        trusted = (newton > low) & (newton < high) & (2 * (newton - x).abs() <= step.abs())
        new = torch.where(value == 0, x, torch.where(trusted, newton, 0.5 * (low + high)))
        step, x = new - x, new
        if is_eager_cpu(x) and not bool((step.abs() > tolerance * (1 + x.abs())).any()):
            break
    return x


def _sections(residual: Residual, low: Tensor, high: Tensor) -> Tensor:
    """Evaluate at equidistant points, keep the part where the sign changes."""
    shape = (_CUTS, *([1] * low.ndim))
    part = (torch.arange(1, _CUTS + 1, dtype=low.dtype, device=low.device) / (_CUTS + 1)).reshape(shape)
    for _ in range(_SECTIONS):
        width = high - low
        below = (residual(low + width * part)[0] < 0).sum(0)
        low, high = low + width * (below / (_CUTS + 1)), low + width * ((below + 1) / (_CUTS + 1))
    return 0.5 * (low + high)


def implicit_root(root: Float[Tensor, "..."], residual: Residual) -> Float[Tensor, "..."]:
    """The same root, now a differentiable function of whatever ``residual`` depends on.

    Each Newton step at a root doubles the number of derivatives that are right, so the two taken here give the first,
    the second and the third; none of them is a derivative through the search.

    Args:
        root: x with f(x) = 0, to about nine digits; its own gradient is dropped.
        residual: x ↦ (f(x), f′(x)), differentiable in its parameters.

    Returns:
        The root, to working precision.

    Example:
        >>> a = torch.tensor(4.0, requires_grad=True)
        >>> torch.autograd.grad(implicit_root(torch.tensor(2.0), lambda x: (x**2 - a, 2 * x)), a)
        (tensor(0.2500),)
    """
    x = root.detach()
    for _ in range(2):
        value, slope = residual(x)
        x = x - value / slope
    return x
