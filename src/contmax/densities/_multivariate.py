"""β-Gaussians in N dimensions: the Ω_α-map of a quadratic score."""

from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from contmax._typing import Float
from contmax.densities._beta_law import draw_offsets, radial_cdf
from contmax.densities._density import Condition
from contmax.densities._elliptical import Elliptical, adjustable_profile, weighted_moments
from contmax.densities._profile import log
from contmax.densities._region import EllipsoidRegion
from contmax.densities._scale import Scale, given_scale, scale_of
from contmax.densities._validation import (
    Number,
    Samples,
    as_parameters,
    as_samples,
    broadcast_batch,
    expanded,
    require_broadcastable,
    require_finite,
)


class MultivariateBetaGaussian(Elliptical):
    r"""β-Gaussian in N dimensions; for α ≠ 1 Σ is not its covariance: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = \exp_{2-\alpha}(-\tfrac12\Delta - A) = \Big[\frac{R^2 - \Delta}{2k}\Big]_+^k, \qquad
              \Delta = (t-\mu)^\top\Sigma^{-1}(t-\mu), \quad k = \frac1{\alpha-1}

    the maximiser of :math:`E_p[f] - \Omega_\alpha(p)` for the score :math:`f = -\Delta/2`. α = 1 is the Gaussian, α = 2
    the truncated paraboloid, α = ∞ the uniform density of height one, α < 1 a multivariate Student-t. A diagonal Σ does
    not make the coordinates independent unless α = 1.

    Give exactly one of ``scale_matrix``, ``scale_tril``, ``precision_matrix`` and ``scale_diag``.

    Args:
        loc: location μ, ``(*batch, N)``.
        scale_matrix: Σ, symmetric positive definite, ``(*batch, N, N)``; its gradient is symmetric.
        alpha: entropic index α > N/(N+2): a number (∞ included), or a tensor of finite values that broadcasts to
            ``(*batch)``, may require gradients and may have entries below, at and above 1.
        scale_tril: lower triangular L with LLᵀ = Σ and positive diagonal, ``(*batch, N, N)``.
        precision_matrix: Σ⁻¹, ``(*batch, N, N)``.
        scale_diag: σ > 0 with Σ = diag(σ₁², …, σ_N²), ``(*batch, N)``; no matrix is formed.
        validate_args: check values; by default on eager CPU tensors only.

    Raises:
        ValueError: if not exactly one scale is given, a value is NaN, Σ is not positive definite, ``alpha`` is out of
            range, or shapes do not fit.

    Example:
        >>> p = MultivariateBetaGaussian(torch.zeros(2), torch.eye(2))
        >>> p.threshold, p.density(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
        (tensor(-0.5642), tensor([0.5642, 0.0000]))

    References:
        Martins et al. 2020, Sec. 2.4.
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "scale_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
        "precision_matrix": constraints.positive_definite,
    }
    _batched: ClassVar = {"loc": 1, "alpha": 0}

    def __init__(
        self,
        loc: Tensor,
        scale_matrix: Tensor | None = None,
        alpha: Number = 2.0,
        *,
        scale_tril: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_diag: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, raw = given_scale(
            scale_matrix=scale_matrix, scale_tril=scale_tril, precision_matrix=precision_matrix, scale_diag=scale_diag
        )
        loc, raw = as_parameters(loc=loc, **{name: raw})
        self._assemble(loc, scale_of(loc, name, raw, validate_args), alpha, validate_args)

    def _assemble(self, loc: Tensor, scale: Scale, alpha: Number, validate_args: bool | None) -> None:
        """Set all attributes; checks loc and alpha, but not the scale, which is checked when it is made."""
        require_finite("loc", loc, validate_args)
        batch = broadcast_batch(loc=loc.shape[:-1], scale=scale.batch_shape)
        self.loc, self._sigma = expanded(loc, (*batch, scale.dim)), scale
        super().__init__(batch, torch.Size([scale.dim]))
        self._set_index(alpha, validate_args)

    @property
    def scale_matrix(self) -> Float[Tensor, "*batch N N"]:
        """Σ."""
        return self._of_batch(self._sigma.matrix(), 2)

    @property
    def scale_tril(self) -> Float[Tensor, "*batch N N"]:
        """L, lower triangular with LLᵀ = Σ."""
        return self._of_batch(self._sigma.tril(), 2)

    @property
    def precision_matrix(self) -> Float[Tensor, "*batch N N"]:
        """Σ⁻¹."""
        return self._of_batch(self._sigma.precision(), 2)

    def _delta(self, points: Tensor) -> Tensor:
        return self._sigma.mahalanobis_sq(points - self._wide(self.loc))

    def _delta_in_units(self, points: Tensor) -> Tensor:
        return self._standard().mahalanobis_sq(points - self._wide(self.loc))

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """The ellipsoid Δ ≤ R², or all of ℝᴺ."""
        if not isinstance(self.alpha, Tensor) and self.alpha <= 1:
            return constraints.real_vector
        square = self._profile.radius(self._half_log_det()).square()
        return Condition(f"Ellipsoid(dim={self._dim})", lambda points: self._delta(points) <= square, 1)

    def _region(self) -> EllipsoidRegion:
        radius = self._profile.radius(self._half_log_det())
        bounded = radius < torch.inf
        factor = self._sigma.stretched(torch.where(bounded, radius, 1.0)).tril().double()
        batch = self.batch_shape
        return EllipsoidRegion(self.loc.double(), factor.expand(*batch, self._dim, self._dim), bounded.expand(batch))

    @property
    def variance(self) -> Float[Tensor, "*batch N"]:
        """The diagonal of the covariance."""
        factor = self._profile.variance_factor(self._half_log_det())
        return self._of_batch(factor.unsqueeze(-1) * self._sigma.diagonal(), 1)

    @property
    def covariance_matrix(self) -> Float[Tensor, "*batch N N"]:
        """R²Σ/(N+2k+2); Σ only for α = 1."""
        factor = self._profile.variance_factor(self._half_log_det())
        return self._of_batch(factor[..., None, None] * self._sigma.matrix(), 2)

    @property
    def canonical(self) -> tuple[Float[Tensor, "*batch N"], Float[Tensor, "*batch N N"]]:
        """θ = (Σ⁻¹μ, −½Σ⁻¹), the coefficients of t and ttᵀ in the score."""
        precision = self._sigma.precision()
        linear = (precision * self._wide(self.loc).unsqueeze(-2)).sum(-1)
        return self._round(linear), self._of_batch(-0.5 * precision, 2)

    @classmethod
    def from_canonical(
        cls, linear: Tensor, quadratic: Tensor, alpha: Number = 2.0, *, validate_args: bool | None = None
    ) -> Self:
        r"""The density of the score :math:`\theta_1^\top t + \operatorname{tr}(\Theta_2 tt^\top)`.

        Args:
            linear: θ₁, ``(*batch, N)``.
            quadratic: Θ₂, symmetric negative definite, ``(*batch, N, N)``.
            alpha: entropic index α.
            validate_args: as for the class.

        Returns:
            The density with Σ = (−2Θ₂)⁻¹ and μ = Σθ₁.

        Raises:
            ValueError: if ``quadratic`` is not negative definite.

        Example:
            >>> MultivariateBetaGaussian.from_canonical(torch.ones(2), -0.5 * torch.eye(2)).loc
            tensor([1., 1.])
        """
        linear, quadratic = as_parameters(linear=linear, quadratic=quadratic)
        scale = scale_of(linear, "-2 * quadratic", -2 * quadratic, validate_args, kind="precision_matrix")
        loc = (scale.matrix() * linear.unsqueeze(-2)).sum(-1)
        return cls._of_scale(loc.to(linear.dtype), scale, alpha, validate_args)

    @classmethod
    def from_moments(
        cls, mean: Tensor, covariance: Tensor, alpha: Number = 2.0, *, validate_args: bool | None = None
    ) -> Self:
        """The member with this mean and covariance, exactly.

        Args:
            mean: mean, ``(*batch, N)``.
            covariance: covariance V, symmetric positive definite, ``(*batch, N, N)``.
            alpha: entropic index α, finite.
            validate_args: as for the class.

        Returns:
            The density; its Σ is a multiple of V.

        Raises:
            ValueError: if ``covariance`` is not positive definite, or ``alpha`` is infinite.

        Example:
            >>> MultivariateBetaGaussian.from_moments(torch.zeros(2), 3 * torch.eye(2)).variance.round(decimals=4)
            tensor([3., 3.])
        """
        return cls._proportional("covariance", alpha, validate_args, mean=mean, covariance=covariance)

    @classmethod
    def from_support(
        cls, center: Tensor, shape_matrix: Tensor, alpha: Number = 2.0, *, validate_args: bool | None = None
    ) -> Self:
        """The member whose support is the ellipsoid (t−c)ᵀT⁻¹(t−c) ≤ 1.

        Args:
            center: centre c, ``(*batch, N)``.
            shape_matrix: T, symmetric positive definite, ``(*batch, N, N)``: its eigenvalues are squared semi-axes.
            alpha: entropic index, 1 < α < ∞.
            validate_args: as for the class.

        Returns:
            The density; its Σ is T/R².

        Raises:
            ValueError: if ``shape_matrix`` is not positive definite, or no member with this α has such a support.

        Example:
            >>> p = MultivariateBetaGaussian.from_support(torch.zeros(2), torch.diag(torch.tensor([4.0, 1.0])))
            >>> p.support.check(torch.tensor([[1.99, 0.0], [0.0, 1.01]]))
            tensor([ True, False])
        """
        return cls._proportional("support", alpha, validate_args, center=center, shape_matrix=shape_matrix)

    @classmethod
    def fit(cls, samples: Samples, alpha: Number = 2.0, *, weights: Tensor | None = None) -> Self:
        """The minimiser of the Fenchel–Young loss: the member with the mean and biased covariance of the samples.

        It matches moments, not likelihoods: samples may lie outside of its support, where their density is 0.

        Args:
            samples: observations along the first dimension, ``(n, *batch, N)``, a tensor, an array or numbers.
            alpha: entropic index α, finite.
            weights: weights ≥ 0, broadcastable to ``(n, *batch)``; uniform by default.

        Returns:
            The density, with batch shape ``(*batch)``.

        Raises:
            ValueError: if the samples do not span ℝᴺ.

        Example:
            >>> points = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
            >>> MultivariateBetaGaussian.fit(points, alpha=1.0).variance
            tensor([0.5000, 0.5000])
        """
        return cls.from_moments(*weighted_moments(as_samples(samples), weights), alpha)

    def _stretched(self, factor: Tensor, alpha: Number) -> "MultivariateBetaGaussian":
        return MultivariateBetaGaussian._of_scale(self.loc, self._sigma.stretched(factor), alpha)

    def radial_cdf(self, radius: Number) -> Float[Tensor, "..."]:
        r"""P(√Δ ≤ r): the mass inside the ellipsoid of Mahalanobis radius r.

        Args:
            radius: r ≥ 0, broadcasts with the batch.

        Returns:
            :math:`I_{r^2/R^2}(\tfrac N2, k+1)` for α > 1, and its limits; shape of the broadcast batch.

        Example:
            >>> p = MultivariateBetaGaussian(torch.zeros(2), torch.eye(2))
            >>> p.radial_cdf(p.radius)
            tensor(1.)
        """
        (radius,) = as_parameters(radius=radius)
        require_broadcastable("radius", tuple(radius.shape), self.batch_shape)
        return radial_cdf(self._profile, self._wide(radius), self._half_log_det()).to(self._result_dtype(radius))

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Exact draws with gradients to loc, scale and alpha; shape ``(*sample_shape, *batch, N)``."""
        shape = torch.Size(sample_shape) + self.batch_shape
        loc = self._wide(self.loc)
        return self._round(loc + self._standard().apply(draw_offsets(self._profile, shape, loc)))

    def _standard(self) -> Scale:
        """The Scale of ρΣ, ρ of `_profile` (for α = ∞ of R²Σ): it maps draws of the standard β-Gaussian to t − μ."""
        return self._sigma.stretched(self._profile.log_unit(self._half_log_det()).exp())

    @classmethod
    def _of_scale(cls, loc: Tensor, scale: Scale, alpha: Number, validate_args: bool | None = None) -> Self:
        """The density with a given Scale; the constructor takes Σ, L, Σ⁻¹ or σ instead."""
        new = cls.__new__(cls)
        new._assemble(loc, scale, alpha, validate_args)
        return new

    @classmethod
    def _proportional(cls, adjusted: str, alpha: Number, validate_args: bool | None, **given: Tensor) -> Self:
        """The density with the ``given`` centre and matrix T ∝ Σ.

        T is the covariance or, if ``adjusted`` is "support", the shape matrix of the support.
        """
        (center, matrix), (_, name) = as_parameters(**given), given
        shape = scale_of(center, name, matrix, validate_args)
        profile = adjustable_profile(alpha, shape.dim, adjusted, validate_args)
        own = shape.half_log_det()
        log_stretch = profile.log_stretch(log(profile.unit_sq_of(adjusted, own)), own)
        return cls._of_scale(center, shape.stretched(log_stretch.exp()), alpha, validate_args)


