"""Densities: their methods agree with each other, with float64, and are never NaN."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from contmax.densities import BetaGaussian, Empirical, LocationScale, Mixture, MultivariateBetaGaussian, Triangular
from fuzz._campaign import target
from fuzz._rows import DTYPES, TOLERANCE, close, dtypes, require, rows, seeds

POINTS, BATCH = 64, 16
indices = st.one_of(
    st.sampled_from([1.0, 1.5, 2.0, 4 / 3, 3.0, 0.6, 1 + 1e-7, 1 - 1e-7, 1.001, 0.999, math.inf, 100.0]),
    st.floats(0.5, 10.0),
)


def _mixture(loc: Tensor, scale: Tensor, alpha: float) -> Mixture:
    parts = BetaGaussian(torch.stack([loc, -loc], -1), torch.stack([scale, 2 * scale], -1), alpha)
    return Mixture(Categorical(logits=torch.zeros_like(parts.loc), validate_args=False), parts)


FAMILIES = {
    "beta-gaussian": BetaGaussian,
    "triangular": lambda loc, scale, alpha: Triangular(loc, scale),
    "cosh": lambda loc, scale, alpha: LocationScale(loc, scale, "cosh"),
    "quartic": lambda loc, scale, alpha: LocationScale(loc, scale, "quartic"),
    "mixture": _mixture,
}


def _parameters(magnitude: float, dtype: str, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    loc = torch.randn(BATCH, generator=draw, dtype=torch.float64) * 10.0**magnitude
    scale = torch.randn(BATCH, generator=draw, dtype=torch.float64).exp() * 10.0**magnitude
    # Twice as wide, as in a mixture, they are still finite.
    return loc.to(DTYPES[dtype]), scale.clamp(max=torch.finfo(DTYPES[dtype]).max / 4).to(DTYPES[dtype])


@target(
    "densities.line",
    family=st.sampled_from(list(FAMILIES)),
    alpha=indices,
    magnitude=st.sampled_from([0.0, 3.0, -3.0]),
    dtype=dtypes,
    seed=seeds,
)
def methods_on_the_line(family: str, alpha: float, magnitude: float, dtype: str, seed: int) -> int:
    """Points inside, outside, on the edge and far away: values like float64's, slopes finite."""
    loc, scale = _parameters(magnitude, dtype, seed)
    p, exact = FAMILIES[family](loc, scale, alpha), FAMILIES[family](loc.double(), scale.double(), alpha)
    steps = rows("normal", POINTS, BATCH, "float64", seed).mul(2)
    steps[:4] = torch.tensor([[0.0], [1e30], [-1e30], [1.0]])
    t = (loc.double() + scale.double() * steps).clamp(-1e30, 1e30).to(loc.dtype)
    if loc.dtype == torch.float16:
        t = t.clamp(-60000, 60000)
    tolerance = 8 * TOLERANCE[loc.dtype]
    shown = {"family": family, "alpha": alpha, "loc": loc.expand(POINTS, -1), "scale": scale.expand(POINTS, -1), "t": t}
    value, wanted = p.density(t) * scale, exact.density(t.double()) * scale.double()
    if alpha < 2 or family not in ("beta-gaussian", "mixture"):
        _agree("density", value, wanted, 4 * tolerance, **shown)
    else:  # its slope at the edge is infinite, and so is what a rounding of t does
        require(~value.isnan(), "density is NaN", found=value, **shown)
    cdf = p.cdf(t)
    _agree("cdf", cdf, exact.cdf(t.double()), tolerance, **shown)
    require((cdf >= 0) & (cdf <= 1), "cdf leaves [0, 1]", cdf=cdf, **shown)
    for name in ("mean", "variance"):
        value, wanted = getattr(p, name), getattr(exact, name)
        unit = scale.double() if name == "mean" else scale.double().square()
        size = loc.double().abs() / scale.double() + 1 if name == "mean" else 1.0
        off = ((value.double() - wanted) / unit).abs().where(value != wanted, 0)
        fits = (off <= 4 * tolerance * size * (1 + wanted.abs() / unit)) | (wanted.abs() > torch.finfo(loc.dtype).max)
        # Below the smallest normal number there are fewer digits.
        fits |= wanted.abs() < torch.finfo(loc.dtype).tiny
        require(fits, name, found=value, exact=wanted, family=family, alpha=alpha, loc=loc, scale=scale)
    return POINTS * BATCH


