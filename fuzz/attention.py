"""Expectations, signals and continuous attention: against quadrature, float64, and with what is masked taken away."""

import math

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, Triangular
from fuzz._campaign import target
from fuzz._rows import DTYPES, close, hidden, require, rows, seeds, wide_dtypes

BATCH = 32
indices = st.one_of(
    st.sampled_from([1.0, 1.5, 2.0, 4 / 3, 2.5, 3.0, 1 + 2**-20, 1.001, 1.1, 1 - 1e-6, 0.8]), st.floats(0.7, 6.0)
)
BASES = {
    "gaussian": lambda: GaussianBasis.linspace(9, scale=(0.05, 0.1, 0.5)),
    "spline": lambda: contmax.basis.BSplineBasis.clamped(8),
    "cosine": lambda: contmax.basis.CosineBasis.harmonics(5),
    "power": lambda: contmax.basis.PowerBasis(4),
    "rectangular": lambda: contmax.basis.RectangularBasis(torch.linspace(0.0, 1.0, 7)),
}


def _line(seed: int, dtype: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    loc = torch.rand(BATCH, generator=draw, dtype=torch.float64).mul(1.6).sub(0.3)
    scale = torch.rand(BATCH, generator=draw, dtype=torch.float64).mul(9).sub(7).exp()
    return loc.to(DTYPES[dtype]), scale.to(DTYPES[dtype])


def _quadrature(p: BetaGaussian, basis: GaussianBasis) -> Tensor:
    """∫ p ψ over the quantiles of p: ∫₀¹ ψ(icdf(q)) dq with q = (1 − cos θ)/2, Gauss–Legendre in pieces."""
    nodes, weights = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(24))
    edges = torch.linspace(0, math.pi, 25, dtype=torch.float64)
    theta = ((edges[1:] + edges[:-1]) / 2)[:, None] + (edges[1] / 2) * nodes
    q = (1 - theta.cos()).flatten() / 2
    measure = (weights * edges[1] / 2 * theta.sin() / 2).flatten()
    psi = basis(p.icdf(q[:, None].expand(-1, BATCH)))
    return (measure[:, None, None] * psi).sum(0)


@target("expectations.line", alpha=indices, dtype=wide_dtypes, seed=seeds)
def expectations_of_gaussian_functions(alpha: float, dtype: str, seed: int) -> int:
    """Against quadrature over the quantiles, and float32 against float64."""
    loc, scale = _line(seed, dtype)
    basis = BASES["gaussian"]().to(loc.dtype)
    found = contmax.expectation(BetaGaussian(loc.requires_grad_(), scale.requires_grad_(), alpha), basis)
    shown = {"loc": loc, "scale": scale, "alpha": alpha, "found": found}
    require(found.isfinite().all(-1), "not finite", **shown)
    exact_density = BetaGaussian(loc.detach().double(), scale.detach().double(), alpha)
    exact = contmax.expectation(exact_density, basis.double())
    size = exact.abs().amax()
    tolerance = (1e-12 if dtype == "float64" else 2e-6) * size
    require(close(found, exact, tolerance), "differs from float64", exact=exact, **shown)
    # Nodes at quantiles are too far apart for functions much narrower than the density.
    checked = close(found, _quadrature(exact_density, basis.double()), 3e-5 * size)
    require(checked | (scale.detach() > 4), "differs from quadrature", **shown)
    slopes = torch.autograd.grad(found.sum(), (loc, scale))
    require(slopes[0].isfinite() & slopes[1].isfinite(), "slopes", by_loc=slopes[0], by_scale=slopes[1], **shown)
    tensor_alpha = torch.full((BATCH,), alpha, dtype=loc.dtype)
    other = contmax.expectation(BetaGaussian(loc.detach(), scale.detach(), tensor_alpha), basis.to(loc.dtype))
    if float(tensor_alpha[0]) == alpha:
        require(close(other, exact, tolerance), "tensor α differs", other=other, exact=exact, **shown)
    return 2 * BATCH