class TruncatedParaboloid(MultivariateBetaGaussian):
    r"""Truncated paraboloid; Σ is not its covariance: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = [-\lambda - \tfrac12(t-\mu)^\top\Sigma^{-1}(t-\mu)]_+, \qquad
              \lambda = -\Big(\frac{\Gamma(N/2+2)}{\sqrt{\det 2\pi\Sigma}}\Big)^{2/(N+2)}

    The :class:`MultivariateBetaGaussian` of index α = 2.

    Args:
        loc: location μ, ``(*batch, N)``.
        scale_matrix: Σ, symmetric positive definite, ``(*batch, N, N)``.
        scale_tril: lower triangular L with LLᵀ = Σ, instead of Σ.
        precision_matrix: Σ⁻¹, instead of Σ.
        scale_diag: σ with Σ = diag(σ²), instead of Σ.
        validate_args: check values; by default on eager CPU tensors only.

    Example:
        >>> TruncatedParaboloid(torch.zeros(2), torch.eye(2)).threshold
        tensor(-0.5642)

    References:
        Martins et al. 2020, Eq. (truncated paraboloid).
    """

    _only_alpha = 2.0

    def __init__(
        self,
        loc: Tensor,
        scale_matrix: Tensor | None = None,
        *,
        scale_tril: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_diag: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(
            loc,
            scale_matrix,
            2.0,
            scale_tril=scale_tril,
            precision_matrix=precision_matrix,
            scale_diag=scale_diag,
            validate_args=validate_args,
        )
