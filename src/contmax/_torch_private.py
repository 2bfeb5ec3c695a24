"""Every private name of torch that contmax uses, in one place: torch may change them in any release.

`tests/test_torch_private.py` checks the meaning of each, on the oldest and the newest torch that we support, and that
no other file uses a private name.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._C import _is_any_autocast_enabled as autocast_is_on_anywhere
from torch._C import _is_tracing as torchscript_is_tracing
from torch._C import _len_torch_dispatch_stack as number_of_modes
from torch._C._functorch import TransformType, get_interpreter_stack, get_unwrapped, maybe_get_level
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped_by_transform
from torch._C._functorch import is_legacy_batchedtensor as is_batch_of_cotangents
from torch._C._functorch import unwrap_if_dead as unwrap_if_dead
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import active_fake_mode as active_fake_mode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

# transforms_are_active: inside any transform of torch.func, such as vmap or grad.
# autocast_is_on_anywhere: for any kind of device; one call where the public function needs the kind.
# torchscript_is_tracing: inside torch.jit.trace, or torch.onnx.export(dynamo=False).
# number_of_modes: how many TorchDispatchModes are active, such as those of fake tensors and of make_fx.
# is_wrapped_by_transform: whether a tensor stands for others, inside of a transform.
# is_batch_of_cotangents: whether it is one of torch.autograd.grad(…, is_grads_batched=True), a vmap of another kind.
# unwrap_if_dead: a tensor that outlived its transform, as an ordinary tensor.
# active_fake_mode: the mode of fake tensors, or None.
# standard_gamma: draws with the derivative in the concentration, as torch.distributions.Gamma makes them.
standard_gamma = torch._standard_gamma

_Function = TypeVar("_Function", bound=Callable[..., Any])
__all__ = [
    "active_fake_mode",
    "autocast_is_on_anywhere",
    "constant_to_tracers",
    "current_device",
    "current_stream_of",
    "forward_mode_is_on",
    "forward_mode_levels",
    "innermost_transform_is_forward_mode",
    "is_batch_of_cotangents",
    "is_wrapped_by_transform",
    "levels_of",
    "number_of_modes",
    "outside_of_transforms_and_modes",
    "standard_gamma",
    "torchscript_is_tracing",
    "transforms_are_active",
    "unwrap_if_dead",
]


def forward_mode_is_on() -> bool:
    """Whether a dual level is open, so that tensors may have tangents."""
    return forward_ad._current_level >= 0


def current_device() -> int:
    """The number of the current CUDA device, without a check that CUDA has started."""
    number: int = torch._C._cuda_getDevice()
    return number


def current_stream_of(device: int) -> int:
    """The address of the current stream of a CUDA device, without making an object of it."""
    address: int = torch._C._cuda_getCurrentRawStream(device)
    return address


def constant_to_tracers(function: _Function) -> _Function:
    """A function that torch.compile calls once, without tracing it, and whose result it takes for a constant.

    This is torch.compiler.assume_constant_result without its import of the compiler, which takes as long as torch's.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def forward_mode_levels() -> set[int]:
    """The levels of the transforms of torch.func that are forward mode."""
    return {x.level() for x in get_interpreter_stack() or [] if x.key() == TransformType.Jvp}


def innermost_transform_is_forward_mode() -> bool:
    """Whether the last transform that was entered is forward mode; at least one must be active."""
    return bool(get_interpreter_stack()[-1].key() == TransformType.Jvp)


def levels_of(x: Tensor) -> set[int]:
    """The levels of the transforms of torch.func that a tensor takes part in."""
    levels = set()
    while is_wrapped_by_transform(x):
        levels.add(maybe_get_level(x))
        x = get_unwrapped(x)
    return levels


@contextlib.contextmanager
def outside_of_transforms_and_modes() -> Iterator[None]:
    """A context whose tensors belong to no transform of torch.func and to no mode."""
    # Most often there are no modes; to switch them off torch imports its compiler, which takes seconds.
    without_modes = _disable_current_modes() if number_of_modes() else contextlib.nullcontext()
    with temporarily_clear_interpreter_stack(), without_modes:
        yield
