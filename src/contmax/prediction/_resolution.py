r"""Refinement: cells are halved until the nodes resolve a score; points between nodes give an error estimate.

A score f is read at nodes, and on each cell a polynomial g interpolates it. Steps, kinks and peaks narrower than a
cell make g differ from f. The *misplaced mass* measures the error of the density, on a domain of measure one:
:math:`\int |\exp_{2-\alpha}(f - A) - \exp_{2-\alpha}(g - A)|`. Above a limit, `_WARNED` in the module of each domain,
it causes a warning, above a tenth an error. `_normalizer` defines A, Ã, f̃ and measure one.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax._typing import Bool, Float
from contmax.deformed import exp_beta
from contmax.maps._threshold import power_on_support
from contmax.numerics import gauss_legendre, legendre_coefficients, legendre_slope, legendre_sum, spread_points
from contmax.prediction._live_parts import PART_NODES, Lines, live_parts, threshold_of
from contmax.prediction._normalizer import UnitMeasure, normalizer_on_nodes

# Misplaced mass above which an error is raised.
_REFUSED = 0.1
# Differences of scores up to this number of rounding errors are ignored.
_ROUNDING = 64
# The largest misplaced mass (error of the density) per cell. At a jump of the score no cell may meet this limit:
# halving stops at 2^−_MOST_HALVINGS of the shortest initial cell.
_TOLERANCE = 1e-12
_MOST_HALVINGS = 36
# The most cells (all scores of a batch share the cells), and the most cells times scores of the batch.
_MOST_CELLS, _MOST_CELLS_OF_BATCH = 4096, 2**16
# If the number of cells reaches its limit, the error is estimated from this number of further points per cell.
_HELD_OUT = 2
# Extrapolation from the nodes to the edge of a cell multiplies noise by up to this factor.
_EXTRAPOLATION = 16


Read = Callable[[Float[Tensor, "n"]], Float[Tensor, "*batch n"]]


@dataclass(frozen=True)
class HeldOut:
    """Scaled scores f̃ and their interpolant at points between the nodes; −inf means no mass."""

    exact: Float[Tensor, "*batch n"]
    interpolated: Float[Tensor, "*batch n"]

    @classmethod
    def between(cls, exact: Tensor, interpolated: Tensor, noise: Float[Tensor, "..."]) -> "HeldOut":
        """Pairs exact with interpolated scores; absolute differences are reduced by `noise`, but not below 0."""
        known = (exact > -torch.inf) & (interpolated > -torch.inf)
        gap = torch.where(known, exact - interpolated, 0)
        beyond = gap.sign() * (gap.abs() - noise).clamp(min=0)
        return cls(torch.where(known, interpolated + beyond, exact), interpolated)

    def _densities(self, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> list[Tensor]:
        """exp_{2−α}(f̃ − Ã) of the exact and of the interpolated scores."""
        both = self.exact, self.interpolated
        return [exp_beta(scores - normalizer[..., None], 2 - alpha[..., None]) for scores in both]

    def misplaced(self, normalizer: Float[Tensor, "*batch"], alpha: Tensor, weights: Tensor | float) -> Tensor:
        """Misplaced mass (the error of the density), (*batch), by quadrature with these weights, whose sum is one.

        NaN if `normalizer`, a guess of Ã, makes a density infinite.
        """
        exact, interpolated = self._densities(normalizer, alpha)
        # Divide by the mass if it exceeds one: if the guess of Ã is too small, all densities are too large.
        mass = (weights * interpolated).sum(-1).clamp(min=1)
        return (weights * (exact - interpolated).abs()).sum(-1) / mass

    def misplaced_by_draws(self, normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> Tensor:
        """Misplaced mass, (*batch), estimated from points that were drawn from the interpolated density."""
        exact, interpolated = self._densities(normalizer, alpha)
        ratio = torch.where(interpolated > 0, exact / torch.where(interpolated > 0, interpolated, 1), 1)
        return (ratio - 1).abs().mean(-1)


def report(misplaced: Float[Tensor, "*batch"], expected: float, domain: object, advice: str) -> None:
    """Warn if the misplaced mass exceeds `expected`, a bound for smooth scores; above a tenth raise an error."""
    worst = float(misplaced.max()) if misplaced.numel() else 0.0
    if worst > _REFUSED:
        share = f"{100 * worst:.0f} %" if worst < 1 else "all"
        raise ValueError(f"{_subject(domain)}: {share} of its mass would be misplaced. {advice}")
    if worst > expected:
        found = f"about {100 * worst:.1g} % of its mass is misplaced"
        warnings.warn(f"{_subject(domain)}: {found}. {advice}", RuntimeWarning, stacklevel=5)


def no_mass(mass: Tensor, alpha: Tensor, domain: object, advice: str) -> ValueError:
    """The error if no A gives the interpolated density mass one."""
    worst = float(mass.flatten()[(mass - 1).abs().nan_to_num(torch.inf).argmax()])
    below = " With alpha < 1 a peak can also be so sharp that no density exists; then pass a larger alpha."
    advice = advice + (below if bool((alpha < 1).any()) else "")
    return ValueError(f"{_subject(domain)}: the interpolated density has mass {worst:.3g} instead of 1. {advice}")


def _subject(domain: object) -> str:
    return f"the score changes too fast between the nodes of {domain!r}, so the density is not resolved"


def rounding_noise(
    scores: Float[Tensor, "*batch n"], slopes: Float[Tensor, "*batch n"], precision: float
) -> Float[Tensor, "*batch n"]:
    """Upper bound of differences between readings of a score due to rounding; `slopes` is |f′|·|t| for points t."""
    return _ROUNDING * precision * (scores.abs() + slopes)


@dataclass(frozen=True)
class Noise:
    """Relative precision (eps) of scores and points, and the low end of the domain divided by its length."""

    scores: float
    begin: float

    def points(self, unit: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """|t|/length at points `unit` of [0, 1], to which the rounding error of t is proportional."""
        return (self.begin + unit).abs().clamp(min=torch.finfo(unit.dtype).eps / self.scores)


def refined(
    read: Read, edges: Float[Tensor, "E"], count: int, volume: Tensor, alpha: Tensor, noise: Noise
) -> tuple[Float[Tensor, "F"], Float[Tensor, "*batch C q"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Halve the cells that are too coarse. Returns edges in [0, 1], scores at Gauss nodes, misplaced mass, and Ã.

    The misplaced mass is 0 unless the number of cells exceeded its limit. Ã is a first guess: it normalises the
    discrete density on the nodes.

    Args:
        read: points on [0, 1] ↦ scores, (n,) ↦ (*batch, n).
        edges: edges to begin with.
        count: q, Gauss nodes per cell.
        volume: measure of the domain.
        alpha: α, broadcastable to the batch.
        noise: precision of scores and points; smaller differences are ignored.
    """
    left, right = edges[:-1], edges[1:]
    values = _read_cells(read, left, right, count)
    most = min(_MOST_CELLS, _MOST_CELLS_OF_BATCH // max(1, values.shape[:-2].numel()))
    shortest = (right - left).min() * 2.0**-_MOST_HALVINGS
    new = torch.ones_like(left, dtype=torch.bool)
    view = View.of(values.detach(), left, right, volume, alpha)
    while len(left) <= most:
        coarse = new & (right - left > shortest)
        coarse[coarse.clone()] = _too_coarse(view, noise, coarse)
        if not bool(coarse.any()):
            if bool(new.all()):
                break
            # Older cells were judged by an earlier estimate of the density. Judge all cells by the latest estimate.
            new = torch.ones_like(new)
            continue
        middle = (left + right)[coarse] / 2
        new_left, new_right = torch.cat([left[coarse], middle]), torch.cat([middle, right[coarse]])
        left, right = torch.cat([left[~coarse], new_left]), torch.cat([right[~coarse], new_right])
        values = torch.cat([values[..., ~coarse, :], _read_cells(read, new_left, new_right, count)], -2)
        new = torch.arange(len(left), device=left.device) >= len(left) - len(new_left)
        order = left.argsort()
        left, right, values, new = left[order], right[order], values[..., order, :], new[order]
        view = View.of(values.detach(), left, right, volume, alpha)
    misplaced = _misplaced(read, view, noise) if len(left) > most else torch.zeros_like(view.normalizer)
    return torch.cat([left, right[-1:]]), values, misplaced, view.normalizer


@torch.no_grad()
def _misplaced(read: Read, view: "View", noise: Noise) -> Float[Tensor, "*batch"]:
    """Misplaced mass (the error of the density), from points between the nodes and from cells with several extrema."""
    alpha, alive, left, length = view.form.alpha, view.alive, view.left, view.right - view.left
    index = torch.arange(1, _HELD_OUT * len(left) + 1, dtype=torch.float64, device=left.device)
    local = 2 * spread_points(index, 1).reshape(len(left), _HELD_OUT) - 1
    points = left[:, None] + length[:, None] * (1 + local) / 2
    exact = read(points.flatten()).unflatten(-1, local.shape)
    coefficients = legendre_coefficients(view.scores)
    slope = legendre_sum(legendre_slope(coefficients)[..., None, :], local).abs() * 2 / length[:, None]
    size = view.form.factor[..., None, None] * torch.where(exact == -torch.inf, 0, exact).abs()
    held_out = HeldOut.between(
        view.form.scaled(exact).flatten(-2),
        torch.where(alive[..., None], legendre_sum(coefficients[..., None, :], local), -torch.inf).flatten(-2),
        rounding_noise(size, noise.points(points) * slope, noise.scores).flatten(-2),
    )
    weights = (length[:, None] / _HELD_OUT).expand(local.shape).flatten()
    between = held_out.misplaced(view.normalizer, alpha, weights).nan_to_num(0)
    lines = Lines.over(coefficients, alive, length / 2)
    by_parts = live_parts(lines, view.normalizer, alpha, PART_NODES).mass.flatten(-2).sum(-1)
    _, rule = gauss_legendre(coefficients.shape[-1], left.device)
    density = exp_beta(view.scores - view.normalizer[..., None, None], 2 - alpha[..., None, None])
    by_nodes = torch.where(alive, length * (rule / 2 * density).sum(-1), 0)
    # Live parts presuppose at most one extremum per cell; with more, compare their mass with the mass at the nodes.
    folded = torch.where(lines.turns > 1, (by_parts - by_nodes).abs(), 0).sum(-1)
    return between + folded.nan_to_num(0)


def _read_cells(read: Read, left: Tensor, right: Tensor, count: int) -> Tensor:
    local, _ = gauss_legendre(count, left.device)
    points = ((left + right)[:, None] + (right - left)[:, None] * local) / 2
    values: Tensor = read(points.reshape(-1)).unflatten(-1, (len(left), count))
    return values


@dataclass(frozen=True)
class View:
    """Samples of a score, and an estimate of its density: Ã, and ∫p^{2−α}. An error e of f̃ changes p by p^{2−α}e."""

    values: Float[Tensor, "*batch C q"]  # scores at the Gauss nodes of all cells, without gradient
    left: Float[Tensor, "C"]
    right: Float[Tensor, "C"]
    form: UnitMeasure
    normalizer: Float[Tensor, "*batch"]
    escort: Float[Tensor, "*batch"]

    @classmethod
    def of(cls, values: Tensor, left: Tensor, right: Tensor, volume: Tensor, alpha: Tensor) -> "View":
        """The estimate from scores at the Gauss nodes of the cells between `left` and `right`."""
        _, rule = gauss_legendre(values.shape[-1], values.device)
        form = UnitMeasure.of(values.flatten(-2), volume, alpha)
        weights = ((right - left)[:, None] * rule / 2).flatten()
        scores = form.scaled(values.flatten(-2))
        normalizer = normalizer_on_nodes(scores, weights, alpha)
        return cls(values, left, right, form, normalizer, (weights * _escort(scores, normalizer, alpha)).sum(-1))

    @property
    def alive(self) -> Bool[Tensor, "*batch C"]:
        """Whether the score is finite at all nodes of a cell."""
        return (self.values > -torch.inf).all(-1)

    @property
    def scores(self) -> Float[Tensor, "*batch C q"]:
        """Scaled scores f̃, 0 on cells that are not alive."""
        return torch.where(self.alive[..., None], self.form.scaled(self.values), 0)


def _escort(scores: Float[Tensor, "*batch n"], normalizer: Float[Tensor, "*batch"], alpha: Tensor) -> Tensor:
    density = exp_beta(scores - normalizer[..., None], 2 - alpha[..., None])
    return power_on_support(density, 2 - alpha[..., None])


def _too_coarse(view: View, noise: Noise, chosen: Bool[Tensor, "C"]) -> Bool[Tensor, "c"]:
    """Whether to halve each chosen cell, because a score of the batch, its extrema or its density is not resolved."""
    alpha, normalizer = view.form.alpha, view.normalizer
    coefficients = legendre_coefficients(view.scores)
    # `gap`: the larger of the interpolant's jumps at the edges of a cell, which shows bends between edge and nodes.
    even, odd = coefficients[..., ::2].sum(-1), coefficients[..., 1::2].sum(-1)
    jump = ((even - odd)[..., 1:] - (even + odd)[..., :-1]).abs()
    jump = torch.where(view.alive[..., 1:] & view.alive[..., :-1], jump, 0)
    gap = torch.maximum(F.pad(jump, (1, 0)), F.pad(jump, (0, 1)))[..., chosen]
    values, scores, coefficients = (field[..., chosen, :] for field in (view.values, view.scores, coefficients))
    alive, left, right = view.alive[..., chosen], view.left[chosen], view.right[chosen]
    length, reach = right - left, torch.maximum(noise.points(left), noise.points(right))
    lines = Lines.over(coefficients, alive, length / 2)
    _, rule = gauss_legendre(values.shape[-1], values.device)
    escort = (rule / 2 * _escort(scores.flatten(-2), normalizer, alpha).unflatten(-1, scores.shape[-2:])).sum(-1)
    # If no node is above the threshold, points between nodes may be above it: use the mean of p^{2−α} over the domain.
    escort = length * torch.where(escort > 0, escort, view.escort[..., None])

    tail = coefficients[..., -2:].abs().sum(-1)
    highest = torch.maximum(scores.amax(-1), lines.heights.amax(-1))
    variation = highest - torch.minimum(scores.amin(-1), lines.heights.amin(-1))
    known = values > -torch.inf
    size = torch.where(known, values, 0).abs().amax(-1) * view.form.factor[..., None]
    floor = 8 * noise.scores * (size + reach * variation / length)
    allowed = max(_TOLERANCE, 8 * noise.scores)
    may_live = highest + 2 * tail > threshold_of(normalizer, alpha)[..., None]
    rough = (tail > floor) & (tail * escort > allowed)
    torn = (gap > _EXTRAPOLATION * floor) & (gap * escort > allowed)
    folded = (lines.turns > 1) & (variation > floor) & (variation * escort > allowed)
    by_rules = [live_parts(lines, normalizer, alpha, nodes).mass for nodes in (PART_NODES, 2 * PART_NODES)]
    few, many = (mass.flatten(-2).sum(-1) for mass in by_rules)
    # Negate the comparison, so that NaN counts as peaked: nodes that miss a peak may give infinite masses.
    peaked = ~((few - many).abs() <= allowed)
    edge = known.any(-1) & (length > noise.scores * reach)
    split = torch.where(alive, may_live & (rough | torn | folded) | peaked, edge)
    return split.flatten(0, -2).any(0) if split.dim() > 1 else split
