"""Ridge weights G at the default positions: cached with the basis, computed, or one opaque operator of a traced graph.

At the default positions G depends on the basis, the penalty and the number of observations, not on the values. So a
basis that is not being learned needs each G once.
"""

import operator as python_operator
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from contmax._caches import Shared, is_captured, on_clear
from contmax._eager import is_eager_cpu, is_exporting, is_real
from contmax._operator import operator
from contmax._torch_private import outside_of_transforms_and_modes
from contmax.basis import Basis
from contmax.basis._basis import constants_of, living
from contmax.signal._observations import observation_positions
from contmax.signal._ridge import ridge_weights

_Content = TypeVar("_Content")
_Constants = tuple[Tensor, ...]
# A larger table of lengths, in bytes, is not worth its memory: its weights are computed for each batch.
_LARGEST_TABLE = 2**28
# Float64 numbers that are worked on at a time while a table is filled.
_BLOCK = 2**22


class Even(NamedTuple):
    """Observations at the centres of equal cells of the unit interval or cube, and the fit that is wanted for them.

    Args:
        length: L.
        grid: sizes of a grid, row-major; or None.
        penalty: λ.
        dtype: of the weights.
        device: of the weights.
    """

    length: int
    grid: Sequence[int] | None
    penalty: float
    dtype: torch.dtype
    device: torch.device


def default_weights(basis: Basis, even: Even, mask: Tensor | None) -> Tensor:
    """G for observations at the default positions.

    Args:
        basis: ψ.
        even: the observations.
        mask: boolean, (L,) or (*batch, L); None if all count.

    Returns:
        (L, K) without a mask, (*batch, L, K) with one; rows of zeros for masked observations.
    """
    if torch.compiler.is_compiling():
        if is_exporting() or basis.needs_gradient:
            return _computed(basis, even, mask)
        return _weights_of_a_graph(constants_of(basis), mask, even, basis._id)
    cached = cached_weights(basis, basis, even, mask)
    return _computed(basis, even, mask) if cached is None else cached


def cached_weights(owner: Basis, functions: Basis, even: Even, mask: Tensor | None) -> Tensor | None:
    """G from the cache of a basis, to which missing weights are added; None where G cannot be cached.

    Cached weights are used only while the constants of the basis are unchanged. On the CPU their values are compared.
    Elsewhere that would wait for the device: constants count as unchanged while they have their storage and no
    operation has written to them. Torch does not count a write through ``.data``, so such a write is not noticed.

    While a CUDA graph is captured nothing is added; weights that the graph reads stay alive.

    Args:
        owner: the basis whose lifetime the cache shares.
        functions: ψ, the owner or a copy of it with other constants.
        even: the observations.
        mask: boolean, (*batch, L); None if all count.
    """
    constants = constants_of(functions)
    for constant in constants:
        if constant.requires_grad:
            return None
    if mask is None:
        return _weights_of_length(owner, functions, constants, even)
    if not _are_real(even.device, mask, constants) or even.grid is not None:
        return None
    if _first_row(even.length + 1) * functions.num_functions * even.dtype.itemsize > _LARGEST_TABLE:
        return None
    return _weights_of_table(owner, functions, constants, even, mask)


def _weights_of_length(owner: Basis, functions: Basis, constants: _Constants, even: Even) -> Tensor | None:
    weights = _WEIGHTS.find(owner, even, constants)
    if weights is None:
        if not _are_real(even.device, None, constants) or is_captured(even.device):
            return None
        with outside_of_transforms_and_modes():
            weights = _computed(functions, even, None)
            _WEIGHTS.add(owner, even, constants, weights, (weights,))
    return weights


