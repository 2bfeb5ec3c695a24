r"""Losses L(f; p) by quadrature and averages: for scores f of predictions, or targets p, without a closed form.

On the line the loss is :math:`\Omega_\alpha^*(f) + E_p[\log_{2-\alpha}(p)/\alpha - f]` by quadrature. Observations and
samples have Ω_α(p) = ∞ for α ≥ 1; it does not depend on the prediction, so it is dropped. The remaining loss
:math:`\Omega_\alpha^*(f) - E_p[f]` has an equal gradient and may be negative. Two triangular densities have a closed
form, and torch's normal and Laplace predictions are converted to densities of contmax.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)

from contmax._eager import is_eager_cpu
from contmax._typing import Bool, Float
from contmax.densities import Density, Empirical, LineDensity, LineLaw, MultivariateBetaGaussian, Triangular
from contmax.densities._density import unchecked
from contmax.densities._divergence import gaussian
from contmax.densities._elliptical import Elliptical
from contmax.densities._line_rule import LineRule, landmarks_of
from contmax.losses._fenchel_young import loss_between, register_fenchel_young
from contmax.losses._pairs._elliptical import HEIGHT_SLACK, is_infinite, order_of, tsallis_rate
from contmax.losses._row_losses import not_negative

# Tolerance of ∫p = 1 by the quadrature rule, wide enough for a ln p in float32.
_MASS_SLACK = 1e-5
# A density p that grows like x⁻ˢ at distance x from an end of its support has a finite ∫p^α only if αs < 1. This is the
# tolerance of that test, because s is estimated from two points.
_GROWTH_SLACK = 1e-6
# ln|f| from which a negative score f counts as −∞, because its derivatives might overflow. A density below the inverse
# of this |f| is negligible.
_LOG_SCORE_MAX = 345.0


@register_fenchel_young(Density, Distribution)
def line_loss(prediction: Density, target: Distribution) -> Float[Tensor, "*batch"]:
    """The loss of any density with a score against any density on the line, in float64.

    For a β-Gaussian it is also the loss against a target with a method ``expectation``, in any dimension.
    """
    alpha = prediction.required_alpha()
    order = order_of(alpha)
    if isinstance(prediction, Elliptical) and callable(getattr(target, "expectation", None)):
        return _averaged_loss(prediction, target)
    if target.event_shape:
        raise NotImplementedError(
            f"no closed form is known for a target {type(target).__name__} in {target.event_shape[-1]} dimensions. "
            "Pass samples as Empirical(target.sample((1000,)))."
        )
    shape = torch.broadcast_shapes(prediction.batch_shape, target.batch_shape)
    wide = cast(Density, unchecked(prediction, torch.float64))
    target = unchecked(target, torch.float64)
    rule = LineRule(landmarks_of(target), shape, wide.landmarks().bends)
    log_p, alive = rule.log_density(target)
    value, counts = _finite_scores(wide, rule.beside_bends, alive)
    density = torch.where(alive, log_p.exp(), 0.0)
    rate = tsallis_rate(log_p, order)
    # A score of −∞ makes the loss infinite, unless the density there is negligible.
    overflown = (alive & ~counts & (rule.shares > 0) & (log_p > -_LOG_SCORE_MAX)) | (rate == math.inf)
    rate = torch.where(rate == math.inf, 0.0, rate)
    # The loss is infinite if ∫p^α diverges, that is, if p grows like x⁻ˢ with s ≥ 1/α at distance x from an end of its
    # support; for α = ∞ it is infinite if p exceeds 1.
    unbounded = log_p.amax(0) > HEIGHT_SLACK if is_infinite(order) else rule.growth(target) * alpha > 1 - _GROWTH_SLACK
    infinite = overflown.any(0) | rule.diverges(density * value) | unbounded
    # Skip the check of the mass where the loss is infinite anyway: the rule does not resolve a density near a pole.
    mass = torch.where(unbounded, 1.0, (rule.shares * density).sum(0))
    _require_mass(target, mass, (rule.points.abs() * density).amax(0))
    loss = wide.conjugate() + (rule.shares * density * (rate - value)).sum(0)
    return torch.where(infinite, math.inf, not_negative(torch.where(infinite, 0.0, loss)))


def _averaged_loss(prediction: Elliptical, target: Any) -> Tensor:
    """The loss against a target with a method ``expectation`` for averages of functions, in any dimension."""
    order, shape = order_of(prediction.alpha), torch.broadcast_shapes(prediction.batch_shape, target.batch_shape)
    target = target.expand(shape)

    def cost(points: Tensor) -> Tensor:
        """Ω*(f) − f(t) + log_{2−α}(p)/α at points (*shape, n[, N])."""
        points = points.movedim(len(shape), 0)
        log_p = target.log_prob(points).double()
        alive = log_p > -math.inf
        observed = loss_between(prediction, points) + tsallis_rate(torch.where(alive, log_p, 0.0), order)
        return torch.where(alive, observed, 0.0).movedim(0, -1)

    loss = not_negative(target.expectation(cost).double())
    return torch.where(target.log_prob(target.mode) > HEIGHT_SLACK, math.inf, loss) if is_infinite(order) else loss


def _require_mass(target: Distribution, mass: Tensor, blur: Tensor) -> None:
    """Raise ValueError, on eager CPU tensors, if ``mass``, the integral of the target, is not one.

    ``blur``, the maximum of |t| p(t), bounds the effect of rounding t on a narrow density far from zero.
    """
    slack = _MASS_SLACK + 8 * torch.finfo(mass.dtype).eps * blur
    if is_eager_cpu(mass) and bool(((mass - 1).abs() > slack).any()):
        worst = mass.detach().flatten()[(mass.detach() - 1).abs().argmax()]
        raise ValueError(
            f"a density must integrate to one; got {float(worst):.8g} for {type(target).__name__}, which is not "
            "normalised, or varies too fast away from its mean. Pass samples as Empirical."
        )


@register_fenchel_young(Density, Tensor)
def observed(prediction: Density, target: Tensor) -> Float[Tensor, "..."]:
    """Ω_α*(f) − f(t) of observations t, for any density with a score f, in float64."""
    event = prediction.event_shape
    shape = torch.broadcast_shapes(target.shape[: target.ndim - len(event)], prediction.batch_shape)
    points = target.double().expand(shape + event).unsqueeze(0)
    return _mean_cost(prediction, points, torch.ones((), dtype=torch.float64, device=points.device))


@register_fenchel_young(Density, Empirical)
def sampled(prediction: Density, target: Empirical) -> Float[Tensor, "..."]:
    """Ω_α*(f) − Σ w f(t) of samples t with weights w, for any density with a score f, in float64."""
    target = target.expand(torch.broadcast_shapes(target.batch_shape, prediction.batch_shape))
    samples = target.samples.double().movedim(-1 - len(prediction.event_shape), 0)
    weights = target.weights.double().movedim(-1, 0)
    return _mean_cost(prediction, samples, weights / weights.sum(0))


def _mean_cost(prediction: Density, points: Float[Tensor, "n ..."], shares: Float[Tensor, "..."]) -> Tensor:
    """Ω*_α(f) − Σ w f(t) over n points t with shares w; +∞ with zero gradient where f(t) = −∞ and w > 0."""
    prediction.required_alpha()
    wide = cast(Density, unchecked(prediction, torch.float64))
    values, counts = _finite_scores(wide, points, torch.ones((), dtype=torch.bool, device=points.device))
    infinite = (~counts & (shares > 0)).any(0)
    mean = (shares * values).sum(0)
    return torch.where(infinite, math.inf, wide.conjugate() - torch.where(infinite, 0.0, mean))


def _finite_scores(
    prediction: Density, points: Float[Tensor, "..."], wanted: Bool[Tensor, "..."]
) -> tuple[Float[Tensor, "..."], Bool[Tensor, "..."]]:
    """Scores, and where they are valid: where ``wanted``, and not so far below 0 that their derivatives overflow.

    Invalid scores are zero, with zero gradient. The prediction is in float64; points are ``(*sample, *batch)`` or
    ``(*sample, *batch, N)``, and ``wanted`` is ``(*sample, *batch)``.
    """
    with torch.no_grad():
        counts = wanted & (prediction.score(points) > -math.exp(_LOG_SCORE_MAX))
    used = counts.reshape(counts.shape + (1,) * len(prediction.event_shape))
    scores = prediction.score(torch.where(used, points, prediction.mode.detach()))
    return torch.where(counts, scores, 0.0), counts


@register_fenchel_young(Triangular, Triangular)
def triangular_loss(prediction: Triangular, target: Triangular) -> Float[Tensor, "*batch"]:
    r"""The loss of a triangular prediction (loc μ, scale b) against a triangular target (μ_p, b_p), in float64.

    .. math:: L = \frac{(a-a_p)^2}{3a^2a_p} + \frac1{a^2} \begin{cases}
              \frac{m^2}{a_p}\big(1-\frac{m}{3a_p}\big) & m \le a_p \\ m - \frac{a_p}3 & m > a_p \end{cases}, \qquad
              m = |\mu-\mu_p|,\ a = \sqrt b,\ a_p = \sqrt{b_p}

    which is the maximum of the paper's two expressions, written as a sum of terms that are not negative.

    References:
        Martins et al. 2020, App. on Fenchel–Young losses between triangular densities.
    """
    b, b_p = prediction.scale.double(), target.scale.double()
    width, width_p = b.sqrt(), b_p.sqrt()
    offset = prediction.loc.double() - target.loc.double()
    distance = offset.abs()
    inner = torch.minimum(distance, width_p)
    # Square the offset, not its modulus, which has no second derivative at zero.
    misplaced = torch.minimum(offset.square(), b_p) / width_p * (1 - inner / (3 * width_p)) + (distance - inner)
    misshapen = ((b - b_p) / (width + width_p)).square() / (3 * width_p)
    return (misplaced + misshapen) / b


class _LaplaceLaw(LineLaw):
    def tail(self, depth: Tensor) -> Tensor:
        return 0.5 * torch.exp(-depth)

    def depth(self, tail: Tensor) -> Tensor:
        return -torch.log(2 * tail)


class _Laplace(LineDensity):
    """The Laplace density: the Ω₁-map of −|t−μ|/b."""

    alpha = 1.0

    def law(self) -> LineLaw:
        return _LaplaceLaw()

    def _score(self, points: Tensor) -> Tensor:
        return -(points - self._wide(self.loc)).abs() / self._wide(self.scale)

    def conjugate(self) -> Tensor:
        """The logarithm of the integral of e^f, ln 2b."""
        return self._round(torch.log(2 * self._wide(self.scale)))


def torch_loss(prediction: Any, target: Any) -> Tensor:
    """The loss of a normal or Laplace prediction of torch, converted to a density with a score and α = 1."""
    if isinstance(prediction, Laplace):
        prediction = _Laplace(prediction.loc, prediction.scale, validate_args=False)
    elif isinstance(prediction, Independent):
        base = prediction.base_dist
        # A product of normal densities is one β-Gaussian; no loss is implemented for other products.
        if not isinstance(base, Normal) or prediction.reinterpreted_batch_ndims != 1:
            raise NotImplementedError(
                f"Independent({type(base).__name__}, {prediction.reinterpreted_batch_ndims}) is not the prediction of "
                "a score. Pass MultivariateBetaGaussian(loc, scale_diag=...)."
            )
        prediction = MultivariateBetaGaussian(base.loc, scale_diag=base.scale, alpha=1.0, validate_args=False)
    else:
        prediction = gaussian(prediction)
    return loss_between(prediction, target)


for _family in (Normal, MultivariateNormal, LowRankMultivariateNormal, Independent, Laplace):
    for _target in (Distribution, Tensor):
        register_fenchel_young(_family, _target)(torch_loss)
