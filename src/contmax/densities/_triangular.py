"""The triangular density: the Ω₂-map of −|t−μ|/b."""

import math
from typing import Self

import torch
from torch import Tensor
from torch.types import _size

from contmax._typing import Float
from contmax.densities._line import LineDensity, LineLaw
from contmax.densities._validation import (
    Samples,
    as_parameters,
    as_samples,
    require_positive,
    require_spread,
)


class _TriangularLaw(LineLaw):
    """In units of the half-width."""

    reach = 1.0

    def log_density(self, depth: Tensor) -> Tensor:
        outside = depth >= 1
        return torch.where(outside, -math.inf, torch.log1p(-torch.where(outside, 0.0, depth)))

    def tail(self, depth: Tensor) -> Tensor:
        return 0.5 * (1 - depth).clamp(min=0).square()

    def depth(self, tail: Tensor) -> Tensor:
        return 1 - (2 * tail).sqrt()


class Triangular(LineDensity):
    r"""Triangular density; its half-width is √b, not ``scale``: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = \Big[-\lambda - \frac{|t-\mu|}{b}\Big]_+, \qquad \lambda = -\frac1{\sqrt b}, \qquad a = \sqrt b

    the maximiser of :math:`E_p[f] - \Omega_2(p)` for the score :math:`f(t) = -|t-\mu|/b` of the Laplace density.

    Args:
        loc: location μ, shape broadcastable to ``(*batch)``.
        scale: shape parameter b > 0, shape broadcastable to ``(*batch)``.
        validate_args: check values; by default on eager CPU tensors only.

    Raises:
        ValueError: if a value is NaN, ``scale`` is not positive, or shapes do not broadcast.

    Example:
        >>> Triangular(0.0, 4.0).density(torch.tensor([0.0, 1.0, 3.0]))
        tensor([0.5000, 0.2500, 0.0000])

    References:
        Martins et al. 2020, Eq. (triangular).
    """

    alpha = 2.0

    def law(self) -> LineLaw:
        """The law of (t−μ)/√b."""
        return _TriangularLaw()

    def unit(self) -> Tensor:
        """The half-width √b."""
        return self._wide(self.scale).sqrt()

    def _score(self, points: Tensor) -> Tensor:
        return -(points - self._wide(self.loc)).abs() / self._wide(self.scale)

    @property
    def threshold(self) -> Float[Tensor, "*batch"]:
        """λ = −1/√b, with p = [f − λ]₊."""
        return self._round(-1 / self._half_width())

    @property
    def variance(self) -> Float[Tensor, "*batch"]:
        """b/6."""
        return self._round(self._wide(self.scale) / 6)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats, ½ + ½ ln b."""
        return self._round(0.5 + 0.5 * self._wide(self.scale).log())

    def tsallis_negentropy(self) -> Float[Tensor, "*batch"]:
        """Ω₂(p) = −½ + 1/(3√b)."""
        return self._round(1 / (3 * self._half_width()) - 0.5)

    def conjugate(self) -> Float[Tensor, "*batch"]:
        """Ω₂* of the centred score, ½ − 2/(3√b)."""
        return self._round(0.5 - 2 / (3 * self._half_width()))

    @property
    def canonical(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """(μ, θ) with θ = −1/b, the coefficient of |t−μ| in the score: a family for each location."""
        return self.loc, self._round(-1 / self._wide(self.scale))

    @classmethod
    def from_canonical(cls, loc: float | Tensor, slope: float | Tensor, *, validate_args: bool | None = None) -> Self:
        """The density of the score θ·|t−μ|.

        Args:
            loc: μ.
            slope: θ < 0.
            validate_args: as for the class.

        Example:
            >>> Triangular.from_canonical(0.0, -0.25).scale
            tensor(4.)
        """
        loc, slope = as_parameters(loc=loc, slope=slope)
        require_positive("-slope", -slope, "Pass theta = -1/b < 0.", validate_args)
        return cls(loc, -1 / slope, validate_args=validate_args)

    @classmethod
    def from_moments(cls, mean: float | Tensor, variance: float | Tensor, *, validate_args: bool | None = None) -> Self:
        """The member with this mean and variance: b = 6·variance.

        Args:
            mean: mean, shape broadcastable to ``(*batch)``.
            variance: variance > 0, shape broadcastable to ``(*batch)``.
            validate_args: as for the class.

        Example:
            >>> Triangular.from_moments(0.0, 1.5).half_width
            tensor(3.)
        """
        mean, variance = as_parameters(mean=mean, variance=variance)
        return cls(mean, 6 * variance, validate_args=validate_args)

    @classmethod
    def from_support(cls, low: float | Tensor, high: float | Tensor, *, validate_args: bool | None = None) -> Self:
        """The member whose support is the interval [low, high].

        Args:
            low: lower end, shape broadcastable to ``(*batch)``.
            high: upper end, greater than ``low``.
            validate_args: as for the class.

        Raises:
            ValueError: if ``high`` is not above ``low``.

        Example:
            >>> Triangular.from_support(-1.0, 3.0).scale
            tensor(4.)
        """
        low, high = as_parameters(low=low, high=high)
        half_width = 0.5 * (high - low)
        require_positive("high - low", half_width, "Pass low < high.", validate_args)
        return cls(low + half_width, half_width.square(), validate_args=validate_args)

    @classmethod
    def fit(cls, samples: Samples) -> Self:
        r"""The minimiser of the Fenchel–Young loss: the median, and b = 9·(mean absolute deviation from it)².

        Samples may lie outside of its support, where their density is 0.

        Args:
            samples: observations along the first dimension, ``(n, *batch)``: a tensor, an array of numpy, or numbers.

        Returns:
            The density, with batch shape ``(*batch)``.

        Raises:
            ValueError: if the samples are all equal, or not finite.

        Example:
            >>> Triangular.fit(torch.tensor([-3.0, 0.0, 3.0])).scale
            tensor(36.)

        References:
            Martins et al. 2020, App. on Fenchel–Young losses: the derivative of
            :math:`\tfrac12 - 2/(3\sqrt b) + E|t-\mu|/b`.
        """
        samples = as_samples(samples)
        require_spread(samples)
        wide = cls._wide(samples)
        median = wide.median(dim=0).values
        deviation = (wide - median).abs().mean(0)
        return cls(median.to(samples.dtype), (9 * deviation.square()).to(samples.dtype))

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Exact draws with gradients, from the sum of two uniform variables; shape ``(*sample_shape, *batch)``."""
        width = self._half_width()
        shape = torch.Size(sample_shape) + self.batch_shape
        first, second = (torch.rand(shape, dtype=width.dtype, device=width.device) for _ in range(2))
        return self._draws(width * (first + second - 1) * (1 - 8 * torch.finfo(width.dtype).eps))
