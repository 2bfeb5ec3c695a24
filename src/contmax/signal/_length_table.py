"""Ridge weights for the default positions of every number of observations: one table for all ragged batches."""

from collections.abc import Iterable

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.basis import Basis
from contmax.signal._ridge import ridge_weights

# A table is kept on the device as long as the basis lives: more than this is better computed anew for every batch.
_LARGEST_TABLE = 2**28
# Float64 numbers that are worked on at a time while a table is filled.
_BLOCK = 2**22


def table_fits(length: int, functions: int, dtype: torch.dtype) -> bool:
    """Whether the weights of all numbers of observations up to a length may be kept."""
    return _first_row(length + 1) * functions * dtype.itemsize <= _LARGEST_TABLE


class LengthTable:
    r"""The weights G_n of n observations at (rank + ½)/n, for n = 1…L, one under the other.

    At the default positions the weights depend on nothing but n. Row 0 is zero, for what is masked; the n rows of G_n
    begin at 1 + n(n−1)/2, wherever the table ends, so that it can grow.

    On the CPU only those n are computed that are met. Elsewhere to look at them would mean to wait: there all are.

    Args:
        functions: K.
        dtype: of the weights, which are computed in float64.
        device: where they are.
    """

    def __init__(self, functions: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(1, functions, dtype=dtype, device=device)
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._known: frozenset[int] = frozenset({0})

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the table is made of."""
        return self._rows, self._first

    def weights(self, mask: Tensor) -> Tensor:
        """G of the unmasked observations, and 0 for the others: (*batch, L) → (*batch, L, K)."""
        reached = mask.cumsum(-1)
        rows = (self._first[reached[..., -1:]] + reached) * mask
        return torch.nn.functional.embedding(rows, self._rows)

    def missing(self, mask: Tensor) -> list[int]:
        """The numbers of observations that the mask needs, or may need, and the table does not have."""
        if is_eager_cpu(mask):
            needed: Iterable[int] = mask.sum(-1).unique().tolist()
        else:
            # All were computed up to some length, so that the longest tells.
            needed = () if mask.shape[-1] in self._known else range(1, mask.shape[-1] + 1)
        return [n for n in needed if n not in self._known]

    def filled(self, lengths: list[int], functions: Basis, penalty: float) -> "LengthTable":
        """A table that has these numbers of observations as well; whoever holds this one sees no change.

        Args:
            lengths: the numbers, increasing.
            functions: ψ.
            penalty: λ.
        """
        longest, width = max(lengths[-1], len(self._first) - 1), self._rows.shape[-1]
        table = LengthTable(width, self._rows.dtype, self._rows.device)
        count = torch.arange(longest + 1, device=self._rows.device)
        table._first = count * (count - 1) // 2
        table._known = self._known.union(lengths)
        if longest == len(self._first) - 1:
            # Rows that are written now are not being read: they belong to other lengths.
            table._rows = self._rows
        else:
            table._rows = self._rows.new_zeros(_first_row(longest + 1), width)
            table._rows[: len(self._rows)] = self._rows
        each = max(1, _BLOCK // (width * max(lengths[-1], width)))
        for start in range(0, len(lengths), each):
            table._fill(lengths[start : start + each], functions, penalty)
        return table

    def _fill(self, lengths: list[int], functions: Basis, penalty: float) -> None:
        count = _on_device(lengths, self._rows.device).unsqueeze(-1)
        rank = torch.arange(lengths[-1], device=self._rows.device)
        inside = rank < count
        design = functions((rank.double() + 0.5) / count)
        weights = ridge_weights(torch.where(inside.unsqueeze(-1), design, 0), penalty, functions.volume)
        # Without a penalty there may be none, and NaN instead: row 0 must stay what it is.
        weights = torch.where(inside.unsqueeze(-1), weights, 0).to(self._rows.dtype)
        self._rows[(self._first[count] + rank + 1) * inside] = weights


def _first_row(count: int) -> int:
    """The row of the first of n observations."""
    return 1 + count * (count - 1) // 2


def _on_device(lengths: list[int], device: torch.device) -> Tensor:
    """The numbers as a tensor. On an accelerator they are consecutive: a list would be copied, and the host wait."""
    if device.type == "cpu":
        return torch.tensor(lengths, device=device)
    return torch.arange(lengths[0], lengths[-1] + 1, device=device)
