"""Calls of autograd.Functions that work in eager code, in traces and under transforms of torch.func.

torch.compile refuses an autograd.Function with a method `jvp`, which torch.func needs for forward mode. So our
functions name this method `tangent`; outside of a trace `apply` calls a subclass whose `jvp` is `tangent`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from contmax._torch_private import (
    forward_mode_levels,
    innermost_transform_is_forward_mode,
    levels_of,
    transforms_are_active,
    unwrap_if_dead,
)


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
    # torch's own `apply` first binds the arguments to the signature of `forward`, which takes longer than entmax of a
    # small tensor. A tensor may still be wrapped by a transform of torch.func that has ended: unwrap it.
    return bare(*[unwrap_if_dead(x) if type(x) is Tensor else x for x in arguments])


def _require_one_forward_mode(arguments: tuple[Any, ...]) -> None:
    """Refuse nested forward mode: torch would silently return zero for the derivative of a tangent."""
    levels = forward_mode_levels()
    if len(levels) < 2:
        return
    tensors = [x for x in arguments if isinstance(x, Tensor) and x.is_floating_point()]
    if innermost_transform_is_forward_mode():  # under vmap unpack_dual would fail
        tensors = [x for x in tensors if forward_ad.unpack_dual(x).tangent is not None]
    if any(len(levels & levels_of(x)) > 1 for x in tensors):
        raise NotImplementedError(
            "forward mode inside forward mode, as in jacfwd(jacfwd(f)), would be zero: torch does not know it for "
            "functions with derivatives of their own. Use torch.func.hessian(f), or jacrev for one of both."
        )


@functools.cache
def _ways_to_apply(function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two ways to call a function with `tangent` as `jvp`: `apply`, for transforms of torch.func, and `bare_apply`."""
    # Store the signature of `forward`: `function.apply` inspects it in every call, which is slower than a small entmax.
    function.forward.__signature__ = inspect.signature(function.forward)
    if hasattr(function, "tangent"):
        function = type(f"{function.__name__}WithTangent", (function,), {"jvp": staticmethod(function.tangent)})
    return function.apply, bare_apply(function)


def bare_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without checks for transforms of torch.func, for calls on tensors that no transform wraps."""
    applied: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return applied
