"""β-Gaussians on the real line: the Ω_α-map of a quadratic score."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from contmax._eager import in_dtype
from contmax._typing import Float
from contmax.densities._beta_law import draw_offsets, line_law
from contmax.densities._elliptical import Elliptical, adjustable_profile, index_of_moments, weighted_moments
from contmax.densities._line import LineDensity, LineLaw, offset_in
from contmax.densities._profile import extent
from contmax.densities._scale import DiagonalScale
from contmax.densities._validation import Number, Samples, as_parameters, as_samples, require_positive, require_spread


class BetaGaussian(Elliptical, LineDensity):
    r"""β-Gaussian; for α ≠ 1 its width does not grow like ``scale``: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = \exp_{2-\alpha}\!\Big(-\frac{(t-\mu)^2}{2\sigma^2} - A\Big)
                   = \Big[\frac{R^2 - (t-\mu)^2/\sigma^2}{2k}\Big]_+^k, \qquad k = \frac1{\alpha-1}

    the maximiser of :math:`E_p[f] - \Omega_\alpha(p)` for the score :math:`f(t) = -(t-\mu)^2/2\sigma^2`. α = 1 is the
    Gaussian, α = 2 the truncated parabola (Epanechnikov), α = 3/2 the biweight, α = 4/3 the triweight, α = ∞ the
    uniform density of height one, α < 1 a Student-t with 2/(1−α) − 1 degrees of freedom.

    Args:
        loc: location μ, shape broadcastable to ``(*batch)``.
        scale: shape parameter σ > 0, shape broadcastable to ``(*batch)``.
        alpha: entropic index α > 1/3: a number (∞ included), or a tensor of finite values that broadcasts with the
            others, may require gradients and may have entries below, at and above 1.
        validate_args: check values; by default on eager CPU tensors only.

    Raises:
        ValueError: if a value is NaN, ``scale`` is not positive, ``alpha`` is out of range, or shapes do not broadcast.

    Example:
        >>> p = BetaGaussian(loc=0.0, scale=(2 / 3) ** 0.5, alpha=2.0)
        >>> p.half_width, p.density(torch.tensor([0.0, 0.5, 2.0]))
        (tensor(1.), tensor([0.7500, 0.5625, 0.0000]))

    References:
        Martins et al. 2020, Sec. 2.3–2.4.
    """

    _batched: ClassVar = {"loc": 0, "scale": 0, "alpha": 0}
    _kinks = 0

    def __init__(self, loc: Number, scale: Number, alpha: Number = 2.0, *, validate_args: bool | None = None) -> None:
        LineDensity.__init__(self, loc, scale, validate_args=validate_args)
        self._set_index(alpha, validate_args)

    def _rebind(self) -> None:
        super()._rebind()
        self._sigma = DiagonalScale(self._wide(self.scale).unsqueeze(-1))

    def _delta(self, points: Tensor) -> Tensor:
        return offset_in(self._wide(self.scale), points - self._wide(self.loc)).square()

    def _half_width(self) -> Tensor:
        return extent(self.unit(), self._profile.reach)

    def _delta_in_units(self, points: Tensor) -> Tensor:
        return offset_in(self.unit(), points - self._wide(self.loc)).square()

    @property
    def variance(self) -> Float[Tensor, "*batch"]:
        """a²/(2k+3) with a the half-width (α > 1); σ² only for α = 1."""
        return self._round(self._profile.variance_factor(self._half_log_det()) * self._wide(self.scale).square())

    @property
    def canonical(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """θ = (μ/σ², −1/2σ²), the coefficients of t and t² in the score."""
        scale = self._wide(self.scale)
        precision = 1 / (scale * scale)
        return self._round(self._wide(self.loc) * precision), self._round(-0.5 * precision)

    @classmethod
    def from_canonical(
        cls, linear: Number, quadratic: Number, alpha: Number = 2.0, *, validate_args: bool | None = None
    ) -> Self:
        r"""The density of the score :math:`\theta_1 t + \theta_2 t^2`.

        Args:
            linear: θ₁.
            quadratic: θ₂ < 0.
            alpha: entropic index α.
            validate_args: as for the class.

        Returns:
            The density with σ² = −1/(2θ₂) and μ = σ²θ₁.

        Raises:
            ValueError: if ``quadratic`` is not negative.

        Example:
            >>> BetaGaussian.from_canonical(2.0, -0.5).loc
            tensor(2.)
        """
        linear, quadratic = as_parameters(linear=linear, quadratic=quadratic)
        require_positive("-quadratic", -quadratic, "Pass theta_2 = -1/(2σ²) < 0.", validate_args)
        variance = -0.5 / quadratic
        return cls._made(variance * linear, variance.sqrt(), alpha, validate_args=validate_args)

    @classmethod
    def from_moments(
        cls, mean: Number, variance: Number, alpha: Number = 2.0, *, validate_args: bool | None = None
    ) -> Self:
        """The member with this mean and variance, exactly.

        Args:
            mean: mean, shape broadcastable to ``(*batch)``.
            variance: variance > 0, shape broadcastable to ``(*batch)``.
            alpha: entropic index α, finite.
            validate_args: as for the class.

        Returns:
            The density. For α = 2, σ² = ⅔(5·variance)^{3/2}.

        Raises:
            ValueError: if ``variance`` is not positive, or ``alpha`` is infinite.

        Example:
            >>> BetaGaussian.from_moments(0.0, 0.2).half_width.round(decimals=4)
            tensor(1.)
        """
        mean, variance = as_parameters(mean=mean, variance=variance)
        require_positive("variance", variance, "Pass the square of a standard deviation.", validate_args)
        profile = adjustable_profile(alpha, 1, "variance", validate_args)
        wide = cls._wide(variance)
        scale = profile.scale_of_unit(wide, profile.unit_sq_of("variance", wide), order=2)
        return cls._made(mean, in_dtype(scale, variance.dtype), alpha, validate_args=validate_args)

    @classmethod
    def from_support(cls, low: Number, high: Number, alpha: Number = 2.0, *, validate_args: bool | None = None) -> Self:
        """The member whose support is the interval [low, high].

        Args:
            low: lower end, shape broadcastable to ``(*batch)``.
            high: upper end, greater than ``low``.
            alpha: entropic index, 1 < α < ∞.
            validate_args: as for the class.

        Returns:
            The density. For α = 2 and half-width a, σ² = ⅔a³.

        Raises:
            ValueError: if ``high`` is not above ``low``, or no member with this α has such a support.

        Example:
            >>> BetaGaussian.from_support(-1.0, 3.0).loc
            tensor(1.)
        """
        middle, half_width = cls._middle_and_half_width(low, high, validate_args)
        profile = adjustable_profile(alpha, 1, "support", validate_args)
        scale = profile.scale_of_unit(half_width, profile.unit_sq_of("support", half_width) ** 0.5, order=1)
        return cls._made(middle, in_dtype(scale, middle.dtype), alpha, validate_args=validate_args)

    @classmethod
    def fit(cls, samples: Samples, alpha: Number | None = 2.0, *, weights: Tensor | None = None) -> Self:
        r"""The minimiser of the Fenchel–Young loss: the member with the mean and the biased variance of the samples.

        It matches moments, not likelihoods: samples may lie outside of its support, where their density is 0.

        Args:
            samples: observations along the first dimension, ``(n, *batch)``: a tensor, an array of numpy, or numbers.
            alpha: entropic index α, finite; None to find α too, as a tensor ``(*batch)``: the one whose member also has
                the kurtosis of the samples, from 0.6 (heavy tails) over 1 (Gaussian) to 101 (nearly uniform).
            weights: weights ≥ 0, broadcastable to ``samples``; uniform by default.

        Returns:
            The density, with batch shape ``(*batch)``.

        Raises:
            ValueError: if the samples are all equal, or not finite.

        Example:
            >>> BetaGaussian.fit(torch.tensor([-1.0, 1.0]), alpha=1.0).scale
            tensor(1.)
            >>> samples = BetaGaussian(0.0, 1.0, alpha=1.5).icdf(torch.linspace(0.001, 0.999, 999))
            >>> BetaGaussian.fit(samples, alpha=None).alpha.round(decimals=1)
            tensor(1.5000)

        References:
            Martins et al. 2020, App. on Fenchel–Young losses.
        """
        samples = as_samples(samples)
        require_spread(samples)
        if alpha is None:
            alpha = index_of_moments(samples, weights)
        mean, variance = weighted_moments(samples.unsqueeze(-1), weights)
        return cls.from_moments(mean.squeeze(-1), variance[..., 0, 0], alpha)

    def _stretched(self, factor: Tensor, alpha: Number) -> "BetaGaussian":
        return BetaGaussian(self.loc, self._round(factor * self._wide(self.scale)), alpha)

    def law(self) -> LineLaw:
        """The law of (t−μ)/unit, by the cheapest exact formula for α."""
        return line_law(self._profile)

    def unit(self) -> Tensor:
        """√ρ·σ with ρ of ``_profile``, or the half-width for α = ∞."""
        return self._profile.unit(self._wide(self.scale))

    def _standard_draws(self, shape: torch.Size, like: Tensor) -> Tensor:
        return draw_offsets(self._profile, shape, like).squeeze(-1)

    @classmethod
    def _made(cls, loc: Tensor, scale: Tensor, alpha: Number, *, validate_args: bool | None) -> Self:
        """A ``cls`` with these parameters, set by BetaGaussian's constructor, since TruncatedParabola's takes no α."""
        new = cls.__new__(cls)
        BetaGaussian.__init__(new, loc, scale, alpha, validate_args=validate_args)
        return new


class TruncatedParabola(BetaGaussian):
    r"""Truncated parabola (Epanechnikov); its width grows like σ^{2/3}: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = \Big[-\lambda - \frac{(t-\mu)^2}{2\sigma^2}\Big]_+, \qquad
              \lambda = -\tfrac12\Big(\frac{3}{2\sigma}\Big)^{2/3}, \qquad a = \Big(\frac{3\sigma^2}{2}\Big)^{1/3}

    The :class:`BetaGaussian` of index α = 2.

    Args:
        loc: location μ, shape broadcastable to ``(*batch)``.
        scale: shape parameter σ > 0, shape broadcastable to ``(*batch)``.
        validate_args: check values; by default on eager CPU tensors only.

    Example:
        >>> TruncatedParabola.from_support(-1.0, 1.0).variance
        tensor(0.2000)

    References:
        Martins et al. 2020, Eq. (truncated parabola).
    """

    _only_alpha = 2.0

    def __init__(self, loc: Number, scale: Number, *, validate_args: bool | None = None) -> None:
        super().__init__(loc, scale, 2.0, validate_args=validate_args)
