r"""Distribution functions of β-Gaussians on the line, by the cheapest exact route that α allows.

A law measures distances in its own unit: √ρ·σ, or the half-width a where the law is a polynomial.
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from contmax.densities._line import LineLaw
from contmax.densities._profile import Profile, UniformProfile
from contmax.numerics import implicit_root, radial_quantile, radial_shares

# Up to this degree the Bernstein sum is cheaper than the general integral.
_POLYNOMIAL_MAX = 16
_NEWTON_STEPS = 8


class BetaLaw(LineLaw):
    """The law of a β-Gaussian."""

    @abstractmethod
    def unit(self, half_log_det: Tensor) -> Tensor:
        """The unit over σ."""


class NormalLaw(BetaLaw):
    """α = 1."""

    def unit(self, half_log_det: Tensor) -> Tensor:
        return torch.ones_like(half_log_det)

    def tail(self, depth: Tensor) -> Tensor:
        # Not ndtr: torch computes it from erf, which is −1 to the last digit in the tail.
        return 0.5 * torch.erfc(depth * math.sqrt(0.5))

    def depth(self, tail: Tensor) -> Tensor:
        depth: Tensor = -torch.special.ndtri(tail)
        return depth


class PolynomialLaw(BetaLaw):
    r"""α = 1 + 1/n: with z = (1−d)/2 the tail is :math:`I_z(n+1,n+1) = \sum_{j>n} \binom{2n+1}{j} z^j (1-z)^{2n+1-j}`.

    All terms are positive. n = 0 is the uniform member.
    """

    reach = 1.0

    def __init__(self, degree: int, profile: Profile) -> None:
        self._degree, self._profile = degree, profile

    def unit(self, half_log_det: Tensor) -> Tensor:
        return self._profile.radius(half_log_det)

    def tail(self, depth: Tensor) -> Tensor:
        return self._value(0.5 * (1 - depth).clamp(min=0))

    def depth(self, tail: Tensor) -> Tensor:
        if self._degree == 0:
            return 1 - 2 * tail
        with torch.no_grad():
            start = self._search(tail.detach())
        return 1 - 2 * implicit_root(start, lambda z: (self._value(z) - tail, self._slope(z)))

    def _value(self, z: Tensor) -> Tensor:
        n = self._degree
        rest = 1 - z
        total = torch.zeros_like(z)
        for i in range(n, -1, -1):
            total = total * z + math.comb(2 * n + 1, n + 1 + i) * rest ** (n - i)
        return total * z ** (n + 1)

    def _slope(self, z: Tensor) -> Tensor:
        n = self._degree
        return (2 * n + 1) * math.comb(2 * n, n) * (z * (1 - z)) ** n

    def _search(self, tail: Tensor) -> Tensor:
        """Newton's method on ln tail in ln z: concave, and started to the left of the root, hence monotone."""
        n = self._degree
        z = (tail / math.comb(2 * n + 1, n + 1)) ** (1 / (n + 1))
        for _ in range(_NEWTON_STEPS):
            value = self._value(z)
            z = (z * torch.exp(torch.log(tail / value) * value / (z * self._slope(z)))).clamp(max=0.5)
        return z


class GeneralLaw(BetaLaw):
    """Any α, number or tensor, through the law of the radius."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        alpha = profile.alpha
        if isinstance(alpha, Tensor):
            gap = alpha.double() - 1
            self.reach = torch.where(gap > 0, (2 / torch.where(gap > 0, gap, 1.0)).sqrt(), math.inf)
        else:
            self.reach = math.sqrt(2 / (alpha - 1)) if alpha > 1 else math.inf

    def unit(self, half_log_det: Tensor) -> Tensor:
        return (0.5 * self._profile.log_rho(half_log_det)).exp()

    def tail(self, depth: Tensor) -> Tensor:
        return 0.5 * radial_shares(depth.double(), self._gap(depth), 1)[1].to(depth.dtype)

    def depth(self, tail: Tensor) -> Tensor:
        return radial_quantile(2 * tail.double(), self._gap(tail)).to(tail.dtype)

    def _gap(self, like: Tensor) -> Tensor:
        alpha = self._profile.alpha
        if isinstance(alpha, Tensor):
            return alpha.double() - 1
        return torch.full((), alpha - 1, dtype=torch.float64, device=like.device)


def line_law(profile: Profile) -> BetaLaw:
    """The law for a one-dimensional profile."""
    if isinstance(profile, UniformProfile):
        return PolynomialLaw(0, profile)
    alpha = profile.alpha
    if isinstance(alpha, Tensor):
        return GeneralLaw(profile)
    if alpha == 1:
        return NormalLaw()
    degree = round(1 / (alpha - 1))
    if 1 <= degree <= _POLYNOMIAL_MAX and abs(degree * (alpha - 1) - 1) < 1e-14:
        return PolynomialLaw(degree, profile)
    return GeneralLaw(profile)


def radial_cdf(profile: Profile, radius: Tensor, half_log_det: Tensor) -> Tensor:
    """P(√Δ ≤ r) in any dimension."""
    if isinstance(profile, UniformProfile):
        return (radius / profile.radius(half_log_det)).clamp(0, 1) ** profile.dim
    gap = profile.gap(half_log_det.double())
    if not isinstance(gap, Tensor):
        gap = torch.full((), gap, dtype=torch.float64, device=radius.device)
    standard = radius.clamp(min=0).double() * (-0.5 * profile.log_rho(half_log_det.double())).exp()
    return radial_shares(standard, gap, profile.dim)[0].to(radius.dtype)