@target("expectations.bases", name=st.sampled_from(list(BASES)), alpha=indices, dtype=wide_dtypes, seed=seeds)
def expectations_of_any_functions(name: str, alpha: float, dtype: str, seed: int) -> int:
    """Every basis against β-Gaussians and triangular densities: finite, and float32 like float64."""
    loc, scale = _line(seed, dtype)
    for family in (lambda m, s: BetaGaussian(m, s, alpha), Triangular):
        basis = BASES[name]().to(loc.dtype)
        density, wide = family(loc, scale), family(loc.double(), scale.double())
        if name == "power" and alpha < 1.4 and not isinstance(density, Triangular):
            continue  # moments of heavy tails do not exist
        found, exact = contmax.expectation(density, basis), contmax.expectation(wide, basis.double())
        size = exact.abs().amax(-1, keepdim=True).clamp(min=1.0)
        holds = close(found, exact, (1e-9 if dtype == "float64" else 1e-5) * size)
        require(holds, "not finite or not float64's", loc=loc, scale=scale, found=found, exact=exact, alpha=alpha)
    return 2 * BATCH


@target("expectations.plane", alpha=indices, dtype=wide_dtypes, seed=seeds)
def expectations_in_the_plane(alpha: float, dtype: str, seed: int) -> int:
    """Thin, turned and far ellipses: finite, like float64, slopes finite."""
    draw = torch.Generator().manual_seed(seed)
    loc = torch.rand((BATCH, 2), generator=draw, dtype=torch.float64).mul(1.4).sub(0.2).to(DTYPES[dtype])
    root = torch.randn((BATCH, 2, 2), generator=draw, dtype=torch.float64) * 0.3
    matrix = (root @ root.mT + 0.005 * torch.eye(2)).to(DTYPES[dtype]).requires_grad_()
    basis = contmax.basis.MultivariateGaussianBasis.grid(3, scale=0.05).to(loc.dtype)
    found = contmax.expectation(MultivariateBetaGaussian(loc, matrix, alpha), basis)
    wide = MultivariateBetaGaussian(loc.double(), matrix.detach().double(), alpha)
    exact = contmax.expectation(wide, basis.double())
    shown = {"loc": loc, "matrix": matrix, "alpha": alpha, "found": found, "exact": exact}
    condition = torch.linalg.cond(matrix.detach().double())[:, None]
    tolerance = (1e-12 if dtype == "float64" else 4e-6 * condition) * exact.abs().amax()
    require(close(found, exact, tolerance), "not finite or not float64's", **shown)
    slope = torch.autograd.grad(found.sum(), matrix)[0]
    require(slope.isfinite().flatten(1).all(-1), "slopes", slope=slope, **shown)
    return BATCH


@target("signal.attention", length=st.integers(1, 40), alpha=indices, dtype=wide_dtypes, seed=seeds)
def attention_over_sequences(length: int, alpha: float, dtype: str, seed: int) -> int:
    """What is masked may hold anything; without it the result is the same; values are linear."""
    draw = torch.Generator().manual_seed(seed)
    loc, scale = _line(seed, dtype)
    values = rows("wide" if seed % 3 == 0 else "normal", BATCH * length, 3, dtype, seed).view(BATCH, length, 3)
    positions = torch.rand((BATCH, length), generator=draw, dtype=torch.float64).to(values.dtype)
    kept = int(torch.randint(0, length + 1, (1,), generator=draw))
    mask = (torch.arange(length) < kept).expand(BATCH, -1)
    basis = BASES["gaussian"]().to(values.dtype)
    density = BetaGaussian(loc, scale, alpha)
    dirty, where = hidden(values, mask[..., None]), hidden(positions, mask)
    found = contmax.continuous_attention(dirty, density, basis, positions=where, mask=mask)
    shown = {"found": found, "alpha": alpha, "kept": kept, "loc": loc, "scale": scale}
    require(found.isfinite().all(-1), "not finite", **shown)
    slopes = torch.autograd.grad(found.sum(), (dirty, where))
    for name, slope, may in zip(("values", "positions"), slopes, (mask[..., None], mask), strict=True):
        require((slope.isfinite() & ((slope == 0) | may)).flatten(1).all(-1), f"slope of {name}", slope=slope, **shown)
    if kept == 0:
        require((found == 0).all(-1), "nothing attended is not zero", **shown)
        return BATCH
    alone = contmax.continuous_attention(values[:, :kept], density, basis, positions=positions[:, :kept])
    size = values[:, :kept].abs().double().amax((1, 2))[:, None] * 1e3 + 1e-30
    eps = 1e-9 if dtype == "float64" else 1e-4
    require(close(found, alone, eps * size), "mask is no removal", alone=alone, **shown)
    signal = contmax.fit_signal(values[:, :kept], basis, positions=positions[:, :kept])
    again = signal.expectation(density)
    require(close(again, alone, eps * size), "fit_signal differs from continuous_attention", again=again, **shown)
    return 2 * BATCH
