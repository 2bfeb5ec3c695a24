"""Solvers that never wait for a device: roots of increasing functions, factorisations, principal axes."""

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax._typing import Float

Residual = Callable[[Tensor], tuple[Tensor, Tensor]]

# Newton needs about 8 steps; a function on which every Newton step fails is bisected to float64 in 100.
_STEPS = 100
# Into how many parts `sign_change` divides an interval, and how often.
_PARTS, _ROUNDS = 17, 8
# Jacobi's method converges quadratically: for a few dimensions five or six sweeps reach working precision.
_SWEEPS = 8


def monotone_root(
    residual: Residual, low: Float[Tensor, "..."], high: Float[Tensor, "..."], *, tolerance: float = 1e-9
) -> Float[Tensor, "..."]:
    """The root of an increasing function in a bracket, to about nine digits; :func:`implicit_root` adds the others.

    On eager CPU tensors :func:`bracketed_root`; elsewhere (on a device, under torch.compile or torch.func)
    :func:`sign_change`.

    Args:
        residual: x ↦ (f(x), f′(x)), element by element, f increasing; x may come with a further leading dimension.
        low: lower ends, where f ≤ 0.
        high: upper ends, where f ≥ 0.
        tolerance: stop when no Newton step exceeds this times 1 + |x|.

    Example:
        >>> monotone_root(lambda x: (x**3 - 8, 3 * x**2), torch.tensor(0.0), torch.tensor(100.0))
        tensor(2.)
    """
    with torch.no_grad():
        low, high = torch.broadcast_tensors(low.detach(), high.detach())
        if not is_eager_cpu(low, high):
            return sign_change(lambda x: residual(x)[0], low, high, True)
        return bracketed_root(residual, low, high, 0.5 * (low + high), steps=_STEPS, tolerance=tolerance)


def bracketed_root(
    residual: Residual,
    low: Float[Tensor, "..."],
    high: Float[Tensor, "..."],
    start: Float[Tensor, "..."],
    *,
    steps: int,
    tolerance: float,
) -> Float[Tensor, "..."]:
    """The root between two points by Newton's method, without gradient.

    A step that leaves the bracket, or that is longer than the one before it, is replaced by a bisection.

    Args:
        residual: x ↦ (g(x), g′(x)), element by element.
        low: points with g ≤ 0, below or above the root.
        high: points with g ≥ 0.
        start: first guess.
        steps: how many to take where values cannot be looked at; elsewhere the loop stops by itself.
        tolerance: length of a step, relative to 1 + |x|, that ends the loop.
    """
    x, last = start, torch.full_like(start, torch.inf)
    for _ in range(_STEPS if is_eager_cpu(x) else steps):
        value, slope = residual(x)
        low, high = torch.where(value <= 0, x, low), torch.where(value >= 0, x, high)
        newton = x - value / slope
        trusted = ((newton - low) * (newton - high) <= 0) & ((newton - x).abs() <= last)
        moved = torch.where(trusted, newton, low + (high - low) / 2)
        last, x = (moved - x).abs(), moved
        if is_eager_cpu(x) and not bool((last > tolerance * (1 + x.abs())).any()):
            break
    return x


def sign_change(
    function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, begins_negative: Tensor | bool
) -> Tensor:
    """Where a function first changes its sign in an interval; the upper end if it does not.

    Each round divides the interval into equal parts and keeps the first in which the sign changes: nothing waits for a
    device, and a traced program stays short. The interval shrinks by 7e9; the two Newton steps of
    :func:`implicit_root` do the rest. The argument of the function has a further leading dimension.

    Example:
        >>> sign_change(lambda x: x**2 - 2, torch.tensor(0.0), torch.tensor(2.0), True)
        tensor(1.4142)
    """
    share = torch.arange(1, _PARTS, dtype=low.dtype, device=low.device) / _PARTS
    share = share.reshape(-1, *(1 for _ in low.shape))
    for _ in range(_ROUNDS):
        width = high - low
        before = ((function(low + width * share) < 0) == begins_negative).to(low.dtype).cumprod(0).sum(0)
        low, high = low + width * (before / _PARTS), low + width * ((before + 1) / _PARTS)
    return 0.5 * (low + high)


