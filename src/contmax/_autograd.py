"""One way to call a hand-written derivative: eager, in a trace, or under transforms of torch.func.

torch.compile refuses an autograd.Function with a method `jvp`, which torch.func needs for forward mode. So our
functions name this method `tangent`; outside of a trace `apply` calls a subclass that has it as `jvp`.
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
        arguments: those of its `forward`.

    Returns:
        The result of its `forward`.

    Raises:
        NotImplementedError: for forward mode inside forward mode, ``jacfwd(jacfwd(f))``.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    transformed, bare = _ways_to_apply(function)
    if transforms_are_active():
        _require_one_forward_mode(arguments)
        return transformed(*arguments)
    # torch's own `apply` would first bind the arguments to the signature of `forward`, which takes longer than a small
    # map. Tensors that outlived a transform have type Tensor; unwrap them.
    return bare(*[unwrap_if_dead(x) if type(x) is Tensor else x for x in arguments])


def _require_one_forward_mode(arguments: tuple[Any, ...]) -> None:
    """Refuse nested forward mode, in which torch silently takes the derivative of a tangent for zero."""
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
    """(`apply` under transforms of torch.func, `apply` elsewhere), of the function or its subclass with `jvp`."""
    # torch reads the signature of `forward` on every call; finding it once saves more than a small map costs.
    function.forward.__signature__ = inspect.signature(function.forward)
    if hasattr(function, "tangent"):
        function = type(f"{function.__name__}WithTangent", (function,), {"jvp": staticmethod(function.tangent)})
    return function.apply, bare_apply(function)


def bare_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without torch's checks for transforms of torch.func: for tensors that no transform wraps."""
    applied: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return applied
