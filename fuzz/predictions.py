"""Predictions on every domain: they integrate to one, have the stated support, and slopes that are finite."""

import torch
from hypothesis import strategies as st
from torch import Tensor

import contmax
from contmax.domains import Box, Interval, Knots, Nodes
from fuzz._campaign import target
from fuzz._rows import close, kinds, require, rows, seeds

indices = st.one_of(st.sampled_from([1.0, 1.5, 2.0, 4 / 3, 3.0, 1 + 1e-7, 1.001]), st.floats(1.0, 4.0))
tame = st.sampled_from(["normal", "grid", "ties", "spread", "geometric"])


@target("prediction.nodes", alpha=indices, kind=kinds, count=st.integers(1, 30), seed=seeds)
def predictions_on_nodes(alpha: float, kind: str, count: int, seed: int) -> int:
    """With equal masses it is the finite map."""
    scores = rows(kind, 64, count, "float64", seed)
    points = torch.linspace(-1.0, 1.0, count + 1, dtype=torch.float64)[:-1]
    p = contmax.regularized_prediction(scores, Nodes(points, torch.ones_like(points)), alpha)
    found = p.density(points[:, None]).T
    exact = contmax.entmax(scores, alpha)
    tolerance = 1e-12 if alpha <= 2 else 1e-9
    require(
        close(found, exact, tolerance), "is not the finite map", scores=scores, found=found, exact=exact, alpha=alpha
    )
    return 64


@target("prediction.knots", alpha=indices, kind=tame, count=st.integers(2, 12), seed=seeds)
def predictions_between_knots(alpha: float, kind: str, count: int, seed: int) -> int:
    """Piecewise linear scores: mass one, distribution function from 0 to 1, finite slopes."""
    scores = rows(kind, 32, count, "float64", seed).requires_grad_()
    steps = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1e-3
    knots = steps.cumsum(0)
    _check_line(contmax.regularized_prediction(scores, Knots(knots), alpha), knots[0], knots[-1], scores, alpha, 1e-8)
    return 32


@target("prediction.interval", alpha=indices, width=st.floats(0.01, 3.0), seed=seeds)
def predictions_on_intervals(alpha: float, width: float, seed: int) -> int:
    """Smooth scores with several peaks."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn((8, 4), generator=draw, dtype=torch.float64).mul(2).requires_grad_()
    centres = torch.rand(4, generator=draw, dtype=torch.float64)

    def score(t: Tensor) -> Tensor:
        return weights @ torch.exp(-0.5 * ((t - centres[:, None]) / width).square())

    domain = Interval(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    _check_line(contmax.regularized_prediction(score, domain, alpha), domain.low, domain.high, weights, alpha, 1e-6)
    return 8


def _check_line(p, low: Tensor, high: Tensor, scores: Tensor, alpha: float, tolerance: float) -> None:
    shown = {"scores": scores, "alpha": alpha}
    mass = p.expectation(torch.ones_like)
    require((mass - 1).abs() <= tolerance, "mass is not one", mass=mass, **shown)
    ends = torch.stack([low, high])[:, None].expand(2, *p.batch_shape)
    cdf = p.cdf(ends)
    require((cdf - torch.tensor([[0.0], [1.0]])).abs().amax(0) <= tolerance, "cdf at the ends", cdf=cdf.T, **shown)
    mean = p.mean
    require((mean >= low - 1e-9) & (mean <= high + 1e-9), "mean outside", mean=mean, **shown)
    require((p.variance >= -1e-12) & p.entropy().isfinite(), "variance or entropy", variance=p.variance, **shown)
    slope = torch.autograd.grad(mean.sum() + p.conjugate().sum(), scores)[0]
    require(slope.isfinite().all(-1), "slopes", slope=slope, **shown)


@target("prediction.box", alpha=indices, seed=seeds)
def predictions_on_boxes(alpha: float, seed: int) -> int:
    """Smooth scores on a rectangle: mass one against a fine grid, moments inside, finite slopes."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn((2, 3), generator=draw, dtype=torch.float64).requires_grad_()
    centres = torch.rand((3, 2), generator=draw, dtype=torch.float64)

    def score(t: Tensor) -> Tensor:
        return weights @ torch.exp(-4.0 * (t - centres[:, None]).square().sum(-1))

    low = torch.tensor([0.0, -1.0], dtype=torch.float64)
    p = contmax.regularized_prediction(score, Box(low, torch.ones(2, dtype=torch.float64)), alpha)
    axes = [(torch.arange(200, dtype=torch.float64) + 0.5) / 200 * size for size in (1.0, 2.0)]
    points = torch.cartesian_prod(*axes) + low
    mass = p.density(points[:, None, :]).sum(0) * 2 / 200**2
    require((mass - 1).abs() <= 2e-3, "mass is not one", weights=weights, mass=mass, alpha=alpha)
    slope = torch.autograd.grad(p.mean.sum(), weights)[0]
    require(slope.isfinite().all(-1), "slopes", slope=slope, weights=weights, alpha=alpha)
    return 2
