r"""Implicit derivatives of p = exp_{2−α}(x − A), Σ w p = 1, for both modes of differentiation: the torch reference.

With the escort weights s = p^{2−α} (0 off the support) and ⟨v⟩ = Σ w s v / Σ w s, for points of mass w:

    dp = s (dx − ⟨dx⟩) − s (D − ⟨D⟩) dα,          D = ∂/∂α log_{2−α}(p) = ln²p ∫₀¹ u p^{(α−1)u} du.

So the derivative in α is the Jacobian in x applied to −D: one formula, smooth through α = 1, where D = ½ ln²p.
Martins et al. 2020, Eq. jacobians_discrete and the proposition on the generalised covariance.

Where one point j has nearly all the mass w s, v_j − ⟨v⟩ cancels. So everything is taken relative to that point, the
anchor: with c = v − v_j, which is exactly 0 there, what is left is a sum over the other points. For α > 2 the anchor is
the smallest probability, and s overflows: all is then done in logarithms (`contmax.maps._escort`).
"""

import torch
from torch import Tensor

from contmax.maps._escort import Escort
from contmax.maps._threshold import or_one, power_on_support


def pull_back_reference(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """Vector–Jacobian product s (g − w Σ s g / Σ w s), and the gradient of α for each slice where it is needed."""
    if isinstance(alpha, float) and alpha <= 2:
        return _small_pull_back(p, cotangent, alpha, dim, weights), None
    escort = Escort(p, alpha, dim, weights)
    g = cotangent.double()
    centred = torch.where(escort.inside, g - escort.weight_ratio * g.gather(dim, escort.anchor), 0)
    y, scale = escort.times(centred)
    mean = y.sum(dim, keepdim=True) / escort.total
    grad = escort.scaled_back(y - escort.mass * mean, scale)
    if not needs_alpha:
        return grad, None
    deviation = centred - escort.weights * escort.mean_of(mean, scale)
    return grad, -(escort.alpha_rate() * deviation).sum(dim, keepdim=True).to(p.dtype)


def push_forward_reference(
    p: Tensor,
    tangent: Tensor | None,
    alpha: float | Tensor,
    alpha_tangent: Tensor | None,
    dim: int,
    weights: Tensor | None,
) -> Tensor:
    """Jacobian–vector product s (v − ⟨v⟩): how p moves when the scores move by `tangent` and α by `alpha_tangent`."""
    if isinstance(alpha, float) and alpha <= 2:
        return p.new_zeros(p.shape) if tangent is None else _small_push_forward(p, tangent, alpha, dim, weights)
    escort = Escort(p, alpha, dim, weights)
    v = escort.log_p.new_zeros(p.shape) if tangent is None else tangent.double()
    shift = None if alpha_tangent is None else -escort.alpha_rate() * alpha_tangent.double()
    # Off the support a tangent may be infinite.
    y, scale = escort.times(torch.where(escort.inside, v - v.gather(dim, escort.anchor), 0), shift)
    mean = (escort.weights * y).sum(dim, keepdim=True) / escort.total
    return escort.scaled_back(y - escort.share * mean, scale)


def _small_pull_back(p: Tensor, g: Tensor, alpha: float, dim: int, weights: Tensor | None) -> Tensor:
    """The same where s ≤ 1 (α ≤ 2) and α is fixed: plain numbers in the dtype of p, few passes."""
    escort = power_on_support(p, 2 - alpha)
    mass = escort if weights is None else weights * escort
    anchor = mass.detach().argmax(dim, keepdim=True)
    base = g.gather(dim, anchor)
    centred = g - (base if weights is None else weights / weights.expand_as(p).gather(dim, anchor) * base)
    centred = torch.where(escort > 0, centred, 0)  # off the support a cotangent may be infinite
    mean = (escort * centred).sum(dim, keepdim=True) / or_one(mass.sum(dim, keepdim=True))
    return escort * (centred - (mean if weights is None else weights * mean))


def _small_push_forward(p: Tensor, tangent: Tensor, alpha: float, dim: int, weights: Tensor | None) -> Tensor:
    escort = power_on_support(p, 2 - alpha)
    mass = escort if weights is None else weights * escort
    centred = tangent - tangent.gather(dim, mass.detach().argmax(dim, keepdim=True))
    centred = torch.where(escort > 0, centred, 0)
    mean = (mass * centred).sum(dim, keepdim=True) / or_one(mass.sum(dim, keepdim=True))
    return escort * (centred - mean)
