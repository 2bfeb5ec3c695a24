"""Losses of classes and of soft targets: smoothed, masked, with ignored examples, and for every α."""

import math

import torch
from torch import Tensor

from contmax.losses import entmax_loss
from fuzz.gpu._case import F32, Case, WrongResultError, rows_at
from fuzz.gpu._compare import TOLERANCE, require_close, require_losses
from fuzz.gpu._references import below_maximum, column_of, entmax64, loss64
from fuzz.gpu._scores import (
    LAYOUTS,
    drawn_alpha,
    drawn_dtype,
    drawn_kind,
    drawn_layout,
    drawn_shape,
    plant_bad_rows,
    scores,
)

_IGNORED = -100


def hard(case: Case) -> None:
    """Class ids, some of them ignored, with α ≤ 2, for which one kernel does all."""
    dtype, alpha, kind, layout = drawn_dtype(case), drawn_alpha(case, 0.0), drawn_kind(case), drawn_layout(case)
    shape, reduction = drawn_shape(case), case.choose(("none", "none", "mean", "sum"))
    case.describe(dtype, alpha, shape, kind, layout, reduction)
    z = scores(case, *shape, dtype, kind)
    bad = plant_bad_rows(case, z) if reduction == "none" else []
    z = LAYOUTS[layout](z)
    _classes(case, z, _ids(case, z), alpha, bad, reduction)


def smoothed(case: Case) -> None:
    """Label smoothing."""
    dtype, alpha, kind, shape = drawn_dtype(case), drawn_alpha(case, 0.0), _finite_kind(case), drawn_shape(case)
    smoothing = case.choose((0.01, 0.1, 0.5, 1.0))
    case.describe(dtype, alpha, shape, kind, f"smoothing {smoothing:g}")
    z = scores(case, *shape, dtype, kind)
    _classes(case, z, _ids(case, z), alpha, [], "none", smoothing=smoothing)


def masked(case: Case) -> None:
    """A mask that leaves the target in, with smoothing or without."""
    dtype, alpha, kind, shape = drawn_dtype(case), drawn_alpha(case, 0.0), _finite_kind(case), drawn_shape(case, 2**26)
    smoothing, share = case.choose((0.0, 0.0, 0.1)), case.choose((0.02, 0.5, 0.95))
    case.describe(dtype, alpha, shape, kind, f"smoothing {smoothing:g}", f"{share:g} allowed")
    z = scores(case, *shape, dtype, kind)
    ids = _ids(case, z)
    mask = case.uniform(*shape) < share
    mask.scatter_(1, ids.clamp(min=0).unsqueeze(1), True)
    z = torch.where(mask, z, math.nan)
    _classes(case, z, ids, alpha, [], "none", smoothing, mask)


def any_alpha(case: Case) -> None:
    """α beyond 2, and one α per row with its gradient: probabilities first, then the loss."""
    dtype, kind, shape = drawn_dtype(case), _finite_kind(case), drawn_shape(case, 2**24)
    if case.happens(0.4):
        alpha: float | Tensor = case.choose((2.01, 2.5, 3.0))
        case.describe(dtype, alpha, shape, kind)
    else:
        alpha = case.uniform(shape[0], 1, low=1.0001, high=case.choose((2.0, 3.0))).requires_grad_()
        case.describe(dtype, "α per row", shape, kind)
    z = scores(case, *shape, dtype, kind)
    _classes(case, z, _ids(case, z), alpha, [], "none", case.choose((0.0, 0.1)))


def soft(case: Case) -> None:
    """Soft targets: dense, of two classes, and the map of the scores itself, where the loss is zero."""
    dtype, alpha, kind, shape = drawn_dtype(case), drawn_alpha(case, 0.0), _finite_kind(case), drawn_shape(case, 2**26)
    form, smoothing = case.choose(("dense", "two classes", "its own map")), case.choose((0.0, 0.0, 0.1))
    target_dtype = case.choose((dtype, F32))
    case.describe(dtype, alpha, shape, kind, f"targets: {form}", target_dtype, f"smoothing {smoothing:g}")
    z = scores(case, *shape, dtype, kind).requires_grad_()
    target = _soft_targets(case, z.detach(), alpha, form).to(target_dtype)
    loss = entmax_loss(z, target, alpha, dim=-1, reduction="none", label_smoothing=smoothing)
    g = case.normal(shape[0])
    (grad,) = torch.autograd.grad(loss, z, g.to(loss.dtype))
    case.tried(*shape)
    _check_all(loss)
    places = case.sample(*shape)
    q = target[places].double()
    _compare(case, z.detach(), loss, grad, g, places, alpha, q / q.sum(-1, keepdim=True), None, smoothing)


def _finite_kind(case: Case) -> str:
    """A kind without −inf, which is an impossible target for smoothed labels, and without overflow of differences."""
    kind = drawn_kind(case)
    return "normal" if kind in ("holes", "one left", "extremes", "largest") else kind


def _ids(case: Case, z: Tensor) -> Tensor:
    """Class ids; one in ten is ignored in some cases, and in some the target is the largest score."""
    ids = case.integers(z.shape[-1], *z.shape[:-1])
    if case.happens(0.2):
        ids = z.argmax(-1)
    return torch.where(case.uniform(*z.shape[:-1]) < 0.1, _IGNORED, ids) if case.happens(0.4) else ids