def _weights_of_table(owner: Basis, functions: Basis, constants: _Constants, even: Even, mask: Tensor) -> Tensor | None:
    key = even._replace(length=0)  # one table serves all lengths
    table = _TABLES.find(owner, key, constants) or LengthTable(functions.num_functions, even.dtype, even.device)
    missing = table.missing(mask)
    if missing:
        if is_captured(even.device):
            return None
        with outside_of_transforms_and_modes():
            table = table.filled(missing, functions, even.penalty)
            _TABLES.add(owner, key, constants, table, table.tensors)
    return table.weights(mask)


def _computed(functions: Basis, even: Even, mask: Tensor | None) -> Tensor:
    """G, (L, K) or (*batch, L, K)."""
    like = torch.empty(0, dtype=torch.float64, device=even.device)
    design = functions(observation_positions(even.length, None, even.grid, mask, like))
    if mask is not None:
        design = torch.where(mask.unsqueeze(-1), design, 0)
    return ridge_weights(design, even.penalty, functions.volume).to(even.dtype)


def _like_weights(constants: Sequence[Tensor], mask: Tensor | None, even: Even, basis: int) -> Tensor:
    batch = () if mask is None else mask.shape[:-1]
    return torch.empty(*batch, even.length, living[basis].num_functions, dtype=even.dtype, device=even.device)


@operator("default_weights", like=_like_weights, shared=("constants",))
def _weights_of_a_graph(constants: Sequence[Tensor], mask: Tensor | None, even: Even, basis: int) -> Tensor:
    """The weights as one node of a compiled graph, which reads the cache whenever it runs.

    Args:
        constants: buffers and parameters of the basis.
        mask: boolean, (*batch, L); None if all count.
        even: the observations.
        basis: the id of the basis.
    """
    owner = living[basis]
    functions = owner.with_constants(constants)
    even = even._replace(grid=None if even.grid is None else tuple(even.grid))
    cached = cached_weights(owner, functions, even, mask)
    if cached is None:
        return _computed(functions, even, mask)
    # Compilers write into the results of an operator, so it must not return a tensor of the cache.
    return cached.clone() if mask is None else cached


def _are_real(device: torch.device, mask: Tensor | None, constants: _Constants) -> bool:
    """Whether all are tensors with values, outside of any trace, on one device."""
    if device.type == "meta" or not is_real(mask, *constants) or (mask is not None and mask.device != device):
        return False
    return all(constant.device == device and not constant.is_inference() for constant in constants)


