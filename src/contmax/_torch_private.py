"""Every private name of torch that contmax uses, in one place: torch may change them in any release.

`tests/test_torch_private.py` checks the meaning of each, on the oldest and the newest torch that we support, and that
no other file uses a private name.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch
from torch._C._functorch import unwrap_if_dead as unwrap_if_dead
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import active_fake_mode as active_fake_mode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

# Inside any transform of torch.func, such as vmap or grad.
transforms_are_active = torch._C._are_functorch_transforms_active
# For any kind of device; one call where the public function needs the kind.
autocast_is_on_anywhere = torch._C._is_any_autocast_enabled
# Inside torch.jit.trace, or torch.onnx.export(dynamo=False).
torchscript_is_tracing = torch._C._is_tracing
# How many TorchDispatchModes are active, such as those of fake tensors and of make_fx.
number_of_modes = torch._C._len_torch_dispatch_stack
# Whether a tensor stands for others, inside of a transform.
is_wrapped_by_transform = _functorch.is_functorch_wrapped_tensor
# Whether it is one of torch.autograd.grad(…, is_grads_batched=True), a vmap of another kind.
is_batch_of_cotangents = _functorch.is_legacy_batchedtensor
# unwrap_if_dead: a tensor that outlived its transform, as an ordinary tensor.
# active_fake_mode: the mode of fake tensors, or None.
# Draws with the derivative in the concentration, as torch.distributions.Gamma makes them.
standard_gamma = torch._standard_gamma

_Function = TypeVar("_Function", bound=Callable[..., Any])


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
    return {x.level() for x in _functorch.get_interpreter_stack() or [] if x.key() == _functorch.TransformType.Jvp}


def innermost_transform_is_forward_mode() -> bool:
    """Whether the last transform that was entered is forward mode; at least one must be active."""
    return bool(_functorch.get_interpreter_stack()[-1].key() == _functorch.TransformType.Jvp)


def levels_of(x: Tensor) -> set[int]:
    """The levels of the transforms of torch.func that a tensor takes part in."""
    levels = set()
    while is_wrapped_by_transform(x):
        levels.add(_functorch.maybe_get_level(x))
        x = _functorch.get_unwrapped(x)
    return levels


@contextlib.contextmanager
def outside_of_transforms_and_modes() -> Iterator[None]:
    """A context for tensors that are kept: they belong to no transform of torch.func, to no mode and to no graph."""
    # Most often there are no modes; to switch them off torch imports its compiler, which takes seconds.
    without_modes = _disable_current_modes() if number_of_modes() else contextlib.nullcontext()
    with temporarily_clear_interpreter_stack(), without_modes, torch.inference_mode(False), torch.no_grad():
        yield
