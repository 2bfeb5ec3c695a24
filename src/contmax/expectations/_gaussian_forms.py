r"""The Gaussian N(μ; μ_j, Σ_j + V/s) as a function of s, real or complex: on the plane, and in any dimension.

V is the covariance of a density with mean μ, and μ_j and Σ_j belong to a Gaussian basis function. On the plane, with S
= Σ_j + V, d = μ − μ_j and ``adj`` the adjugate, the Gaussian depends on five numbers, of which `plane_form`
computes b directly, without the subtraction:

    a = |Σ_j|/|S|,   c = |V|/|S|,   b = 1 − a − c;        n = dᵀadj(Σ_j)d/|S|,   g = dᵀadj(V)d/|S|

    |Σ_j + V/s| = |S| e(s)/s,   e(s) = as + b + c/s;      dᵀ(Σ_j + V/s)⁻¹d = (ns + g)/e(s)

The line is a plane on which V has no width along the second axis: c = g = 0. In any dimension, in units of the basis
function, with Σ_j = L_jL_jᵀ, M = L_j⁻¹VL_j⁻ᵀ and y = L_j⁻¹d,

    |Σ_j + V/s| = |Σ_j| s⁻ᴺ |sI + M|,      dᵀ(Σ_j + V/s)⁻¹d = s yᵀ(sI + M)⁻¹y

The inverse is computed by elimination without pivoting. For s on the path, every pivot lies in the angle between s and
the positive axis. So none vanishes, and the logarithm of the determinant is the sum of the logarithms of the pivots.

Both classes have the same methods. Sums Σ in docstrings of :class:`MatrixForm` run over the eigenvalues λ of M, with y
the coordinate along the eigenvector of λ.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from contmax.numerics import Complex

# Negligible beside products of the five numbers, but well in the range of float32.
_SMALL = 1e-30


class PlaneForm(NamedTuple):
    """The five numbers of each pair of a density and a basis function, all of one shape."""

    own: Tensor  # a = |Σ_j|/|S|
    mixed: Tensor  # b = 1 − a − c
    other: Tensor  # c = |V|/|S|
    near: Tensor  # n = dᵀadj(Σ_j)d/|S|
    far: Tensor  # g = dᵀadj(V)d/|S|

    @property
    def half_dim(self) -> float:
        """N/2."""
        return 1.0

    @property
    def pairs(self) -> Tensor:
        """A tensor of the shape of the pairs."""
        return self.own

    def sizes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers for placing nodes s: dᵀΣ_j⁻¹d, dᵀΣ_j⁻¹VΣ_j⁻¹d, dᵀΣ_j⁻¹d/dᵀV⁻¹d, and ½ tr S⁻¹Σ_j."""
        near = self.near / self.own
        middle = ((near * self.mixed - self.far) / self.own).clamp(min=0)
        # At d = 0 and on the line nc and g vanish, and the ratio is b/a.
        spread = (near * self.other + _SMALL * self.mixed) / (self.far + _SMALL * self.own)
        spread = spread.clamp(0.0, 1e18)
        return near, middle, spread, torch.add(self.own, self.mixed, alpha=0.5)

    def slopes(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """s f′, −s² f″ and s³ f‴ of f(s) = ln s − ln N(μ; μ_j, Σ_j + V/s), from as, b, c/s, ns, g, each over e(s)."""
        x, z = self.own * s, self.other / s
        inverse = (x + self.mixed + z).reciprocal()
        x, y, z = x * inverse, self.mixed * inverse, z * inverse
        n, g = self.near * s * inverse, self.far * inverse
        volume = torch.add(y, x, alpha=2)
        first = torch.addcmul(torch.addcmul(volume, n, torch.add(y, z, alpha=2)), g, z - x)
        across = x * z
        left = torch.add(torch.addcmul(x * y, z, z, value=-1), across, alpha=3)
        right = torch.add(torch.addcmul(y * z, x, x, value=-1), across, alpha=3)
        second = torch.addcmul(torch.addcmul(n * left - x, g, right), volume, volume, value=0.5)
        left, right = n * y - g * x, g * y - n * z
        distance = x * x * (left + z * (4 * n + 6 * g)) + z * (right * (4 * x + y) - across * g)
        return 0.5 * first, second, volume * (volume * volume - 3 * x) + 3 * distance

    def integrate(
        self, s: Complex, weights: Complex, order: float | Tensor, with_slopes: bool = False
    ) -> tuple[Tensor, ...]:
        """Σ Re w exp(ν(s − 1 − ln s)) N(s) over nodes s; N(s) is the Gaussian without (2π)⁻¹|S|^{−½}.

        With `with_slopes` also the slopes of this sum in a, b, c, n, g, and in ν = `order` if that is a tensor.
        """
        e = s.scaled(self.own).plus(s.reciprocal(), self.other).shifted(self.mixed)
        resolved = e.reciprocal()
        quadratic = s.scaled(self.near).shifted(self.far) * resolved
        rest = s.shifted(-1)
        exponent = rest.scaled(order).plus_log(s, 0.5 - order).plus_log(e, -0.5).plus(quadratic, -0.5)
        mass = exponent.exp() * weights
        if not with_slopes:
            return (mass.re.sum(0),)
        inverse, resolved = s.reciprocal(), mass * resolved
        turned = resolved - resolved * quadratic
        sums = (
            turned.times_real_part(s).sum(0),
            turned.re.sum(0),
            turned.times_real_part(inverse).sum(0),
            resolved.times_real_part(s).sum(0),
            resolved.re.sum(0),
        )
        result = (mass.re.sum(0), *(-0.5 * x for x in sums))
        return (*result, mass.times_real_part(rest.plus_log(s, -1.0)).sum(0)) if isinstance(order, Tensor) else result


class MatrixForm(NamedTuple):
    """M, (*pairs, N, N), and y, (*pairs, N), of each pair of a density and a basis function."""

    matrix: Tensor
    offset: Tensor

    @property
    def half_dim(self) -> float:
        """N/2."""
        return self.offset.shape[-1] / 2

    @property
    def pairs(self) -> Tensor:
        """A tensor of the shape of the pairs."""
        return self.offset[..., 0]

    def sizes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers for placing nodes s, equal to those of `PlaneForm`: Σ y², Σ y²λ, Σ y² / Σ (y²/λ), ½ Σ 1/(1+λ)."""
        y = self.offset
        tiny = torch.finfo(y.dtype).tiny
        near = y.square().sum(-1)
        middle = (y * (self.matrix @ y.unsqueeze(-1)).squeeze(-1)).sum(-1)
        away = self._moments(torch.full_like(near, tiny))[1]
        volume = 0.5 * self._inverse(torch.ones_like(near)).diagonal(dim1=-2, dim2=-1).sum(-1)
        return near, middle, ((near + tiny) / (away / tiny + tiny)).clamp(0.0, 1e100), volume

    def slopes(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """s f′, −s² f″ and s³ f‴ of f(s) = ½N ln s − ln N(μ; μ_j, Σ_j + V/s).

        With p = s/(s+λ) for each eigenvalue λ of M, they are ½ Σ (p + y²p(1−p)), ½ Σ (p² + 2y²p²(1−p)) and
        Σ (p³ + 3y²p³(1−p)).
        """
        p, *moments = self._moments(s)
        squared = p @ p
        volume = p.diagonal(dim1=-2, dim2=-1).sum(-1), p.square().sum((-2, -1)), (squared * p).sum((-2, -1))
        first = 0.5 * (volume[0] + moments[0] - moments[1])
        return first, 0.5 * volume[1] + moments[1] - moments[2], volume[2] + 3 * (moments[2] - moments[3])

    def _moments(self, s: Tensor) -> tuple[Tensor, ...]:
        """P = s(sI + M)⁻¹, and yᵀPᵐy for m = 1, …, 4."""
        p = self._inverse(s)
        y = self.offset
        first = (p @ y.unsqueeze(-1)).squeeze(-1)
        second = (p @ first.unsqueeze(-1)).squeeze(-1)
        return p, (y * first).sum(-1), first.square().sum(-1), (first * second).sum(-1), second.square().sum(-1)

    def _inverse(self, s: Tensor) -> Tensor:
        """s(sI + M)⁻¹."""
        inverse, _ = _resolvent(self.matrix, Complex(s, torch.zeros_like(s)))
        flat = torch.stack([entry.re for row in inverse for entry in row], -1)
        return s[..., None, None] * flat.reshape(self.matrix.shape)

    def integrate(
        self, s: Complex, weights: Complex, order: float | Tensor, with_slopes: bool = False
    ) -> tuple[Tensor, ...]:
        """Σ Re w exp(ν(s − 1 − ln s)) N(s) over nodes s; N(s) is the Gaussian without (2π)^{−N/2}|Σ_j|^{−½}.

        With `with_slopes` also the slopes of this sum in M and y, and in ν = `order` if that is a tensor.
        """
        y = self.offset.unbind(-1)
        dim = len(y)
        inverse, pivots = _resolvent(self.matrix, s)
        solved = [_total([entry.scaled(b) for entry, b in zip(row, y, strict=True)]) for row in inverse]
        quadratic = s * _total([entry.scaled(b) for entry, b in zip(solved, y, strict=True)])
        rest = s.shifted(-1)
        exponent = rest.scaled(order).plus_log(s, self.half_dim - order).plus(quadratic, -0.5)
        for pivot in pivots:
            exponent = exponent.plus_log(pivot, -0.5)
        mass = exponent.exp() * weights
        if not with_slopes:
            return (mass.re.sum(0),)
        moved = mass * s
        by_matrix = [
            0.5 * (moved.times_real_part(solved[i] * solved[j]) - mass.times_real_part(inverse[i][j])).sum(0)
            for i in range(dim)
            for j in range(dim)
        ]
        by_offset = [-moved.times_real_part(entry).sum(0) for entry in solved]
        slopes = (torch.stack(by_matrix, -1).unflatten(-1, (dim, dim)), torch.stack(by_offset, -1))
        result = (mass.re.sum(0), *slopes)
        return (*result, mass.times_real_part(rest.plus_log(s, -1.0)).sum(0)) if isinstance(order, Tensor) else result


def _resolvent(matrix: Tensor, s: Complex) -> tuple[list[list[Complex]], list[Complex]]:
    """(sI + M)⁻¹, entry by entry, and the pivots whose product is |sI + M|."""
    dim = matrix.shape[-1]
    zero = torch.zeros_like(matrix[..., 0, 0])
    a = [
        [s.shifted(matrix[..., i, i]) if i == j else Complex(matrix[..., i, j], zero) for j in range(dim)]
        for i in range(dim)
    ]
    pivots = []
    for k in range(dim):
        pivots.append(a[k][k])
        inverse = a[k][k].reciprocal()
        column = [a[i][k] for i in range(dim)]
        scaled = [inverse * entry for entry in column]
        others = [i for i in range(dim) if i != k]
        for i in others:
            for j in others:
                if j >= i:
                    a[i][j] = a[j][i] = a[i][j] - scaled[i] * column[j]
            a[i][k] = a[k][i] = scaled[i]
        a[k][k] = -inverse
    return [[-entry for entry in row] for row in a], pivots


def _total(terms: list[Complex]) -> Complex:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


Form = PlaneForm | MatrixForm


def line_form(variance: Tensor, offset: Tensor, width: Tensor) -> tuple[PlaneForm, Tensor]:
    """The form of every pair on the line, and the factor (2πS)^{−½} that the form omits.

    Args:
        variance: V, (*batch, 1).
        offset: d, (*batch, K).
        width: σ_j, (K,).

    Returns:
        Tensors of shape (*batch, K).
    """
    squared = width * width
    inverse = (squared + variance).reciprocal()
    root = inverse.sqrt()
    own, mixed, near = torch.broadcast_tensors(squared * inverse, variance * inverse, (offset * root).square())
    # Make two tensors of zeros, because torch.compile refuses one that is passed twice.
    return PlaneForm(own, mixed, torch.zeros_like(near), near, torch.zeros_like(near)), root / math.sqrt(2 * math.pi)


def plane_form(tril: Tensor, offset: Tensor, basis_tril: Tensor, diagonal: bool) -> tuple[PlaneForm, Tensor]:
    """The form of every pair on the plane, and the factor (2π)⁻¹|S|^{−½} that the form omits.

    Args:
        tril: the Cholesky factor of V, (*batch, 1, 2, 2).
        offset: d, (*batch, K, 2).
        basis_tril: the Cholesky factors of Σ_j, (K, 2, 2).
        diagonal: whether all factors of Σ_j are diagonal.

    Returns:
        Tensors of shape (*batch, K).
    """
    first, second = basis_tril[..., 0, 0], basis_tril[..., 1, 1]
    lower = None if diagonal else basis_tril[..., 1, 0]
    k11, k22 = tril[..., 0, 0] / first, tril[..., 1, 1] / second
    y1 = offset[..., 0] / first
    k21, y2 = tril[..., 1, 0], offset[..., 1]
    if lower is not None:
        k21, y2 = k21 - lower * k11, y2 - lower * y1
    k21, y2 = k21 / second, y2 / second
    trace = k11 * k11 + k21 * k21 + k22 * k22
    det = (k11 * k22).square()
    inverse = (1 + trace + det).reciprocal()
    # Scale distances before squaring: at 2e19 widths their squares would overflow in float32.
    root = inverse.sqrt()
    y1, y2 = y1 * root, y2 * root
    near = y1 * y1 + y2 * y2
    far = (k21 * y1 - k11 * y2).square() + (k22 * y1).square()
    numbers = torch.broadcast_tensors(inverse, trace * inverse, det * inverse, near, far)
    return PlaneForm(*numbers), root / (2 * math.pi * first * second)
