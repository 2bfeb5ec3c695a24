"""Weighted sums Σ wₖPₖ of probability measures: mixtures of densities, and weighted samples."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Categorical, Distribution, constraints
from torch.nn.functional import pad
from torch.types import _size

from contmax._typing import Float
from contmax.densities._density import Condition, Density, unchecked, widened
from contmax.densities._line_rule import Landmarks, landmarks_of, line_expectation, union
from contmax.densities._region import Intervals, Region, given_region
from contmax.densities._validation import checks_values, require_finite
from contmax.numerics import implicit_root, monotone_root


class WeightedSum(Density):
    """Σ wₖPₖ: moments and draws follow from the weights and from the moments and draws of the parts Pₖ."""

    @abstractmethod
    def _weights(self) -> Tensor:
        """The weights w in the working dtype, ``(*batch, K)``."""

    @abstractmethod
    def _moment_of_parts(self, name: str) -> Tensor | float:
        """The mean, variance or covariance matrix of each part, in the working dtype."""

    def _draws_of_parts(self, sample_shape: Size) -> Tensor:
        """Draws from each part, broadcastable to ``(*sample_shape, *batch, K)``, or ``(…, K, N)`` for vectors."""
        raise NotImplementedError

    def _spread(self, points: Tensor) -> Tensor:
        """Points with an extra dimension of size 1 for the K parts."""
        return points.unsqueeze(-1 - len(self.event_shape))

    def _average(self, values: Tensor | float, event_dims: int) -> Tensor:
        """Σ wₖxₖ of values x, ``(…, K, *event)`` with ``event_dims`` event dimensions."""
        weights = self._weights()
        return (weights.reshape(weights.shape + (1,) * event_dims) * values).sum(-1 - event_dims)

    def _mean(self) -> Tensor:
        return self._average(self._moment_of_parts("mean"), len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """Σ wₖμₖ."""
        return self._round(self._mean())

    @property
    def variance(self) -> Tensor:
        """Σ wₖ(σₖ² + (μₖ−μ)²) for each coordinate."""
        offset, own = self._moment_of_parts("mean") - self._spread(self._mean()), self._moment_of_parts("variance")
        squares = offset.square() + own if isinstance(own, Tensor) else offset.square()
        return self._round(self._average(squares, len(self.event_shape)))

    @property
    def covariance_matrix(self) -> Float[Tensor, "*batch N N"]:
        """Σ wₖ(Σₖ + (μₖ−μ)(μₖ−μ)ᵀ)."""
        if not self.event_shape:
            return super().covariance_matrix
        offset = self._moment_of_parts("mean") - self._spread(self._mean())
        outer = offset.unsqueeze(-1) * offset.unsqueeze(-2)
        return self._round(self._average(self._moment_of_parts("covariance_matrix") + outer, 2))

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws without gradient; shape ``sample_shape + batch_shape + event_shape``."""
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            draws = self._draws_of_parts(shape)
            if 0 in (*shape, *self.batch_shape):
                # Return an empty result here: Categorical.sample would fail.
                return draws.new_empty(shape + self.batch_shape + self.event_shape)
            index = Categorical(self._weights(), validate_args=False).sample(shape)
            return _picked(draws, index, len(self.event_shape))


