r"""Implicit derivatives of p = exp_{2−α}(x − A), Σ w p = 1, written once for both modes of differentiation.

With the escort weights s = p^{2−α} (0 off the support) and ⟨v⟩ = Σ w s v / Σ w s, for points of mass w:

    dp = s (dx − ⟨dx⟩) − s (D − ⟨D⟩) dα,          D = ∂/∂α log_{2−α}(p) = ln²p ∫₀¹ u p^{(α−1)u} du.

So the derivative in α is the Jacobian in x applied to −D: one formula, smooth through α = 1, where D = ½ ln²p.
Martins et al. 2020, Eq. jacobians_discrete and the proposition on the generalised covariance.
"""

import torch
from torch import Tensor

from contmax.deformed import mean_u_exp
from contmax.maps._threshold import power_on_support


def push_forward(p: Tensor, tangent: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    """Jacobian–vector product s (v − ⟨v⟩): how p moves when the scores move by `tangent`."""
    escort = power_on_support(p, 2 - alpha)
    mass = escort if weights is None else weights * escort
    mean = (mass * tangent).sum(dim, keepdim=True) / _or_one(mass.sum(dim, keepdim=True))
    return escort * (tangent - mean)


def pull_back(p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    """Vector–Jacobian product s (g − w Σ s g / Σ w s); the same as `push_forward` where all w are equal."""
    escort = power_on_support(p, 2 - alpha)
    mass = escort if weights is None else weights * escort
    mean = (escort * cotangent).sum(dim, keepdim=True) / _or_one(mass.sum(dim, keepdim=True))
    return escort * (cotangent - (mean if weights is None else weights * mean))


def alpha_direction(p: Tensor, alpha: float | Tensor) -> Tensor:
    """−D: the movement of the scores that has the same effect on p as raising α."""
    log_p = torch.where(p > 0, p, 1).log()
    return -log_p.square() * mean_u_exp((alpha - 1) * log_p)


def _or_one(total: Tensor) -> Tensor:
    """A safe denominator: a slice with nothing to attend has Σ w s = 0 and gets zero, not NaN."""
    return torch.where(total == 0, 1, total)
