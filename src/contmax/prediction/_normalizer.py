r"""The normaliser A of a score f, with :math:`\int \exp_{2-\alpha}(f - A) = 1`, however the integral is computed.

Every domain is first rescaled to measure one. With V the measure of the domain and λ = A − 1/(α−1) the threshold,

.. math:: p = \tfrac1V \exp_{2-\alpha}(\tilde f - \tilde A), \qquad \tilde f = V^{\alpha-1}(f - \max f), \qquad
          A = \max f + V^{1-\alpha}\tilde A - \log_{2-\alpha}(1/V)

and Ã lies between the minimum and maximum of f̃, so long and short domains cause no cancellation.
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

# Newton steps where values cannot be read (GPU, trace). From the solution on nodes, 3 to 6 steps usually suffice.
_STEPS = 12
# Largest |mass − 1| at a solution; true solutions have mass one up to rounding.
_MASS_TOLERANCE = 1e-6

MassAndSlope = Callable[[Tensor], tuple[Tensor, Tensor]]


def no_density(mass: Tensor, alpha: Tensor) -> ValueError:
    """The error for a score whose mass jumps from below one to infinity as A falls, because the density gets a pole."""
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
    r"""The A with mass S(A) = 1, by Newton's method on the power mean :math:`S^{\alpha-1}` within a bracket.

    .. math:: A \leftarrow A + \frac{S}{-S'} \cdot \frac{1 - S^{1-\alpha}}{\alpha - 1}

    For α ≤ 2, an A below the solution rises monotonically towards it. For α > 2 the power mean is not convex, and steps
    may overshoot. The result has no gradient; :func:`carry_gradient` adds it.

    Args:
        mass_and_slope: A ↦ (S, −dS/dA), S decreasing.
        start: first guess.
        bracket: values of A with S ≥ 1 and S ≤ 1.
        alpha: α, broadcastable to the batch.
        explain: maps masses and α to the error raised if no A gives mass one.
        slack: accepted |S − 1|, for an S that jumps because the nodes do not resolve the score.
        steps: Newton steps where values cannot be read; elsewhere convergence ends the loop.
    """

    def residual(normalizer: Tensor) -> tuple[Tensor, Tensor]:
        mass, slope = mass_and_slope(normalizer)
        usable = (mass > 0) & (mass < torch.inf) & (slope > 0)
        log_mass = torch.where(usable, mass, 1).log()
        value = -log_mass * expm1_over((1 - alpha) * log_mass)
        # For a mass of 0 or infinity, return slope 0, so that the solver bisects in the direction given by 1 − mass.
        return torch.where(usable, value, 1 - mass), torch.where(usable, slope / torch.where(usable, mass, 1), 0)

    normalizer = bracketed_root(
        residual, *bracket, start.clamp(*bracket), steps=steps, tolerance=4 * torch.finfo(start.dtype).eps
    )
    # After convergence, a mass other than one means that there is no solution.
    if is_eager_cpu(normalizer):
        mass, _ = mass_and_slope(normalizer)
        if bool(((mass > 0) & ~((mass - 1).abs() <= max(_MASS_TOLERANCE, slack))).any()):
            raise explain(mass, alpha)
    return normalizer


def carry_gradient(
    mass_and_slope: MassAndSlope, normalizer: Float[Tensor, "*batch"], *given: Tensor
) -> Float[Tensor, "*batch"]:
    """The solution A with first and second derivatives, which two Newton steps with a constant slope add to A.

    Args:
        mass_and_slope: A ↦ (S, −dS/dA), with the mass S differentiable in A and in `given`.
        normalizer: the solution, without gradient.
        given: tensors on which the mass depends; if none carries a gradient, the solution is returned unchanged.
    """
    if carries_gradient(*given):
        for _ in range(2):
            mass, slope = mass_and_slope(normalizer)
            normalizer = normalizer + (mass - mass.detach()) / torch.where(slope > 0, slope, 1).detach()
    return normalizer


def normalizer_on_nodes(
    scores: Float[Tensor, "*batch n"], weights: Float[Tensor, "*#batch n"], alpha: Float[Tensor, "..."]
) -> Float[Tensor, "*batch"]:
    """A of the discrete density on weighted points: a first guess of A for the density that the points sample."""
    return normalizer_at_best(scores, entmax_map(scores, alpha[..., None], -1, weights), alpha)


def normalizer_at_best(scores: Tensor, density: Tensor, alpha: Tensor) -> Float[Tensor, "*batch"]:
    """A = f − log_{2−α} p at the point of highest density; meaningless if the density is 0 at all points."""
    best = density.detach().argmax(-1, keepdim=True)
    score = torch.where(scores == -torch.inf, 0, scores).gather(-1, best)[..., 0]
    height = density.gather(-1, best)[..., 0]
    return score - log_beta(torch.where(height > 0, height, 1), 2 - alpha)


def bracket_of(
    low: Float[Tensor, "*batch n"], high: Float[Tensor, "*batch n"], measure: Tensor, alpha: Tensor
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Bounds of A: the normalisers of the constant scores min(low) and max(high) on this measure, with a margin.

    Where the measure is 0 there is nothing to normalise, and the bounds have no meaning.
    """
    lowest, highest = low.amin(-1), high.amax(-1)
    shift = -log_beta(1 / torch.where(measure > 0, measure, 1), 2 - alpha)
    margin = torch.where(measure > 0, 1e-3 + 0.1 * (highest - lowest), 0)
    return lowest + shift - margin, highest + shift + margin


@dataclass(frozen=True)
class UnitMeasure:
    """The change of variables from a score f and its normaliser A to f̃ and Ã, those on the domain of measure one."""

    top: Float[Tensor, "*batch"]  # max f over the samples, a constant that keeps the scores near zero
    log_volume: Float[Tensor, ""]
    alpha: Float[Tensor, "..."]  # α, broadcastable to the batch
    empty: Bool[Tensor, "*batch"]  # whether the score of a batch member is −inf everywhere

    @classmethod
    def of(cls, scores: Float[Tensor, "*batch n"], volume: Float[Tensor, ""], alpha: Tensor) -> "UnitMeasure":
        """The change of variables for sampled scores on a domain of measure `volume`; −inf means no mass."""
        top = scores.detach().amax(-1)
        empty = top == -torch.inf
        return cls(torch.where(empty, 0, top), volume.log(), alpha, empty)

    def detach(self) -> "UnitMeasure":
        """The change of variables without gradient."""
        return UnitMeasure(self.top, self.log_volume.detach(), self.alpha.detach(), self.empty)

    @property
    def factor(self) -> Float[Tensor, "..."]:
        """V^{α−1}, the scale in f̃ = V^{α−1}(f − max f)."""
        return ((self.alpha - 1) * self.log_volume).exp()

    def scaled(self, scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """f̃ of scores f (*batch, …); −inf stays −inf."""
        known, each = scores > -torch.inf, (..., *[None] * (scores.dim() - self.top.dim()))
        # Replace −inf before the product with V^{α−1}, which would otherwise have no derivative in α.
        finite = torch.where(known, scores - self.top[each], 0)
        return torch.where(known, finite * self.factor[each], -torch.inf)

    def normalizer(self, normalizer: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """A from Ã; −∞ where the score is −inf everywhere."""
        shrink = (1 - self.alpha) * self.log_volume
        value = self.top + shrink.exp() * normalizer + self.log_volume * expm1_over(shrink)
        return torch.where(self.empty, -torch.inf, value)

    def threshold(self, normalizer: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """λ from Ã; −∞ at α = 1 and where the score is −inf everywhere."""
        sparse = (self.alpha != 1) & ~self.empty
        unit = normalizer - 1 / torch.where(sparse, self.alpha - 1, 1)
        return torch.where(sparse, self.top + ((1 - self.alpha) * self.log_volume).exp() * unit, -torch.inf)
