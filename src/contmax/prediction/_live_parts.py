r"""Piecewise-polynomial scores along lines, their live parts above a threshold, and integrals over the live parts.

A line is divided into cells, and on each cell the score f is a Legendre series. A cell is split at the first extremum
of f. Without a second extremum, f is monotone on each of the two pieces and crosses the threshold λ at most once. The
live part of a piece, where f > λ, is an interval; its ends and the quadrature nodes on it move with f. In coordinates
that move with the ends, the integrand :math:`p = [(\alpha-1)(f-\lambda)]^{1/(\alpha-1)}` keeps its zero in place, so
the sum over nodes can be differentiated as often as the integral, even at α = 2 (where the second derivative depends on
the ends alone) and for α > 2 (where :math:`p^{2-\alpha}` is unbounded). Local coordinates of a cell run from −1 to 1.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contmax._eager import carries_gradient, is_eager, is_eager_cpu
from contmax._typing import Bool, Float, Int
from contmax.deformed import exp_beta
from contmax.maps._threshold import power_on_support
from contmax.numerics import (
    bracketed_root,
    device_table,
    gauss_legendre,
    graded_rule,
    grading,
    legendre_basis,
    legendre_coefficients,
    legendre_slope,
    legendre_sum,
    legendre_to_chebyshev,
)

# Graded nodes per live part: the integral of xᵏ has an error below 1e-10 for every k ≥ 1/9.
PART_NODES = 24
# Root-finding steps where values cannot be read (GPU, trace), and tolerance of roots. Newton's method converges
# quadratically except beside an extremum.
_ROOT_STEPS, _ROOT_TOLERANCE = 24, 1e-12
# Steps for a quantile between two neighbouring nodes. Newton's method needs three or four; beside the end of the
# support, where the density vanishes, each step halves the bracket instead.
_QUANTILE_STEPS = 8


@dataclass(frozen=True)
class Lines:
    """Scores f on lines with common cells, one line per row.

    The rows are a batch or, in a box, the lines along the last axis (through nodes of the other axes) times a batch.
    """

    coefficients: Float[Tensor, "*rows C q"]  # of Legendre series
    alive: Bool[Tensor, "*rows C"]  # whether the score is finite on a cell
    half: Float[Tensor, "C"]  # half the length of each cell
    split: Float[Tensor, "*rows C"]  # local coordinate of the first extremum in each cell; 0 without extremum
    heights: Float[Tensor, "*rows C 3"]  # score at local coordinates −1, split and 1, without gradient
    turns: Int[Tensor, "*rows C"]  # sign changes of the derivative on a grid in each cell

    @classmethod
    def over(cls, coefficients: Tensor, alive: Tensor, half: Tensor) -> "Lines":
        """Lines with these scores; finds the extremum that splits each cell into two pieces."""
        fixed = coefficients.detach()
        split, turns = _extremum(fixed)
        ends = torch.stack([-torch.ones_like(split), split, torch.ones_like(split)], -1)
        return cls(coefficients, alive, half, split, legendre_sum(fixed[..., None, :], ends), turns)

    def expand(self, rows: torch.Size) -> "Lines":
        """The lines with their rows expanded to `rows`."""
        names, own = ("coefficients", "alive", "split", "heights", "turns"), self.alive.dim() - 1
        fields = {name: getattr(self, name) for name in names}
        return replace(self, **{name: field.expand(*rows, *field.shape[own:]) for name, field in fields.items()})

    def detach(self) -> "Lines":
        """The lines without gradient."""
        return replace(self, coefficients=self.coefficients.detach())


@dataclass(frozen=True)
class Parts:
    """The live parts [start, stop] of the two pieces of each cell, and quadrature nodes there, in local coordinates."""

    start: Float[Tensor, "*rows C 2"]
    stop: Float[Tensor, "*rows C 2"]
    start_moves: Bool[Tensor, "*rows C 2"]  # whether the start is a crossing of the threshold
    stop_moves: Bool[Tensor, "*rows C 2"]
    local: Float[Tensor, "*rows C 2 n"]
    density: Float[Tensor, "*rows C 2 n"]
    mass: Float[Tensor, "*rows C 2 n"]  # quadrature weight times density at each node

    @property
    def total(self) -> Float[Tensor, "*rows"]:
        """The mass of each row."""
        return self.mass.flatten(-3).sum(-1)


def series_bounds(coefficients: Float[Tensor, "*rows q"]) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """Lower and upper bounds of Legendre series on [−1, 1], where no Legendre polynomial exceeds one."""
    mean, reach = coefficients[..., 0], coefficients[..., 1:].abs().sum(-1)
    return mean - reach, mean + reach


def threshold_of(normalizer: Tensor, alpha: Tensor) -> Tensor:
    """λ = A − 1/(α−1): the density is zero where f ≤ λ. −∞ for α ≤ 1, where the density is positive everywhere."""
    above = alpha > 1
    return torch.where(above, normalizer - 1 / torch.where(above, alpha - 1, 1), -torch.inf)


def live_parts(lines: Lines, normalizer: Tensor, alpha: Tensor, nodes: int, least: Tensor | None = None) -> Parts:
    """The live parts of lines with graded quadrature nodes on each; differentiable in scores, A and α.

    Args:
        lines: the scores, (*rows, C, q).
        normalizer: A, (*rows).
        alpha: α, broadcastable to (*rows).
        nodes: quadrature nodes per part.
        least: for α ≤ 1, a substitute for the threshold, (*rows): the density is left out where f ≤ least.
    """
    threshold = threshold_of(normalizer, alpha)
    threshold = threshold if least is None else torch.where(alpha > 1, threshold, least)
    start, stop, start_moves, stop_moves = _ends(lines, threshold[..., None, None])
    normalizer, alpha = normalizer[..., None, None], alpha[..., None, None]
    unit, weight = graded_rule(nodes, lines.half.device)
    length = (stop - start)[..., None]
    local = start[..., None] + length * unit
    score = legendre_sum(lines.coefficients[..., None, None, :], local)
    density = exp_beta(score - normalizer[..., None], 2 - alpha[..., None])
    # Set the density to 0 on a piece without a live part (length 0), where exp_beta may even be infinite.
    density = torch.where(length > 0, density, 0)
    mass = lines.half[:, None, None] * length * weight * density
    return Parts(start, stop, start_moves, stop_moves, local, density, mass)


def mass_and_slope(lines: Lines, alpha: Tensor, normalizer: Float[Tensor, "*rows"]) -> tuple[Tensor, Tensor]:
    """S = ∫ exp_{2−α}(f − A) along each line, and −dS/dA, both (*rows); A = `normalizer`."""
    parts = live_parts(lines, normalizer, alpha, PART_NODES)
    return parts.total, mass_slope(lines, parts, alpha)


def mass_slope(lines: Lines, parts: Parts, alpha: Tensor) -> Tensor:
    """−dS/dA, (*rows), of S = `parts.total`, including the movement of ends and nodes with A."""
    slope = legendre_slope(lines.coefficients)[..., None, :]
    start_rate = _reciprocal(legendre_sum(slope, parts.start), parts.start_moves)[..., None]
    stop_rate = _reciprocal(legendre_sum(slope, parts.stop), parts.stop_moves)[..., None]
    unit, weight = graded_rule(parts.local.shape[-1], lines.half.device)
    node_rate = start_rate + (stop_rate - start_rate) * unit
    drift = legendre_sum(slope[..., None, :], parts.local) * node_rate - 1
    escort = power_on_support(parts.density, 2 - alpha[..., None, None, None])
    change = (stop_rate - start_rate) * parts.density + (parts.stop - parts.start)[..., None] * escort * drift
    return -(lines.half[:, None, None] * weight * change).flatten(-3).sum(-1)


def _ends(lines: Lines, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Start and stop of each live part, and whether each is a crossing of `threshold`, whose shape is (*rows, 1, 1)."""
    one = torch.ones_like(lines.split)
    left, right = torch.stack([-one, lines.split], -1), torch.stack([lines.split, one], -1)
    above = (lines.heights > threshold.detach()) & lines.alive[..., None]
    above_left, above_right = above[..., :2], above[..., 1:]
    crossed = above_left ^ above_right
    inside, outside = torch.where(above_left, left, right), torch.where(above_left, right, left)
    root = _root(lines.coefficients, torch.where(crossed, threshold, 0), inside, outside, crossed)
    start = torch.where(crossed & above_right, root, left)
    stop = torch.where(crossed & above_left, root, torch.where(above_right, right, left))
    return start, stop, crossed & above_right, crossed & above_left


