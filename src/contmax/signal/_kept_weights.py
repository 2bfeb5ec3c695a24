"""Ridge weights for the default positions, computed once for a basis that is not being learned."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling

from contmax._caches import Shared, for_later, is_captured, on_clear
from contmax._eager import all_real, is_eager_cpu
from contmax.basis import Basis
from contmax.signal._length_table import LengthTable, table_fits
from contmax.signal._positions import observation_positions
from contmax.signal._ridge import ridge_weights

_Content = TypeVar("_Content")
Constants = tuple[Tensor, ...]


class Even(NamedTuple):
    """What the weights for default positions depend on, besides the basis and the mask.

    Args:
        length: L.
        grid: sizes of a grid, row-major; or None.
        penalty: λ.
        dtype: of the weights.
        device: where they are.
    """

    length: int
    grid: tuple[int, ...] | None
    penalty: float
    dtype: torch.dtype
    device: torch.device

    def positions(self, mask: Tensor | None) -> Tensor:
        """Where the observations stand, in float64."""
        like = torch.empty(0, dtype=torch.float64, device=self.device)
        return observation_positions(self.length, None, self.grid, mask, like)


def computed_weights(functions: Basis, even: Even, mask: Tensor | None) -> Tensor:
    """The weights (L, K) or (*batch, L, K), computed now."""
    design = functions(even.positions(mask))
    if mask is not None:
        design = torch.where(mask.unsqueeze(-1), design, 0)
    return ridge_weights(design, even.penalty, functions.volume).to(even.dtype)


def kept_weights(
    basis: Basis, functions: Basis, constants: Constants, even: Even, mask: Tensor | None
) -> Tensor | None:
    """The same from what was kept, which is computed if need be; None where nothing can be kept.

    Kept weights are used only while the constants of the basis are what they were. On the CPU their values are
    compared. Elsewhere that would wait for the device: there they count as unchanged while they are the same tensors
    and no operation has written to them, so that a write through ``.data``, which torch does not count, is not seen.

    A CUDA graph that is being captured uses what was kept before, and keeps it alive; it adds nothing.

    Args:
        basis: what the weights are kept with.
        functions: ψ, the basis with these constants.
        constants: buffers and parameters.
        even: where the observations stand.
        mask: boolean, (*batch, L); None if all count.
    """
    if is_compiling():
        return None
    if mask is None:
        return _even_weights(basis, functions, constants, even)
    if not _are_real(even.device, mask, constants):
        return None
    if even.grid is not None or not table_fits(even.length, basis.num_functions, even.dtype):
        return None
    return _ragged_weights(basis, functions, constants, even, mask)


def _even_weights(basis: Basis, functions: Basis, constants: Constants, even: Even) -> Tensor | None:
    kept = _WEIGHTS.find(basis, even, constants)
    if kept is None:
        if not _are_real(even.device, None, constants) or is_captured(even.device):
            return None
        with for_later():
            kept = computed_weights(functions, even, None)
            _WEIGHTS.keep(basis, even, constants, kept, (kept,))
    return kept


def _ragged_weights(basis: Basis, functions: Basis, constants: Constants, even: Even, mask: Tensor) -> Tensor | None:
    # A table serves all lengths.
    key = even._replace(length=0)
    table = _TABLES.find(basis, key, constants) or LengthTable(basis.num_functions, even.dtype, even.device)
    missing = table.missing(mask)
    if missing:
        if is_captured(even.device):
            return None
        with for_later():
            table = table.filled(missing, functions, even.penalty)
            _TABLES.keep(basis, key, constants, table, table.tensors)
    return table.weights(mask)


def _are_real(device: torch.device, mask: Tensor | None, constants: Constants) -> bool:
    """Whether all are tensors with values, outside of any trace, on one device."""
    if device.type == "meta" or not all_real(mask, *constants) or (mask is not None and mask.device != device):
        return False
    for constant in constants:  # noqa: SIM110, `all` takes twice as long
        if constant.device != device or constant.is_inference():
            return False
    return True


class _Kept(NamedTuple, Generic[_Content]):
    """Weights, and the constants they were made from."""

    shared: Shared[_Content]
    source: Constants
    constants: Constants
    """On the CPU copies; elsewhere views of the source: kept alive so that an address in `versions` is unique."""
    versions: tuple[tuple[int, int], ...]
    by_value: bool

    def holds_for(self, constants: Constants, device: torch.device) -> bool:
        if self._is_from(constants):
            return True
        if not _are_real(device, None, constants):
            return False
        if is_eager_cpu(*constants):
            return len(constants) == len(self.constants) and all(map(torch.equal, constants, self.constants))
        return _versions(constants) == self.versions

    def _is_from(self, constants: Constants) -> bool:
        """Whether these are the very tensors, to which nothing was written: all else was asked when they were kept."""
        if self.by_value or len(constants) != len(self.source):
            return False
        for constant, source, (address, version) in zip(constants, self.source, self.versions, strict=True):
            if constant is not source or constant._version != version or constant.data_ptr() != address:
                return False
        return True


class _Shelf(Generic[_Content]):
    """The last few of a kind that each basis needed."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.kept: weakref.WeakKeyDictionary[Basis, OrderedDict[Hashable, _Kept[_Content]]]
        self.kept = weakref.WeakKeyDictionary()
        on_clear(self.kept.clear)
        # What CUDA graphs read: they would read freed memory if it were dropped.
        self.captured: weakref.WeakKeyDictionary[Basis, list[_Content]] = weakref.WeakKeyDictionary()

    def find(self, basis: Basis, key: Even, constants: Constants) -> _Content | None:
        with _lock:
            known = self.kept.get(basis)
            found = None if known is None else known.get(key)
            if known is None or found is None or not found.holds_for(constants, key.device):
                return None
            known.move_to_end(key)
            content = found.shared.read()
            if is_captured(key.device):
                self.captured.setdefault(basis, []).append(content)
            return content

    def keep(self, basis: Basis, key: Even, constants: Constants, content: _Content, tensors: Sequence[Tensor]) -> None:
        by_value = is_eager_cpu(*constants)
        copies = tuple(c.detach().clone() if by_value else c.detach() for c in constants)
        with _lock:
            known = self.kept.setdefault(basis, OrderedDict())
            known[key] = _Kept(Shared(content, tensors), constants, copies, _versions(constants), by_value)
            known.move_to_end(key)
            while len(known) > self.places:
                known.popitem(last=False)


def _versions(constants: Constants) -> tuple[tuple[int, int], ...]:
    return tuple((c.data_ptr(), c._version) for c in constants)


# A handful of lengths is what a model meets; tables of all lengths, of one penalty and perhaps two dtypes.
_WEIGHTS: _Shelf[Tensor] = _Shelf(16)
_TABLES: _Shelf[LengthTable] = _Shelf(2)
_lock = threading.Lock()


def _renew_lock() -> None:
    """A forked child inherits the lock as it is, but not the thread that may hold it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
