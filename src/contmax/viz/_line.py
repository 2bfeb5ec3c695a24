"""A density on the line for pictures: heights, the intervals of its support, the mass of cells."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float
from contmax.densities import Density
from contmax.densities._density import unchecked
from contmax.densities._region import Intervals, given_region
from contmax.viz._arguments import Index, checked_weights, drawable, members, require_density, require_something

_POINTS = 401
# The view of an unbounded density leaves out this mass in each tail.
_TAIL = 0.0025
# A cell (of a token, or a part of one) whose overlap with the support is below this share of its width counts as
# unattended, because rounding of the parameters moves the ends of the support.
_TOUCH = 1e-6
# A density may jump at an end of its support: draw points on both sides, this share of the interval's length away.
_STEP = 1e-6


@dataclass(frozen=True)
class LineMember:
    """One member of a batch of densities on the line."""

    density: Distribution  # the whole batch, in float64, with `validate_args` off
    place: int  # the member's place in the flattened batch

    def _of(self, values: Tensor) -> Tensor:
        """The member's column (n,) of values (n, *batch), on the CPU."""
        shape = values.shape[:1] + self.density.batch_shape
        return values.expand(shape).flatten(1)[:, self.place].detach().cpu() if len(shape) > 1 else values.cpu()

    def _spread(self, points: Tensor) -> Tensor:
        """Points (n,) reshaped to (n, 1, …, 1), which broadcasts with the batch, on the device of the density."""
        return points.to(self.density.mean.device).reshape(-1, *(1 for _ in self.density.batch_shape))

    @torch.no_grad()
    def heights(self, points: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """p(t) at the points t."""
        found = drawable(self._of(self.density.log_prob(self._spread(points)).exp()), self.density)
        # Clamp the infinite height of a density of zero width.
        return found.clamp(max=torch.finfo(torch.float32).max)

    @torch.no_grad()
    def stretches(self) -> list[tuple[float, float]]:
        """The intervals that make up the support, left to right; none if the support is unbounded."""
        region = self.density._region() if isinstance(self.density, Density) else given_region(self.density)
        if not isinstance(region, Intervals):
            return []
        ends = (self._of(end.movedim(-1, 0)).tolist() for end in (region.low, region.high))
        joined: list[tuple[float, float]] = []
        for low, high in sorted((low, high) for low, high in zip(*ends, strict=True) if low < high):
            if not (math.isfinite(low) and math.isfinite(high)):
                return []
            # Join intervals that touch.
            if joined and low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        return joined

    @torch.no_grad()
    def view(self) -> tuple[float, float]:
        """The interval to show: the whole support; if unbounded, all but the tails, or, without icdf, the mean ± 4σ."""
        stretches = self.stretches()
        if stretches:
            return stretches[0][0], stretches[-1][1]
        shares = torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64)
        try:
            low, high = self._of(self.density.icdf(self._spread(shares))).tolist()
        except NotImplementedError:
            moments = (self.density.mean, self.density.variance.sqrt())
            middle, reach = (float(self._of(moment.double().unsqueeze(0))) for moment in moments)
            low, high = middle - 4 * reach, middle + 4 * reach
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(
                f"{type(self.density).__name__} does not say where its mass lies. Pass limits=(low, high) to draw it."
            )
        return low, high

    def points(self, low: float, high: float) -> Float[Tensor, "n"]:
        """Points from low to high at which to draw the density, dense on each interval of the support."""
        parts = [torch.linspace(low, high, _POINTS, dtype=torch.float64)]
        try:
            inner = self.stretches() or [self.view()]
        except ValueError:
            inner = []
        for start, end in inner:
            step = _STEP * (end - start)
            parts.append(torch.linspace(start + step, end - step, _POINTS, dtype=torch.float64))
            parts.append(torch.tensor([start - step, end + step], dtype=torch.float64))
        points = torch.cat(parts)
        shown: Tensor = points[(points >= low) & (points <= high)].unique()
        return shown

    @torch.no_grad()
    def cell_mass(self, edges: Float[Tensor, "n+1"]) -> Float[Tensor, "n"]:
        """The mass in each cell, between neighbouring edges; 0 in cells that `_TOUCH` counts as unattended."""
        try:
            mass = self._of(self.density.cdf(self._spread(edges))).diff().clamp(min=0)
        except NotImplementedError:
            parts = 32  # midpoint rule
            inner = edges[:-1, None] + edges.diff()[:, None] * (torch.arange(parts) + 0.5) / parts
            mass = self.heights(inner.flatten()).reshape(-1, parts).mean(-1) * edges.diff()
        stretches = self.stretches() or [(-math.inf, math.inf)]
        shared = [edges[1:].clamp(max=end) - edges[:-1].clamp(min=start) for start, end in stretches]
        # The length of the support between neighbouring edges.
        overlap = torch.stack(shared).clamp(min=0).sum(0)
        return torch.where(overlap > _TOUCH * edges.diff(), drawable(mass, self.density), 0.0)

    def holds(self, points: Float[Tensor, "n"]) -> Tensor:
        """Whether each point lies in the support; True everywhere if the support is unbounded."""
        stretches = self.stretches() or [(-math.inf, math.inf)]
        return torch.stack([(points > start) & (points < end) for start, end in stretches]).any(0)


