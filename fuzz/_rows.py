"""Rows of numbers that break things: ties, ranges beyond the dtype, neighbours of one, supports on the very edge."""

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# How far a result may be off, for results of size one.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}

dtypes = st.sampled_from(list(DTYPES))
wide_dtypes = st.sampled_from(["float64", "float32"])
seeds = st.integers(0, 2**31 - 1)
columns = st.one_of(st.integers(1, 12), st.sampled_from([17, 33, 64, 129, 300]))
# The lines between two methods or two limits, and anything between them.
alphas = st.one_of(
    st.sampled_from([1.0, 1.5, 2.0, 4 / 3, 1.25, 2.5, 3.0, 1 + 1e-7, 1 - 1e-7, 1 + 2**-20, math.nextafter(1, 2)]),
    st.sampled_from([1.001, 0.999, 2 + 1e-6, 2 - 1e-6, 0.5, 0.1, 0.01, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0]),
    st.floats(0.01, 100.0),
    st.floats(1.0, 2.5),
)


def _ties(draw: Any, shape: tuple[int, int]) -> Any:
    return draw.choice(draw.normal(size=3), size=shape)


def _grid(draw: Any, shape: tuple[int, int]) -> Any:
    return draw.integers(-8, 9, size=shape) / 4.0


def _wide(draw: Any, shape: tuple[int, int]) -> Any:
    return draw.choice([-1.0, 1.0], size=shape) * 10.0 ** draw.uniform(-30, 4, size=shape)


def _huge(draw: Any, shape: tuple[int, int]) -> Any:
    return draw.choice([-1.0, 1.0], size=shape) * 10.0 ** draw.uniform(0, 30, size=shape)


def _near_ties(draw: Any, shape: tuple[int, int]) -> Any:
    return draw.normal(size=(shape[0], 1)) * (1 + draw.integers(-3, 4, size=shape) * 2.0 ** draw.integers(-52, -8))


def _geometric(draw: Any, shape: tuple[int, int]) -> Any:
    return -(10.0 ** draw.uniform(-12, 1, size=shape))


def _special(draw: Any, shape: tuple[int, int]) -> Any:
    some = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 5e-324, 1e-8, 0.5, 1 + 2**-23, 1 - 2**-24, 65504.0, -65504.0, 1e30]
    return draw.choice(some, size=shape)


KINDS = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "grid": _grid,
    "ties": _ties,
    "spread": lambda draw, shape: 10 * draw.normal(size=shape),
    "near ties": _near_ties,
    "geometric": _geometric,
    "wide": _wide,
    "special": _special,
    "huge": _huge,
}
kinds = st.sampled_from(list(KINDS))


def rows(kind: str, count: int, width: int, dtype: str, seed: int) -> Tensor:
    """`count` rows of `width` numbers of that kind, rounded to the dtype, all finite."""
    values = KINDS[kind](np.random.default_rng(seed), (count, width))
    kind_of = DTYPES[dtype]
    largest = torch.finfo(kind_of).max
    return torch.from_numpy(np.asarray(values, dtype=np.float64)).clamp(-largest, largest).to(kind_of)


def some(count: int, width: int, seed: int) -> Tensor:
    """A mask of which some rows are empty and some full."""
    draw = np.random.default_rng(seed + 1)
    return torch.from_numpy(draw.random((count, width)) < draw.choice([0.0, 0.3, 0.7, 1.0], size=(count, 1)))


def hidden(x: Tensor, seen: Tensor) -> Tensor:
    """x with NaN wherever it is masked, ready for a gradient: what stands there must not matter."""
    return torch.where(seen, x.detach(), torch.nan).requires_grad_()


def require(holds: Tensor, what: str, **shown: Any) -> None:
    """Raise with the first row that is wrong, so that it can be copied into a test."""
    wrong = ~holds
    if not bool(wrong.any()):
        return
    place = tuple(wrong.nonzero()[0].tolist())
    lines = [f"{what}, in {int(wrong.sum())} of {wrong.numel()} rows; the first:"]
    for name, value in shown.items():
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape[: len(place)] == wrong.shape:
            value = value[place]
        short = isinstance(value, Tensor) and value.numel() <= 40
        text = value.tolist() if short else f"{value}"
        lines.append(f"  {name} = {text}" + (f" ({value.dtype})" if isinstance(value, Tensor) else ""))
    raise AssertionError("\n".join(lines))


def close(found: Tensor, exact: Tensor, tolerance: float | Tensor) -> Tensor:
    """Whether each row agrees with the exact one; equal infinities do."""
    found, exact = found.double(), exact.double()
    off = torch.where(found == exact, 0.0, (found - exact).abs())
    return (off <= tolerance).all(-1)
