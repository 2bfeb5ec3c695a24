r"""The radial profile of a β-Gaussian: everything about it that depends only on α, N and ½ ln|Σ|.

With ε = α − 1, s = N/2 and G_N the function ``log_gamma_ratio`` of :mod:`contmax.numerics`, the density at squared
Mahalanobis distance Δ is

.. math:: \ln p = C + \tfrac1\varepsilon\,\mathrm{log1p}(-\varepsilon u), \quad u = \frac{\Delta}{2\rho}, \quad
          \rho = e^{\varepsilon C}, \quad C = \frac{G_N(\varepsilon) - s\ln 2\pi - \frac12\ln|\Sigma|}{1 + s\varepsilon}

where C is the log-density at the mode. For ε > 0 p is :math:`[(R^2-\Delta)/2k]_+^k`, k = 1/ε, :math:`R^2 = 2k\rho`; for
ε < 0 a Student-t, at ε = 0 the Gaussian. A is the normaliser and λ the threshold of the score −Δ/2. All formulas are
smooth in ε through 0, so that a tensor α may have entries on both sides of 1.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from contmax.deformed import expm1_over, log1p_over
from contmax.numerics import float64_of, log_gamma_ratio, log_gamma_ratio_slope

Scalar = float | Tensor

_LOG_2PI = math.log(2 * math.pi)


class Profile:
    """The profile for a finite α, a number or a tensor.

    Args:
        alpha: entropic index α.
        dim: N, the dimension.
    """

    def __init__(self, alpha: Scalar, dim: int) -> None:
        self.alpha = alpha
        self.dim = dim
        self.half = dim / 2
        # Skip the lru_cache in a trace: torch.compile does not trace through it.
        coefficients = _coefficients if torch.compiler.is_compiling() else _known_coefficients
        self._numbers = None if isinstance(alpha, Tensor) else coefficients(alpha - 1.0, dim)

    @property
    def _gap(self) -> Scalar:
        """ε = α − 1: a number, or a float64 tensor, so that differences of functions of ε keep their digits."""
        return self.alpha.double() - 1.0 if isinstance(self.alpha, Tensor) else self.alpha - 1.0

    def coefficients(self, like: Tensor) -> tuple[Scalar, Scalar, Scalar]:
        """ε, c and w with C = c − w·½ln|Σ|; numbers for a number α, else tensors in the dtype of ``like``.

        Tensors are computed in float64, and again in each call, since the first of two backward passes could free the
        graph of a cached tensor.
        """
        if self._numbers is not None:
            return self._numbers
        gap, peak, weight = (_in_dtype(value, like) for value in _coefficients(self._gap, self.dim))
        return gap, peak, weight

    def _margin(self) -> Scalar:
        """1 + ε(s+1) = (s+1)α − s, zero where the variance becomes infinite, computed without rounding (s+1)α."""
        alpha = self.alpha.double() if isinstance(self.alpha, Tensor) else self.alpha
        # Dekker's splitting: the product of s + 1 with the upper half of the digits of α is exact.
        carried = 134217729.0 * alpha
        upper = carried - (carried - alpha)
        return ((self.half + 1) * upper - self.half) + (self.half + 1) * (alpha - upper)

    def gap(self, like: Tensor) -> Scalar:
        """ε, rounded to the dtype of ``like``."""
        return _in_dtype(self._gap, like)

    def log_peak(self, half_log_det: Tensor) -> Tensor:
        """C = ln p at the mode."""
        _, peak, weight = self.coefficients(half_log_det)
        return peak - weight * half_log_det

    def log_rho(self, half_log_det: Tensor) -> Tensor:
        """ln ρ = εC. With LLᵀ = Σ, z = (√ρL)⁻¹(t − μ) has the standard β-Gaussian density ∝ [1 − ε‖z‖²/2]₊^{1/ε}."""
        return self.gap(half_log_det) * self.log_peak(half_log_det)

    def log_unit(self, half_log_det: Tensor) -> Tensor:
        """½ ln ρ: √ρ is the unit in which Mahalanobis distances are of order one for any |Σ|; 0 for the Gaussian."""
        return 0.5 * self.log_rho(half_log_det)

    def unit(self, scale: Tensor) -> Tensor:
        """√ρ·σ on the line, proportional to a power of σ."""
        gap, peak, weight = self.coefficients(scale)
        return scale**weight * _exp(0.5 * gap * peak)

    def scale_of_unit(self, size: Tensor, ratio: Scalar, order: int) -> Tensor:
        """The σ on the line for which (√ρ·σ)^order = ratio·size."""
        gap, peak, weight = self.coefficients(size)
        return (size * (ratio * _exp(-0.5 * order * gap * peak))) ** (1 / (order * weight))

    @property
    def reach(self) -> Scalar:
        """√(2/ε), the radius of the support in units of √ρ; ∞ for α ≤ 1."""
        gap = self._gap
        if not isinstance(gap, Tensor):
            return math.sqrt(2 / gap) if gap > 0 else math.inf
        return torch.where(gap > 0, (2 / torch.where(gap > 0, gap, 1.0)).sqrt(), math.inf)

    def log_density(self, square: Tensor, half_log_det: Tensor) -> Tensor:
        """ln p at ``square`` = Δ/unit², the unit being √ρ: −inf with zero gradient off the support, NaN at NaN."""
        gap, peak, weight = self.coefficients(half_log_det)
        log_peak = peak - weight * half_log_det
        # Clamp squares that overflowed to infinity, which would turn zero gradients into NaN.
        u = 0.5 * square.clamp(max=torch.finfo(square.dtype).max)
        if isinstance(gap, float) and gap == 0:
            return log_peak - u
        y = -gap * u
        outside = y <= -1
        if isinstance(gap, Tensor):
            inner = torch.where(outside, 0.0, u)
            return torch.where(outside, -math.inf, log_peak - inner * log1p_over(-gap * inner))
        return torch.where(outside, -math.inf, log_peak + torch.log1p(torch.where(outside, 0.0, y)) / gap)

    def radius(self, half_log_det: Tensor) -> Tensor:
        """R, the Mahalanobis radius of the support; +∞ for α ≤ 1."""
        return extent(self.log_unit(half_log_det).exp(), self.reach)

    def threshold(self, half_log_det: Tensor) -> Tensor:
        """λ = A − 1/ε = −ρ/ε; −∞ at α = 1."""
        gap, rho = self.gap(half_log_det), self.log_rho(half_log_det).exp()
        if isinstance(gap, float):
            return -rho / gap if gap else torch.full_like(rho, -math.inf)
        gaussian = gap == 0
        return torch.where(gaussian, -math.inf, -rho / torch.where(gaussian, 1.0, gap))

    def normalizer(self, half_log_det: Tensor) -> Tensor:
        """The normaliser A of the score −Δ/2, −expm1(ln ρ)/ε."""
        log_peak = self.log_peak(half_log_det)
        return -log_peak * expm1_over(self.gap(half_log_det) * log_peak)

    def variance_factor(self, half_log_det: Tensor) -> Tensor:
        """v with Cov = vΣ."""
        return self.log_rho(half_log_det).exp() / _in_dtype(self._margin(), half_log_det)

    def negentropy(self, half_log_det: Tensor) -> Tensor:
        """Ω_α(p) = expm1(ln ρ − log1p(εs/α))/(αε)."""
        gap = self.gap(half_log_det)
        y = self.log_peak(half_log_det) - _in_dtype(self._log1p_over_index(), half_log_det)
        return y / (1 + gap) * expm1_over(gap * y)

    def _log1p_over_index(self) -> Scalar:
        """log1p(εs/α)/ε."""
        gap = self._gap
        ratio = self.half / (1 + gap)
        near = ratio * log1p_quotient(gap * ratio)
        if isinstance(gap, Tensor):
            far = gap * ratio < -0.5
            return torch.where(far, log(self._margin() / self.alpha) / torch.where(far, gap, 1), near)
        return log(self._margin() / self.alpha) / gap if gap * ratio < -0.5 else near

    def conjugate(self, half_log_det: Tensor) -> Tensor:
        """Ω_α* of the score −Δ/2, εΩ_α(p) + A = ((1+εs)A − εs/α)/(α+εs); the last form has no cancellation."""
        grown = self._gap * self.half
        terms = (1 + grown, grown / (1 + self._gap), self._margin())
        share, shift, margin = (_in_dtype(term, half_log_det) for term in terms)
        return (share * self.normalizer(half_log_det) - shift) / margin

    def entropy(self, half_log_det: Tensor) -> Tensor:
        """Shannon entropy, −C + s − εG'(ε)."""
        shift = self.half - self._gap * log_gamma_ratio_slope(self._gap, self.dim)
        return _in_dtype(shift, half_log_det) - self.log_peak(half_log_det)

    def log_power_integral(self, gamma: Scalar, half_log_det: Tensor) -> Tensor:
        """ln ∫p^γ = (γ−1)C + G(ε) − G(ε/γ) − s ln γ for γ > 0; a number γ may be ≤ 0 where the support is bounded."""
        if not isinstance(gamma, Tensor) and not isinstance(self._gap, Tensor):
            gap = self._gap
            bound = -gap if gap > 0 else -gap * self.half
            if gamma <= bound:
                raise ValueError(
                    f"gamma must exceed {bound:.6g}; got {gamma}, for which the integral diverges. Pass a larger gamma."
                )
            if gamma <= 0:
                k = gamma / gap
                volume = self.half * (self.log_rho(half_log_det) + math.log(2 * math.pi / gap)) + half_log_det
                share = math.lgamma(k + 1) - math.lgamma(k + 1 + self.half)
                return gamma * self.log_peak(half_log_det) + volume + share
        order, wide = float64_of(gamma, half_log_det), float64_of(self.alpha, half_log_det) - 1
        shift = log_gamma_ratio(wide, self.dim) - log_gamma_ratio(wide / order, self.dim) - self.half * order.log()
        return _in_dtype(order - 1, half_log_det) * self.log_peak(half_log_det) + _in_dtype(shift, half_log_det)

    def log_escort_stretch(self, gamma: float, half_log_det: Tensor) -> Tensor:
        """½ ln m with mΣ the scale matrix of the γ-escort ∝ p^γ, which is the β-Gaussian of index 1 + ε/γ."""
        escort = Profile(1 + (self.alpha - 1) / gamma, self.dim)
        return escort.log_stretch(self.log_rho(half_log_det) - math.log(gamma), half_log_det)

    def log_stretch(self, log_ratio: Scalar, half_log_det: Tensor) -> Tensor:
        """½ ln m such that Σ = mT has ρΣ = rT, with ρ of this Σ; ``log_ratio`` = ln r, ``half_log_det`` = ½ ln|T|."""
        _, _, weight = self.coefficients(half_log_det)
        return 0.5 * (log_ratio - self.log_rho(half_log_det)) / weight

    def unit_sq_of(self, given: str, like: Tensor) -> Scalar:
        """The r with ρΣ = r·Cov, r = 1 + ε(s+1); for ``given`` = "support" the r with ρΣ = r·R²Σ, r = ε/2 (α > 1)."""
        return _in_dtype(0.5 * self._gap if given == "support" else self._margin(), like)


