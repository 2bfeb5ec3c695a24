r"""Any other pair on the line: :math:`\Omega_\alpha^*(f) + E_p[\log_{2-\alpha}(p)/\alpha - f]` by quadrature."""

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._eager import is_eager_cpu
from contmax._typing import Float
from contmax.densities import Density
from contmax.densities._elliptical import Elliptical
from contmax.densities._landmarks import landmarks_of
from contmax.densities._line_rule import LineRule
from contmax.densities._unchecked import unchecked
from contmax.losses._fenchel_young import loss_between, register_fenchel_young
from contmax.losses._pairs._differences import HEIGHT_SLACK, not_negative, tsallis_rate
from contmax.losses._pairs._scores import LOG_SCORE_MAX, finite_scores

# The integral of a density that was resolved is this close to one, also if it computes its logarithm in float32.
_MASS_SLACK = 1e-5
# What a power is known to, from two points close to where it begins.
_GROWTH_SLACK = 1e-6


@register_fenchel_young(Density, Distribution)
def line_loss(prediction: Density, target: Distribution) -> Float[Tensor, "*batch"]:
    """The loss of any density with a score against any density on the line, in float64."""
    alpha = prediction.required_alpha()
    if isinstance(prediction, Elliptical) and callable(getattr(target, "expectation", None)):
        return _averaged_loss(prediction, target)
    _require_line(target)
    shape = torch.broadcast_shapes(prediction.batch_shape, target.batch_shape)
    wide = cast(Density, unchecked(prediction, torch.float64))
    target = unchecked(target, torch.float64)
    rule = LineRule(landmarks_of(target), shape, wide.landmarks().bends)
    log_p, alive = rule.log_density(target)
    value, counts = finite_scores(wide, rule.beside_bends, alive)
    density = torch.where(alive, log_p.exp(), 0.0)
    rate = _negentropy_rate(log_p, alpha)
    # The loss is infinite unless the density makes up for a score that is.
    overflown = (alive & ~counts & (rule.shares > 0) & (log_p > -LOG_SCORE_MAX)) | (rate == math.inf)
    rate = torch.where(rate == math.inf, 0.0, rate)
    # ∫p^α of a density that grows like x⁻ˢ at an end of its support diverges from s = 1/α.
    unbounded = log_p.amax(0) > HEIGHT_SLACK if _is_infinite(alpha) else rule.growth(target) * alpha > 1 - _GROWTH_SLACK
    infinite = overflown.any(0) | rule.diverges(density * value) | unbounded
    # Next to a pole the rule does not resolve the density, and there is no need to.
    mass = torch.where(unbounded, 1.0, (rule.shares * density).sum(0))
    _require_mass(target, mass, (rule.points.abs() * density).amax(0))
    loss = wide.conjugate() + (rule.shares * density * (rate - value)).sum(0)
    return torch.where(infinite, math.inf, not_negative(torch.where(infinite, 0.0, loss)))


def _averaged_loss(prediction: Elliptical, target: Any) -> Tensor:
    """The same against a target that averages smooth functions by a rule of its own, in one or several dimensions."""
    alpha, shape = prediction.alpha, torch.broadcast_shapes(prediction.batch_shape, target.batch_shape)
    target = target.expand(shape)

    def cost(points: Tensor) -> Tensor:
        """Ω*(f) − f(t) + log_{2−α}(p)/α at points (*shape, n[, N])."""
        points = points.movedim(len(shape), 0)
        log_p = target.log_prob(points).double()
        alive = log_p > -math.inf
        observed = loss_between(prediction, points) + _negentropy_rate(torch.where(alive, log_p, 0.0), alpha)
        return torch.where(alive, observed, 0.0).movedim(0, -1)

    loss = not_negative(target.expectation(cost).double())
    return torch.where(target.log_prob(target.mode) > HEIGHT_SLACK, math.inf, loss) if _is_infinite(alpha) else loss


def _negentropy_rate(log_p: Tensor, alpha: float | Tensor) -> Tensor:
    """log_{2−α}(p)/α, whose mean is Ω_α(p); zero for α = ∞."""
    if _is_infinite(alpha):
        return torch.zeros_like(log_p)
    return tsallis_rate(log_p, alpha.double() - 1 if isinstance(alpha, Tensor) else alpha - 1)


def _is_infinite(alpha: float | Tensor) -> bool:
    return isinstance(alpha, float) and math.isinf(alpha)


def _require_mass(target: Distribution, mass: Tensor, blur: Tensor) -> None:
    """A density that was not resolved, or is none, shows in its integral; looked at only where that is free.

    The rounding of points far from zero moves them across a narrow density, which is not its fault.
    """
    slack = _MASS_SLACK + 8 * torch.finfo(mass.dtype).eps * blur
    if is_eager_cpu(mass) and bool(((mass - 1).abs() > slack).any()):
        worst = mass.detach().flatten()[(mass.detach() - 1).abs().argmax()]
        raise ValueError(
            f"a density must integrate to one; got {float(worst):.8g} for {type(target).__name__}, which is not "
            "normalised, or varies too fast away from its mean. Pass samples as Empirical."
        )


def _require_line(target: Distribution) -> None:
    if target.event_shape:
        raise NotImplementedError(
            f"no closed form is known for a target {type(target).__name__} in {target.event_shape[-1]} dimensions. "
            "Pass samples as Empirical(target.sample((1000,)))."
        )
