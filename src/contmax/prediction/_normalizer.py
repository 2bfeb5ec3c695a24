r"""The scalar A that makes :math:`\int \exp_{2-\alpha}(f - A) = 1`, for any way of computing that integral.

Every domain is first brought to total measure one. With V the measure of the domain,

.. math:: p = \tfrac1V \exp_{2-\alpha}(\tilde f - \tilde A), \qquad \tilde f = V^{\alpha-1}(f - \max f), \qquad
          A = \max f + V^{1-\alpha}\tilde A - \log_{2-\alpha}(1/V)

and à lies between the extremes of f̃, so nothing cancels however long or short the domain is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._eager import carries_gradient, is_eager_cpu
from contmax._typing import Bool, Float
from contmax.deformed import expm1_over, log_beta
from contmax.maps._entmax import entmax_map
from contmax.numerics import bracketed_root

# Safeguarded Newton from the solution on nodes: 3 to 6 steps as a rule; eager loops stop by themselves.
_STEPS = 12
# Largest distance of the mass from one at a solution; true solutions reach one to rounding.
_MASS_TOLERANCE = 1e-6

MassAndSlope = Callable[[Tensor], tuple[Tensor, Tensor]]


def no_density(mass: Tensor, alpha: Tensor) -> ValueError:
    """The error for a score whose mass jumps from below one to infinity, where its density gets a pole."""
    return ValueError(
        f"no density exists for this score with alpha as small as {float(alpha.min()):g}, or none that float64 could "
        "hold: its peak is too sharp, the mass stays below one until the density has a pole. Pass a larger alpha, or a "
        "flatter score."
    )


def solve_normalizer(
    mass_and_slope: MassAndSlope,
    start: Float[Tensor, "*batch"],
    bracket: tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]],
    alpha: Float[Tensor, "..."],
    explain: Callable[[Tensor, Tensor], ValueError] = no_density,
    slack: float = 0.0,
    steps: int = _STEPS,
) -> Float[Tensor, "*batch"]:
    r"""A with mass S(A) = 1, by Newton's method on the power mean :math:`S^{\alpha-1}`, kept inside a bracket.

    .. math:: A \leftarrow A + \frac{S}{-S'} \cdot \frac{1 - S^{1-\alpha}}{\alpha - 1}

    From the left this climbs monotonically for α ≤ 2. For α > 2 the power mean is not convex, so that steps may go
    back and forth. Nothing is differentiated here: see :func:`carry_gradient`.

    Args:
        mass_and_slope: A ↦ (S, −dS/dA), S decreasing.
        start: first guess.
        bracket: values of A with S ≥ 1 and S ≤ 1.
        alpha: α, broadcastable to the batch.
        explain: the error for masses that are not one at any A, given masses and α.
        slack: how far from one the mass may stay, where S jumps because the score is not resolved.
        steps: how many to take where values cannot be looked at.
    """

    def residual(normalizer: Tensor) -> tuple[Tensor, Tensor]:
        mass, slope = mass_and_slope(normalizer)
        usable = (mass > 0) & (mass < torch.inf) & (slope > 0)
        log_mass = torch.where(usable, mass, 1).log()
        value = -log_mass * expm1_over((1 - alpha) * log_mass)
        # A mass of 0 or infinity has no slope: the step is a bisection, towards the end that 1 − mass says.
        return torch.where(usable, value, 1 - mass), torch.where(usable, slope / torch.where(usable, mass, 1), 0)

    normalizer = bracketed_root(
        residual, *bracket, start.clamp(*bracket), steps=steps, tolerance=4 * torch.finfo(start.dtype).eps
    )
    # The last step was negligible, so the mass at the solution tells whether there is one.
    if is_eager_cpu(normalizer):
        mass, _ = mass_and_slope(normalizer)
        if bool(((mass > 0) & ~((mass - 1).abs() <= max(_MASS_TOLERANCE, slack))).any()):
            raise explain(mass, alpha)
    return normalizer


def carry_gradient(
    mass: Callable[[Tensor], Tensor], normalizer: Float[Tensor, "*batch"], mass_and_slope: MassAndSlope, *given: Tensor
) -> Float[Tensor, "*batch"]:
    """The solution A with its derivatives: two chord steps, exact to second order in a perturbation of the mass.

    Args:
        mass: A ↦ S(A), differentiable in A and in whatever else it depends on.
        normalizer: the solution, without gradient.
        mass_and_slope: A ↦ (S, −dS/dA), without gradient.
        given: what the mass depends on; the solution is returned as it is if none of them carries a gradient.
    """
    if not carries_gradient(*given):
        return normalizer
    _, slope = mass_and_slope(normalizer)
    safe = torch.where(slope > 0, slope, 1)
    for _ in range(2):
        total = mass(normalizer)
        normalizer = normalizer + (total - total.detach()) / safe
    return normalizer


def normalizer_on_nodes(
    scores: Float[Tensor, "*batch n"], weights: Float[Tensor, "*#batch n"], alpha: Float[Tensor, "..."]
) -> Float[Tensor, "*batch"]:
    """A of a weighted point set, from its highest point: a first guess for the integral that the points sample."""
    return normalizer_at_best(scores, entmax_map(scores, alpha[..., None], -1, weights), alpha)


def normalizer_at_best(scores: Tensor, density: Tensor, alpha: Tensor) -> Float[Tensor, "*batch"]:
    """A = f − log_{2−α} p at the point of highest density; meaningless where no point has a density."""
    best = density.detach().argmax(-1, keepdim=True)
    score = torch.where(scores == -torch.inf, 0, scores).gather(-1, best)[..., 0]
    height = density.gather(-1, best)[..., 0]
    return score - log_beta(torch.where(height > 0, height, 1), 2 - alpha)


def bracket_of(
    low: Float[Tensor, "*batch n"], high: Float[Tensor, "*batch n"], measure: Tensor, alpha: Tensor
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Bounds of A: the values of A for constant scores at the lowest and the highest bound of the scores, and a margin.

    The bracket is empty where there is nothing to normalise.
    """
    lowest, highest = low.amin(-1), high.amax(-1)
    shift = -log_beta(1 / torch.where(measure > 0, measure, 1), 2 - alpha)
    margin = torch.where(measure > 0, 1e-3 + 0.1 * (highest - lowest), 0)
    return lowest + shift - margin, highest + shift + margin


@dataclass(frozen=True)
class UnitMeasure:
    """The change of variables to a domain of total measure one, and back."""

    top: Float[Tensor, "*batch"]
    """max f over the samples, a constant that keeps the scores near zero."""
    log_volume: Float[Tensor, ""]
    alpha: Float[Tensor, "..."]
    """α, broadcastable to the batch."""
    empty: Bool[Tensor, "*batch"]
    """Where the score is −inf everywhere."""

    @classmethod
    def of(cls, scores: Float[Tensor, "*batch n"], volume: Float[Tensor, ""], alpha: Tensor) -> "UnitMeasure":
        """For scores known by samples; −inf counts as no score."""
        top = scores.detach().amax(-1)
        empty = top == -torch.inf
        return cls(torch.where(empty, 0, top), volume.log(), alpha, empty)

    def detach(self) -> "UnitMeasure":
        """This change without gradient."""
        return UnitMeasure(self.top, self.log_volume.detach(), self.alpha.detach(), self.empty)

    @property
    def factor(self) -> Float[Tensor, "..."]:
        """V^{α−1}, by which differences of scores are multiplied."""
        return ((self.alpha - 1) * self.log_volume).exp()

    def scaled(self, scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """f̃, with any dimensions after those of the batch; −inf stays −inf."""
        known, each = scores > -torch.inf, (..., *[None] * (scores.dim() - self.top.dim()))
        # The product of −inf with V^{α−1} would have no derivative in α.
        finite = torch.where(known, scores - self.top[each], 0)
        return torch.where(known, finite * self.factor[each], -torch.inf)

    def unscaled(self, scaled: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """f from f̃, the batch last."""
        return self.top + scaled / self.factor

    def normalizer(self, normalizer: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """A from Ã; −∞ where there is nothing to normalise."""
        shrink = (1 - self.alpha) * self.log_volume
        value = self.top + shrink.exp() * normalizer + self.log_volume * expm1_over(shrink)
        return torch.where(self.empty, -torch.inf, value)

    def threshold(self, normalizer: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """λ from Ã; −∞ at α = 1, and where there is nothing to normalise."""
        sparse = (self.alpha != 1) & ~self.empty
        unit = normalizer - 1 / torch.where(sparse, self.alpha - 1, 1)
        return torch.where(sparse, self.top + ((1 - self.alpha) * self.log_volume).exp() * unit, -torch.inf)
