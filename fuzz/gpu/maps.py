"""The finite maps: α fixed, one α per row with its gradient, masks, and tensors of more numbers than 2³¹."""

import math

import torch
from torch import Tensor

import contmax
from fuzz.gpu._case import BF16, F32, Case, WrongResultError, rows_at, shown
from fuzz.gpu._compare import TOLERANCE, require_close, require_probabilities, require_sums
from fuzz.gpu._references import alpha_gradient64, entmax64, escort64, pulled_back64
from fuzz.gpu._scores import (
    LAYOUTS,
    drawn_alpha,
    drawn_dtype,
    drawn_kind,
    drawn_layout,
    drawn_shape,
    most_numbers,
    plant_bad_rows,
    scores,
)


def fixed(case: Case) -> None:
    """One α for all rows, in every layout; along the last axis or the first."""
    dtype, alpha, kind, layout = drawn_dtype(case), drawn_alpha(case), drawn_kind(case), drawn_layout(case)
    shape, axis = (
        drawn_shape(case, most_numbers(alpha)),
        "first" if layout == "contiguous" and case.happens(0.1) else "last",
    )
    case.describe(dtype, alpha, shape, kind, layout, f"axis {axis}")
    x = scores(case, *shape, dtype, kind)
    bad = plant_bad_rows(case, x)
    x = x.mT.contiguous() if axis == "first" else LAYOUTS[layout](x)
    x = x.detach().requires_grad_()
    p = (
        contmax.sparsemax(x, -1)
        if alpha == 2 and axis == "last"
        else contmax.entmax(x, alpha, 0 if axis == "first" else -1)
    )
    g = _cotangent(case, p)
    (grad,) = torch.autograd.grad(p, x, g)
    if axis == "first":
        x, p, g, grad = x.mT, p.mT, g.mT, grad.mT
    _check(case, x.detach(), p, g, grad, alpha, bad)


def per_row(case: Case) -> None:
    """One α per row or per head, from 1.0001 to 3 beside each other, with its gradient."""
    dtype, kind, highest = drawn_dtype(case), drawn_kind(case), case.choose((1.3, 2.0, 3.0))
    shape = drawn_shape(case, most_numbers(highest, 2**26))
    layout = case.choose(("contiguous", "contiguous", "offset", "gaps", "negated", "heads"))
    case.describe(dtype, f"α per row up to {highest:g}", shape, kind, layout)
    x = scores(case, *shape, dtype, kind)
    bad = plant_bad_rows(case, x)
    x = LAYOUTS[layout](x).detach().requires_grad_()
    # Heads: one α for each entry of the first axis.
    alpha = case.uniform(*((x.shape[0], 1, 1) if x.dim() == 3 else (x.shape[0], 1)), low=1.0001, high=highest)
    alpha.requires_grad_()
    p = contmax.entmax(x, alpha)
    g = _cotangent(case, p)
    grad, grad_alpha = torch.autograd.grad(p, (x, alpha), g)
    every = alpha.detach().expand(*x.shape[:-1], 1)
    _check(case, x.detach(), p, g, grad, every, bad)
    if x.dim() == 2:
        _check_alpha_gradient(case, p, g, grad_alpha, every, bad)


def masked(case: Case) -> None:
    """Masks of every row, of all rows, and broadcast; what they hide may be NaN."""
    dtype, alpha, kind = drawn_dtype(case), drawn_alpha(case), drawn_kind(case)
    shape = drawn_shape(case, most_numbers(alpha, 2**26))
    form, share = case.choose(("of each row", "of all rows", "of columns")), case.choose((0.02, 0.3, 0.7, 0.98))
    layout = case.choose(("contiguous", "contiguous", "gaps", "every other", "heads"))
    case.describe(dtype, alpha, shape, kind, f"mask {form}, {share:g} allowed", layout)
    x = scores(case, *shape, dtype, kind)
    mask = case.uniform(*((shape[1],) if form == "of columns" else shape)) < share
    if form == "of all rows":
        mask = mask & (case.uniform(shape[0], 1) < 0.7)
    every = mask.expand(shape)
    hidden = case.uniform(*shape) < 0.001
    x = torch.where(hidden & ~every, math.nan, x)
    x, every = LAYOUTS[layout](x), LAYOUTS[layout](every)
    x = x.detach().requires_grad_()
    p = contmax.entmax(x, alpha, mask=mask if form == "of columns" else every)
    g = _cotangent(case, p)
    (grad,) = torch.autograd.grad(p, x, g)
    _check(case, x.detach(), p, g, grad, alpha, [], every)


