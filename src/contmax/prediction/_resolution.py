r"""Whether a density tells the truth about its score: compared at points that were held out from the interpolation.

A score is known at nodes and interpolated between them. Steps, kinks and peaks narrower than a cell make the
interpolant differ from the score. What that does to the density p is measured in mass, on a domain of measure one:
:math:`\int |\exp_{2-\alpha}(f - A) - \exp_{2-\alpha}(f_{\text{interpolated}} - A)|`. More than the stated accuracy is
said in a warning, more than a tenth is refused.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.deformed import exp_beta
from contmax.prediction._partition import farthest_from_one

# The share of the mass from which on a density is refused.
_REFUSED = 0.1
# Rounding of scores in units of their precision, below which a difference means nothing.
_ROUNDING = 64


@dataclass(frozen=True)
class HeldOut:
    """A score and its interpolant at the same points, both for the domain of measure one; −inf means no mass."""

    exact: Float[Tensor, "*batch n"]
    interpolated: Float[Tensor, "*batch n"]

    @classmethod
    def between(cls, exact: Tensor, interpolated: Tensor, noise: Float[Tensor, "..."]) -> "HeldOut":
        """Both scores, with differences up to the noise taken out."""
        known = (exact > -torch.inf) & (interpolated > -torch.inf)
        gap = torch.where(known, exact - interpolated, 0)
        beyond = gap.sign() * (gap.abs() - noise).clamp(min=0)
        return cls(torch.where(known, interpolated + beyond, exact), interpolated)

    def densities(self, partition: Float[Tensor, "*batch"], alpha: Tensor) -> tuple[Tensor, Tensor]:
        """exp_{2−α}(f − A) of both."""
        exact, interpolated = (
            exp_beta(scores - partition[..., None], 2 - alpha[..., None]) for scores in (self.exact, self.interpolated)
        )
        return exact, interpolated

    def misplaced(self, partition: Float[Tensor, "*batch"], alpha: Tensor, weights: Tensor | float) -> Tensor:
        """Mass by which the densities differ, (*batch), at points that stand for these shares of the domain."""
        exact, interpolated = self.densities(partition, alpha)
        return (weights * (exact - interpolated).abs()).sum(-1)

    def misplaced_by_guess(self, partition: Float[Tensor, "*batch"], alpha: Tensor, weights: Tensor | float) -> Tensor:
        """The same for a first guess of A, 0 where it says nothing."""
        _, interpolated = self.densities(partition, alpha)
        # A guess that is too small makes all densities too large; for α < 1 it makes them infinite.
        mass = (weights * interpolated).sum(-1).clamp(min=1)
        return (self.misplaced(partition, alpha, weights) / mass).nan_to_num(0)

    def misplaced_of_own(self, partition: Float[Tensor, "*batch"], alpha: Tensor) -> Tensor:
        """The same at points drawn from the interpolated density."""
        exact, interpolated = self.densities(partition, alpha)
        ratio = torch.where(interpolated > 0, exact / torch.where(interpolated > 0, interpolated, 1), 1)
        return (ratio - 1).abs().mean(-1)


def spread_points(count: int, axes: int, device: torch.device) -> Float[Tensor, "n N"]:
    """Points that fill the unit box evenly and lie on no grid: multiples, less their integer parts, of irrationals."""
    # The root of x^{N+1} = x + 1; its powers are the least periodic of all.
    root = 2.0
    for _ in range(60):
        root = (1 + root) ** (1 / (axes + 1))
    step = torch.tensor([root**-axis for axis in range(1, axes + 1)], dtype=torch.float64, device=device)
    index = torch.arange(1, count + 1, dtype=torch.float64, device=device)[:, None]
    return (0.5 + index * step) % 1


def refuse_if_lost(misplaced: Float[Tensor, "*batch"], domain: object, advice: str) -> None:
    """An error where more than a tenth of the mass is misplaced."""
    worst = _worst(misplaced)
    if worst > _REFUSED:
        share = f"{100 * worst:.0f} %" if worst < 1 else "all"
        raise unresolved(f"{share} of its mass would be misplaced", domain, advice)


def report(misplaced: Float[Tensor, "*batch"], expected: float, domain: object, advice: str) -> None:
    """A warning where more mass is misplaced than a score that is smooth on every cell would have."""
    worst = _worst(misplaced)
    if worst > expected:
        found = f"about {100 * worst:.1g} % of its mass is misplaced"
        warnings.warn(f"{_subject(domain)}: {found}. {advice}", RuntimeWarning, stacklevel=5)


def _worst(misplaced: Tensor) -> float:
    return float(misplaced.max()) if misplaced.numel() else 0.0


def no_mass(mass: Tensor, alpha: Tensor, domain: object, advice: str) -> ValueError:
    """The error where no A gives the interpolated density the mass one."""
    found = f"the interpolated density has mass {farthest_from_one(mass):.3g} instead of 1"
    below = " With alpha < 1 a peak can also be so sharp that no density exists; then pass a larger alpha."
    return unresolved(found, domain, advice + (below if bool((alpha < 1).any()) else ""))


def unresolved(found: str, domain: object, advice: str) -> ValueError:
    """The error for a score that was not resolved."""
    return ValueError(f"{_subject(domain)}: {found}. {advice}")


def _subject(domain: object) -> str:
    return f"the score changes too fast between the nodes of {domain!r}, so the density is not resolved"


def rounding_noise(
    scores: Float[Tensor, "*batch n"], slopes: Float[Tensor, "*batch n"], precision: float
) -> Float[Tensor, "*batch n"]:
    """By how much two readings of a score may differ for want of digits, in scores and in points."""
    return _ROUNDING * precision * (scores.abs() + slopes)
