"""Every private name of torch that contmax uses, in one place, because torch may change them in any release.

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

# Whether any transform of torch.func, such as vmap or grad, is active.
transforms_are_active = torch._C._are_functorch_transforms_active
# Whether autocast is on for any device type; the public function checks one device type per call.
autocast_is_on_anywhere = torch._C._is_any_autocast_enabled
# Whether torch.jit.trace or torch.onnx.export(dynamo=False) is tracing.
torchscript_is_tracing = torch._C._is_tracing
# The number of active TorchDispatchModes, such as FakeTensorMode and the mode of make_fx.
number_of_modes = torch._C._len_torch_dispatch_stack
# Whether a transform of torch.func has wrapped a tensor.
is_wrapped_by_transform = _functorch.is_functorch_wrapped_tensor
# Whether torch.autograd.grad(…, is_grads_batched=True), which has another kind of vmap, has wrapped a tensor.
is_batch_of_cotangents = _functorch.is_legacy_batchedtensor
# Imported above: `unwrap_if_dead` unwraps a tensor whose transform has ended, and returns other tensors unchanged;
# `active_fake_mode` returns the active FakeTensorMode, or None.
# Gamma samples that are differentiable in the concentration, as in torch.distributions.Gamma.
standard_gamma = torch._standard_gamma

_Function = TypeVar("_Function", bound=Callable[..., Any])


def forward_mode_is_on() -> bool:
    """Whether a dual level is open, so that tensors may have tangents."""
    return forward_ad._current_level >= 0


def current_device() -> int:
    """The index of the current CUDA device, without torch's check that CUDA is initialised."""
    number: int = torch._C._cuda_getDevice()
    return number


def current_stream_of(device: int) -> int:
    """The address of the current stream of a CUDA device, without making a Stream object."""
    address: int = torch._C._cuda_getCurrentRawStream(device)
    return address


def constant_to_tracers(function: _Function) -> _Function:
    """Mark a function that torch.compile calls once, without tracing it, to use the result as a constant.

    torch.compiler.assume_constant_result also imports the compiler, which takes as long as importing torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def forward_mode_levels() -> set[int]:
    """The nesting levels of those active transforms of torch.func that are forward mode."""
    return {x.level() for x in _functorch.get_interpreter_stack() or [] if x.key() == _functorch.TransformType.Jvp}


def innermost_transform_is_forward_mode() -> bool:
    """Whether the innermost transform is forward mode; at least one transform must be active."""
    return bool(_functorch.get_interpreter_stack()[-1].key() == _functorch.TransformType.Jvp)


def levels_of(x: Tensor) -> set[int]:
    """The nesting levels of the transforms of torch.func that have wrapped a tensor."""
    levels = set()
    while is_wrapped_by_transform(x):
        levels.add(_functorch.maybe_get_level(x))
        x = _functorch.get_unwrapped(x)
    return levels


@contextlib.contextmanager
def outside_of_transforms_and_modes() -> Iterator[None]:
    """A context for making tensors to cache: they belong to no transform of torch.func, no mode, no autograd graph."""
    # Usually no mode is active. Switching modes off imports torch's compiler, which takes seconds.
    without_modes = _disable_current_modes() if number_of_modes() else contextlib.nullcontext()
    with temporarily_clear_interpreter_stack(), without_modes, torch.inference_mode(False), torch.no_grad():
        yield