class LengthTable:
    r"""The weights G_n of n observations at (rank + ½)/n, for n = 1…L, one under the other.

    Row 0 is zero, for masked observations; the n rows of G_n begin at 1 + n(n−1)/2, wherever the table ends, so that it
    can grow. On the CPU the table has those n that were met. Elsewhere reading them from a mask would wait for the
    device, so it has all n up to a length.

    Args:
        functions: K.
        dtype: of the weights, which are computed in float64.
        device: of the weights.
    """

    def __init__(self, functions: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(1, functions, dtype=dtype, device=device)
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._known: frozenset[int] = frozenset({0})

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the table."""
        return self._rows, self._first

    def weights(self, mask: Tensor) -> Tensor:
        """G of the unmasked observations, and 0 for the others: (*batch, L) → (*batch, L, K)."""
        reached = mask.cumsum(-1)
        rows = (self._first[reached[..., -1:]] + reached) * mask
        return torch.nn.functional.embedding(rows, self._rows)

    def missing(self, mask: Tensor) -> list[int]:
        """The numbers of observations that the mask needs, or may need, and the table does not have; increasing."""
        if is_eager_cpu(mask):
            needed: Iterable[int] = mask.sum(-1).unique().tolist()
        else:
            # The table has all n up to some length, so that the longest tells.
            needed = () if mask.shape[-1] in self._known else range(1, mask.shape[-1] + 1)
        return [n for n in needed if n not in self._known]

    def filled(self, lengths: list[int], functions: Basis, penalty: float) -> "LengthTable":
        """A new table that has these numbers of observations as well; readers of this one see no change."""
        longest, width = max(lengths[-1], len(self._first) - 1), self._rows.shape[-1]
        table = LengthTable(width, self._rows.dtype, self._rows.device)
        table._first = _first_row(torch.arange(longest + 1, device=self._rows.device)) - 1
        table._known = self._known.union(lengths)
        if longest == len(self._first) - 1:
            # The two share rows: those that are written now belong to lengths that nobody reads yet.
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
        # Without a penalty the fit may be NaN: row 0, to which observations outside are written, must stay zero.
        weights = torch.where(inside.unsqueeze(-1), weights, 0).to(self._rows.dtype)
        self._rows[(self._first[count] + rank + 1) * inside] = weights


_Count = TypeVar("_Count", int, Tensor)


def _first_row(count: _Count) -> _Count:
    """The row of a table with the first of n observations."""
    return 1 + count * (count - 1) // 2


def _on_device(lengths: list[int], device: torch.device) -> Tensor:
    """The numbers as a tensor. On an accelerator they are consecutive: a list would be copied, and the host wait."""
    if device.type == "cpu":
        return torch.tensor(lengths, device=device)
    return torch.arange(lengths[0], lengths[-1] + 1, device=device)


class _Entry(NamedTuple, Generic[_Content]):
    """A cached result, and the constants of the basis it was computed from."""

    shared: Shared[_Content]
    source: _Constants
    constants: _Constants
    """Copies on the CPU; elsewhere views, which keep the storage alive so that its address in `versions` is unique."""
    versions: tuple[tuple[int, int], ...] | None
    """Address and version of each constant; None on the CPU, where values are compared."""

    def holds_for(self, constants: _Constants, device: torch.device) -> bool:
        if len(constants) != len(self.source):
            return False
        # These very tensors were found to be real when the entry was made.
        if not all(map(python_operator.is_, constants, self.source)) and not _are_real(device, None, constants):
            return False
        if self.versions is None:
            return is_eager_cpu(*constants) and all(map(torch.equal, constants, self.constants))
        return self.versions == _versions(constants)


class _BasisCache(Generic[_Content]):
    """The last few results for each basis, forgotten with it. Each access is one atomic operation on a dictionary.

    Args:
        maxsize: how many results of one basis are cached; the oldest go first.
    """

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.entries: weakref.WeakKeyDictionary[Basis, dict[Hashable, _Entry[_Content]]] = weakref.WeakKeyDictionary()
        on_clear(self.entries.clear)
        # CUDA graphs would read freed memory if their weights were dropped.
        self._captured: weakref.WeakKeyDictionary[Basis, list[_Content]] = weakref.WeakKeyDictionary()

    def find(self, basis: Basis, key: Even, constants: _Constants) -> _Content | None:
        entry = self.entries.get(basis, {}).get(key)
        if entry is None or not entry.holds_for(constants, key.device):
            return None
        content = entry.shared.read()
        if is_captured(key.device):
            self._captured.setdefault(basis, []).append(content)
        return content

    def add(self, basis: Basis, key: Even, constants: _Constants, content: _Content, tensors: Sequence[Tensor]) -> None:
        by_value = is_eager_cpu(*constants)
        copies = tuple(c.detach().clone() if by_value else c.detach() for c in constants)
        entries = self.entries.setdefault(basis, {})
        entries.pop(key, None)
        versions = None if by_value else _versions(constants)
        entries[key] = _Entry(Shared(content, tensors), constants, copies, versions)
        for oldest in list(entries)[: -self.maxsize]:
            entries.pop(oldest, None)


def _versions(constants: _Constants) -> tuple[tuple[int, int], ...]:
    return tuple([(c.data_ptr(), c._version) for c in constants])


# A model meets a few lengths without a mask; a table serves all lengths of one penalty and dtype.
_WEIGHTS: _BasisCache[Tensor] = _BasisCache(16)
_TABLES: _BasisCache[LengthTable] = _BasisCache(2)
