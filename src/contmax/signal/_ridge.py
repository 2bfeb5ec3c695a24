"""Ridge regression on a basis: the weights G with which observations become coefficients."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax._eager import is_eager, is_eager_cpu
from contmax.basis import Basis

# Weights for the default positions depend on nothing but these few things; a handful of lengths is what a model meets.
_CACHED_LENGTHS = 16
_cache: "weakref.WeakKeyDictionary[Basis, OrderedDict[Any, _Cached]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _renew_lock() -> None:
    """A forked child inherits the lock as it is, but not the thread that may hold it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def require_float64(device: torch.device) -> None:
    """Refuse a device that has no float64, in which every fit is computed.

    Raises:
        NotImplementedError: on Apple's GPUs.
    """
    if device.type == "mps":
        raise NotImplementedError(
            "A signal is fitted in float64, which mps devices do not have. Fit it on the CPU and move it: "
            'fit_signal(values.cpu(), basis.cpu(), …).to("mps").'
        )


def ridge_weights(design: Tensor, penalty: float) -> Tensor:
    r"""G = F (FᵀF + λI)⁻¹, so that the coefficients of observations H are GᵀH.

    Args:
        design: F = ψ(t_ℓ), (*batch, L, K); rows of zeros are observations that do not count.
        penalty: λ ≥ 0.

    Returns:
        G, (*batch, L, K), in float64: radial basis functions are nearly dependent, and float32 would lose most digits.

    Raises:
        ValueError: if λ = 0 and the basis functions are linearly dependent at the positions.

    Reference: Martins et al. 2020, Eq. B_regression.
    """
    wide = design.double()
    return solve_gram(wide.mT @ wide, wide.mT, penalty).mT


def solve_gram(gram: Tensor, right: Tensor, penalty: float) -> Tensor:
    """(FᵀF + λI)⁻¹ right, by Cholesky."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    tril, failed = torch.linalg.cholesky_ex(gram + penalty * eye)
    if is_eager_cpu(gram):
        # A dependent basis may still factor by rounding, with pivots of the size of the rounding.
        pivots = tril.diagonal(dim1=-2, dim2=-1)
        floor = 1e-7 * pivots.amax(-1, keepdim=True)
        if bool(failed.any()) or (penalty == 0 and bool((pivots < floor).any())):
            if not bool(gram.isfinite().all()):
                raise ValueError(
                    "Some positions, or constants of the basis, are NaN or infinite: the basis functions have no "
                    "values there. Leave such observations out with mask=positions.isfinite()."
                )
            raise ValueError(
                f"The {gram.shape[-1]} basis functions are linearly dependent at the given positions: a fit with "
                f"penalty {penalty:g} is not unique. Pass penalty=0.01, fewer functions, or more positions."
            )
    return torch.cholesky_solve(right, tril)


def cached_ridge_weights(
    basis: Basis, positions: Callable[[], Tensor], key: tuple[Any, ...], penalty: float, values: Tensor
) -> Tensor:
    """Weights for positions that are determined by `key`: computed once for a basis that is not being learned.

    Kept weights are used only while the constants of the basis are what they were. On the CPU their values are
    compared. Elsewhere that would wait for the device: there they count as unchanged while they are the same tensors
    and no operation has written to them, so that a write through ``.data``, which torch does not count, is not seen.
    """
    constants = (*basis.buffers(), *basis.parameters())
    dtype = torch.promote_types(values.dtype, torch.float32)
    if basis.needs_gradient or not _may_be_cached(values, constants):
        return ridge_weights(basis(positions()), penalty).to(dtype)
    full_key = (key, penalty, dtype, values.device)
    with _lock:
        known = _cache.setdefault(basis, OrderedDict())
        cached = known.get(full_key)
        if cached is not None and cached.holds_for(constants):
            known.move_to_end(full_key)
            return cached.weights
    # What inference mode makes could not be trained with later.
    with torch.inference_mode(False), torch.no_grad():
        cached = _Cached.of(constants, ridge_weights(basis(positions().clone()), penalty).to(dtype))
    with _lock:
        known[full_key] = cached
        known.move_to_end(full_key)
        while len(known) > _CACHED_LENGTHS:
            known.popitem(last=False)
    return cached.weights


def _may_be_cached(values: Tensor, constants: tuple[Tensor, ...]) -> bool:
    """Whether these are real tensors outside of any trace, meta device and CUDA graph.

    A graph that read kept weights would read freed memory once they are dropped; one that filled the cache would leave
    there what is computed only when it is replayed.
    """
    if values.is_meta or not is_eager(values):
        return False
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return all(is_eager(c) and not c.is_inference() and c.device == values.device for c in constants)


class _Cached(NamedTuple):
    """Weights, and the constants they were made from."""

    weights: Tensor
    constants: tuple[Tensor, ...]
    """On the CPU copies; elsewhere the tensors themselves: kept alive so that an address in `versions` is unique."""
    versions: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, constants: tuple[Tensor, ...], weights: Tensor) -> "_Cached":
        kept = tuple(c.detach().clone() if c.device.type == "cpu" else c.detach() for c in constants)
        return cls(weights, kept, _versions(constants))

    def holds_for(self, constants: tuple[Tensor, ...]) -> bool:
        if is_eager_cpu(*constants):
            return len(constants) == len(self.constants) and all(map(torch.equal, constants, self.constants))
        return _versions(constants) == self.versions


def _versions(constants: tuple[Tensor, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((c.data_ptr(), c._version) for c in constants)