def _root(coefficients: Tensor, threshold: Tensor, inside: Tensor, outside: Tensor, crossed: Tensor) -> Tensor:
    """Where each crossed piece meets the threshold: a root without gradient, to which two Newton steps add derivatives.

    One Newton step is exact to first order in a perturbation of the score, two Newton steps to third order.
    """
    both = _value_and_slope(coefficients.detach())
    x = _roots(crossed, both, threshold.detach(), inside, outside)
    if is_eager_cpu(x) and not carries_gradient(coefficients, threshold):
        return x
    coefficients, slope = coefficients[..., None, :], legendre_slope(coefficients)[..., None, :]
    for _ in range(2):
        excess = legendre_sum(coefficients, x) - threshold
        # Subtracting the detached excess gives a step of value zero, which adds derivatives to x.
        x = x - (excess - excess.detach()) * _reciprocal(legendre_sum(slope, x), crossed)
    return x


def _value_and_slope(coefficients: Float[Tensor, "... q"]) -> Float[Tensor, "... 2 q"]:
    """Chebyshev coefficients of a Legendre series and of its derivative."""
    return legendre_to_chebyshev(torch.stack([coefficients, legendre_slope(coefficients)], -2))


def _roots(
    where: Bool[Tensor, "... p"],
    value_and_slope: Float[Tensor, "... 2 q"],
    threshold: Tensor,
    inside: Float[Tensor, "... p"],
    outside: Float[Tensor, "... p"],
) -> Float[Tensor, "... p"]:
    """Where `where` is true, the threshold crossing between `inside` and `outside`; elsewhere `inside`.

    On a CPU the solver runs only on the entries where `where` is true.
    """
    if not is_eager_cpu(value_and_slope):
        return torch.where(where, _series_root(value_and_slope, threshold, inside, outside), inside)
    each = value_and_slope[..., None, :, :].expand(*where.shape, *value_and_slope.shape[-2:])[where]
    goal, near, far = (field.expand(where.shape)[where][:, None] for field in (threshold, inside, outside))
    return inside.masked_scatter(where, _series_root(each, goal, near, far))


