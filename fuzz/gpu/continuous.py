"""Gates, densities on the line and on the plane, and contexts: float32 on the device against float64 by torch's path.

No kernel for a GPU takes float64: the same call with float64 tensors is made of torch's own operations.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.nn._gates import default_gate_moments
from fuzz.gpu._case import Case, WrongResultError
from fuzz.gpu._compare import require_close, require_close_in_norm

_ALPHAS = (1.0, 1.001, 1.05, 1.2, 4 / 3, 1.5, 1.5, 1.7, 2.0, 2.0, 3.0)
# Of results relative to the largest, and of gradients in norm.
_VALUES, _GRADIENTS = 5e-5, 1e-3
# Rows, and numbers in float64, that are compared at a time.
_MOST_COMPARED, _MOST_NUMBERS = 4096, 2**20


def gates(case: Case) -> None:
    """Weights, means and variances of gates, with logits of every size."""
    logits, mask = _logits(case), None
    batch, length = logits.shape[0], logits.shape[-1]
    shift, least = case.choose((0.0, -2.0)), case.choose((0.0, 0.01))
    form = case.choose(("no mask", "a mask of each row", "a mask of all rows"))
    case.describe(tuple(logits.shape), f"up to {logits.max():.3g}, shift {shift:g}, least {least:g}, {form}")
    if form != "no mask":
        mask = case.uniform(*((batch, length) if form == "a mask of each row" else (length,))) < 0.6
    if mask is not None and mask.dim() == 2:
        mask[:: max(batch // 3, 1)] = False

    def call(logits: Tensor, places: Tensor | None) -> tuple[Tensor, ...]:
        of_rows = mask if places is None or mask is None or mask.dim() == 1 else mask[places]
        return default_gate_moments(logits, of_rows, shift, least)

    # A row without anything to attend has weights of zero, and moments that mean nothing.
    some = torch.ones(batch, length, dtype=torch.bool, device=case.device) if mask is None else mask
    empty = ~some.expand(batch, length).any(-1)
    _against_float64(case, call, [logits], logits.shape[:-1].numel(), length, empty)


def _logits(case: Case) -> Tensor:
    """(B, L) or (B, Q, L): normal, tied or equal, and of every size."""
    kind, size = case.choose(("normal", "ties", "equal")), case.choose((0.1, 1.0, 5.0, 50.0, 1e4))
    if case.is_small:
        batch, length = case.choose((1, 3)), case.choose((1, 5, 70))
    else:
        length = case.choose((1, 2, 31, 64, 100, 500, 1000, 4096, 16384))
        batch = min(case.choose((1, 100, 5000)), 2**24 // length)
    queries = case.choose(((), (), (3,), (16,)))
    logits = case.normal(batch, *queries, length)
    if kind == "ties":
        logits = logits.mul(2).round() / 2
    return size * (torch.ones_like(logits) if kind == "equal" else logits)


def line(case: Case) -> None:
    """E_p[ψ] of β-Gaussians for Gaussian basis functions, with one α, or one per density."""
    batch = case.choose((1, 50)) if case.is_small else case.choose((1, 67, 1000, 20000, 200000))
    functions = case.choose((1, 9)) if case.is_small else case.choose((1, 16, 31, 32, 33, 64, 128, 512))
    batch, alpha = min(batch, max(1, 2**25 // functions)), case.choose((*_ALPHAS, None))
    widths = case.choose(((0.1,), (0.03,), (0.1, 0.5))) if functions % 2 == 0 else case.choose(((0.1,), (0.5,)))
    case.describe((batch, functions), "α per density" if alpha is None else alpha, f"widths {widths}")
    loc = case.uniform(batch, low=-0.3, high=1.3)
    scale = torch.exp(case.uniform(batch, low=-6.0, high=1.0))
    bases = _on_device(case, GaussianBasis.linspace(functions, scale=widths))
    inputs = [loc, scale] if alpha is not None else [loc, scale, case.uniform(batch, low=1.02, high=2.0)]

    def call(loc: Tensor, scale: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        index = others[0] if alpha is None else alpha
        density = BetaGaussian(loc, scale, index, validate_args=False)
        return (contmax.expectation(density, bases[loc.dtype]),)

    _against_float64(case, call, inputs, batch, functions)


def plane(case: Case) -> None:
    """E_p[ψ] of β-Gaussians on the plane for a grid of Gaussian functions; ellipses up to ten times as long as wide."""
    batch = case.choose((1, 20)) if case.is_small else case.choose((1, 50, 1000, 20000))
    side, alpha = 3 if case.is_small else case.choose((1, 4, 7, 10, 16)), case.choose(_ALPHAS)
    width = case.choose((0.03, 0.1, 0.3))
    case.describe((batch, side * side), alpha, f"width {width:g}")
    loc, matrix = _ellipses(case, batch)
    bases = _on_device(case, MultivariateGaussianBasis.grid(side, scale=width))

    def call(loc: Tensor, matrix: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
        density = MultivariateBetaGaussian(loc, matrix, alpha, validate_args=False)
        return (contmax.expectation(density, bases[loc.dtype]),)

    _against_float64(case, call, [loc, matrix], batch, side * side, looser=4.0)


def contexts(case: Case) -> None:
    """Continuous attention over sequences and grids by the module, with a density given as numbers."""
    batch, channels = (3, 4) if case.is_small else (case.choose((1, 64, 1000)), case.choose((3, 16, 64, 100)))
    alpha, is_line = case.choose((1.0, 1.5, 2.0)), case.happens(0.5)
    length = case.choose((5, 49)) if case.is_small else case.choose((1, 10, 49, 196, 500))
    case.describe((batch, length, channels), alpha, "line" if is_line else "plane")
    if is_line:
        basis: torch.nn.Module = GaussianBasis.linspace(case.choose((8, 32)), scale=(0.1, 0.5))
        loc, scale = case.uniform(batch), torch.exp(case.uniform(batch, low=-4.0, high=-0.5))
        options = {}
    else:
        side = max(2, int(length**0.5))
        length, basis = side * side, MultivariateGaussianBasis.grid(5, scale=0.15)
        loc, scale = _ellipses(case, batch)
        options = {"grid": (side, side)}
    bases = _on_device(case, basis)
    attend = {dtype: contmax.nn.ContinuousAttention(b, alpha=alpha, **options) for dtype, b in bases.items()}
    mask = case.uniform(batch, length) < 0.8 if case.happens(0.4) else None

    def call(values: Tensor, loc: Tensor, scale: Tensor, places: Tensor | None) -> tuple[Tensor, ...]:
        of_rows = mask if mask is None or places is None else mask[places]
        return (attend[loc.dtype](values, (loc, scale), mask=of_rows, need_density=False)[0],)

    values = case.normal(batch, length, channels)
    if mask is not None:
        values = torch.where(mask.unsqueeze(-1), values, math.nan)
    _against_float64(case, call, [values, loc, scale], batch, length, looser=10.0)


def _ellipses(case: Case, batch: int) -> tuple[Tensor, Tensor]:
    """Locations and scale matrices."""
    angle = case.uniform(batch, high=3.14159)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(-1, 2, 2)
    axes = torch.exp(case.uniform(batch, 2, low=-5.0, high=-0.4))
    return case.uniform(batch, 2, low=-0.2, high=1.2), turn @ torch.diag_embed(axes) @ turn.mT


def _on_device(case: Case, basis: torch.nn.Module) -> dict[torch.dtype, torch.nn.Module]:
    """A basis in float32 and in float64."""
    return {dtype: copy.deepcopy(basis).to(case.device, dtype) for dtype in (torch.float32, torch.float64)}


def _against_float64(
    case: Case,
    call: Callable[..., tuple[Tensor, ...]],
    inputs: list[Tensor],
    rows: int,
    columns: int,
    empty: Tensor | None = None,
    looser: float = 1.0,
) -> None:
    """Results and gradients of all rows in float32; those of some against float64.

    Args:
        case: the case.
        call: of the inputs, and of the places along their first axis if they are some of the rows, else None.
        inputs: tensors with the same first axis.
        rows: to count,
        columns: and how many numbers each has.
        empty: rows of which only zeros are asked, along the first axis.
        looser: a factor of the tolerances.
    """
    batch = inputs[0].shape[0]
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = call(*leaves, None)
    cotangents = [torch.randn(y.shape, device=y.device, generator=case.generator) for y in outputs]
    if empty is not None:
        cotangents = [torch.where(empty.view(-1, *(1,) * (c.dim() - 1)), 0, c) for c in cotangents]
    grads = torch.autograd.grad(outputs, leaves, cotangents)
    case.tried(rows, columns)
    for found in (*outputs, *grads):
        kept = found if empty is None else found[~empty]
        if not bool(kept.isfinite().all()):
            raise WrongResultError(f"{int((~kept.isfinite()).sum())} of {kept.numel()} numbers are not finite")
    numbers = max(x[0].numel() for x in (*inputs, *outputs))
    places = case.sample(batch, columns)[: max(1, min(_MOST_COMPARED, _MOST_NUMBERS // numbers))]
    if empty is not None:
        places = places[~empty[places]]
    if len(places) == 0:
        return
    wide = [x[places].detach().double().requires_grad_() for x in inputs]
    exact = call(*wide, places)
    slopes = torch.autograd.grad(exact, wide, [c[places].double() for c in cotangents])
    for number, (ours, theirs) in enumerate(zip(outputs, exact, strict=True)):
        allowed = looser * _VALUES * max(1e-3, theirs.abs().max().item())
        require_close(
            f"result {number}", ours[places].reshape(len(places), -1), theirs.reshape(len(places), -1), allowed
        )
    for number, (ours, theirs) in enumerate(zip(grads, slopes, strict=True)):
        require_close_in_norm(f"gradient {number}", ours[places], theirs, looser * _GRADIENTS)
    case.compared(rows * len(places) // batch, columns)
