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
        arguments: what its `forward` takes.

    Returns:
        What its `forward` returns.

    Raises:
        NotImplementedError: for forward mode inside forward mode, ``jacfwd(jacfwd(f))``.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    transformed, plain = _ways_to_apply(function)
    if transforms_are_active():
        _require_one_forward_mode(arguments)
        return transformed(*arguments)
    # torch's own `apply` would first bind the arguments to the signature of `forward`, which takes longer than a small
    # map. Tensors that outlived a transform have type Tensor; unwrap them.
    return plain(*[unwrap_if_dead(x) if type(x) is Tensor else x for x in arguments])


def _require_one_forward_mode(arguments: tuple[Any, ...]) -> None:
    """Raise where torch would take the derivative of a tangent for zero: it knows no `jvp` of a function's `jvp`."""
    levels = forward_mode_levels()
    if len(levels) < 2:
        return
    tensors = [x for x in arguments if isinstance(x, Tensor) and x.is_floating_point()]
    if innermost_transform_is_forward_mode():  # under vmap tangents cannot be unpacked
        tensors = [x for x in tensors if forward_ad.unpack_dual(x).tangent is not None]
    if any(len(levels & levels_of(x)) > 1 for x in tensors):
        raise NotImplementedError(
            "forward mode inside forward mode, as in jacfwd(jacfwd(f)), would be zero: torch does not know it for "
            "functions with derivatives of their own. Use torch.func.hessian(f), or jacrev for one of both."
        )


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