def _series_root(value_and_slope: Tensor, threshold: Tensor, inside: Tensor, outside: Tensor) -> Float[Tensor, "... p"]:
    """Where a series crosses the threshold, between `inside` and `outside`."""
    order = torch.arange(value_and_slope.shape[-1], dtype=inside.dtype, device=inside.device)

    def residual(x: Tensor) -> tuple[Tensor, Tensor]:
        # Evaluate the Chebyshev series by cosines and one matrix product, which is faster than a recurrence.
        value, slope = ((x.acos()[..., None] * order).cos() @ value_and_slope.mT).unbind(-1)
        return threshold - value, -slope

    middle = (inside + outside) / 2
    return bracketed_root(residual, inside, outside, middle, steps=_ROOT_STEPS, tolerance=_ROOT_TOLERANCE)


def _extremum(coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Local coordinate where the derivative first changes sign (0 if nowhere), and the number of sign changes."""
    count = coefficients.shape[-1]
    # The derivative at n + 1 equidistant points from −1 to 1.
    rises = coefficients @ device_table("slope_on_grid", count, coefficients.device) > 0
    grid = torch.linspace(-1, 1, count + 1, dtype=coefficients.dtype, device=coefficients.device)
    turns = rises[..., 1:] != rises[..., :-1]
    first = turns.to(torch.int8).argmax(-1, keepdim=True)
    low, high = grid[first], grid[first + 1]
    rising = torch.gather(rises, -1, first)
    inside, outside = torch.where(rising, low, high), torch.where(rising, high, low)
    both = _value_and_slope(legendre_slope(coefficients))
    often = turns.sum(-1)
    turned = (often > 0)[..., None]
    found = _roots(turned, both, inside.new_zeros(()), inside, outside)
    return torch.where(turned, found, 0)[..., 0], often


def _reciprocal(value: Tensor, where: Tensor) -> Tensor:
    """1/value where `where` is True and the value is not 0; 0 elsewhere."""
    usable = where & (value != 0)
    return torch.where(usable, 1 / torch.where(usable, value, 1), 0)


def take(field: Tensor, index: Int[Tensor, "..."], rows: torch.Size) -> Tensor:
    """Entry `index` (*sample, *rows) of each row's field (*rows, C, *rest): (*sample, *rows, *rest)."""
    count, *rest = field.shape[len(rows) :]
    if rows:
        index = index + count * torch.arange(rows.numel(), device=field.device).reshape(rows)
    # Use index_select, which copies whole slices: it is faster than indexing by several tensors.
    return field.reshape((-1, *rest)).index_select(0, index.reshape(-1)).reshape((*index.shape, *rest))


def bucket(masses: Float[Tensor, "*rows P"], target: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Index (*sample, *rows) of the first entry whose cumulated mass exceeds the target, or of the last with mass."""
    rows, masses = masses.shape[:-1], masses.detach()
    reached, target = masses.cumsum(-1), target.detach()
    if is_eager(target) and is_eager(masses):
        flat = target.reshape(-1, rows.numel()).T.contiguous()
        index = torch.searchsorted(reached.reshape(rows.numel(), -1), flat, right=True).T.reshape(target.shape)
    else:
        index = (reached <= target[..., None]).sum(-1)
    live = (masses > 0).to(torch.int8)
    last = live.shape[-1] - 1 - live.flip(-1).argmax(-1)
    return torch.minimum(index, last)


def mass_before(parts: Parts) -> Float[Tensor, "*rows P"]:
    """Mass to the left of each of the P = 2C pieces of a line."""
    masses = parts.mass.sum(-1).flatten(-2)
    return masses.cumsum(-1) - masses


def locate_quantile(parts: Parts, probability: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Cell and local coordinate, both (*sample, *rows), of each row's quantile of `probability`, without gradient."""
    rows, masses = parts.mass.shape[:-3], parts.mass.detach().flatten(-3, -2)
    target = probability.detach() * masses.flatten(-2).sum(-1)
    piece = bucket(masses.sum(-1), target)
    share = _share_of_piece(take(masses, piece, rows), target - take(mass_before(parts).detach(), piece, rows))
    # Set the share for 0 and 1 exactly: roots are inexact at the ends of the support, where the density may be zero.
    share = torch.where(probability <= 0, 0, torch.where(probability >= 1, 1, share))
    start, stop = (take(end.detach().flatten(-2), piece, rows) for end in (parts.start, parts.stop))
    return piece // 2, start + (stop - start) * grading(share)


def _share_of_piece(masses: Float[Tensor, "... n"], target: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The u in [0, 1] for which the fraction grading(u) of a live part, from its start, has the mass `target`.

    `masses` are the masses at the nodes of the part.
    """
    nodes, weights = gauss_legendre(masses.shape[-1], masses.device)
    slope = legendre_coefficients(masses / weights)
    # The antiderivative that vanishes at −1.
    value = slope @ device_table("antiderivative", slope.shape[-1], slope.device)
    reached = value @ legendre_basis(nodes, value.shape[-1]).T
    passed = (reached < target[..., None]).sum(-1)
    pad = torch.nn.functional.pad  # writing a number into a GPU tensor waits for the GPU
    fence = pad(pad(nodes, (1, 0), value=-1.0), (0, 1), value=1.0)
    low, high = fence[passed], fence[passed + 1]
    # Recurrences run over coefficients, so store each coefficient of all parts contiguously.
    slope, value = (table.movedim(-1, 0).contiguous().movedim(0, -1) for table in (slope, value))

    def residual(u: Tensor) -> tuple[Tensor, Tensor]:
        return legendre_sum(value, u) - target, legendre_sum(slope, u)

    u = bracketed_root(residual, low, high, (low + high) / 2, steps=_QUANTILE_STEPS, tolerance=_ROOT_TOLERANCE)
    return (u + 1) / 2
