"""Calls of autograd.Functions in eager code, in traces and under transforms of torch.func, and higher derivatives.

torch.compile refuses an autograd.Function with a method `jvp`, which torch.func needs for forward mode. So our
functions name this method `tangent`; outside of a trace `apply` calls a subclass whose `jvp` is `tangent`. Derivatives
that kernels lack, such as second ones, are computed from a *reference*: a function made of torch operations that
returns the same values as the kernel.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from contmax._eager import is_transformed
from contmax._torch_private import (
    forward_mode_is_on,
    forward_mode_levels,
    innermost_transform_is_forward_mode,
    is_batch_of_cotangents,
    levels_of,
    transforms_are_active,
    unwrap_if_dead,
)

# A function with the result of a kernel, from all inputs of the kernel; an input is None if absent or not a tensor.
Reference = Callable[..., Tensor]
# The cotangent of a reference's result: a tensor, or a tuple if the reference returns a tuple.
Cotangent = Tensor | tuple[Tensor, ...]
_Result = TypeVar("_Result", bound=Cotangent)


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply(*arguments)`, with forward-mode derivatives by `function.tangent` outside torch.compile.

    Args:
        function: an autograd.Function with `forward`, `setup_context`, `backward` and, where it has forward-mode
            derivatives, `tangent` (as torch's `jvp`).
        arguments: passed to `forward`.

    Returns:
        The result of `forward`.

    Raises:
        NotImplementedError: for forward mode inside forward mode, ``jacfwd(jacfwd(f))``.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    transformed, bare = _ways_to_apply(function)
    if transforms_are_active():
        _require_one_forward_mode(arguments)
        return transformed(*arguments)
    # Call the bare `apply`: torch's own binds the arguments to the signature of `forward`, which takes longer than
    # entmax of a small tensor. A tensor may still be wrapped by a transform of torch.func that has ended: unwrap it.
    return bare(*[unwrap_if_dead(x) if type(x) is Tensor else x for x in arguments])


def _require_one_forward_mode(arguments: tuple[Any, ...]) -> None:
    """Refuse nested forward mode: torch would silently return zero for the derivative of a tangent."""
    levels = forward_mode_levels()
    if len(levels) < 2:
        return
    tensors = [x for x in arguments if isinstance(x, Tensor) and x.is_floating_point()]
    if innermost_transform_is_forward_mode():  # inside vmap unpack_dual would fail
        tensors = [x for x in tensors if forward_ad.unpack_dual(x).tangent is not None]
    if any(len(levels & levels_of(x)) > 1 for x in tensors):
        raise NotImplementedError(
            "forward mode inside forward mode, as in jacfwd(jacfwd(f)), would be zero: torch does not know it for "
            "functions with derivatives of their own. Use torch.func.hessian(f), or jacrev for one of both."
        )


@functools.cache
def _ways_to_apply(function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two ways to call a function with `tangent` as `jvp`: `apply`, for transforms of torch.func, and `bare_apply`."""
    # Store the signature of `forward`, which `function.apply` would otherwise compute, slowly, in every call.
    function.forward.__signature__ = inspect.signature(function.forward)
    if hasattr(function, "tangent"):
        function = type(f"{function.__name__}WithTangent", (function,), {"jvp": staticmethod(function.tangent)})
    return function.apply, bare_apply(function)


def bare_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without checks for transforms of torch.func, for calls on tensors that no transform wraps."""
    applied: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return applied


def needs_reference(cotangent: Tensor) -> bool:
    """Whether a backward pass must use the reference, as it may be differentiated or autograd.grad runs it under vmap.

    In torch.compile it need not, because a backward pass that is traced there is never differentiated.
    """
    return not torch.compiler.is_compiling() and (may_be_differentiated() or is_batch_of_cotangents(cotangent))


def refused_by_kernels(*cotangents: Tensor | None) -> bool:
    """`needs_reference` for a kernel that has no rule for vmap: also true if a transform wraps a cotangent.

    For example, ``torch.vmap(lambda v: torch.autograd.grad(y, x, v))`` passes wrapped cotangents.
    """
    return not torch.compiler.is_compiling() and (
        may_be_differentiated() or any(c is not None and is_transformed(c) for c in cotangents)
    )


def may_be_differentiated() -> bool:
    """Whether operations executed now may be differentiated, in reverse mode or in forward mode."""
    return torch.is_grad_enabled() or forward_mode_is_on()


def gradients_by_reference(
    reference: Callable[..., Cotangent], inputs: Sequence[Tensor | None], needed: Sequence[bool], cotangent: Cotangent
) -> list[Tensor | None]:
    """Differentiable gradients of the inputs; None for inputs whose gradient is not needed."""
    wanted = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]

    def of_wanted(*moving: Tensor) -> Cotangent:
        rest = iter(moving)
        return reference(*(next(rest) if n and x is not None else x for x, n in zip(inputs, needed, strict=True)))

    if any(map(is_batch_of_cotangents, cotangent if isinstance(cotangent, tuple) else (cotangent,))):
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Differentiate at views: where one input was computed from another, no gradient may pass between them.
            wanted = [x.view_as(x) for x in wanted]
            gradients = iter(torch.autograd.grad(of_wanted(*wanted), wanted, cotangent, create_graph=create_graph))
    else:
        # Use vjp, which, unlike torch.autograd.grad, also works inside transforms of torch.func.
        gradients = iter(torch.func.vjp(of_wanted, *wanted)[1](cotangent))
    return [next(gradients) if need and x is not None else None for x, need in zip(inputs, needed, strict=True)]


def tangent_by_reference(
    reference: Callable[..., _Result], inputs: Sequence[Tensor | None], tangents: Sequence[Tensor | None]
) -> _Result:
    """The derivative of the reference along tangents of its inputs; a tuple if the reference returns a tuple."""
    moved = [x is not None and move is not None for x, move in zip(inputs, tangents, strict=True)]
    moves = tuple(move for x, move in zip(inputs, tangents, strict=True) if x is not None and move is not None)

    def gradient(cotangent: Tensor) -> tuple[Tensor, ...]:
        gradients = gradients_by_reference(reference, inputs, moved, cotangent)
        return tuple(g for g in gradients if g is not None)

    # Forward mode cannot be nested, so use reverse mode twice: J·t is the vjp along t of c ↦ Jᵀc, J the Jacobian.
    value = reference(*inputs)
    zeros = tuple(map(torch.zeros_like, value)) if isinstance(value, tuple) else torch.zeros_like(value)
    total: _Result = torch.func.vjp(gradient, zeros)[1](moves)[0]
    return total
