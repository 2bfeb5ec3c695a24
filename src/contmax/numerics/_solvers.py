"""Solvers without host synchronisation: roots of increasing functions, factorisations, principal axes."""

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax._typing import Float

Residual = Callable[[Tensor], tuple[Tensor, Tensor]]

# Newton's method takes about 8 steps. If every Newton step fails, 100 bisections still reach float64 precision.
_STEPS = 100
# `sign_change` divides an interval into _PARTS parts, _ROUNDS times.
_PARTS, _ROUNDS = 17, 8
# Jacobi's method converges quadratically, so in low dimensions five or six sweeps reach working precision.
_SWEEPS = 8


def monotone_root(
    residual: Residual, low: Float[Tensor, "..."], high: Float[Tensor, "..."], *, tolerance: float = 1e-9
) -> Float[Tensor, "..."]:
    """The root of an increasing function in a bracket, to about nine digits; :func:`implicit_root` adds the rest.

    Runs :func:`bracketed_root` on eager CPU tensors, and :func:`sign_change` elsewhere (on a device, under
    torch.compile or torch.func).

    Args:
        residual: x ↦ (f(x), f′(x)), element by element, f increasing; x may have an extra leading dimension.
        low: lower ends, where f ≤ 0.
        high: upper ends, where f ≥ 0.

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
    """The root of g between ``low`` and ``high`` by Newton's method, without gradient.

    A step that leaves the bracket, or that is longer than the previous step, is replaced by a bisection.

    Args:
        residual: x ↦ (g(x), g′(x)), element by element.
        low: points with g ≤ 0, below or above the root.
        high: points with g ≥ 0.
        start: first guess.
        steps: number of steps in traces and on accelerators; on an eager CPU the loop ends by ``tolerance``.
        tolerance: longest step, relative to 1 + |x|, at which the loop ends.
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
    """Where a function, negative at ``low`` iff ``begins_negative``, first changes its sign; ``high`` if it never does.

    Each round evaluates the function at 16 equidistant points, along an extra leading dimension of its argument, and
    continues with the first of the 17 parts in which the sign changes. Eight rounds divide the length of the interval
    by 7e9, and the host reads no value. The two Newton steps of :func:`implicit_root` add the remaining digits.

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
    """The root, refined from about nine digits to all, as a differentiable function of the tensors in ``residual``.

    At a root each Newton step doubles the number of correct terms of the Taylor series in these tensors. The first term
    is the value, so two steps add the first three derivatives. The search that found ``root`` is not differentiated.

    Example:
        >>> a = torch.tensor(4.0, requires_grad=True)
        >>> torch.autograd.grad(implicit_root(torch.tensor(2.0), lambda x: (x**2 - a, 2 * x)), a)
        (tensor(0.2500),)
    """
    x = root.detach()
    for _ in range(2):
        value, slope = residual(x)
        # The step is 0 where the slope is 0, as at a quantile that rounds to the edge of a support.
        x = x - value / torch.where(slope > 0, slope, torch.inf)
    return x


def eliminated(matrix: Tensor, right: Tensor) -> Tensor:
    """A⁻¹B for positive definite A = ``matrix`` and B = ``right``, by Gauss–Jordan elimination, one update per row.

    With the diagonal of A scaled to one, no pivot exceeds one and rounding is as small as in a Cholesky factorisation.

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
        # Subtract one in the pivot's row, so that the update leaves the normed row there instead of zeros.
        column = system[..., :, row : row + 1] - unit[:, row : row + 1]
        system = system - column * normed
    return system[..., size:] * scale


def factored(matrix: Tensor) -> Tensor:
    """The Cholesky factor L of A = LLᵀ, column by column in torch operations; NaN where A is not positive definite.

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
    r"""Orthogonal V, without gradient, such that the columns of FV are orthogonal, the longest first; F = ``factor``.

    The columns of FV are the semi-axes of the ellipsoid :math:`\{Fu : \|u\| \le 1\}`, and their lengths the singular
    values of F. One-sided Jacobi rotations find all of them to high relative accuracy, even the short axes of a needle,
    which the eigenvalues of FFᵀ would lose. Unlike torch.linalg.svd, the rotations need no host synchronisation.
    Singular values are stationary in V, so the lengths of the columns of FV have the right gradient, but V has none.

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
    """Cosine and sine of the smaller of the two angles by which a rotation makes two columns orthogonal."""
    overlap = (left * right).sum(-1, keepdim=True)
    difference = left.square().sum(-1, keepdim=True) - right.square().sum(-1, keepdim=True)
    # Use this formula for the tangent instead of half an atan2, because it computes small angles more accurately.
    reach = difference.abs() + torch.hypot(difference, 2 * overlap)
    tangent = torch.where(reach > 0, 2 * overlap / torch.where(reach > 0, reach, 1.0), 0.0)
    tangent = torch.where(difference < 0, -tangent, tangent)
    cosine = torch.rsqrt(1 + tangent.square())
    return cosine, cosine * tangent
