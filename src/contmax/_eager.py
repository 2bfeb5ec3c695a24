"""Checks whether a tensor has values that can be read now, which tracers and fake tensors lack; dtypes to compute in.

Decisions that depend on values (is any scale negative? has Newton's method converged?) are taken only on real tensors.
Tracers, fake tensors and vmapped tensors have no values, and on an accelerator reading a value waits for the device.

=====================  ================================================================================
`is_real`              has values that can be compared; a transform of torch.func may be active
`is_eager`             real, and no transform is active: kernels may take its address
`is_eager_cpu`         real, and on a CPU: reading a value costs nothing
`holds_numbers`        a Tensor or Parameter that no transform wraps; a mode (make_fx) may be tracing it
`all_hold_numbers`     `holds_numbers` of several tensors, and no transform is active
`is_transformed`       wrapped by a transform
`carries_gradient`     a derivative may be wanted
=====================  ================================================================================
"""

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from contmax._torch_private import (
    constant_to_tracers,
    is_batch_of_cotangents,
    is_wrapped_by_transform,
    number_of_modes,
    torchscript_is_tracing,
    transforms_are_active,
)

# Other subclasses of Tensor, such as fake tensors, may have no values.
REAL_TYPES = (Tensor, Parameter)
# Types that are skipped without `isinstance(value, Tensor)`, which is slow for a value that is no tensor.
_NO_TENSORS = frozenset((type(None), float, int, bool))
# Devices on which long loops are not traced. Elsewhere tracing pays: hundreds of operations become a few launches.
_ONE_NODE_DEVICES = ("cpu",)
# Device types without float64: Apple's GPUs. Tests add "meta".
WITHOUT_FLOAT64 = {"mps"}


def device_type(tensor: Tensor) -> str:
    """``tensor.device.type``, for which torch makes a string in every call; two flags are quicker on CPU and CUDA."""
    return "cuda" if tensor.is_cuda else "cpu" if tensor.is_cpu else tensor.device.type


@constant_to_tracers  # torch.compile of torch 2.11 would trace is_exporting() as True
def is_exporting() -> bool:
    """`torch.compiler.is_exporting()`: true inside torch.export, not inside torch.compile."""
    return torch.compiler.is_exporting()


@constant_to_tracers  # torch.compile, a fallback of the ONNX exporter, would trace is_in_onnx_export() as False
def is_exporting_to_onnx() -> bool:
    """Whether the caller is traced for an ONNX file."""
    return torch.onnx.is_in_onnx_export()


def is_one_node(tensor: Tensor) -> bool:
    """Whether to hide a loop of hundreds of operations in one opaque operator: in torch.compile on a CPU.

    Tracing the loop on a CPU takes seconds and does not make it faster. An exported program must not depend on our
    operators.
    """
    return is_compiling() and not is_exporting() and device_type(tensor) in _ONE_NODE_DEVICES


def is_real(*values: object) -> bool:
    """True if all tensors among the arguments have values that can be compared: none is a tracer or a fake tensor.

    False under a TorchDispatchMode, such as that of ``make_fx``, which records operations but no decisions in Python.
    """
    if is_compiling() or number_of_modes():
        return False
    refuse_tracing()
    for value in values:  # a loop takes half as long as `all`
        if type(value) not in _NO_TENSORS and isinstance(value, Tensor) and not holds_numbers(value):
            return False
    return True


def is_eager(*values: object) -> bool:
    """True if all tensors among the arguments are real and no transform of torch.func is active.

    A transform refuses an autograd.Function that has no rule for it, even on tensors that the transform does not wrap,
    such as tensors that a vmapped function closes over.
    """
    return is_real(*values) and not transforms_are_active()


def is_eager_cpu(*values: object) -> bool:
    """True if all tensors among the arguments are real and on a CPU, so that reading a value waits for no device."""
    for value in values:  # a loop takes half as long as `all`
        if type(value) not in _NO_TENSORS and isinstance(value, Tensor) and not (value.is_cpu and is_real(value)):
            return False
    return True


def all_hold_numbers(*values: object) -> bool:
    """True if `holds_numbers` is true of all tensors among the arguments and no transform of torch.func is active.

    Unlike `is_eager` it may be true under a mode that traces, such as ``make_fx``. Do not call it in a trace by
    torch.compile, which cannot tell whether a transform is active.
    """
    return not transforms_are_active() and all(holds_numbers(value) for value in values if isinstance(value, Tensor))


def is_transformed(tensor: Tensor) -> bool:
    """True for a tensor that a transform of torch.func, or the vmap of torch.autograd.grad, has wrapped."""
    return is_wrapped_by_transform(tensor) or is_batch_of_cotangents(tensor)


def holds_numbers(tensor: Tensor) -> bool:
    """True for a Tensor or Parameter that no transform of torch.func wraps.

    A mode that traces, such as ``make_fx``, may pass ordinary tensors too; `is_eager` therefore also checks for modes.
    """
    return type(tensor) in REAL_TYPES and not is_transformed(tensor)


def carries_gradient(*values: object) -> bool:
    """Whether a derivative with respect to a tensor among the arguments may be wanted."""
    if not is_eager(*values):
        return True
    tensors = [v for v in values if isinstance(v, Tensor)]
    return (torch.is_grad_enabled() and any(v.requires_grad for v in tensors)) or any(
        forward_ad.unpack_dual(v).tangent is not None for v in tensors
    )


def refuse_tracing() -> None:
    """Refuse TorchScript tracing, whose graphs would contain decisions about the values of the example input.

    Raises:
        NotImplementedError: inside torch.jit.trace or torch.onnx.export(dynamo=False).
    """
    if not is_compiling() and torchscript_is_tracing():
        raise NotImplementedError(
            "torch.jit.trace and torch.onnx.export(dynamo=False) would keep values of the example input in the graph, "
            "which is wrong for other inputs. Use torch.export.export, or torch.onnx.export(…, dynamo=True)."
        )


def without_autocast(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context that switches autocast off on the device of `like`; the meta device has no autocast."""
    if like.is_meta:
        return contextlib.nullcontext()
    kind = device_type(like)
    # A traced program always switches autocast off: it may run under autocast later.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def as_autocast_takes(*tensors: Any) -> tuple[Any, ...]:
    """Tensors or None, cast as autocast casts the arguments of a matrix product: all but float64."""
    kind = device_type(tensors[0])
    if tensors[0].is_meta or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``tensor.to(dtype)``, skipped where it changes nothing: torch.export would record two nodes for it."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def common_dtype(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """``torch.promote_types``, skipped for equal dtypes: torch.export would record a node for it."""
    return first if first == second else torch.promote_types(first, second)


def widest_dtype(tensor: Tensor) -> torch.dtype:
    """float64, or float32 on a device that has no float64."""
    return torch.float32 if device_type(tensor) in WITHOUT_FLOAT64 else torch.float64


def require_float64(device: torch.device, what: str = "This result") -> None:
    """Raise NotImplementedError on a device that has no float64; `what` is what is computed in it."""
    if device.type in WITHOUT_FLOAT64:
        raise NotImplementedError(
            f"{what} is computed in float64, which {device.type} devices do not have. Compute it on the CPU: pass "
            f'tensors, densities and bases of the CPU, then move the result with .to("{device.type}").'
        )


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: at least float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.promote_types(dtype, torch.float32)
