"""The base class of all densities, a torch.distributions.Distribution, and copies of densities in other dtypes."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Size, Tensor
from torch.distributions import Categorical, Distribution, constraints
from torch.types import _size

from contmax._eager import common_dtype, in_dtype, is_eager_cpu, require_float64, wide_dtype
from contmax._typing import Float
from contmax.deformed import log_beta
from contmax.densities._line_rule import Landmarks, general_landmarks
from contmax.densities._region import EllipsoidRegion, Intervals, Region, given_region, intersection_over_union
from contmax.densities._validation import expanded, require_broadcastable

_HALF = frozenset((torch.float16, torch.bfloat16))


class Condition(constraints.Constraint):
    """The constraint that a function of points is true.

    Args:
        name: the constraint's repr.
        check: the function, from points to booleans.
        event_dim: 1 if points have coordinates, else 0.
    """

    is_discrete = False

    def __init__(self, name: str, check: Callable[[Tensor], Tensor], event_dim: int) -> None:
        self._name, self.event_dim = name, event_dim
        self.check = check  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return self._name


class Density(Distribution):
    """A probability density on ℝᴺ: a torch distribution that also has a score, a support and its size.

    Points outside the support are legal everywhere: there the density is 0, ``log_prob`` is −inf and ``cdf`` 0 or 1,
    each with zero gradient. Values of parameters are checked on eager CPU tensors, or with ``validate_args=True``. With
    parameters in float16 or bfloat16, results are computed in float32 and rounded once.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True
    #: Names of the tensor attributes that ``expand`` expands, with the number of event dimensions of each.
    _batched: ClassVar[dict[str, int]] = {}

    loc: Tensor
    alpha: float | Tensor
    """The index α: the density is the Ω_α-map of its score. A mixture or a set of samples has none."""

    def __init__(self, batch_shape: Size, event_shape: Size = torch.Size()) -> None:  # noqa: B008
        # Switch off torch's validation, even if it is on by default, because it refuses points off the support.
        super().__init__(batch_shape, event_shape, validate_args=False)

    @abstractmethod
    def _log_density(self, points: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """ln p at points in the working dtype (:meth:`_wide`), before rounding to the result dtype."""

    def log_prob(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """ln p(t).

        Args:
            value: points t, shape ``(*sample, *batch)`` or ``(*sample, *batch, N)``.

        Returns:
            Shape ``(*sample, *batch)``; −inf with zero gradient off the support.

        Raises:
            ValueError: if the shape does not fit.
        """
        return self._log_density_at(self._points(value)).to(self._result_dtype(value))

    def density(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """p(t), zero with zero gradient off the support; arguments as :meth:`log_prob`."""
        return self._log_density_at(self._points(value)).exp().to(self._result_dtype(value))

    def _log_density_at(self, points: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """ln p; −inf with zero gradient at infinite points, where :meth:`_log_density` could compute ∞·0."""
        endless = torch.isinf(points)
        log_density = self._log_density(torch.where(endless, 0.0, points))
        return torch.where(endless.any(-1) if self.event_shape else endless, -math.inf, log_density)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t) on the line: 0 or 1 with zero gradient outside the support; relative accuracy in the lower tail.

        Args:
            value: points t, ``(*sample, *batch)``.

        Returns:
            Shape ``(*sample, *batch)``; differentiable in t and in all parameters.
        """
        points = self._points(value)
        finite = torch.isfinite(points)
        share = self._cdf(torch.where(finite, points, 0.0))
        return torch.where(finite, share, points.detach().clamp(0, 1)).to(self._result_dtype(value))

    def _cdf(self, points: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t) at finite points in the working dtype, before rounding to the result dtype."""
        raise NotImplementedError(f"{type(self).__name__} has no distribution function.")

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The quantile t with P(T ≤ t) = q on the line; NaN for q outside [0, 1].

        Args:
            value: probabilities q, ``(*sample, *batch)``.

        Returns:
            Shape ``(*sample, *batch)``; at q = 0 and 1 the ends of the support, which do not depend on q.
        """
        q = self._points(value)
        valid = q.clamp(0, 1) == q
        return torch.where(valid, self._icdf(torch.where(valid, q, 0.5)), math.nan).to(self._result_dtype(value))

    def _icdf(self, share: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The quantile of a probability in [0, 1] in the working dtype, before rounding to the result dtype."""
        raise NotImplementedError(f"{type(self).__name__} has no quantile function.")

    def score(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        r"""f(t), the score whose Ω_α-map is the density, :math:`p = \exp_{2-\alpha}(f - A)`.

        By default :math:`f = \log_{2-\alpha} p`, for which A = 0; off the support it is then the threshold λ.

        Args:
            value: points t, shape ``(*sample, *batch)`` or ``(*sample, *batch, N)``.

        Returns:
            Shape ``(*sample, *batch)``; also off the support, where f ≤ λ.

        Raises:
            NotImplementedError: if the density is not the map of a score, such as a mixture.

        Example:
            >>> from contmax.densities import Triangular
            >>> Triangular(0.0, 4.0).score(torch.tensor([0.0, 1.0, 8.0]))
            tensor([-0.0000, -0.2500, -2.0000])
        """
        return self._score(self._points(value)).to(self._result_dtype(value))

    def _score(self, points: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The score at points in the working dtype, before rounding to the result dtype."""
        alpha = self.required_alpha()
        return log_beta(self._log_density(points).exp(), 2 - alpha)

    def conjugate(self) -> Float[Tensor, "*batch"]:
        """Ω_α*(f) = E_p[f] − Ω_α(p) of the score f."""
        raise NotImplementedError(
            f"{type(self).__name__} has no conjugate Ω_α* of its score. Define its method conjugate()."
        )

    def required_alpha(self) -> float | Tensor:
        """α; raises an error for a density without one."""
        alpha: float | Tensor | None = getattr(self, "alpha", None)
        if alpha is None:
            raise NotImplementedError(
                f"{type(self).__name__} is not the map of a score, so it cannot be the prediction of a Fenchel–Young "
                "loss. Pass a β-Gaussian, Triangular, LocationScale or another density with alpha and score(t), or "
                "register the pair with contmax.losses.register_fenchel_young."
            )
        return alpha

    def landmarks(self) -> Landmarks:
        """The points that quadrature on the line needs, see :class:`Landmarks`; by default from support and moments."""
        return general_landmarks(self)

    def _region(self) -> Region:
        """The support as a set of points, in float64."""
        raise NotImplementedError(
            f"the support of {type(self).__name__} is not known as a set of intervals or as an ellipsoid. To test "
            "whether points belong to it, call density.support.check(points)."
        )

    @property
    def area(self) -> Float[Tensor, "*batch"]:
        """The size of the support: its length on the line, area in the plane, volume in space; +∞ if unbounded.

        For a mixture on the line it is the length of the union.

        Example:
            >>> from contmax.densities import TruncatedParabola
            >>> TruncatedParabola.from_support(0.2, 0.6).area
            tensor(0.4000)
        """
        return self._round(self._region().volume()).expand(self.batch_shape)

    @property
    def semi_axes(self) -> Float[Tensor, "..."]:
        """Half the diameters of the support: ``(*batch, N)``, the longest first; on the line the half-width.

        +∞ if unbounded. Their first derivatives are those of the singular values.

        Example:
            >>> from contmax.densities import MultivariateBetaGaussian
            >>> shape = torch.diag(torch.tensor([0.01, 0.25]))
            >>> MultivariateBetaGaussian.from_support(torch.zeros(2), shape).semi_axes
            tensor([0.5000, 0.1000])
        """
        region = self._region()
        if not isinstance(region, EllipsoidRegion):
            raise NotImplementedError(f"the support of {type(self).__name__} has no semi-axes. Use density.area.")
        return self._round(region.semi_axes()).expand(self.batch_shape + self.event_shape)

    def iou(self, other: object) -> Float[Tensor, "..."]:
        r"""Intersection over union of two supports, :math:`|A \cap B| / |A \cup B|`, between 0 and 1.

        Args:
            other: another density of this library; an interval as torch's ``Uniform`` or
                :class:`contmax.domains.Interval`; a box as ``Independent(Uniform, 1)`` or
                :class:`contmax.domains.Box`. Its batch broadcasts with that of the density.

        Returns:
            Shape of the broadcast batch. On the line it is exact and has gradients, also for mixtures. In the plane
            (accurate to 1e-9, or 1e-5 for aspect ratios of 1e6) and in space (to 1e-4) it has none. A set of size zero
            gives 0.

        Raises:
            ValueError: if a support is unbounded, or the dimensions differ.
            TypeError: if ``other`` is none of these.
            NotImplementedError: for mixtures in several dimensions, and in more than three dimensions.

        Example:
            >>> from torch.distributions import Uniform
            >>> from contmax.densities import TruncatedParabola
            >>> attended = TruncatedParabola.from_support(torch.tensor([0.2, 0.5]), torch.tensor([0.6, 0.9]))
            >>> attended.iou(Uniform(0.2, 0.7))
            tensor([0.8000, 0.2857])
        """
        region = other._region() if isinstance(other, Density) else given_region(other)
        if region is None:
            raise TypeError(
                f"{type(other).__name__} has no support to compare with. Pass a density of contmax, torch's Uniform, "
                "Independent(Uniform, 1), or contmax.domains.Interval or Box."
            )
        own = self._region()
        for owner, given in ((self, own), (other, region)):
            # Refuse an unbounded support, where boundedness is known without waiting for a device.
            support = owner.support if isinstance(owner, Density) else None
            endless = support is constraints.real or support is constraints.real_vector
            if endless or (is_eager_cpu(given.bounded) and not bool(given.bounded.all())):
                raise ValueError(
                    f"{type(owner).__name__} has unbounded support; intersection over union compares sets of finite "
                    "size. Pass a density with alpha > 1."
                )
        dims = [1 if isinstance(given, Intervals) else given.center.shape[-1] for given in (own, region)]
        if dims[0] != dims[1]:
            raise ValueError(
                f"supports must lie in the same space; got {dims[0]} and {dims[1]} dimensions. "
                "Pass Independent(Uniform(low, high), 1) for a box."
            )
        dtype = torch.promote_types(self.dtype, other.dtype) if isinstance(other, Density) else self.dtype
        return intersection_over_union(own, region).to(dtype)

    @property
    def covariance_matrix(self) -> Float[Tensor, "*batch N N"]:
        """Covariance; in one dimension the variance as a 1×1 matrix."""
        return self.variance[..., None, None]

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        """The density with a larger batch shape, without copying its parameters."""
        new: Self = self._get_checked_instance(type(self), _instance)
        shape = torch.Size(batch_shape)
        if new is not self:  # the compiler of torch 2.10 cannot trace `update`
            new.__dict__.update(self.__dict__)
        for name, event_dims in self._batched.items():
            value = self.__dict__.get(name)
            if isinstance(value, Tensor):
                new.__dict__[name] = expanded(value, shape + value.shape[value.ndim - event_dims :])
        Density.__init__(new, shape, self.event_shape)
        new._rebind()
        return new

    def _rebind(self) -> None:
        """Recompute attributes derived from parameters; called after parameters were set, expanded or cast."""

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws without gradient; shape ``sample_shape + batch_shape + event_shape``."""
        with torch.no_grad():
            return self.rsample(torch.Size(sample_shape))

    def _points(self, value: Tensor) -> Tensor:
        """The points in the working dtype; refuses shapes that do not fit the density."""
        events = len(self.event_shape)
        shape = tuple(value.shape)
        if events and shape[-1:] != tuple(self.event_shape):
            raise ValueError(
                f"points must have {self.event_shape[-1]} coordinates in their last dimension; got shape {shape}. "
                f"Pass a tensor of shape (..., {self.event_shape[-1]})."
            )
        require_broadcastable("value", shape[: len(shape) - events], self.batch_shape)
        return self._wide(value.to(self._result_dtype(value)))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of results."""
        return self.loc.dtype

    def _result_dtype(self, value: Tensor) -> torch.dtype:
        """The dtype in which a function of these points is returned."""
        return common_dtype(value.dtype, self.dtype)

    @staticmethod
    def _wide(tensor: Tensor) -> Tensor:
        """The tensor in the working dtype: the dtype of the tensor, but at least float32."""
        return in_dtype(tensor, wide_dtype(tensor.dtype))

    def _round(self, tensor: Tensor) -> Tensor:
        """A result, cast to the dtype of the parameters."""
        return in_dtype(tensor, self.dtype)

    def __repr__(self) -> str:
        named = {name: self.__dict__.get(name) for name in self._batched}
        shown = [f"{name}: {_brief(value)}" for name, value in named.items() if isinstance(value, Tensor)]
        return f"{type(self).__name__}({', '.join([*shown, *self._extra_repr()])})"

    def _extra_repr(self) -> list[str]:
        """Parts of the repr that follow the batched tensors."""
        return []


def _brief(value: Tensor) -> str:
    """The value of a one-element tensor on an eager CPU, else the shape."""
    return f"{value.item():.4g}" if value.numel() == 1 and is_eager_cpu(value) else str(tuple(value.shape))


def unchecked(distribution: Distribution, dtype: torch.dtype | None = None) -> Distribution:
    """A copy whose log-probability off the support is −inf instead of an error.

    A Density never raises this error, so it is copied only if a ``dtype`` is given. Parameters are then cast to
    ``dtype``, unless their dtype is wider. In float64, quantities derived from the parameters, such as the ends of the
    support, are free of the rounding of a narrower dtype.

    Example:
        >>> uniform = torch.distributions.Uniform(0.0, 1.0)
        >>> unchecked(uniform, torch.float64).log_prob(torch.tensor([0.5, 2.0]))
        tensor([0., -inf], dtype=torch.float64)
    """
    if dtype is None and isinstance(distribution, Density):
        return distribution
    if dtype is not None and isinstance(distribution, Categorical):
        # Make a new Categorical, which normalises in the wider dtype: half-precision weights sum to one only roughly.
        logits = distribution.logits
        return Categorical(logits=logits.to(torch.promote_types(logits.dtype, dtype)), validate_args=False)
    new = copy.copy(distribution)
    for name, value in vars(distribution).items():
        if isinstance(value, Distribution):
            setattr(new, name, unchecked(value, dtype))
        elif dtype is not None and isinstance(value, Tensor) and value.is_floating_point():
            if dtype == torch.float64:
                require_float64(value.device)
            setattr(new, name, value.to(torch.promote_types(value.dtype, dtype)))
        elif dtype is not None and isinstance(value, torch.dtype):
            setattr(new, name, torch.promote_types(value, dtype))
    new._validate_args = False
    if isinstance(new, Density):
        new._rebind()
    return new


def widened(distribution: Distribution) -> Distribution:
    """The distribution itself, or a copy with parameters in float32 if some parameters are in half precision.

    Quantities derived from the parameters, such as the half-width, are then not rounded to half precision.
    """
    return distribution if _HALF.isdisjoint(parameter_dtypes(distribution)) else unchecked(distribution, torch.float32)


def parameter_dtypes(source: object) -> Iterator[torch.dtype]:
    """The floating-point dtypes of a distribution's parameters, or the dtype of a floating-point tensor."""
    if isinstance(source, Tensor):
        if source.is_floating_point():
            yield source.dtype
    elif isinstance(source, Density):
        yield source.dtype
    elif isinstance(source, Distribution):
        for value in vars(source).values():
            yield from parameter_dtypes(value)
