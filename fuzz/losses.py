"""Fenchel–Young losses: finite ones of classes and soft targets, and those between densities."""

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import contmax
from contmax.densities import BetaGaussian, Triangular
from contmax.losses import entmax_loss, fenchel_young
from fuzz._campaign import target
from fuzz._rows import TOLERANCE, alphas, close, columns, dtypes, kinds, require, rows, seeds

ROWS = 256
smoothings = st.sampled_from([0.0, 0.1, 1.0])


@target("losses.classes", alpha=alphas, kind=kinds, width=columns, dtype=dtypes, smoothing=smoothings, seed=seeds)
def losses_of_classes(alpha: float, kind: str, width: int, dtype: str, smoothing: float, seed: int) -> int:
    """Not negative, close to float64, with the gradient p − y; at α = 1 torch's cross-entropy."""
    z = rows(kind, ROWS, width, dtype, seed).requires_grad_()
    y = torch.randint(width, (ROWS,), generator=torch.Generator().manual_seed(seed))
    _ignore_some(z.detach(), y, alpha, smoothing)
    loss = entmax_loss(z, y, alpha, reduction="none", label_smoothing=smoothing)
    wide = z.detach().double().requires_grad_()
    exact = entmax_loss(wide, y, alpha, reduction="none", label_smoothing=smoothing)
    shown = {"scores": z, "target": y, "loss": loss, "exact": exact, "alpha": alpha}
    largest = torch.finfo(z.dtype).max
    scale = torch.maximum(wide.abs().amax(-1), exact.abs()).detach().clamp(1.0, 1e300)
    tolerance = 4 * TOLERANCE[z.dtype]
    require(~loss.isnan() & (loss >= -tolerance * scale), "NaN or negative", **shown)
    fits = close(loss[:, None], exact[:, None], tolerance * scale[:, None])
    require(fits | (exact > largest * (1 - tolerance)), "not float64's", **shown)
    if alpha == 1:
        theirs = F.cross_entropy(wide, y, reduction="none", label_smoothing=smoothing)
        require(
            close(exact[:, None], theirs[:, None], 1e-11 * scale[:, None]), "not cross-entropy", theirs=theirs, **shown
        )
    grads = torch.autograd.grad(loss.clamp(max=largest).sum(), z)[0]
    require(grads.isfinite().all(-1), "gradient is not finite", gradient=grads, **shown)
    soft = F.one_hot(y, width).double() * (1 - smoothing) + smoothing / width
    wanted = contmax.entmax(z.detach(), alpha).double() - soft
    require(close(grads, wanted, tolerance) | (loss == torch.inf), "gradient is not p − y", gradient=grads, **shown)
    return ROWS


def _ignore_some(z: Tensor, y: Tensor, alpha: float, smoothing: float) -> None:
    """Ignored examples of NaN have no loss and no gradient, and change none of the others."""
    kept = torch.arange(ROWS) % 5 > 0
    results = []
    for filler in (0.0, torch.nan):
        scores = torch.where(kept[:, None], z, filler).requires_grad_()
        ids = torch.where(kept, y, -100)
        loss = entmax_loss(scores, ids, alpha, reduction="none", label_smoothing=smoothing)
        (slope,) = torch.autograd.grad(loss.clamp(max=torch.finfo(z.dtype).max).sum(), scores)
        results.append((loss[:, None], slope))
    for what, zeros, other in zip(("loss", "gradient"), *results, strict=True):
        shown = {"scores": z, "alpha": alpha, "with_zeros": zeros, "with_nan": other}
        require((other == zeros).all(-1), f"{what} depends on what is ignored", **shown)


@target("losses.soft", alpha=alphas, kind=kinds, width=columns, dtype=dtypes, seed=seeds)
def losses_of_soft_targets(alpha: float, kind: str, width: int, dtype: str, seed: int) -> int:
    """Zero where the target is the map of the scores, not negative elsewhere."""
    z = rows(kind, ROWS, width, dtype, seed)
    y = torch.softmax(rows("spread", ROWS, width, "float64", seed + 1), -1).to(z.dtype)
    # The loss is a difference of numbers of this size: scores, and Ω, which is of order width/α.
    scale = z.double().abs().amax(-1).clamp(min=1.0) * max(1.0, 1 / alpha)
    tolerance = 8 * TOLERANCE[z.dtype] * max(1, width / 4)
    loss = entmax_loss(z, y, alpha, reduction="none")
    exact = entmax_loss(z.double(), y.double() / y.double().sum(-1, keepdim=True), alpha, reduction="none")
    fits = exact < torch.finfo(z.dtype).max / 2
    shown = {"scores": z, "target": y, "loss": loss, "alpha": alpha}
    require((loss.isfinite() | ~fits) & (loss >= -tolerance * scale), "negative or not finite", **shown)
    own = entmax_loss(z, contmax.entmax(z, alpha), alpha, reduction="none")
    require(own.abs() <= tolerance * scale, "not zero at its own map", scores=z, loss=own, alpha=alpha)
    return 2 * ROWS


@target(
    "losses.densities", alpha=st.one_of(st.sampled_from([1.0, 1.5, 2.0, 4 / 3, 0.8]), st.floats(0.7, 5.0)), seed=seeds
)
def losses_between_densities(alpha: float, seed: int) -> int:
    """Not negative, zero on itself, finite slopes."""
    draw = torch.Generator().manual_seed(seed)
    loc = 3 * torch.randn(16, generator=draw, dtype=torch.float64)
    scale = torch.randn(16, generator=draw, dtype=torch.float64).mul(2).exp()
    p = BetaGaussian(loc.requires_grad_(), scale.requires_grad_(), alpha)
    other = BetaGaussian(loc.detach().flip(0), scale.detach().roll(3), alpha)
    own = fenchel_young(p, BetaGaussian(loc.detach(), scale.detach(), alpha))
    size = (p.tsallis_negentropy().abs() + 1).detach()
    require(own.abs() <= 1e-8 * size, "not zero on itself", loc=loc, scale=scale, loss=own, alpha=alpha)
    for name, target_density in {"another": other, "triangular": Triangular(loc.detach(), scale.detach())}.items():
        loss = fenchel_young(p, target_density)
        require(~loss.isnan() & (loss >= -1e-9 * size), name, loc=loc, scale=scale, loss=loss, alpha=alpha)
        grads = torch.autograd.grad(loss.where(loss.isfinite(), 0).sum(), (loc, scale))
        finite = grads[0].isfinite() & grads[1].isfinite()
        require(finite, f"slopes of {name}", loc=loc, scale=scale, by_loc=grads[0], by_scale=grads[1], alpha=alpha)
    return 48
