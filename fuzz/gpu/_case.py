"""One case: a target and a seed, from which all of its circumstances are drawn, so that it can be run again alone."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Rows of this many scores and more are counted as long ones.
LONG = 32_000
# Scores that are compared in any case, however few rows these are.
_LEAST_COMPARED = 2**16

Choice = TypeVar("Choice")


class WrongResultError(AssertionError):
    """A result that is not what its reference says, or that breaks an invariant; the message is one line."""


@dataclasses.dataclass
class Counts:
    """Rows that went through the library, and those of them whose results were compared in float64."""

    long: int = 0
    short: int = 0
    long_compared: int = 0
    short_compared: int = 0

    def add(self, other: "Counts") -> None:
        """Add the rows of another count."""
        for name, value in dataclasses.asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


class Case:
    """What a target is given: a source of random choices, a device, and counters.

    Args:
        target: its name.
        seed: all choices follow from these two.
        device: "cuda", or "cpu", where all sizes are small: that tries the campaign itself.
        say: is told the circumstances before anything is launched, so that a case that hangs can be described.
    """

    def __init__(self, target: str, seed: int, device: str, say: Callable[[str], None] = lambda text: None) -> None:
        self.target, self.seed, self.device, self._say = target, seed, device, say
        self.random = random.Random(f"{target} {seed}")
        self.generator = torch.Generator(device=device).manual_seed(self.random.getrandbits(40))
        self.is_small = device == "cpu"
        self.counts = Counts()

    def describe(self, *circumstances: Any) -> None:
        """Tell what comes next; the watchdog also starts to wait anew."""
        self._say(", ".join(shown(x) for x in circumstances))

    def choose(self, options: Sequence[Choice]) -> Choice:
        """One of the options."""
        return self.random.choice(options)

    def happens(self, share: float) -> bool:
        """True in this share of the cases."""
        return self.random.random() < share

    def normal(self, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        """Normal numbers."""
        return torch.empty(shape, dtype=dtype, device=self.device).normal_(generator=self.generator)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers in float32."""
        return torch.empty(shape, device=self.device).uniform_(low, high, generator=self.generator)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Integers from 0 on."""
        return torch.randint(below, shape, device=self.device, generator=self.generator)

    def tried(self, rows: int, columns: int) -> None:
        """Count rows that the library has computed."""
        setattr(self.counts, kind := _kind(columns), getattr(self.counts, kind) + rows)

    def compared(self, rows: int, columns: int) -> None:
        """Count rows that were compared with a reference."""
        kind = f"{_kind(columns)}_compared"
        setattr(self.counts, kind, getattr(self.counts, kind) + rows)

    def sample(self, rows: int, columns: int, wanted: Sequence[int] = (), *, one_of: int = 16) -> Tensor:
        """Places of the rows to compare: the last, those that are wanted with their neighbours, and random ones.

        The random ones are one of so many, or more where there are few.
        """
        count = min(rows, max(rows // one_of, _LEAST_COMPARED // columns) + 1)
        near = {r + step for r in wanted for step in (-1, 0, 1) if 0 <= r + step < rows}
        fixed = torch.tensor(sorted(near | {rows - 1}), device=self.device)
        drawn = torch.arange(rows, device=self.device) if count == rows else self.integers(rows, count)
        return torch.cat([fixed, drawn]).unique()


def _kind(columns: int) -> str:
    return "long" if columns >= LONG else "short"


def shown(x: Any) -> str:
    """A circumstance in a few characters."""
    if isinstance(x, torch.dtype):
        return str(x).removeprefix("torch.")
    if isinstance(x, tuple):
        return "×".join(map(str, x))
    return f"α={x:.6g}" if isinstance(x, float) else str(x)


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """Rows of a tensor (*batch, n), counted through all batch axes; (rows, n)."""
    return x[torch.unravel_index(places, x.shape[:-1])]
