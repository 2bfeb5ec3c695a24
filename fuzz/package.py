"""The stand-ins for the package entmax are the maps and losses of this library."""

import torch
from hypothesis import strategies as st

import contmax
from contmax.integrations import entmax as stand_in
from fuzz._campaign import target
from fuzz._rows import TOLERANCE, close, columns, kinds, require, rows, seeds, some, wide_dtypes

ROWS = 256


@target(
    "integrations.maps",
    alpha=st.one_of(st.sampled_from([1.0, 1.5, 2.0]), st.floats(1.0, 2.0)),
    kind=kinds,
    width=columns,
    dtype=wide_dtypes,
    seed=seeds,
)
def maps_of_the_package(alpha: float, kind: str, width: int, dtype: str, seed: int) -> int:
    """sparsemax, entmax15, entmax_bisect: those of contmax; normmax and budget are feasible."""
    x = rows(kind, ROWS, width, dtype, seed)
    tolerance = TOLERANCE[x.dtype]
    pairs = {
        "sparsemax": (stand_in.sparsemax(x, dim=-1), contmax.sparsemax(x)),
        "entmax15": (stand_in.entmax15(x, dim=-1), contmax.entmax(x, 1.5)),
        "entmax_bisect": (stand_in.entmax_bisect(x, alpha=alpha, dim=-1), contmax.entmax(x, alpha)),
        "sparsemax_bisect": (stand_in.sparsemax_bisect(x, dim=-1), contmax.sparsemax(x)),
    }
    for name, (found, wanted) in pairs.items():
        require(close(found, wanted, tolerance), name, scores=x, found=found, wanted=wanted, alpha=alpha)
    normmax = stand_in.normmax_bisect(x, alpha=max(alpha, 1.1), dim=-1)
    fair = (normmax >= 0).all(-1) & ((normmax.double().sum(-1) - 1).abs() <= 1e-5)
    require(fair, "normmax is no distribution", scores=x, p=normmax, alpha=alpha)
    budget = min(2, width)
    share = stand_in.budget_bisect(x, budget=budget, dim=-1)
    fair = (share >= 0).all(-1) & (share <= 1 + 1e-6).all(-1) & ((share.double().sum(-1) - budget).abs() <= 1e-4)
    require(fair, "budget is not spent", scores=x, p=share)
    return ROWS * (len(pairs) + 2)


@target("integrations.losses", kind=kinds, width=columns, dtype=wide_dtypes, seed=seeds)
def losses_of_the_package(kind: str, width: int, dtype: str, seed: int) -> int:
    """Those of contmax; masked scores do not spoil them."""
    x = rows(kind, ROWS, width, dtype, seed)
    y = torch.arange(ROWS) % width
    keep = some(ROWS, width, seed)
    keep[torch.arange(ROWS), y] = True
    size = x.double().abs().amax(-1, keepdim=True).clamp(min=1.0)
    for name, alpha in (("sparsemax_loss", 2.0), ("entmax15_loss", 1.5)):
        found = getattr(stand_in, name)(x, y)
        wanted = contmax.losses.entmax_loss(x, y, alpha, reduction="none")
        fits = close(found[:, None], wanted[:, None], 4 * TOLERANCE[x.dtype] * size)
        require(fits, name, scores=x, target=y, found=found, wanted=wanted)
        masked = getattr(stand_in, name)(x.masked_fill(~keep, -torch.inf), y)
        require(masked.isfinite(), f"{name} with −inf", scores=x, keep=keep, target=y, found=masked)
    return 4 * ROWS