def huge(case: Case) -> None:
    """More than 2³¹ numbers in one tensor: offsets beyond 32 bits."""
    dtype, alpha, kind = (
        case.choose((BF16, BF16, F32)),
        case.choose((1.25, 1.5, 1.7, 2.0)),
        case.choose(("normal", "ties")),
    )
    columns = 20 if case.is_small else case.choose((100, 1000, 32000, 128256))
    rows = 30 if case.is_small else (2**31 + 2**22) // columns
    # In float32 scores and probabilities are all that fits beside other processes.
    backward = dtype == BF16
    case.describe(dtype, alpha, (rows, columns), kind, "forward and backward" if backward else "forward")
    x = scores(case, rows, columns, dtype, kind).requires_grad_(backward)
    p = contmax.entmax(x, alpha)
    # The cotangent is p itself, which is there already.
    grad = torch.autograd.grad(p, x, p.detach())[0] if backward else None
    _check(case, x.detach(), p.detach(), p.detach(), grad, alpha, [], one_of=64)


def _cotangent(case: Case, p: Tensor) -> Tensor:
    """Normal numbers in some layout, of the dtype of p."""
    layout = case.choose(("contiguous", "contiguous", "contiguous", "expanded", "transposed", "negated"))
    if layout == "expanded":
        # What a sum over the rows hands back.
        return case.normal(p.shape[-1], dtype=p.dtype).expand(p.shape)
    g = torch.empty(p.shape, dtype=p.dtype, device=p.device).normal_(generator=case.generator)
    return g if p.dim() > 2 else LAYOUTS[layout](g)


def _check(
    case: Case,
    x: Tensor,
    p: Tensor,
    g: Tensor,
    grad: Tensor | None,
    alpha: float | Tensor,
    bad: list[int],
    mask: Tensor | None = None,
    one_of: int = 16,
) -> None:
    """Sums of all rows; probabilities and gradients of some. The gradient is judged by the p that it was made from."""
    rows, columns = x.shape[:-1].numel(), x.shape[-1]
    if p.dtype != x.dtype or p.shape != x.shape:
        raise WrongResultError(f"p is {shown(p.dtype)} {tuple(p.shape)} for scores {shown(x.dtype)} {tuple(x.shape)}")
    case.tried(rows, columns)
    top = (x if mask is None else torch.where(mask, x, -math.inf)).amax(-1)
    require_sums(p, top)
    places = case.sample(rows, columns, bad, one_of=one_of)
    some, index = rows_at(x, places), rows_at(alpha, places) if isinstance(alpha, Tensor) else alpha
    want = entmax64(some, index, None if mask is None else rows_at(mask, places))
    got = rows_at(p, places).detach()
    require_probabilities(got, want, index)
    if grad is not None:
        _check_gradient(got, rows_at(g, places), rows_at(grad, places), index)
    case.compared(len(places), columns)


def _check_gradient(p: Tensor, g: Tensor, grad: Tensor, alpha: float | Tensor) -> None:
    """A row with NaN has no gradient that could be compared."""
    good = ~p.isnan().any(-1)
    p, g = p[good].double(), g[good].double()
    index = alpha[good] if isinstance(alpha, Tensor) else alpha
    relative, absolute = TOLERANCE[grad.dtype]
    limit = torch.finfo(grad.dtype).max
    want = pulled_back64(p, g, index).clamp(-limit, limit)
    size = g.abs().amax(-1, keepdim=True)
    allowed = relative * want.abs() + 2 * relative * escort64(p, index) * size + absolute * size
    require_close("gradient", grad[good], want, allowed)


def _check_alpha_gradient(case: Case, p: Tensor, g: Tensor, grad: Tensor, alpha: Tensor, bad: list[int]) -> None:
    places = case.sample(*p.shape, bad)
    some, cotangent, index = rows_at(p, places).detach(), rows_at(g, places), rows_at(alpha, places)
    good = ~some.isnan().any(-1)
    want, size = alpha_gradient64(some[good].double(), cotangent[good].double(), index[good])
    relative, absolute = TOLERANCE[p.dtype]
    require_close("gradient of α", rows_at(grad, places)[good], want, 10 * relative * size + 10 * absolute)
