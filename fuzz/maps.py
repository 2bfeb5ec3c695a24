"""Finite maps: probabilities and gradients against float64, mpmath and themselves."""

import torch
from hypothesis import strategies as st
from torch import Tensor

import contmax
from fuzz._campaign import target
from fuzz._oracles import entmax_row
from fuzz._rows import DTYPES, TOLERANCE, alphas, close, columns, dtypes, hidden, kinds, require, rows, seeds, some

ROWS = 512
CIRCUMSTANCES = {"kind": kinds, "width": columns, "dtype": dtypes, "seed": seeds}


def _gradient(x: Tensor, alpha: float | Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    p = contmax.entmax(x, alpha)
    return p.detach(), torch.autograd.grad(p, x, cotangent)[0]


@target("maps.entmax", alpha=alphas, **CIRCUMSTANCES)
def entmax_is_a_distribution(alpha: float, kind: str, width: int, dtype: str, seed: int) -> int:
    """Sums to one, keeps the order, is that of float64 on the same numbers."""
    x = rows(kind, ROWS, width, dtype, seed)
    p = contmax.entmax(x, alpha)
    tolerance = TOLERANCE[x.dtype]
    require(p.isfinite().all(-1) & (p >= 0).all(-1), "not a probability", scores=x, p=p, alpha=alpha)
    sums = p.double().sum(-1)
    # Half precision rounds every entry once.
    require((sums - 1).abs() <= tolerance * max(1, width / 4), "does not sum to one", scores=x, sum=sums, alpha=alpha)
    ordered = p.gather(-1, x.double().argsort(-1)).double()
    require((ordered.diff(dim=-1) >= -tolerance).all(-1), "order is lost", scores=x, p=p, alpha=alpha)
    if x.dtype != torch.float64:
        exact = contmax.entmax(x.double(), alpha)
        require(close(p, exact, tolerance), "differs from float64", scores=x, p=p, exact=exact, alpha=alpha)
    return ROWS


@target("maps.entmax-oracle", alpha=alphas, kind=kinds, width=st.integers(1, 6), seed=seeds)
def entmax_agrees_with_mpmath(alpha: float, kind: str, width: int, seed: int) -> int:
    """A few rows in float64, against as many digits as it takes."""
    x = rows(kind, 2, width, "float64", seed)
    p = contmax.entmax(x, alpha)
    exact = torch.tensor([entmax_row(row, alpha) for row in x.tolist()], dtype=torch.float64)
    require(close(p, exact, 1e-12), "differs from mpmath", scores=x, p=p, exact=exact, alpha=alpha)
    return 2


@target("maps.entmax-gradient", alpha=alphas, **CIRCUMSTANCES)
def gradients_are_finite_and_sum_to_zero(alpha: float, kind: str, width: int, dtype: str, seed: int) -> int:
    """In float32 they are those of float64, up to the condition of the problem."""
    x = rows(kind, ROWS, width, dtype, seed)
    cotangent = rows("normal", ROWS, width, dtype, seed + 1)
    p, g = _gradient(x, alpha, cotangent)
    require(g.isfinite().all(-1), "gradient is not finite", scores=x, cotangent=cotangent, gradient=g, alpha=alpha)
    # In half precision a probability may round to zero that is none.
    dead = contmax.entmax(x.float(), alpha) == 0 if x.dtype in (torch.float16, torch.bfloat16) else p == 0
    require((~dead | (g == 0)).all(-1), "gradient where p = 0", scores=x, p=p, gradient=g, alpha=alpha)
    if x.dtype != torch.float32:
        return ROWS
    exact_p, exact = _gradient(x.double(), alpha, cotangent.double())
    smallest = exact_p.where(exact_p > 0, torch.inf).amin(-1, keepdim=True)
    condition = ((alpha - 2) / smallest).clamp(min=1)
    largest = torch.finfo(x.dtype).max
    size = torch.maximum(exact.abs(), exact_p * cotangent.double().abs()).amax(-1, keepdim=True)
    tolerance = 4e-6 * size.clamp(min=1e-30) * condition
    # An entry on the very edge of the support may be in it for one and not for the other.
    clear = ((p > 0) == (exact_p > 0)).all(-1)
    holds = close(g, exact.clamp(-largest, largest), tolerance) | ~clear
    require(holds, "gradient differs from float64", scores=x, cotangent=cotangent, gradient=g, exact=exact, alpha=alpha)
    return ROWS


@target("maps.entmax-masks", alpha=alphas, **CIRCUMSTANCES)
def a_mask_is_a_removal(alpha: float, kind: str, width: int, dtype: str, seed: int) -> int:
    """Masked entries count as −inf and as absent; empty rows are zero with zero gradient."""
    x, mask = rows(kind, ROWS, width, dtype, seed), some(ROWS, width, seed)
    p, g = _gradient(x.masked_fill(~mask, -torch.inf), alpha, rows("normal", ROWS, width, dtype, seed + 1))
    spoiled = hidden(x, mask)
    masked = contmax.entmax(spoiled, alpha, mask=mask)
    require((masked == p).all(-1), "mask and −inf differ", scores=x, mask=mask, masked=masked, p=p, alpha=alpha)
    require(((p == 0) | mask).all(-1), "a masked entry is attended", scores=x, mask=mask, p=p, alpha=alpha)
    require(g.isfinite().all(-1) & ((g == 0) | mask).all(-1), "gradient at the mask", scores=x, mask=mask, gradient=g)
    (slope,) = torch.autograd.grad(masked, spoiled, rows("normal", ROWS, width, dtype, seed + 1))
    require((slope == g).all(-1), "gradient depends on what is masked", scores=x, mask=mask, gradient=g, slope=slope)
    empty = ~mask.any(-1)
    require((p == 0).all(-1) | ~empty, "an empty row is not zero", scores=x, mask=mask, p=p)
    columns_kept = mask[0].nonzero()[:, 0]
    if len(columns_kept):
        alone = contmax.entmax(x[:, columns_kept], alpha)
        common = contmax.entmax(x, alpha, mask=mask[0])[:, columns_kept]
        tolerance = TOLERANCE[x.dtype]
        require(
            close(common, alone, tolerance), "mask is no removal", scores=x[:, columns_kept], masked=common, p=alone
        )
    return 2 * ROWS


@target(
    "maps.entmax-symmetries", alpha=alphas, width=columns, dtype=st.sampled_from(["float64", "float32"]), seed=seeds
)
def shifts_permutations_and_shapes(alpha: float, width: int, dtype: str, seed: int) -> int:
    """On a grid where shifts are exact: shifted, permuted, strided, along another axis, in pieces."""
    x = rows("grid", 60, width, dtype, seed)
    p, tolerance = contmax.entmax(x, alpha), TOLERANCE[DTYPES[dtype]]
    order = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
    others = {
        "shifted by 1024": contmax.entmax(x + 1024, alpha),
        "permuted": contmax.entmax(x[:, order], alpha)[:, order.argsort()],
        "along the first axis": contmax.entmax(x.T, alpha, dim=0).T,
        "strided": contmax.entmax(x.repeat_interleave(2, -1)[:, ::2], alpha),
        "five axes": contmax.entmax(x.view(3, 1, 4, 5, width), alpha).view(60, width),
        "in the middle": contmax.entmax(x.view(4, 15, width).transpose(1, 2), alpha, 1)
        .transpose(1, 2)
        .reshape(60, width),
        "tensor α": contmax.entmax(x, torch.full((60, 1), alpha, dtype=x.dtype)),
        "half the temperature": contmax.entmax(x / 2, alpha, temperature=0.5),
    }
    # α rounded to float32 is another α.
    rounded = contmax.entmax(x, float(torch.tensor(alpha, dtype=x.dtype)))
    for name, other in others.items():
        wanted = rounded if name == "tensor α" else p
        require(close(other, wanted, 2 * tolerance), name, scores=x, p=wanted, other=other, alpha=alpha)
    assert contmax.entmax(x[:0], alpha).shape == (0, width)
    return 60 * len(others)


@target("maps.tensor-alpha", **CIRCUMSTANCES)
def every_row_has_an_index_of_its_own(kind: str, width: int, dtype: str, seed: int) -> int:
    """Gradients in α too; one tensor of indices is as many floats."""
    x = rows(kind, ROWS, width, dtype, seed)
    draw = torch.Generator().manual_seed(seed)
    alpha = torch.rand((ROWS, 1), generator=draw).mul(6.9).sub(2.3).exp().to(x.dtype).clamp(0.1, 100).requires_grad_()
    x.requires_grad_()
    p = contmax.entmax(x, alpha)
    require(p.isfinite().all(-1), "not finite", scores=x, alpha=alpha, p=p)
    sums = p.detach().double().sum(-1)
    tolerance = TOLERANCE[x.dtype] * max(1, width / 4)
    require((sums - 1).abs() <= tolerance, "does not sum to one", scores=x, alpha=alpha, sum=sums)
    grads = torch.autograd.grad(p, (x, alpha), rows("normal", ROWS, width, dtype, seed + 1))
    require(grads[0].isfinite().all(-1), "gradient in the scores", scores=x, alpha=alpha, gradient=grads[0])
    require(grads[1].isfinite().all(-1), "gradient in α", scores=x, alpha=alpha, gradient=grads[1])
    for row in (0, ROWS // 2):
        alone = contmax.entmax(x[row].detach(), float(alpha[row].detach()))
        require(
            close(p[row][None], alone[None], 2 * tolerance), "one α by itself", scores=x[row][None], alpha=alpha[row]
        )
    return ROWS


@target("maps.softmax", **CIRCUMSTANCES)
def softmax_is_torch_softmax(kind: str, width: int, dtype: str, seed: int) -> int:
    """Wherever torch.softmax is finite, and sparsemax is α = 2."""
    x = rows(kind, ROWS, width, dtype, seed)
    tolerance = TOLERANCE[x.dtype]
    found, theirs = contmax.softmax(x), torch.softmax(x.double(), -1)
    # On some processors torch's own misses by a little more.
    own = (torch.softmax(x, -1).double() - theirs).abs().nan_to_num(0).amax(-1, keepdim=True).clamp(min=tolerance)
    require(close(found, theirs, own), "differs from torch.softmax", scores=x, p=found, exact=theirs)
    both = contmax.sparsemax(x), contmax.entmax(x, 2.0)
    require((both[0] == both[1]).all(-1), "sparsemax is not α = 2", scores=x, p=both[0], other=both[1])
    return 2 * ROWS
