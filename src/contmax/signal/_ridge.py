"""Ridge regression on a basis: weights G, (L, K), turn L observations H into the coefficients B = GᵀH of K functions.

At the default positions G depends on the basis, the penalty λ and L, not on the values. So G is cached for a basis that
is not learned; in a graph of torch.compile one opaque operator reads the cache. V is the volume of the basis, and
r = E_p[ψ] the expectation under a density p.
"""

import operator as python_operator
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from contmax._caches import Shared, is_captured, on_clear
from contmax._eager import is_eager_cpu, is_exporting, is_exporting_to_onnx, is_real
from contmax._operator import operator
from contmax._torch_private import outside_of_transforms_and_modes
from contmax.basis import Basis
from contmax.basis._basis import constants_of, living
from contmax.numerics import eliminated
from contmax.signal._observations import observation_positions, unmasked

_Constants = tuple[Tensor, ...]
# The largest LengthTable, in bytes. Where a table would be larger, weights are computed for each batch.
_LARGEST_TABLE = 2**28
# The number of float64 numbers in memory at once while a table is filled.
_BLOCK = 2**22


class RidgeFit(NamedTuple):
    r"""Ridge regression at given positions, with FᵀF + λ/V²·I factored, and G = F (FᵀF + λ/V²·I)⁻¹ not formed.

    A context needs only G r for one r: a linear system of K equations is solved once, whereas G takes L solutions.
    """

    design: Tensor  # F = ψ(t_ℓ), (*batch, L, K), in float64
    tril: Tensor  # Cholesky factor of FᵀF + λ/V²·I, (*batch, K, K)

    def weights(self, dtype: torch.dtype) -> Tensor:
        """G, (*batch, L, K)."""
        return solved(self.tril, self.design.mT).mT.to(dtype)

    def observed(self, r: Tensor) -> Tensor:
        """G r: (*batch, Q, K) → (*batch, Q, L), in the dtype of r."""
        return (solved(self.tril, r.double().mT).mT @ self.design.mT).to(r.dtype)

    def coefficients(self, values: Tensor) -> Tensor:
        """GᵀH: (*batch, L, D) → (*batch, K, D), in float64."""
        return solved(self.tril, self.design.mT @ values.double())


def ridge_fit(design: Tensor, penalty: float, volume: Tensor | float) -> RidgeFit:
    r"""Factor FᵀF + λ/V²·I.

    Args:
        design: F = ψ(t_ℓ), (*batch, L, K), with rows of zeros for masked observations.
        penalty: λ ≥ 0.
        volume: V of the basis.

    Returns:
        The fit in float64: radial basis functions are nearly dependent, and float32 would lose most digits.

    Raises:
        ValueError: if λ = 0 and the basis functions are linearly dependent at the positions.

    Reference: Martins et al. 2020, Eq. B_regression.
    """
    wide = design.double()
    return RidgeFit(wide, factored(wide.mT @ wide, penalty, volume))


def through_values(length: int, functions: int, channels: int, queries: int) -> bool:
    """Whether for one sequence H·(G r) takes no more multiplications than (H G)·r.

    Args:
        length: L, the number of observations.
        functions: K, the number of basis functions.
        channels: D, the number of channels.
        queries: the number of densities for the sequence.
    """
    return queries * length * (functions + channels) <= functions * channels * (length + queries)


def explained_share(missed: Tensor, total: Tensor, least: Tensor) -> Tensor:
    """1 − missed/total, the share of a variance that a fit explains; 1 where the variance is at most `least`."""
    varies = total > least
    return torch.where(varies, 1 - missed / torch.where(varies, total, 1.0), 1.0)