def _agree(what: str, found: Tensor, exact: Tensor, tolerance: float, **shown) -> None:
    require(~found.isnan(), f"{what} is NaN", found=found, **shown)
    fits = close(found[..., None], exact[..., None], tolerance * exact.abs().clamp(min=1.0)[..., None])
    require(
        fits | (exact.abs() > torch.finfo(found.dtype).max),
        f"{what} is not float64's",
        found=found,
        exact=exact,
        **shown,
    )


@target("densities.quantiles", family=st.sampled_from(list(FAMILIES)), alpha=indices, seed=seeds)
def quantiles_undo_the_distribution_function(family: str, alpha: float, seed: int) -> int:
    """cdf(icdf(q)) = q, slopes and draws finite, entropy finite."""
    loc, scale = _parameters(0.0, "float64", seed)
    p = FAMILIES[family](loc.requires_grad_(), scale.requires_grad_(), alpha)
    q = torch.rand(POINTS, BATCH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q[:3] = torch.tensor([[1e-12], [0.5], [1 - 1e-12]], dtype=torch.float64)
    t = p.icdf(q)
    shown = {"family": family, "alpha": alpha, "q": q, "t": t}
    require(t.isfinite(), "icdf is not finite", **shown)
    back = p.cdf(t.detach())
    require((back - q).abs() <= 1e-9, "cdf(icdf(q)) is not q", back=back, **shown)
    torch.manual_seed(seed)
    drawn = p.rsample((POINTS,))
    for what, value in {"icdf": t, "log density": p.log_prob(drawn.detach()), "draws": drawn}.items():
        inside = value.isfinite()
        slopes = torch.autograd.grad(value.where(inside, 0).sum(), (loc, scale), retain_graph=True)
        require(slopes[0].isfinite() & slopes[1].isfinite(), f"slopes of {what}", by_loc=slopes[0], by_scale=slopes[1])
    require(drawn.isfinite(), "a draw is not finite", draws=drawn, **shown)
    return 3 * POINTS * BATCH


@target("densities.space", alpha=indices, dimension=st.integers(1, 4), dtype=dtypes, seed=seeds)
def methods_in_space(alpha: float, dimension: int, dtype: str, seed: int) -> int:
    """Log density like float64's, draws inside the support, moments symmetric and positive."""
    alpha = max(alpha, dimension / (dimension + 2) + 0.05)  # below, there is no variance
    draw = torch.Generator().manual_seed(seed)
    loc = torch.randn((BATCH, dimension), generator=draw, dtype=torch.float64).to(DTYPES[dtype])
    root = torch.randn((BATCH, dimension, dimension), generator=draw, dtype=torch.float64)
    matrix = (root @ root.mT + 0.1 * torch.eye(dimension)).to(DTYPES[dtype])
    matrix = (matrix + matrix.mT) / 2
    if dtype in ("float16", "bfloat16"):  # rounding may have made it indefinite
        matrix = matrix + torch.eye(dimension, dtype=matrix.dtype) * 0.5
    p = MultivariateBetaGaussian(loc, matrix, alpha)
    exact = MultivariateBetaGaussian(loc.double(), matrix.double(), alpha)
    torch.manual_seed(seed)
    t = exact.sample((POINTS,)).to(loc.dtype)
    condition = torch.linalg.cond(matrix.double())
    found, wanted = p.density(t), exact.density(t.double())
    require(~found.isnan(), "density is NaN", t=t, found=found, alpha=alpha)
    peak = exact.density(exact.loc).clamp(min=1.0)
    tolerance = 8 * TOLERANCE[loc.dtype] * condition * peak
    same = (found.double() - wanted).abs() <= tolerance
    require(same | torch.tensor(alpha > 2), "density is not float64's", t=t, found=found, exact=wanted, alpha=alpha)
    require(p.entropy().isfinite(), "entropy", alpha=alpha, found=p.entropy())
    return POINTS * BATCH


@target("densities.empirical", count=st.integers(1, 40), dtype=st.sampled_from(["float32", "float64"]), seed=seeds)
def empirical_distributions(count: int, dtype: str, seed: int) -> int:
    """The smallest sample at which the distribution function reaches q is the quantile of q."""
    samples = rows("ties" if seed % 2 else "normal", count, BATCH, dtype, seed)
    p = Empirical(samples.T, event_dim=0)
    q = p.cdf(samples)
    require((q > 0) & (q <= 1), "cdf of a sample", samples=samples, q=q)
    back = p.icdf(q)
    require(back == samples, "icdf(cdf(sample)) is another sample", samples=samples, q=q, back=back)
    return count * BATCH
