"""p̂ = argmax ⟨x, p⟩ − Ω_α(p), the maximum Ω*_α(x) and the gradients of p̂, by the backend that a public call chose.

The distribution lies along the last axis; α is a number, or a tensor of size 1 along that axis. In a trace and under
torch.vmap the kernels are opaque operators, and so is the torch reference for α > 2 or a tensor α, where it takes
hundreds of operations. For a number α ≤ 2 the reference is short and fuses well, so it is traced. An exported program
must not depend on our operators: in an export `backend_of` chooses torch, and the whole reference is traced.
"""

import torch
from torch import Tensor

from contmax._autograd import needs_reference
from contmax._backend import NUMBA_DTYPES, Backend, backend_of, name_of
from contmax._eager import in_dtype, is_eager_cpu, is_exporting, wide_dtype, widest_dtype
from contmax._operator import operator
from contmax.deformed import log_beta
from contmax.kernels import rows
from contmax.maps._arguments import narrowed
from contmax.maps._jacobian import pull_back_reference
from contmax.maps._threshold import deformed_exp, newton_normaliser, or_one, sorted_probabilities


def backend_of_map(scores: Tensor, alpha: float | Tensor) -> Backend:
    """The backend for these scores; torch in place of numba for a number α > 2, for which numba has no kernel."""
    backend = backend_of(scores)
    if backend is Backend.NUMBA and isinstance(alpha, float) and alpha > 2:
        return Backend.TORCH
    return backend


def regularized_argmax(
    scores: Tensor,
    alpha: float | Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    dtype: torch.dtype,
    backend: Backend,
) -> Tensor:
    """The maximiser p of ⟨x, p⟩ − Ω_α(p), (*batch, n).

    Args:
        scores: x (*batch, n).
        alpha: α, a float or a tensor (*batch, 1).
        mask: boolean, of the shape of the scores; True = may be attended.
        weights: masses w of the points, with as many axes as the scores; Σ w p = 1. Only the torch backend takes them.
        dtype: dtype of p, which differs from the dtype of the scores for Triton's kernels only.
        backend: the backend that computes p.
    """
    if _is_short(alpha, backend):
        return _argmax_reference(_masked(scores, mask), alpha, weights)[0]
    return _entmax(scores, alpha, mask, weights, dtype, name_of(backend))


def pull_back(
    p: Tensor,
    cotangent: Tensor,
    alpha: float | Tensor,
    weights: Tensor | None,
    dtype: torch.dtype,
    needs_alpha: bool,
    backend: Backend,
) -> tuple[Tensor, Tensor | None]:
    """Gradients from the `cotangent` of p: for the scores in `dtype`; for α per slice, or None unless `needs_alpha`."""
    # A second derivative needs torch operations: compiled kernels have no derivative.
    if needs_reference(cotangent) or _is_short(alpha, backend):
        wide = wide_dtype(p.dtype)
        p, cotangent = in_dtype(p, wide), in_dtype(cotangent, wide)
        grad, grad_alpha = pull_back_reference(p, cotangent, alpha, weights, needs_alpha)
        return narrowed(grad, dtype), grad_alpha
    grad, slope = _entmax_backward(p, cotangent, alpha, weights, dtype, needs_alpha, name_of(backend))
    return grad, slope if needs_alpha else None