def factored(gram: Tensor, penalty: float, volume: Tensor | float) -> Tensor:
    """The Cholesky factor of FᵀF + λ/V²·I; in an ONNX export, which has no factorisation, the matrix itself."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # Take V in float64: V² may overflow in float32 for a basis in space.
    volume = volume.double() if isinstance(volume, Tensor) else volume
    matrix = gram + penalty / volume**2 * eye
    if is_exporting_to_onnx():
        return matrix
    tril: Tensor
    tril, failed = torch.linalg.cholesky_ex(matrix)
    if is_eager_cpu(gram):
        # For dependent functions rounding may let the factorisation succeed, with pivots as small as rounding errors.
        # For NaN in the matrix OpenBLAS reports no failure, but leaves NaN among the pivots.
        pivots = tril.diagonal(dim1=-2, dim2=-1)
        floor = 1e-7 * pivots.amax(-1, keepdim=True)
        broken = bool(failed.any()) or not bool(pivots.isfinite().all())
        if broken or (penalty == 0 and bool((pivots < floor).any())):
            if not bool(gram.isfinite().all()):
                raise ValueError(
                    "Some positions, or constants of the basis, are NaN or infinite: the basis functions have no "
                    "values there. Leave such observations out with mask=positions.isfinite()."
                )
            raise ValueError(
                f"The {gram.shape[-1]} basis functions are linearly dependent at the given positions: a fit with "
                f"penalty {penalty:g} is not unique. Pass penalty=0.01, fewer functions, or more positions."
            )
    return tril


def solved(tril: Tensor, right: Tensor) -> Tensor:
    """(FᵀF + λ/V²·I)⁻¹ right, from the result of `factored`."""
    if is_exporting_to_onnx():
        return eliminated(tril, right)
    if tril.device.type == "cpu":
        return torch.cholesky_solve(right, tril)
    # On CUDA use triangular solves: `cholesky_solve` cannot be captured in a graph.
    half = torch.linalg.solve_triangular(tril, right, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(tril.mT, half, upper=True)
    return solution


class Even(NamedTuple):
    """Observations at the centres of equal cells of the unit interval or cube, and options of their ridge fit."""

    length: int  # L
    grid: Sequence[int] | None  # sizes of a grid, row-major; or None
    penalty: float  # λ
    dtype: torch.dtype  # dtype of the weights
    device: torch.device  # device of the weights


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

    Cached weights are valid while the constants of the basis (buffers and parameters) are unchanged. On the CPU values
    are compared. Elsewhere a comparison would wait for the device, so addresses and torch's counts of in-place writes
    are compared. Torch does not count writes through ``.data``, so they are not noticed.

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
        weights: Tensor | None = _WEIGHTS.find(owner, even, constants)
        if weights is None and _are_real(even.device, None, constants) and not is_captured(even.device):
            with outside_of_transforms_and_modes():
                weights = _computed(functions, even, None)
                _WEIGHTS.add(owner, even, constants, weights, (weights,))
        return weights
    if not _are_real(even.device, mask, constants) or even.grid is not None:
        return None
    if _first_row(even.length + 1) * functions.num_functions * even.dtype.itemsize > _LARGEST_TABLE:
        return None
    key = even._replace(length=0)  # one table serves all lengths
    table: LengthTable = _TABLES.find(owner, key, constants) or LengthTable.empty(functions, even)
    missing = table.missing(mask)
    if missing:
        if is_captured(even.device):
            return None
        with outside_of_transforms_and_modes():
            table = table.filled(missing, functions, even.penalty)
            _TABLES.add(owner, key, constants, table, (table.rows, table.first))
    return table.weights(mask)


def _computed(functions: Basis, even: Even, mask: Tensor | None) -> Tensor:
    """G without the cache, (L, K) or (*batch, L, K)."""
    like = torch.empty(0, dtype=torch.float64, device=even.device)
    design = functions(observation_positions(even.length, None, even.grid, mask, like))
    return ridge_fit(unmasked(design, mask), even.penalty, functions.volume).weights(even.dtype)


def _like_weights(constants: Sequence[Tensor], mask: Tensor | None, even: Even, basis: int) -> Tensor:
    batch = () if mask is None else mask.shape[:-1]
    return torch.empty(*batch, even.length, living[basis].num_functions, dtype=even.dtype, device=even.device)


@operator("default_weights", like=_like_weights, shared=("constants",))
def _weights_of_a_graph(constants: Sequence[Tensor], mask: Tensor | None, even: Even, basis: int) -> Tensor:
    """The weights G as one node of a compiled graph; each run of the node reads the cache.

    Args:
        constants: buffers and parameters of the basis.
        mask: boolean, (*batch, L); None if all count.
        even: the observations.
        basis: the key of the basis in `living`.
    """
    owner = living[basis]
    functions = owner.with_constants(constants)
    even = even._replace(grid=None if even.grid is None else tuple(even.grid))
    cached = cached_weights(owner, functions, even, mask)
    if cached is None:
        return _computed(functions, even, mask)
    # Return no tensor of the cache, because compilers write into the results of an operator.
    return cached.clone() if mask is None else cached


def _are_real(device: torch.device, mask: Tensor | None, constants: _Constants) -> bool:
    """Whether mask and constants are real tensors (`is_real`) on `device`, and no constant is an inference tensor."""
    if device.type == "meta" or not is_real(mask, *constants) or (mask is not None and mask.device != device):
        return False
    return all(constant.device == device and not constant.is_inference() for constant in constants)


class LengthTable(NamedTuple):
    r"""The weights G_n, (n, K), for n observations at the default positions, stacked for n = 1…L.

    Row 0 is zero, for masked observations. G_n begins at row 1 + n(n−1)/2 whatever L is, so that the table can grow. On
    the CPU the table holds only the G_n that masks have needed so far. Elsewhere reading n from a mask would wait for
    the device, so the table holds G_n for all n up to the length of the longest mask.
    """

    rows: Tensor  # the stacked weights, (rows, K), computed in float64
    first: Tensor  # for each n, the row before the first row of G_n
    known: frozenset[int]  # the n whose G_n is filled in

    @classmethod
    def empty(cls, functions: Basis, even: Even) -> "LengthTable":
        """A table with row 0 only, which serves sequences without observations."""
        rows = torch.zeros(1, functions.num_functions, dtype=even.dtype, device=even.device)
        return cls(rows, torch.zeros(1, dtype=torch.int64, device=even.device), frozenset({0}))

    def weights(self, mask: Tensor) -> Tensor:
        """Rows of G for unmasked observations, 0 for masked observations: (*batch, L) → (*batch, L, K)."""
        reached = mask.cumsum(-1)
        rows = (self.first[reached[..., -1:]] + reached) * mask
        return torch.nn.functional.embedding(rows, self.rows)

    def missing(self, mask: Tensor) -> list[int]:
        """In increasing order, the n whose G_n the mask needs, or may need, and which are not in `known`."""
        if is_eager_cpu(mask):
            return [n for n in mask.sum(-1).unique().tolist() if n not in self.known]
        # Here the table has all n up to some length, so nothing is missing if it has n = `longest`.
        longest = mask.shape[-1]
        return [] if longest in self.known else [n for n in range(1, longest + 1) if n not in self.known]

    def filled(self, lengths: list[int], functions: Basis, penalty: float) -> "LengthTable":
        """A new table in which G_n is also filled in for n in `lengths`; readers of the old table see no change."""
        rows, longest, width = self.rows, max(lengths[-1], len(self.first) - 1), self.rows.shape[-1]
        # If `longest` is not new, both tables share `rows`; readers of the old one never use the rows written now.
        if longest > len(self.first) - 1:
            rows = self.rows.new_zeros(_first_row(longest + 1), width)
            rows[: len(self.rows)] = self.rows
        first = _first_row(torch.arange(longest + 1, device=rows.device)) - 1
        each = max(1, _BLOCK // (width * max(lengths[-1], width)))
        for start in range(0, len(lengths), each):
            some = lengths[start : start + each]
            count = _on_device(some, rows.device).unsqueeze(-1)
            rank = torch.arange(some[-1], device=rows.device)
            inside = rank < count
            design = torch.where(inside.unsqueeze(-1), functions((rank.double() + 0.5) / count), 0)
            weights = ridge_fit(design, penalty, functions.volume).weights(rows.dtype)
            # Padding (rank ≥ n) is written to row 0 as zeros, because there a fit without a penalty may be NaN.
            rows[(first[count] + rank + 1) * inside] = torch.where(inside.unsqueeze(-1), weights, 0)
        return LengthTable(rows, first, self.known.union(lengths))


_Count = TypeVar("_Count", int, Tensor)


def _first_row(count: _Count) -> _Count:
    """The first row of G_n in a table, for n = `count`."""
    return 1 + count * (count - 1) // 2


def _on_device(lengths: list[int], device: torch.device) -> Tensor:
    """The lengths as a tensor. On an accelerator they are consecutive, so `arange` makes them there, without a copy."""
    if device.type == "cpu":
        return torch.tensor(lengths, device=device)
    return torch.arange(lengths[0], lengths[-1] + 1, device=device)


class _Entry(NamedTuple):
    """A cached result; `source` are the constants of the basis from which it was computed."""

    shared: Shared[Any]
    source: _Constants
    constants: _Constants
    """Copies on the CPU; elsewhere views, which keep the storage alive so that its address in `versions` is unique."""
    versions: tuple[tuple[int, int], ...] | None
    """Address and version of each constant; None on the CPU, where values are compared."""

    def holds_for(self, constants: _Constants, device: torch.device) -> bool:
        if len(constants) != len(self.source):
            return False
        # Tensors of `source` need no test: they were found to be real when the entry was made.
        if not all(map(python_operator.is_, constants, self.source)) and not _are_real(device, None, constants):
            return False
        if self.versions is None:
            return is_eager_cpu(*constants) and all(map(torch.equal, constants, self.constants))
        return self.versions == _versions(constants)


class _BasisCache:
    """The latest results for each basis, dropped when the basis is freed. Thread-safe: dictionary accesses are atomic.

    Args:
        maxsize: how many results of one basis are cached; the oldest are evicted first.
    """

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.entries: weakref.WeakKeyDictionary[Basis, dict[Hashable, _Entry]] = weakref.WeakKeyDictionary()
        on_clear(self.entries.clear)
        # Weights that captured CUDA graphs read: they must stay alive, or the graphs would read freed memory.
        self._captured: weakref.WeakKeyDictionary[Basis, list[Any]] = weakref.WeakKeyDictionary()

    def find(self, basis: Basis, key: Even, constants: _Constants) -> Any:
        entry = self.entries.get(basis, {}).get(key)
        if entry is None or not entry.holds_for(constants, key.device):
            return None
        content = entry.shared.read()
        if is_captured(key.device):
            self._captured.setdefault(basis, []).append(content)
        return content

    def add(self, basis: Basis, key: Even, constants: _Constants, content: Any, tensors: Sequence[Tensor]) -> None:
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


# Without a mask there is one entry per length, of which a model has few; a table serves all lengths of one penalty and
# dtype.
_WEIGHTS = _BasisCache(16)
_TABLES = _BasisCache(2)