class Mixture(WeightedSum):
    r"""Mixture of densities of one family; its support is the union of their supports.

    .. math:: p(t) = \sum_k w_k\, p_k(t)

    Like ``torch.distributions.MixtureSameFamily``, but points may lie in the support of only some components.

    Args:
        mixture_distribution: weights w, a ``Categorical`` over K components whose batch broadcasts to ``(*batch)``.
        component_distribution: densities p_k with batch shape ``(*batch, K)``, from this library or from torch.

    Raises:
        ValueError: if the number of components differs, or batch shapes do not broadcast.

    Example:
        >>> from contmax.densities import TruncatedParabola
        >>> weights = torch.distributions.Categorical(torch.tensor([0.5, 0.5]))
        >>> p = Mixture(weights, TruncatedParabola.from_support(torch.tensor([0.0, 10.0]), torch.tensor([2.0, 12.0])))
        >>> p.density(torch.tensor([1.0, 5.0])), p.mean
        (tensor([0.3750, 0.0000]), tensor(6.))
    """

    _batched: ClassVar[dict[str, int]] = {"_logits": 1}

    mixture_distribution: Categorical
    """The weights."""
    component_distribution: Distribution
    """The components, along the last batch dimension."""

    def __init__(self, mixture_distribution: Categorical, component_distribution: Distribution) -> None:
        for name, value, kind in (
            ("mixture_distribution", mixture_distribution, Categorical),
            ("component_distribution", component_distribution, Distribution),
        ):
            if not isinstance(value, kind):
                raise TypeError(
                    f"{name} must be a {kind.__name__}; got {type(value).__name__}. Pass one of torch.distributions."
                )
        shape = component_distribution.batch_shape
        if not shape or shape[-1] != mixture_distribution.param_shape[-1]:
            raise ValueError(
                f"the last batch dimension of the components must have an entry for each weight; got batch shape "
                f"{tuple(shape)} for {mixture_distribution.param_shape[-1]} weights. Pass components of batch shape "
                "(..., K)."
            )
        try:
            self.mixture_distribution = _expanded(mixture_distribution, shape[:-1])
        except RuntimeError:
            raise ValueError(
                f"weights of batch shape {tuple(mixture_distribution.batch_shape)} do not broadcast to the batch shape "
                f"{tuple(shape[:-1])} of the components. Pass Categorical with logits (..., K)."
            ) from None
        if "probs" in vars(self.mixture_distribution):
            # Torch's conversion to logits replaces a probability of zero by the epsilon of the dtype. Here its
            # logarithm is −∞, with zero gradient.
            dead = self.mixture_distribution.probs == 0
            self._logits = torch.where(dead, -math.inf, torch.where(dead, 1.0, self.mixture_distribution.probs).log())
        else:
            self._logits = self.mixture_distribution.logits
        self.component_distribution = unchecked(component_distribution)
        super().__init__(shape[:-1], component_distribution.event_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of results."""
        return self.component_distribution.mean.dtype

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """On the line draws are differentiable, through the distribution function."""
        return not self.event_shape

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """The union of the supports of the components."""
        support: Any = self.component_distribution.support
        return Condition(
            f"Union({support})", lambda points: support.check(self._spread(points)).any(-1), len(self.event_shape)
        )

    def _rebind(self) -> None:
        if self.mixture_distribution.batch_shape != self.batch_shape:
            self.mixture_distribution = _expanded(self.mixture_distribution, self.batch_shape)
            component = self.component_distribution
            self.component_distribution = component.expand(self.batch_shape + component.batch_shape[-1:])

    def _log_weights(self) -> Tensor:
        """ln w, normalised in the working dtype: in half precision the sum of weights is only roughly one."""
        return torch.log_softmax(self._wide(self._logits), -1)

    def _weights(self) -> Tensor:
        return self._log_weights().exp()

    def _components(self) -> Distribution:
        """The components in at least float32, so that only the result is rounded to half precision."""
        return widened(self.component_distribution)

    def _log_density(self, points: Tensor) -> Tensor:
        terms = self._components().log_prob(self._spread(points)) + self._log_weights()
        # Avoid torch.logsumexp, because the gradient must be zero where every component vanishes.
        largest = terms.detach().amax(-1, keepdim=True)
        largest = torch.where(torch.isfinite(largest), largest, 0.0)
        total = torch.exp(terms - largest).sum(-1)
        dead = total == 0
        return torch.where(dead, -math.inf, torch.log(torch.where(dead, 1.0, total)) + largest.squeeze(-1))

    def _moment_of_parts(self, name: str) -> Any:
        return getattr(self._components(), name)

    def _draws_of_parts(self, sample_shape: Size) -> Tensor:
        return self.component_distribution.sample(sample_shape)

    def _cdf(self, points: Tensor) -> Tensor:
        return self._average(self._components().cdf(self._spread(points)), 0)

    def _icdf(self, share: Tensor) -> Tensor:
        """The quantile, which lies between the smallest and the largest quantile of the components."""
        quantiles = self._components().icdf(self._spread(share))
        low, high = quantiles.amin(-1), quantiles.amax(-1)
        end = (share <= 0) | (share >= 1) | (low == high)
        # Where q is 0 or 1, or the quantiles of all components agree, the result is known and perhaps infinite. There
        # the search runs in [0, 1], and what it finds is not used.
        bracket = torch.where(end, 0.0, low), torch.where(end, 1.0, high)
        residual = self._residual(share)
        t = implicit_root(monotone_root(residual, *bracket, tolerance=1e-10), residual)
        return torch.where(end, torch.where(share <= 0, low, high), t)

    def _residual(self, share: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """t ↦ (P(T ≤ t) − q, p(t)) for q = ``share``: a function and its derivative."""
        return lambda t: (self._cdf(t) - share, self._log_density(t).exp())

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats, on the line, by quadrature."""
        if self.event_shape:
            raise NotImplementedError(
                "the entropy of a mixture in several dimensions has no closed form. Average -log_prob(t) over draws t."
            )
        return self._round(line_expectation(unchecked(self, torch.float64), lambda _, log_p: -log_p))

    def _region(self) -> Region:
        component = self._components()
        region = component._region() if isinstance(component, Density) else given_region(component)
        if not isinstance(region, Intervals):
            raise NotImplementedError(
                "the support of a mixture is known as a set only on the line, with components of contmax or Uniform. "
                "Elsewhere use the support of its component_distribution."
            )
        # A component of weight 0 adds nothing to the support: its interval becomes empty.
        alive = (self._log_weights() > -math.inf).unsqueeze(-1)
        return Intervals(*(torch.where(alive, end, 0.0).flatten(-2) for end in (region.low, region.high)))

    def landmarks(self) -> Landmarks:
        """The landmarks of all components."""
        return union(landmarks_of(self.component_distribution))

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws on the line; gradients come from the distribution function, whose value at each draw is held fixed."""
        if self.event_shape:
            raise NotImplementedError("draws of a mixture are differentiable in one dimension only; use sample().")
        draws = self._wide(self.sample(sample_shape))
        return self._round(implicit_root(draws, self._residual(self._cdf(draws).detach())))

    def __repr__(self) -> str:
        return f"Mixture({self.mixture_distribution}, {self.component_distribution})"


class Empirical(WeightedSum):
    r"""Weighted samples: the measure :math:`\sum_i w_i\,\delta_{t_i}`, which has moments but no density.

    Args:
        samples: observations t. One-dimensional: n numbers. Otherwise ``(*batch, n, N)``: points in N dimensions; for a
            batch of numbers ``(*batch, n)`` pass ``event_dim=0``.
        weights: w ≥ 0, ``(*batch, n)``, normalised here; equal by default.
        event_dim: 0 if samples are numbers, 1 if they are vectors; by default 1 unless ``samples`` is one-dimensional.
        validate_args: check values; by default on eager CPU tensors only.

    Raises:
        ValueError: if there are no samples, a value is NaN, weights are negative or all zero, or shapes do not fit.

    Example:
        >>> p = Empirical(torch.tensor([0.0, 1.0, 5.0]), weights=torch.tensor([1.0, 1.0, 2.0]))
        >>> p.mean, p.cdf(torch.tensor(1.0)), p.icdf(torch.tensor(0.3))
        (tensor(2.7500), tensor(0.5000), tensor(1.))
    """

    has_rsample = False

    def __init__(
        self,
        samples: Tensor,
        weights: Tensor | None = None,
        *,
        event_dim: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not samples.is_floating_point():
            raise TypeError(f"samples must be floating point; got {samples.dtype}. Pass samples.float().")
        event_dim = min(samples.ndim - 1, 1) if event_dim is None else event_dim
        if event_dim not in (0, 1) or samples.ndim < 1 + event_dim or not samples.shape[samples.ndim - 1 - event_dim]:
            raise ValueError(
                f"samples must have shape (..., n) or (..., n, N) with n > 0; got {tuple(samples.shape)} "
                f"with event_dim {event_dim}."
            )
        shape = samples.shape[: samples.ndim - event_dim]
        share = samples.new_ones(()) if weights is None else weights.to(samples.dtype)
        try:
            share = share.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"weights must broadcast to one number per sample, {tuple(shape)}; got {tuple(share.shape)}."
            ) from None
        if checks_values(validate_args, samples, share):
            require_finite("samples", samples)
            require_finite("weights", share)
            if bool((share < 0).any()) or bool((share.sum(-1) <= 0).any()):
                raise ValueError(f"weights must be non-negative with a positive sum; got min {float(share.min()):.4g}.")
        wide = self._wide(share)
        self.samples = samples
        self.weights = (wide / wide.sum(-1, keepdim=True)).to(samples.dtype)
        super().__init__(shape[:-1], samples.shape[samples.ndim - event_dim :])
        self._batched = {"samples": 1 + event_dim, "weights": 1}  # type: ignore[misc]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of results."""
        return self.samples.dtype

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """All of ℝ or ℝᴺ: the samples stand for an unknown distribution."""
        return constraints.real_vector if self.event_shape else constraints.real

    def _log_density(self, points: Tensor) -> Tensor:
        raise NotImplementedError("an empirical measure has no density; use its moments, cdf or icdf.")

    def _weights(self) -> Tensor:
        return self._wide(self.weights)

    def _moment_of_parts(self, name: str) -> Tensor | float:
        return self._wide(self.samples) if name == "mean" else 0.0

    def _draws_of_parts(self, sample_shape: Size) -> Tensor:
        return self.samples

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The share of the samples that do not exceed t, on the line; no gradient to t."""
        points = self._points(value)
        ordered, reached = self._steps()
        count = (ordered <= points.unsqueeze(-1)).sum(-1)
        share = _picked(pad(reached, (1, 0)), count)
        return torch.where(points.isnan(), math.nan, share).to(self._result_dtype(value))

    def _icdf(self, share: Tensor) -> Tensor:
        """The smallest sample whose cdf reaches q = ``share``, on the line."""
        ordered, reached = self._steps()
        last = ordered.shape[-1] - 1
        index = (reached < share.unsqueeze(-1)).sum(-1).clamp(max=last)
        # If q exceeds a value of the cdf only by rounding, as 0.8 exceeds the rounded sum of eight times 0.1, take the
        # sample at which the cdf has this value.
        lenient = (reached < share.unsqueeze(-1) * (1 - 4 * torch.finfo(share.dtype).eps)).sum(-1).clamp(max=last)
        index = torch.where(_picked(reached, index) == share, index, lenient)
        return _picked(ordered, index)

    def _steps(self) -> tuple[Tensor, Tensor]:
        """The samples in increasing order, and the cdf at each."""
        ordered, order = self._wide(self.samples).sort(-1)
        reached = self._wide(self.weights).gather(-1, order).cumsum(-1)
        # The cdf at the largest sample must be 1, also after rounding.
        return ordered, reached / reached[..., -1:]

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Not defined: a draw is one of the samples and does not depend smoothly on the weights."""
        raise NotImplementedError(
            "a draw is one of the samples and does not depend smoothly on the weights; use sample()."
        )


def _expanded(weights: Categorical, batch_shape: Size) -> Categorical:
    """Weights of a larger batch shape. The compiler of torch 2.10 cannot trace how torch makes the new instance."""
    larger: Categorical = weights.expand(batch_shape, Categorical.__new__(type(weights)))
    return larger


def _picked(table: Tensor, index: Tensor, event_dims: int = 0) -> Tensor:
    """Entry ``index`` of each row of a table: table ``(*batch, K, *event)``, index ``(*sample, *batch)``."""
    parts, *event = table.shape[table.ndim - 1 - event_dims :]
    where = index.reshape(index.shape + (1,) * (1 + event_dims)).expand(*index.shape, 1, *event)
    return table.expand(*index.shape, parts, *event).gather(index.ndim, where).squeeze(index.ndim)
