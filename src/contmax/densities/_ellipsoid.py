"""The support of a multivariate β-Gaussian as a constraint."""

from torch import Tensor
from torch.distributions import constraints

from contmax.densities._scale import Scale


class Ellipsoid(constraints.Constraint):
    """Points with (t−μ)ᵀΣ⁻¹(t−μ) ≤ R².

    Args:
        loc: centre μ, ``(*batch, N)``.
        scale: Σ.
        radius: R, ``(*batch)``.
    """

    is_discrete = False
    event_dim = 1

    def __init__(self, loc: Tensor, scale: Scale, radius: Tensor) -> None:
        self.loc, self.scale, self.radius = loc, scale, radius

    def check(self, value: Tensor) -> Tensor:
        """True where the point lies in the closed ellipsoid."""
        return self.scale.mahalanobis_sq(value - self.loc) <= self.radius.square()

    def __repr__(self) -> str:
        return f"Ellipsoid(dim={self.loc.shape[-1]})"
