"""How far a density on a box can be trusted: its score is read again, between the nodes of the interpolation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.domains import Box
from contmax.prediction._box._interpolant import Interpolant
from contmax.prediction._box._panels import Panels
from contmax.prediction._box._support_rule import with_more_nodes
from contmax.prediction._partition import UnitMeasure
from contmax.prediction._quantile import bucket, take
from contmax.prediction._resolution import HeldOut, no_mass, refuse_if_lost, report, rounding_noise, spread_points
from contmax.prediction._score import Score, broadcast_alpha, read_score

# Mass misplaced from which on a warning is given, by the dimension of the box: ten times what smooth scores have.
_WARNED = {1: 1e-8, 2: 1e-4, 3: 1e-2}
# Points at which the score is read again: all over the box, and where the density is.
_ALL_OVER, _OWN = 4096, 2048


@dataclass(frozen=True)
class BoxCheck:
    """Compares a score on a box with its interpolant; nothing here requires a gradient."""

    domain: Box
    form: UnitMeasure
    interpolant: Interpolant
    dtype: torch.dtype
    """The precision of points and scores."""

    def read_all_over(self, score: Score) -> HeldOut:
        """Score and interpolant at points all over the box."""
        rows = self.interpolant.rows
        with torch.no_grad():
            exact, points = self._read(score, spread_points(_ALL_OVER, self.domain.dimension, self.domain.low.device))
        return self._beside(exact, points.reshape(len(points), *(1,) * len(rows), -1).expand(-1, *rows, -1))

    def refuse_if_lost(self, between: HeldOut, partition: Float[Tensor, "*batch"]) -> None:
        """Refuses a score for which even the first guess of A shows that its interpolant means nothing."""
        misplaced = between.misplaced_by_guess(partition, self.form.alpha, 1 / _ALL_OVER)
        refuse_if_lost(misplaced, self.domain, self._advice)

    def report(
        self,
        score: Score,
        between: HeldOut,
        rule: tuple[Float[Tensor, "*batch n N"], Float[Tensor, "*batch n"]],
        panels: list[Panels],
        partition: Float[Tensor, "*batch"],
    ) -> None:
        """Warns of a density that is less accurate than stated, and refuses one that means nothing.

        Args:
            score: f, to be read where the density is.
            between: the score all over the box.
            rule: nodes and masses of the density.
            panels: panels of that rule.
            partition: Ã, without gradient.
        """
        alpha = self.form.alpha
        with torch.no_grad():
            own = self._read_own(score, *rule)
        finer = with_more_nodes(self.interpolant, panels, partition, alpha).mass(partition, alpha)
        errors = [
            between.misplaced(partition, alpha, 1 / _ALL_OVER),
            own.misplaced_of_own(partition, alpha),
            (finer - 1).abs(),
        ]
        worst = torch.where(self.form.empty, 0, torch.stack(errors).nan_to_num(torch.inf).amax(0))
        refuse_if_lost(worst, self.domain, self._advice)
        report(worst, _WARNED[self.domain.dimension], self.domain, self._advice)

    def no_mass(self, mass: Tensor, alpha: Tensor) -> ValueError:
        """The error where no A gives the interpolated density the mass one."""
        return no_mass(mass, alpha, self.domain, self._advice)

    @property
    def _advice(self) -> str:
        return (
            f"Steps, kinks and peaks narrower than a cell do this: raise resolution, now {self.domain.resolution}, "
            "or pass contmax.domains.Nodes with your own quadrature rule."
        )

    def _read_own(self, score: Score, nodes: Float[Tensor, "*batch n N"], masses: Float[Tensor, "*batch n"]) -> HeldOut:
        """Score and interpolant where each member of the batch has its mass, known at the nodes of a rule."""
        batch = masses.shape[:-1]
        count = -(-_OWN // max(1, batch.numel()))
        steps = torch.arange(count, dtype=torch.float64, device=masses.device)
        level = ((steps + 0.5) / count).reshape(-1, *(1,) * len(batch))
        points = take(nodes, bucket(masses, level * masses.sum(-1)), batch)
        exact, rounded = self._read(score, self._unit(points.reshape(-1, self.domain.dimension)))
        # Each score was read at the points of all others too.
        exact = exact.reshape(batch.numel(), count, batch.numel()).diagonal(dim1=0, dim2=2)
        return self._beside(exact.T.reshape(*batch, count), rounded.reshape(points.shape))

    def _unit(self, points: Tensor) -> Tensor:
        """Points of the box as points of the unit box."""
        low, length = self.domain.low.double(), (self.domain.high - self.domain.low).double()
        return ((points - low) / length).clamp(0, 1)

    def _read(self, score: Score, unit: Float[Tensor, "n N"]) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "n N"]]:
        """Scores at points of the unit box, and these points as they were after rounding."""
        low, length = self.domain.low.double(), (self.domain.high - self.domain.low).double()
        points = (low + length * unit).to(self.dtype)
        values = broadcast_alpha(read_score(score, points, self.domain)[0], self.form.alpha)
        return values, self._unit(points.double())

    def _beside(self, values: Float[Tensor, "*batch n"], points: Float[Tensor, "n *batch N"]) -> HeldOut:
        """Scores as read beside those of the interpolant at the same points."""
        score, alive = self.interpolant.score(points)
        slopes = [self.interpolant.slope(axis).score(points)[0].abs() for axis in range(self.interpolant.axes)]
        reach = torch.maximum(self.domain.low.abs(), self.domain.high.abs()) / (self.domain.high - self.domain.low)
        slope = (torch.stack(slopes, -1) * reach.clamp(min=1)).sum(-1).movedim(0, -1)
        dead = values == -torch.inf
        size = self.form.factor[..., None] * (torch.where(dead, 0, values).abs() + self.form.top.abs()[..., None])
        exact = self.form.scaled(values).masked_fill(dead, -torch.inf)
        interpolated = torch.where(alive, score, -torch.inf).movedim(0, -1)
        return HeldOut.between(exact, interpolated, rounding_noise(size, slope, torch.finfo(self.dtype).eps))
