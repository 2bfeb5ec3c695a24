"""One way to call a hand-written derivative, whatever is asked of it.

torch.compile refuses an autograd.Function that defines forward-mode derivatives, and torch.func needs them. So our
functions name theirs `tangent`, and `apply` calls a twin of the function that has it as `jvp`, except in a trace.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    maybe_get_level,
    unwrap_if_dead,
)
from torch.autograd import forward_ad


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply(*arguments)`, with forward-mode derivatives by `function.tangent` outside torch.compile.

    Args:
        function: an autograd.Function with `forward`, `setup_context`, `backward` and, where it has forward-mode
            derivatives, `tangent` (as torch's `jvp`).
        arguments: what its `forward` takes.

    Returns:
        What its `forward` returns.

    Raises:
        NotImplementedError: for forward mode inside forward mode, ``jacfwd(jacfwd(f))``.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    transformed, plain = _ways_to_apply(function)
    if torch._C._are_functorch_transforms_active():
        _require_one_forward_mode(arguments)
        return transformed(*arguments)
    # What torch's `apply` does here too, after binding the arguments to the signature of `forward`: that takes longer
    # than a small map. What a transform has left behind is a tensor of no subclass.
    return plain(*[unwrap_if_dead(x) if type(x) is Tensor else x for x in arguments])


def _require_one_forward_mode(arguments: tuple[Any, ...]) -> None:
    """Raise where torch would take the derivative of a tangent for zero: it knows no `jvp` of a function's `jvp`."""
    stack = get_interpreter_stack() or []
    levels = {x.level() for x in stack if x.key() == TransformType.Jvp}
    if len(levels) < 2:
        return
    tensors = [x for x in arguments if isinstance(x, Tensor) and x.is_floating_point()]
    if stack[-1].key() == TransformType.Jvp:  # vmap cannot be asked
        tensors = [x for x in tensors if forward_ad.unpack_dual(x).tangent is not None]
    if any(len(levels & _levels_of(x)) > 1 for x in tensors):
        raise NotImplementedError(
            "forward mode inside forward mode, as in jacfwd(jacfwd(f)), would be zero: torch does not know it for "
            "functions with derivatives of their own. Use torch.func.hessian(f), or jacrev for one of both."
        )


def _levels_of(x: Tensor) -> set[int]:
    """The transforms of torch.func that a tensor takes part in."""
    levels = set()
    while is_functorch_wrapped_tensor(x):
        levels.add(maybe_get_level(x))
        x = get_unwrapped(x)
    return levels


@functools.cache
def _ways_to_apply(function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How the function, or its twin, is called under transforms of torch.func, and how elsewhere."""
    # torch reads the signature of `forward` on every call; finding it once saves more than a small map costs.
    function.forward.__signature__ = inspect.signature(function.forward)
    if hasattr(function, "tangent"):
        function = type(f"{function.__name__}WithTangent", (function,), {"jvp": staticmethod(function.tangent)})
    return function.apply, bare_apply(function)


def bare_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` that asks nothing: outside transforms of torch.func, for tensors that none of them left."""
    applied: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return applied