def implicit_root(root: Float[Tensor, "..."], residual: Residual) -> Float[Tensor, "..."]:
    """The root, known to about nine digits, as a differentiable function of whatever ``residual`` depends on.

    Each Newton step at a root doubles the number of derivatives that are right, so the two taken here give the first,
    the second and the third, and all digits; none of them is a derivative through the search.

    Example:
        >>> a = torch.tensor(4.0, requires_grad=True)
        >>> torch.autograd.grad(implicit_root(torch.tensor(2.0), lambda x: (x**2 - a, 2 * x)), a)
        (tensor(0.2500),)
    """
    x = root.detach()
    for _ in range(2):
        x = x - _step(*residual(x))
    return x


def _step(value: Tensor, slope: Tensor) -> Tensor:
    """Newton's step; of length 0 where the slope is 0, such as at a quantile that rounds to the edge of a support."""
    return value / torch.where(slope > 0, slope, torch.inf)


def eliminated(matrix: Tensor, right: Tensor) -> Tensor:
    """A⁻¹B for positive definite A by Gauss–Jordan elimination, one rank-one update for each of the K rows.

    The diagonal is scaled to one beforehand, so that no pivot is above one and rounding is that of a Cholesky factor.

    Example:
        >>> eliminated(torch.tensor([[4.0, 2.0], [2.0, 5.0]]), torch.tensor([[2.0], [-3.0]]))
        tensor([[ 1.],
                [-1.]])
    """
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt().unsqueeze(-1)
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    parts = (matrix * scale * scale.mT).expand(*batch, -1, -1), (right * scale).expand(*batch, -1, -1)
    system = torch.cat(parts, -1)
    size = matrix.shape[-1]
    unit = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    for row in range(size):
        normed = system[..., row : row + 1, :] / system[..., row : row + 1, row : row + 1]
        # Subtract one in the pivot's row: the update then leaves the normed row instead of zero.
        column = system[..., :, row : row + 1] - unit[:, row : row + 1]
        system = system - column * normed
    return system[..., size:] * scale


def factored(matrix: Tensor) -> Tensor:
    """L of A = LLᵀ, column by column; NaN where A is not positive definite.

    Example:
        >>> factored(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
        tensor([[2., 0.],
                [1., 2.]])
    """
    lower = torch.ones_like(matrix).tril()
    columns: list[Tensor] = []
    for index in range(matrix.shape[-1]):
        here = slice(index, index + 1)
        column = matrix[..., here] / matrix[..., here, here].sqrt() * lower[..., here]
        columns.append(column)
        matrix = matrix - column * column.mT
    return torch.cat(columns, -1)


def principal_axes(factor: Float[Tensor, "*batch N N"]) -> Float[Tensor, "*batch N N"]:
    r"""V, orthogonal and without gradient, such that the columns of FV are orthogonal and descend in length.

    The columns of FV are the semi-axes of the ellipsoid :math:`\{Fu : \|u\| \le 1\}`, and their lengths the singular
    values of F. One-sided Jacobi rotations find them to high relative accuracy, the short ones of a needle too, where
    the eigenvalues of FFᵀ would have lost them; and unlike torch.linalg.svd they never wait for a device. A singular
    value is stationary in V: the lengths of the columns of FV have its gradient.

    Example:
        >>> factor = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
        >>> (factor @ principal_axes(factor)).norm(dim=-2)
        tensor([2.2882, 0.8740])
    """
    with torch.no_grad():
        size = factor.shape[-1]
        identity = torch.eye(size, dtype=factor.dtype, device=factor.device).expand(factor.shape)
        columns = list(torch.cat([factor.detach(), identity], -2).unbind(-1))
        for _ in range(_SWEEPS if size > 2 else 1):
            for i, j in combinations(range(size), 2):
                left, right = columns[i], columns[j]
                cosine, sine = _rotation(left[..., :size], right[..., :size])
                columns[i], columns[j] = cosine * left + sine * right, cosine * right - sine * left
        turned = torch.stack(columns, -1)
        order = turned[..., :size, :].square().sum(-2).argsort(-1, descending=True)
        return turned[..., size:, :].gather(-1, order.unsqueeze(-2).expand(factor.shape))


def _rotation(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine that make two columns orthogonal, by the smaller of the two angles that do."""
    overlap = (left * right).sum(-1, keepdim=True)
    difference = left.square().sum(-1, keepdim=True) - right.square().sum(-1, keepdim=True)
    # Half the polar angle would do too; the formula with a tangent keeps small angles exact.
    reach = difference.abs() + torch.hypot(difference, 2 * overlap)
    tangent = torch.where(reach > 0, 2 * overlap / torch.where(reach > 0, reach, 1.0), 0.0)
    tangent = torch.where(difference < 0, -tangent, tangent)
    cosine = torch.rsqrt(1 + tangent.square())
    return cosine, cosine * tangent