def regularized_max(scores: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The maximiser p of ⟨x, p⟩ − Ω_α(p), and the gain: the maximum Ω*_α(x) less max x, of size 1 along `dim`.

    The gain is in float64, and −inf where nothing may be attended. It does not include max x, because added to a large
    max x it would lose its digits.
    """
    backend = backend_of_map(scores, alpha)
    x, alpha = axis_last(scores, dim), alpha_of_rows(alpha, scores, dim)
    results = _max_reference(x, alpha) if _is_short(alpha, backend) else _regularized_max(x, alpha, name_of(backend))
    if x is scores:
        return results
    # Detach views from their bases, because torch requires tangents of a view in the layout of the view.
    p, gain = (y.movedim(-1, dim).detach() for y in results)
    return p, gain


def axis_last(x: Tensor, dim: int) -> Tensor:
    """x with axis `dim` moved to the end."""
    return x if dim in (-1, x.dim() - 1) else x.movedim(dim, -1)


def alpha_of_rows(alpha: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """A float α unchanged, or a tensor with one α per row, (*batch, 1)."""
    if not isinstance(alpha, Tensor):
        return alpha
    shape = list(scores.shape)
    shape[dim] = 1
    return axis_last(alpha.expand(shape), dim)


def _is_short(alpha: float | Tensor, backend: Backend) -> bool:
    """Whether to call the torch reference directly, rather than as an opaque operator."""
    return backend is Backend.TORCH and (is_exporting() or (isinstance(alpha, float) and alpha <= 2))


@operator("entmax", like=lambda x, alpha, mask, weights, dtype, backend: x.new_empty(x.shape, dtype=dtype))
def _entmax(
    scores: Tensor, alpha: float | Tensor, mask: Tensor | None, weights: Tensor | None, dtype: torch.dtype, backend: str
) -> Tensor:
    if backend == Backend.TRITON.value:
        return rows.on_gpu().probabilities(scores, alpha, mask, dtype)  # type: ignore[no-any-return]
    scores = _masked(scores, mask)
    if _numba_takes(scores, alpha, backend):
        return rows.on_cpu().entmax_rows(scores, alpha)[0]  # type: ignore[no-any-return]
    return _argmax_reference(scores, alpha, weights)[0]


@operator(
    "regularized_max",
    like=lambda x, *_: (x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=widest_dtype(x))),
)
def _regularized_max(scores: Tensor, alpha: float | Tensor, backend: str) -> tuple[Tensor, Tensor]:
    if backend == Backend.TRITON.value:
        return rows.on_gpu().entmax_rows(scores, alpha, None, scores.dtype, needs_omega=True)  # type: ignore[no-any-return]
    if _numba_takes(scores, alpha, backend):
        return rows.on_cpu().entmax_rows(scores, alpha)  # type: ignore[no-any-return]
    return _max_reference(scores, alpha)


@operator(
    "entmax_backward",
    like=lambda p, g, alpha, weights, dtype, needs_alpha, backend: (
        p.new_empty(p.shape, dtype=dtype),
        p.new_empty((*p.shape[:-1], 1) if needs_alpha else (0,), dtype=wide_dtype(p.dtype)),
    ),
)
def _entmax_backward(
    p: Tensor,
    cotangent: Tensor,
    alpha: float | Tensor,
    weights: Tensor | None,
    dtype: torch.dtype,
    needs_alpha: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if backend == Backend.TRITON.value:
        return rows.on_gpu().gradients(p, cotangent, alpha, dtype, needs_alpha)  # type: ignore[no-any-return]
    if _numba_takes(p, alpha, backend):
        return rows.on_cpu().entmax_rows_backward(p, cotangent, alpha, needs_alpha)  # type: ignore[no-any-return]
    grad, grad_alpha = pull_back_reference(p, cotangent, alpha, weights, needs_alpha)
    return grad, p.new_empty(0) if grad_alpha is None else grad_alpha


def _numba_takes(x: Tensor, alpha: float | Tensor, backend: str) -> bool:
    """Whether numba has kernels for x and α: float32 or float64 (hooks on saved tensors may cast x), and α ≤ 2."""
    if backend != Backend.NUMBA.value or x.dtype not in NUMBA_DTYPES:
        return False
    return not isinstance(alpha, Tensor) or not bool((alpha > 2).any())


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def _argmax_reference(scores: Tensor, alpha: float | Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(p, scores less their maximum, maximum) by torch operations, for every α; without gradients."""
    top = scores.amax(-1, keepdim=True)
    shifted = scores - torch.where(top == -torch.inf, 0, top)
    p = _probabilities(scores, shifted, alpha, weights)
    total = (p if weights is None else weights * p).sum(-1, keepdim=True)
    p = p / or_one(total)
    # Cast only if needed: in torch 2.11, torch.compile loses the gradient of an autograd.Function whose result is cast
    # to its own dtype.
    return p if p.dtype == scores.dtype else p.to(scores.dtype), shifted, top


def _max_reference(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """`regularized_max` by torch operations; Ω_α(p) = Σ p log_{2−α}(p)/α."""
    p, shifted, top = _argmax_reference(scores, alpha, None)
    inside = p > 0
    surprise = log_beta(torch.where(inside, p, 1), 2 - alpha)
    gain = torch.where(inside, p * (torch.where(inside, shifted, 0) - surprise / alpha), 0).sum(-1, keepdim=True)
    # Adding top − top makes the gain NaN where the maximum is NaN or +inf.
    return p, torch.where(top == -torch.inf, -torch.inf, gain.to(widest_dtype(gain)) + (top - top))


def _probabilities(scores: Tensor, shifted: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    """p before exact normalisation: its sum may be off by rounding. `shifted` is scores less their maximum."""
    if isinstance(alpha, float):
        return _newton(shifted, alpha, weights) if alpha <= 2 else _sorted(scores, alpha, weights)
    beyond = alpha > 2
    if is_eager_cpu(alpha) and not bool(beyond.any()):
        return _newton(shifted, alpha, weights)
    # Branching on α would wait for the device: compute both forms, with a harmless α where the other form applies.
    low = _newton(shifted, torch.where(beyond, 2, alpha), weights)
    return torch.where(beyond, _sorted(scores, torch.where(beyond, alpha, 3), weights), low)


def _newton(shifted: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    """p for α ≤ 2, from the normaliser A."""
    return deformed_exp(shifted - newton_normaliser(shifted, alpha, weights), alpha - 1)


def _sorted(scores: Tensor, alpha: float | Tensor, weights: Tensor | None) -> Tensor:
    """p for α > 2, from the sorted scores; NaN in slices with NaN or +inf."""
    p = sorted_probabilities(scores, alpha, weights)
    return p.masked_fill(~(scores.amax(-1, keepdim=True) < torch.inf), torch.nan)