def _soft_targets(case: Case, z: Tensor, alpha: float, form: str) -> Tensor:
    rows, columns = z.shape
    if form == "dense":
        return torch.softmax(3 * case.normal(rows, columns), -1)
    target = torch.zeros(rows, columns, device=z.device)
    if form == "two classes" or columns > 4096:
        target.scatter_(1, case.integers(columns, rows, 1), 0.75)
        return target.scatter_add_(1, case.integers(columns, rows, 1), torch.full((rows, 1), 0.25, device=z.device))
    return entmax64(z[:256], alpha).float().repeat(rows // 256 + 1, 1)[:rows]


def _classes(
    case: Case,
    z: Tensor,
    ids: Tensor,
    alpha: float | Tensor,
    bad: list[int],
    reduction: str,
    smoothing: float = 0.0,
    mask: Tensor | None = None,
) -> None:
    """Losses of class ids with their gradients; those of all rows are looked at, and some compared."""
    z = z.detach().requires_grad_()
    options = {"ignore_index": _IGNORED, "label_smoothing": smoothing, "reduction": reduction}
    loss = entmax_loss(z, ids, alpha, dim=-1, mask=mask, **options)
    g = case.normal(*z.shape[:-1]) if reduction == "none" else torch.ones((), device=z.device)
    wanted = [z, alpha] if isinstance(alpha, Tensor) else [z]
    grad, *grad_alpha = torch.autograd.grad(loss, wanted, g.to(loss.dtype))
    rows, columns = z.shape[:-1].numel(), z.shape[-1]
    case.tried(rows, columns)
    for found in grad_alpha:
        if not bool(found.isfinite().all()):
            raise WrongResultError("the gradient of α is not finite")
    kept = ids != _IGNORED
    if reduction == "mean":
        g = g / kept.sum().clamp(min=1)
    if reduction == "none" and not bad:
        _check_all(loss)
    places = case.sample(rows, columns, bad)
    index = rows_at(alpha.detach(), places) if isinstance(alpha, Tensor) else alpha
    some = rows_at(ids.unsqueeze(-1), places)
    q = torch.zeros(len(places), columns, device=z.device, dtype=torch.float64)
    q.scatter_(1, some.clamp(min=0), 1.0)
    every = None if mask is None else rows_at(mask, places)
    of_rows = g.expand(z.shape[:-1]) * kept
    losses = loss if reduction == "none" else None
    _compare(case, z.detach(), losses, grad, of_rows, places, index, q, every, smoothing, some.squeeze(-1) != _IGNORED)


def _check_all(loss: Tensor) -> None:
    """No loss is negative, and none is NaN where scores are numbers or −inf."""
    wrong = ~(loss >= 0)
    if bool(wrong.any()):
        raise WrongResultError(
            f"{int(wrong.sum())} of {loss.numel()} losses are negative or NaN: {loss[wrong][0].item()}"
        )


def _compare(
    case: Case,
    z: Tensor,
    loss: Tensor | None,
    grad: Tensor,
    g: Tensor,
    places: Tensor,
    alpha: float | Tensor,
    q: Tensor,
    mask: Tensor | None,
    smoothing: float,
    kept: Tensor | None = None,
) -> None:
    """Losses and gradients of the rows at `places` against float64; ignored ones have neither."""
    some = rows_at(z, places)
    want, residual, expected = loss64(some, q, alpha, mask, smoothing)
    if kept is not None:
        want = torch.where(kept, want, 0.0)
    relative, absolute = TOLERANCE[z.dtype]
    if loss is not None:
        below, _ = below_maximum(some, mask)
        size = 1 + torch.where(expected > 0, below * expected, 0.0).sum(-1).abs().nan_to_num(0.0, 0.0, 0.0)
        require_losses(rows_at(loss.unsqueeze(-1), places).squeeze(-1), want, size)
    # The gradient of an ignored row is not compared where its scores are NaN.
    broken = residual.isnan().any(-1)
    good = want.isfinite() & ~broken
    of_rows = rows_at(g.unsqueeze(-1), places).double()
    slope = (of_rows * residual)[good]
    p = (residual + expected)[good]
    # Beyond α = 2, p has an infinite slope at the edge of the support.
    power = (column_of(alpha, residual) - 1).clamp(min=1.0)[good]
    near = (0.03 * p.amax(-1, keepdim=True)).clamp(max=absolute) if q.shape[-1] > 1 else absolute
    allowed = (relative * (p + expected[good]) + (near + 0.0 * power) ** (1 / power)) * of_rows[good].abs()
    least = torch.finfo(grad.dtype).smallest_normal * torch.finfo(grad.dtype).eps
    require_close("gradient", rows_at(grad, places)[good], slope, allowed + least + 1e-30)
    if not bool(rows_at(grad, places)[~broken].isfinite().all()):
        raise WrongResultError("a gradient is not finite though the scores are numbers")
    case.compared(len(places), z.shape[-1])


def infinite_targets(case: Case) -> None:
    """A target whose score is −inf has infinite loss and a finite gradient; so has a row with nothing to attend."""
    dtype, alpha, shape = drawn_dtype(case), drawn_alpha(case, 0.0), drawn_shape(case, 2**24)
    case.describe(dtype, alpha, shape)
    z = scores(case, *shape, dtype, "normal")
    ids = case.integers(shape[1], shape[0])
    z.scatter_(1, ids[:, None], -math.inf)
    z.requires_grad_()
    loss = entmax_loss(z, ids, alpha, dim=-1, reduction="none")
    (grad,) = torch.autograd.grad(loss, z, torch.ones_like(loss))
    case.tried(*shape)
    if not bool((loss == math.inf).all()) or not bool(grad.isfinite().all()):
        raise WrongResultError(
            f"{int((loss != math.inf).sum())} losses finite, {int((~grad.isfinite()).sum())} gradients not"
        )
    case.compared(*shape)
