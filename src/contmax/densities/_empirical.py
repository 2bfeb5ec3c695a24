"""Weighted samples as a distribution."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from contmax._typing import Float
from contmax.densities._beta_law import draw_indices, picked
from contmax.densities._density import Density
from contmax.densities._validation import checks_values, require_finite


class Empirical(Density):
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

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
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
        share = (
            torch.ones((), dtype=samples.dtype, device=samples.device) if weights is None else weights.to(samples.dtype)
        )
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

    def _share(self) -> Tensor:
        """Weights that broadcast with the samples."""
        weights = self._wide(self.weights)
        return weights.unsqueeze(-1) if self.event_shape else weights

    def _mean(self) -> Tensor:
        return (self._share() * self._wide(self.samples)).sum(-1 - len(self.event_shape))

    def _centred(self) -> Tensor:
        return self._wide(self.samples) - self._mean().unsqueeze(-1 - len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """Σ w t."""
        return self._round(self._mean())

    @property
    def variance(self) -> Tensor:
        """Σ w (t − mean)² for each coordinate, biased."""
        return self._round((self._share() * self._centred().square()).sum(-1 - len(self.event_shape)))

    @property
    def covariance_matrix(self) -> Float[Tensor, "*batch N N"]:
        """Σ w (t − mean)(t − mean)ᵀ, biased."""
        if not self.event_shape:
            return self.variance[..., None, None]
        offset = self._centred()
        return self._round(((self._share() * offset).unsqueeze(-1) * offset.unsqueeze(-2)).sum(-3))

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The share of the samples that do not exceed t, on the line; no gradient to t."""
        points = self._points(value)
        ordered, reached = self._steps()
        count = (ordered <= points.unsqueeze(-1)).sum(-1)
        share = self._pick(torch.nn.functional.pad(reached, (1, 0)), count)
        return torch.where(points.isnan(), math.nan, share).to(self._result_dtype(value))

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The smallest sample whose cdf reaches q, on the line; NaN for q outside [0, 1]."""
        q = self._points(value)
        ordered, reached = self._steps()
        last = ordered.shape[-1] - 1
        index = (reached < q.unsqueeze(-1)).sum(-1).clamp(max=last)
        # A q between two values of the cdf may be one of them, rounded differently: 0.8 and eight times 0.1.
        lenient = (reached < q.unsqueeze(-1) * (1 - 4 * torch.finfo(q.dtype).eps)).sum(-1).clamp(max=last)
        index = torch.where(self._pick(reached, index) == q, index, lenient)
        return torch.where((q >= 0) & (q <= 1), self._pick(ordered, index), math.nan).to(self._result_dtype(value))

    def _steps(self) -> tuple[Tensor, Tensor]:
        """The samples in increasing order, and the cdf at each."""
        ordered, order = self._wide(self.samples).sort(-1)
        reached = self._wide(self.weights).gather(-1, order).cumsum(-1)
        # Rounding must not leave the last sample short of 1.
        return ordered, reached / reached[..., -1:]

    def _pick(self, table: Tensor, index: Tensor) -> Tensor:
        """The entry of each row at the index."""
        shape = torch.broadcast_shapes(index.shape, self.batch_shape)
        return picked(table.expand(*shape, -1), index.expand(shape), 0)

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Not defined: a draw is one of the samples and does not depend smoothly on the weights."""
        raise NotImplementedError(
            "a draw is one of the samples and does not depend smoothly on the weights; use sample()."
        )

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008
        """Samples drawn with replacement; shape ``sample_shape + batch_shape + event_shape``."""
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            index = draw_indices(self._wide(self.weights), shape)
            table = self.samples.expand(*index.shape, *self.samples.shape[len(self.batch_shape) :])
            return picked(table, index, len(self.event_shape))
