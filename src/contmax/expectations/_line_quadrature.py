"""Any density on the line against any basis: composite Gauss–Legendre rules between the places where either bends.

Accuracy: 1e-10 in float64 for densities that are smooth on either side of their mode and change on the scale of their
standard deviation, 1e-6 in float32. Tails beyond a mass of 1e-12 (float32: 1e-7) on each side are left out.
"""

import copy

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from contmax.basis import Basis, GaussianBasis
from contmax.expectations._expectation import register_expectation, working_dtype
from contmax.numerics import float64_of, gauss_legendre

_NODES = 32
_PANELS = 12


@register_expectation(Distribution, Basis)
def by_panels(density: Distribution, basis: Basis) -> Tensor:
    """Panels of equal length between the ends of the support, the mode and the breakpoints of the basis."""
    low, bend, high = _landmarks(density)
    cuts = [low[..., None], bend[..., None], high[..., None]]
    if basis.breakpoints is not None:
        cuts.append(basis.breakpoints.to(low.dtype).expand(*low.shape, -1).clamp(low[..., None], high[..., None]))
    edges = torch.cat(cuts, -1).sort(-1).values
    start, length = edges[..., :-1], edges.diff(dim=-1)
    nodes, weights = gauss_legendre(_NODES, low.device)
    share = torch.arange(_PANELS, dtype=torch.float64, device=low.device)[:, None] + (nodes + 1) / 2
    position = (share / _PANELS).reshape(-1).to(low.dtype)
    weight = (weights / (2 * _PANELS)).repeat(_PANELS).to(low.dtype)
    t = (start[..., None] + length[..., None] * position).flatten(-2)
    measure = (length[..., None] * weight).flatten(-2)
    mass = measure * _density_at(density, t)
    functions: Tensor = basis(t)
    return (mass.unsqueeze(-2) @ functions).squeeze(-2)


@register_expectation(Distribution, GaussianBasis)
def by_windows(density: Distribution, basis: GaussianBasis) -> Tensor:
    """On each side of the mode, the window in which a basis function is not negligible, so that none is missed."""
    low, bend, high = (x[..., None] for x in _landmarks(density))
    reach = (6.0 if low.dtype == torch.float32 else 9.0) * basis.scale
    nodes, weights = gauss_legendre(2 * _NODES, low.device)
    position, weight = ((nodes + 1) / 2).to(low.dtype), (weights / 2).to(low.dtype)
    total: Tensor | float = 0.0
    for start, end in ((low, bend), (bend, high)):
        with torch.no_grad():
            # As shares of the side: what moves with the density is its ends, not the window.
            size = (end - start).clamp(min=torch.finfo(low.dtype).tiny)
            first = ((basis.loc - reach - start) / size).clamp(0, 1)
            last = ((basis.loc + reach - start) / size).clamp(0, 1)
        share = first[..., None] + (last - first)[..., None] * position
        t = start[..., None] + (end - start)[..., None] * share
        z = (t - basis.loc[:, None]) / basis.scale[:, None]
        gaussian = torch.exp(-0.5 * z * z) / ((2 * torch.pi) ** 0.5 * basis.scale[:, None])
        values = _density_at(density, t.flatten(-2)).view(t.shape) * gaussian
        total = total + (end - start) * (last - first) * (values * weight).sum(-1)
    return torch.as_tensor(total)


def _landmarks(density: Distribution) -> tuple[Tensor, Tensor, Tensor]:
    """Where a density begins, bends and ends; finite stand-ins where it goes on for ever."""
    bend = _bend(density)
    dtype = working_dtype(bend)
    tail = 1e-7 if dtype == torch.float32 else 1e-12
    support = density.support
    if isinstance(support, constraints._Interval):
        low, high = float64_of(support.lower_bound, bend), float64_of(support.upper_bound, bend)
    else:
        try:
            low, high = (density.icdf(torch.full_like(bend, q, dtype=dtype)) for q in (tail, 1 - tail))
        except NotImplementedError:
            raise NotImplementedError(
                f"{type(density).__name__} has neither a bounded interval as support nor quantiles (icdf): no rule "
                "knows where to look. Register one with contmax.expectations.register_expectation."
            ) from None
    low, high = low.to(dtype).expand_as(bend), high.to(dtype).expand_as(bend)
    return low, bend.to(dtype).clamp(low, high), high


def _bend(density: Distribution) -> Tensor:
    """The mode, or the mean where there is no single one."""
    try:
        return torch.where(density.mode.isnan(), density.mean, density.mode)
    except NotImplementedError:
        return density.mean


def _density_at(density: Distribution, t: Tensor) -> Tensor:
    """p at points (*batch, n); torch's own distributions would refuse a node that rounding puts off their support."""
    lenient = copy.copy(density)
    lenient._validate_args = False
    return lenient.log_prob(t.movedim(-1, 0)).exp().movedim(0, -1)