def line_members(density: Distribution, index: Index = (), shape: tuple[int, ...] | None = None) -> list[LineMember]:
    """The members at `index` of a batch of densities on the line, by default all. A given `shape` must fit them."""
    require_density(density)
    if len(density.event_shape):
        raise TypeError(
            f"{type(density).__name__} has {density.event_shape[-1]} dimensions; this picture needs a density on the "
            "line, such as contmax.densities.TruncatedParabola."
        )
    if density.support is not None and density.support.is_discrete:
        raise TypeError(f"{type(density).__name__} is discrete: it has weights, not a density. Pass them as weights.")
    places = members(density, index)
    if shape is not None and len(places) != math.prod(shape):
        raise ValueError(
            f"density must have batch shape {shape}; got {tuple(density.batch_shape)} and index {index}. "
            "Pass index= to choose one example of a batch."
        )
    wide = unchecked(density, torch.float64)
    return [LineMember(wide, place) for place in places]


@dataclass(frozen=True)
class TokenAttention:
    """T rows of attention over L tokens, which divide the unit interval into cells of equal width."""

    tokens: list[str]
    weights: Tensor | None  # (T, L), T = 1 for a text, else a row for each target token; None if not given
    densities: list[LineMember] | None  # a density for each row; None if not given

    @classmethod
    def of(
        cls, tokens: list[str], weights: Any, density: Distribution | None, index: Index, targets: int | None = None
    ) -> "TokenAttention":
        """Attention from the checked arguments of a picture: one row, or one row per target token."""
        require_something(weights, density)
        count = len(tokens)
        rows = () if targets is None else (targets,)
        meaning = f"one weight for each of {count} tokens, shape ({count},)"
        if targets is not None:
            meaning = f"a row for each of {targets} target tokens and a column for each of {count} source tokens"
        shares = checked_weights(weights, (*rows, count), meaning, index)
        drawn = None if density is None else line_members(density, index, rows)
        return cls(tokens, None if shares is None else shares.reshape(-1, count), drawn)

    def mass(self, parts: int = 1) -> Tensor | None:
        """Mass, (T, parts·L), of each density in each of `parts` equal parts of each token; None without densities."""
        edges = torch.linspace(0, 1, parts * len(self.tokens) + 1, dtype=torch.float64)
        return None if self.densities is None else torch.stack([member.cell_mass(edges) for member in self.densities])

    def in_support(self) -> Tensor | None:
        """Whether the middle of each token lies in the support of each density, (T, L); None without densities."""
        middles = (torch.arange(len(self.tokens), dtype=torch.float64) + 0.5) / len(self.tokens)
        return None if self.densities is None else torch.stack([member.holds(middles) for member in self.densities])
