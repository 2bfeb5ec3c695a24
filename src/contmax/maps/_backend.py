"""Which form of the map runs: a compiled kernel, the torch reference, or an opaque operator in a traced program.

Tensors that hold numbers go to a compiled kernel where one fits, and to the torch reference elsewhere. In a trace, and
under vmap, either of them is one operator, because neither a kernel nor hundreds of operations (α > 2) belong in a
graph. An exported program must not depend on our operators and gets the operations of the reference.
"""

import torch
from torch import Tensor

from contmax import kernels
from contmax._eager import is_eager, is_exporting
from contmax._torch_private import is_batch_of_cotangents
from contmax.maps import _operators
from contmax.maps._regularized import regularized_argmax_reference


def regularized_argmax(scores: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> Tensor:
    """The maximiser p of ⟨x, p⟩ − Ω_α(p), of the shape of the scores; `weights` are the masses of the points."""
    if _is_operator(scores, alpha, weights):
        return _operators.regularized_max_op(scores, *kernels.tensor_or_number(alpha), dim, weights)[0]  # type: ignore[no-any-return]
    compiled = None if weights is not None else kernels.regularized_max_compiled(scores, alpha, dim)
    return regularized_argmax_reference(scores, alpha, dim, weights)[0] if compiled is None else compiled[0]


def regularized_max(scores: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The maximiser p, and by how much the maximum Ω*_α(x) = ⟨x, p⟩ − Ω_α(p) exceeds max x, of size 1 along `dim`.

    Large scores would swallow that excess, which is in float64, and −inf where nothing may be attended.
    """
    if _is_operator(scores, alpha, None):
        return _operators.regularized_max_op(scores, *kernels.tensor_or_number(alpha), dim, None)  # type: ignore[no-any-return]
    return _operators.regularized_max_untraced(scores, alpha, dim, None)


def pull_back(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the scores, and of α for each slice where it is needed, from the gradient of p."""
    if _is_operator(p, alpha, weights, cotangent):
        arguments = (p, cotangent, *kernels.tensor_or_number(alpha), dim, weights, needs_alpha)
        grad, grad_alpha = _operators.pull_back_op(*arguments)
        return grad, grad_alpha if needs_alpha else None
    return _operators.pull_back_untraced(p, cotangent, alpha, dim, weights, needs_alpha)


def _is_operator(x: Tensor, alpha: float | Tensor, *others: Tensor | None) -> bool:
    tensors = [t for t in (x, alpha, *others) if isinstance(t, Tensor)]
    if is_exporting() or all(is_eager(t) for t in tensors):
        return False
    if not torch.compiler.is_compiling() and any(is_batch_of_cotangents(t) for t in tensors):
        return False
    # What is left is short for a fixed α ≤ 2, and fuses well.
    return isinstance(alpha, Tensor) or alpha > 2 or (others[0] is None and kernels.rows_are_compiled(x))