class UniformProfile(Profile):
    """The profile for α = ∞: density one on an ellipsoid of volume one, for any |Σ|; the unit is the radius R."""

    reach = 1.0

    def __init__(self, dim: int) -> None:
        self.alpha = math.inf
        self.dim = dim
        self.half = dim / 2
        self._log_unit_radius_sq = (math.lgamma(1 + self.half) - self.half * math.log(math.pi)) / self.half

    def log_peak(self, half_log_det: Tensor) -> Tensor:
        """C = 0; negentropy and entropy are 0 too."""
        return torch.zeros_like(half_log_det)

    negentropy = entropy = log_peak

    def log_power_integral(self, gamma: Scalar, half_log_det: Tensor) -> Tensor:
        """ln ∫p^γ = 0; also the ½ ln m = 0 of the escort, which is the uniform density itself."""
        return torch.zeros_like(half_log_det)

    log_escort_stretch = log_power_integral

    def unit(self, scale: Tensor) -> Tensor:
        """The half-width on the line, R·σ."""
        return scale * self.radius(scale.log())

    def log_unit(self, half_log_det: Tensor) -> Tensor:
        """ln R, for which the ellipsoid Δ ≤ R² has volume one."""
        return 0.5 * (self._log_unit_radius_sq - half_log_det / self.half)

    def log_density(self, square: Tensor, half_log_det: Tensor) -> Tensor:
        """0 on the ellipsoid, −inf outside, with zero gradient."""
        # Make the zero a function of the parameters, so that a backward pass gives zero gradients instead of an error.
        zero = 0.0 * (square.clamp(max=torch.finfo(square.dtype).max) + half_log_det)
        return torch.where(square >= 1, -math.inf, zero)

    def threshold(self, half_log_det: Tensor) -> Tensor:
        """λ = −R²/2, equal to A = λ + 1/ε, since 1/ε = 0."""
        return -0.5 * self.radius(half_log_det).square()

    normalizer = threshold

    def variance_factor(self, half_log_det: Tensor) -> Tensor:
        """R²/(N+2)."""
        return self.radius(half_log_det).square() / (self.dim + 2)

    def conjugate(self, half_log_det: Tensor) -> Tensor:
        """−½R²·N/(N+2): the mean score, since the negentropy is 0."""
        return -0.5 * self.dim * self.variance_factor(half_log_det)


