"""Rows of scores that break things, made on the device at little cost, and the ways in which they lie in memory."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fuzz.gpu._case import BF16, F16, F32, Case

# Next to where kernels change their way: powers of two, what one program holds, slices of long rows.
_SHORT = (33, 63, 64, 65, 100, 128, 200, 257, 511, 512)
_MIDDLE = (513, 1000, 1024, 1025, 2048, 2049, 3000, 4096, 4097, 5000, 8192)
_LONG = (8193, 10000, 16384, 16385, 32000, 32768, 32769, 50257, 65536, 70001, 128256, 131072)
_LONGEST = (250001, 262144, 500000, 10**6)
_MOST_ROWS = 10**7
# The lines between two methods, what users take, and next to both.
ALPHAS = (1.0001, 1.001, 1.01, 1.05, 1.1, 1.2, 1.25, 4 / 3, 1.4, 1.5, 1.5, 1.5, 1.6, 1.7, 1.9, 1.99, 2.0, 2.0)
BEYOND_TWO = (2.0001, 2.01, 2.5, 3.0)


def drawn_dtype(case: Case) -> torch.dtype:
    """A dtype that kernels take. On a CPU float16 is left out: what it rounds to zero has slopes in float32."""
    return case.choose((F32, BF16) if case.is_small else (F32, BF16, BF16, F16))


def drawn_alpha(case: Case, beyond: float = 0.1) -> float:
    """α from 1.0001 on, up to 3; `beyond` is the share above 2."""
    if case.happens(beyond):
        return case.choose(BEYOND_TWO)
    return case.choose(ALPHAS) if case.happens(0.8) else case.random.uniform(1.0001, 2.0)


def most_numbers(alpha: float, most: int = 2**27) -> int:
    """How many numbers a tensor may have, so that its case takes a second or two: fewer beyond α = 2."""
    return min(most, 2**24) if alpha > 2 else most


def drawn_shape(case: Case, most: int = 2**27) -> tuple[int, int]:
    """Rows and columns, together at most so many numbers."""
    if case.is_small:
        return case.random.randint(1, 12), case.choose((1, 2, 5, 16, 33, 129, 300))
    band = case.random.choices(("tiny", _SHORT, _MIDDLE, _LONG, _LONGEST), (25, 20, 20, 25, 10))[0]
    columns = case.random.randint(1, 32) if isinstance(band, str) else case.choose(band)
    rows = int(2 ** case.random.uniform(14, math.log2(most))) // columns
    return min(max(rows, 1), _MOST_ROWS), columns


def _blocks(x: Tensor) -> None:
    """Runs of eight equal numbers on a grid."""
    _ties(x)
    for place in range(1, min(8, x.shape[-1])):
        part = x[..., place::8]
        part.copy_(x[..., ::8][..., : part.shape[-1]])


def _ties(x: Tensor) -> None:
    x.mul_(4).round_().div_(4)


def _spikes(x: Tensor) -> None:
    x.sub_(20)
    x[..., ::97] = 3.0


def _near_ties(x: Tensor) -> None:
    """Numbers a few units in the last place from 1."""
    x.mul_(3).round_().mul_(torch.finfo(x.dtype).eps).add_(1)


def _largest(x: Tensor) -> None:
    """All numbers of a row are the largest of the dtype, or all its negation."""
    x.copy_(torch.where(x[..., :1] > 0, 1.0, -1.0)).mul_(torch.finfo(x.dtype).max)


def _one_left(x: Tensor) -> None:
    x[..., : x.shape[-1] // 2] = -torch.inf
    x[..., x.shape[-1] // 2 + 1 :] = -torch.inf


def _ramp(x: Tensor) -> None:
    x.copy_(torch.linspace(0, -6, x.shape[-1], device=x.device))


# Each changes normal numbers in place.
KINDS: dict[str, Callable[[Tensor], object]] = {
    "normal": lambda x: x,
    "ties": _ties,
    "coarse": lambda x: x.mul_(2).round_().mul_(2),
    "flat": lambda x: x.mul_(1e-3),
    "equal": lambda x: x.fill_(1.5),
    "sharp": lambda x: x.mul_(8),
    "huge": lambda x: x.mul_(1e4),
    "blocks": _blocks,
    "spikes": _spikes,
    "near ties": _near_ties,
    "shared": lambda x: x.add_(1000),
    "largest": _largest,
    "extremes": lambda x: x.sign_().mul_(torch.finfo(x.dtype).max),
    "holes": lambda x: x.masked_fill_(x < 0.5, -torch.inf),
    "one left": _one_left,
    "ramp": _ramp,
}


def drawn_kind(case: Case) -> str:
    """Normal numbers in a third of the cases."""
    return case.choose(list(KINDS)) if case.happens(0.7) else "normal"


def scores(case: Case, rows: int, columns: int, dtype: torch.dtype, kind: str) -> Tensor:
    """Rows of a kind, (rows, columns)."""
    x = case.normal(rows, columns, dtype=dtype)
    KINDS[kind](x)
    return x


def plant_bad_rows(case: Case, x: Tensor) -> list[int]:
    """Make up to four rows hostile, in place: NaN, +inf, nothing but −inf, the largest number; which they are."""
    if x.shape[0] < 2 or not case.happens(0.4):
        return []
    places = sorted(case.random.sample(range(x.shape[0]), min(4, x.shape[0] // 2)))
    column = case.random.randrange(x.shape[1])
    for number, place in enumerate(places):
        if number == 2:
            x[place] = -torch.inf
        elif number == 3:
            x[place] = torch.finfo(x.dtype).max
        else:
            x[place, column] = torch.nan if number == 0 else torch.inf
    return places


def _offset(x: Tensor) -> Tensor:
    """At an address that is no multiple of sixteen."""
    return x.new_empty(x.numel() + 3)[3:].view(x.shape).copy_(x)


def _gaps(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] + 7)[:, : x.shape[1]].copy_(x)


def _every_other(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], 2 * x.shape[1])[:, ::2].copy_(x)


def _heads(x: Tensor) -> Tensor:
    """Three axes, the first two of them transposed: (2, rows / 2, columns)."""
    return x[: x.shape[0] // 2 * 2].view(-1, 2, x.shape[1]).transpose(0, 1) if x.shape[0] > 1 else x


# Tensors with the numbers of (rows, columns), or some of them.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "offset": _offset,
    "gaps": _gaps,
    "every other": _every_other,
    "transposed": lambda x: x.mT.contiguous().mT,
    "expanded": lambda x: x[:1].expand(x.shape),
    "negated": lambda x: torch._neg_view(-x),
    "heads": _heads,
}


def drawn_layout(case: Case) -> str:
    """As they come in half of the cases."""
    return case.choose(list(LAYOUTS)) if case.happens(0.5) else "contiguous"
