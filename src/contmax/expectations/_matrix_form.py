r"""The Gaussian N(μ; μ_j, Σ_j + V/s) in any dimension as a function of s, real or complex.

In units of the basis function, with Σ_j = L_jL_jᵀ, M = L_j⁻¹VL_j⁻ᵀ, d = μ − μ_j and y = L_j⁻¹d,

    |Σ_j + V/s| = |Σ_j| s⁻ᴺ |sI + M|,      dᵀ(Σ_j + V/s)⁻¹d = s yᵀ(sI + M)⁻¹y

The inverse is computed by elimination without pivoting: on the path of s every pivot lies between s and the positive
axis, so none vanishes and the logarithm of the determinant is the sum of the logarithms of the pivots.

:class:`contmax.expectations._plane_form.PlaneForm` has the methods of :class:`MatrixForm` too. Sums Σ in docstrings of
methods run over the eigenvalues λ of M, with y the coordinate along the eigenvector of λ.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from contmax.numerics import Complex


class MatrixForm(NamedTuple):
    """M, (*pairs, N, N), and y, (*pairs, N)."""

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
        """Σ y², Σ y²λ, Σ y² / Σ (y²/λ), and ½ Σ 1/(1+λ)."""
        y = self.offset
        tiny = torch.finfo(y.dtype).tiny
        near = y.square().sum(-1)
        middle = (y * (self.matrix @ y.unsqueeze(-1)).squeeze(-1)).sum(-1)
        away = self._moments(torch.full_like(near, tiny))[1]
        volume = 0.5 * self._inverse(torch.ones_like(near)).diagonal(dim1=-2, dim2=-1).sum(-1)
        return near, middle, ((near + tiny) / (away / tiny + tiny)).clamp(0.0, 1e100), volume

    def slopes(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """s f′, −s² f″ and s³ f‴ of f(s) = ½N ln s − ln N(μ; μ_j, Σ_j + V/s).

        With p = s/(s+λ) they are ½ Σ (p + y²p(1−p)), ½ Σ (p² + 2y²p²(1−p)) and Σ (p³ + 3y²p³(1−p)).
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