def profile_of(alpha: Scalar, dim: int) -> Profile:
    """The profile for any α > N/(N+2), ∞ included."""
    if not isinstance(alpha, Tensor) and math.isinf(alpha):
        return UniformProfile(dim)
    return Profile(alpha, dim)


def _coefficients(gap: Any, dim: int) -> tuple[Any, Any, Any]:
    """ε, c, w of :meth:`Profile.coefficients`, for a number or a float64 tensor ε."""
    weight = 1 / (1 + dim / 2 * gap)
    return gap, weight * (log_gamma_ratio(gap, dim) - dim / 2 * _LOG_2PI), weight


_known_coefficients = functools.lru_cache(maxsize=256)(_coefficients)


def _in_dtype(value: Scalar, like: Tensor) -> Scalar:
    """A tensor, cast to the dtype of ``like``, or a number, unchanged."""
    return value.to(like.dtype) if isinstance(value, Tensor) else value


def log1p_quotient(y: Scalar) -> Scalar:
    """log1p(y)/y of a number or a tensor: 1 at 0, and 0 at ∞."""
    if isinstance(y, Tensor):
        return log1p_over(y)
    return 1.0 if y == 0 else 0.0 if math.isinf(y) else math.log1p(y) / y


def log(y: Scalar) -> Scalar:
    """ln of a number or a tensor."""
    return torch.log(y) if isinstance(y, Tensor) else math.log(y)


def _exp(y: Scalar) -> Scalar:
    return torch.exp(y) if isinstance(y, Tensor) else math.exp(y)


def extent(unit: Tensor, reach: Scalar) -> Tensor:
    """reach·unit; where the reach is ∞, +∞ with zero gradient, because a product would have NaN gradients there."""
    if not isinstance(reach, Tensor):
        return reach * unit if reach < math.inf else torch.full_like(unit, math.inf)
    endless = reach == math.inf
    return torch.where(endless, math.inf, torch.where(endless, 1.0, reach) * unit).to(unit.dtype)
