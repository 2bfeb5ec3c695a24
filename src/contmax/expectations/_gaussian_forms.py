r"""The Gaussian N(μ; μ_j, Σ_j + V/s) on the plane as a function of s, real or complex.

With S = Σ_j + V, d = μ − μ_j and ``adj`` the adjugate, it depends on five numbers, computed without subtraction,

    a = |Σ_j|/|S|,   c = |V|/|S|,   b = 1 − a − c;        n = dᵀadj(Σ_j)d/|S|,   g = dᵀadj(V)d/|S|

    |Σ_j + V/s| = |S| e(s)/s,   e(s) = as + b + c/s;      dᵀ(Σ_j + V/s)⁻¹d = (ns + g)/e(s)

The line is a plane on which V has no width along the second axis: c = g = 0.
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

    own: Tensor  # a
    mixed: Tensor  # b
    other: Tensor  # c
    near: Tensor  # n
    far: Tensor  # g
    half_dim = 1.0  # N/2

    @property
    def pairs(self) -> Tensor:
        """A tensor of the shape of the pairs."""
        return self.own

    def sizes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dᵀΣ_j⁻¹d, dᵀΣ_j⁻¹VΣ_j⁻¹d, dᵀΣ_j⁻¹d/dᵀV⁻¹d, and ½ tr S⁻¹Σ_j."""
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
    # Two tensors of zeros: torch.compile refuses one that is passed twice.
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
    # Scale distances before squaring: at 1e18 widths their squares would overflow in float32.
    root = inverse.sqrt()
    y1, y2 = y1 * root, y2 * root
    near = y1 * y1 + y2 * y2
    far = (k21 * y1 - k11 * y2).square() + (k22 * y1).square()
    numbers = torch.broadcast_tensors(inverse, trace * inverse, det * inverse, near, far)
    return PlaneForm(*numbers), root / (2 * math.pi * first * second)
