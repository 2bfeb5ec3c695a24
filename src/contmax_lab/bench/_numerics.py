"""The suite `numerics`: errors of densities and expectations against brute force in float64. Nothing is timed."""

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax_lab.bench._brute_force import disk_values, line_quadrature, line_values, printed_form
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort

_WIDTHS = "expectation on the line, α = 2: largest error / largest value, by half-width of p / width of ψ"
_LINE = "expectation on the line: largest error / largest value"
_PLANE = "expectation in the plane, 10 × 10 functions: largest error / largest value"
_DENSITIES = "densities on the line: largest relative error"

_EDGES = (0.0, 0.1, 1.0, 10.0, math.inf)
_ALPHAS = {"1": 1.0, "5/4": 1.25, "4/3": 4 / 3, "3/2": 1.5, "1.7": 1.7, "2": 2.0}
# Of the largest value; the first is also what docstrings promise of expectations.
_TARGETS = {torch.float32: 2e-6, torch.float64: 1e-12}
_MATRICES = {
    "Σ = 10⁻⁴ I": [[1e-4, 0.0], [0.0, 1e-4]],
    "Σ = 10⁻² I": [[1e-2, 0.0], [0.0, 1e-2]],
    "Σ = I": [[1.0, 0.0], [0.0, 1.0]],
    "axes 1 : 5, at 45°": [[0.026, 0.024], [0.024, 0.026]],
}


def _figures(effort: Effort) -> Iterator[Figure]:
    count = 20 if effort.small else 300
    yield from _by_width(count)
    yield from _by_alpha(count)
    yield from _in_the_plane(effort)
    yield from _of_densities(count)


def _drawn(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Locations and scales of densities, then of functions: numbers of float32, as a model would have them."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator)

    return uniform(count), 10 ** (3.5 * uniform(count) - 3), uniform(48), 10 ** (2 * uniform(48) - 2)


def _by_width(count: int) -> Iterator[Figure]:
    loc, scale, centre, width = _drawn(count)
    exact = line_values(loc, scale, centre, width, 2.0)
    relative_width = BetaGaussian(loc.double(), scale.double()).half_width[:, None] / width.double()
    forms: dict[str, Callable[[torch.dtype], Tensor]] = {
        "printed form": lambda dtype: printed_form(*(x.to(dtype) for x in (loc, scale, centre, width))),
        "contmax": lambda dtype: _expectation(loc, scale, centre, width, 2.0, dtype),
    }
    for low, high in itertools.pairwise(_EDGES):
        chosen = (relative_width >= low) & (relative_width < high)
        row = f"below {high:g}" if low == 0 else f"above {low:g}" if high == math.inf else f"{low:g} to {high:g}"
        for dtype, target in _TARGETS.items():
            for name, form in forms.items():
                error = ((form(dtype).double() - exact.value).abs() / exact.largest)[chosen].max()
                limit = target if name == "contmax" else None
                yield Figure(_WIDTHS, row, f"{name}, {_name(dtype)}", float(error), at_most=limit)


def _by_alpha(count: int) -> Iterator[Figure]:
    loc, scale, centre, width = _drawn(count)
    for name, alpha in _ALPHAS.items():
        exact = line_values(loc, scale, centre, width, alpha)
        # In their natural units: r per width of ψ, r per σ.
        by_loc, by_scale = exact.largest / width, exact.largest / scale[:, None]
        for dtype, target in _TARGETS.items():
            places, scales = (x.to(dtype, copy=True).requires_grad_() for x in (loc, scale))
            r = _expectation(places, scales, centre, width, alpha, dtype)
            errors = {
                "r": (r.detach().double() - exact.value).abs() / exact.largest,
                "∂r/∂μ": (_slopes(r, places).double() - exact.by_loc).abs() / by_loc,
                "∂r/∂σ": (_slopes(r, scales).double() - exact.by_scale).abs() / by_scale,
            }
            for what, error in errors.items():
                limit = target if what == "r" else 5 * target
                yield Figure(_LINE, f"α = {name}", f"{what}, {_name(dtype)}", float(error.max()), at_most=limit)


def _in_the_plane(effort: Effort) -> Iterator[Figure]:
    loc = torch.tensor([[0.47, 0.56], [0.05, 0.9]])
    nodes = (40, 200) if effort.small else (120, 800)
    for row, matrix in _MATRICES.items():
        for alpha in (1.5, 2.0):
            basis = MultivariateGaussianBasis.covering(10)
            exact = disk_values(loc, torch.tensor(matrix), basis, alpha, nodes)
            for dtype, target in _TARGETS.items():
                p = MultivariateBetaGaussian(loc.to(dtype), torch.tensor(matrix).to(dtype), alpha)
                r = contmax.expectation(p, basis.moved(loc.device, dtype)).double()
                error = (r - exact).abs().amax(-1) / exact.amax(-1)
                column = f"α = {alpha:g}, {_name(dtype)}"
                yield Figure(_PLANE, row, column, float(error.max()), at_most=target)


def _of_densities(count: int) -> Iterator[Figure]:
    loc, scale, _, _ = _drawn(count)
    for alpha in (1.001, 1.05, 1.5, 2.0, 3.0):
        for dtype in _TARGETS:
            p = BetaGaussian(loc.to(dtype), scale.to(dtype), alpha)
            exact = BetaGaussian(loc.double(), scale.double(), alpha)
            points, weights = line_quadrature(exact.loc, exact.half_width)
            heights = p.density(points.to(dtype)).double()
            mass = (weights * heights).sum(0)
            variance = (weights * exact.density(points) * (points - exact.loc) ** 2).sum(0)
            negentropy = ((weights * exact.density(points) ** alpha).sum(0) - 1) / (alpha * (alpha - 1))
            errors = {
                "mass": mass - 1,
                "variance": p.variance.double() / variance - 1,
                "negentropy": (p.tsallis_negentropy().double() - negentropy) / negentropy.abs().clamp(min=1),
            }
            for what, error in errors.items():
                limit = 1e-5 if dtype == torch.float32 else 1e-11
                value = float(error.abs().max())
                yield Figure(_DENSITIES, f"α = {alpha:g}", f"{what}, {_name(dtype)}", value, at_most=limit)


def _expectation(loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    p = BetaGaussian(loc.to(dtype), scale.to(dtype), alpha)
    return contmax.expectation(p, GaussianBasis(centre.to(dtype), width.to(dtype)))


def _slopes(r: Tensor, parameter: Tensor) -> Tensor:
    """The derivatives of r (n, K) in the parameter (n,) of its row, by reverse mode."""
    columns = [torch.autograd.grad(column.sum(), parameter, retain_graph=True)[0] for column in r.unbind(-1)]
    return torch.stack(columns, -1)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


NUMERICS = Suite("numerics", _figures)
