"""Whether a tensor holds numbers now, or stands for numbers to come.

Decisions that look at values (is any scale negative? has Newton's method arrived?) are taken only on real tensors.
Tracers, fake tensors and vmapped tensors have no values, and on an accelerator looking means waiting for it.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from contmax._device import device_type
from contmax._torch_private import (
    constant_to_tracers,
    is_batch_of_cotangents,
    is_wrapped_by_transform,
    number_of_modes,
    torchscript_is_tracing,
    transforms_are_active,
)

# Tensors of no other subclass. They may still stand for others: see `holds_numbers`.
REAL_TYPES = (Tensor, Parameter)
# To find by `isinstance` that a value is no tensor takes longer than all other questions here.
_NO_TENSORS = frozenset((type(None), float, int, bool))
# Elsewhere the compiler fuses hundreds of operations into a few launches, which is worth the wait.
_ONE_NODE_DEVICES = ("cpu",)


@constant_to_tracers  # torch.compile of torch 2.11 takes its answer to be True
def is_exporting() -> bool:
    """`torch.compiler.is_exporting()`: true inside torch.export, not inside torch.compile."""
    return torch.compiler.is_exporting()


def is_one_node(tensor: Tensor) -> bool:
    """Whether what has hundreds of operations is one opaque operator of ours: in torch.compile on a CPU.

    There they take seconds to trace and run no faster for it. An exported program must not depend on our operators.
    """
    return is_compiling() and not is_exporting() and device_type(tensor) in _ONE_NODE_DEVICES


def is_eager(tensor: Tensor) -> bool:
    """True for a real tensor outside torch.compile, torch.export, the transforms of torch.func and modes of torch.

    A mode, such as that of ``make_fx``, sees torch's operations and our operators, not what is done with an address.
    A transform refuses functions of autograd that have no rule for it, even where it does not see their tensors: those
    that a vmapped function closes over.
    """
    return is_real(tensor) and not transforms_are_active()


def is_real(tensor: Tensor) -> bool:
    """The same, but a transform of torch.func may be active: the tensor has values that can be read and compared."""
    if is_compiling() or number_of_modes():
        return False
    refuse_tracing()
    return holds_numbers(tensor)


def all_eager(*values: object) -> bool:
    """True if `is_eager` is true of all the tensors among the arguments."""
    return all_real(*values) and not transforms_are_active()


def all_real(*values: object) -> bool:
    """True if `is_real` is true of all the tensors among the arguments."""
    if is_compiling() or number_of_modes():
        return False
    refuse_tracing()
    for value in values:  # a loop takes half as long as `all`
        if type(value) not in _NO_TENSORS and isinstance(value, Tensor) and not holds_numbers(value):
            return False
    return True


def refuse_tracing() -> None:
    """Refuse the tracers of TorchScript, whose graphs would hold decisions about the values of the example.

    Raises:
        NotImplementedError: inside of one.
    """
    if not is_compiling() and torchscript_is_tracing():
        raise NotImplementedError(
            "torch.jit.trace and torch.onnx.export(dynamo=False) would keep values of the example input in the graph, "
            "which is wrong for other inputs. Use torch.export.export, or torch.onnx.export(…, dynamo=True)."
        )


def holds_numbers(tensor: Tensor) -> bool:
    """True for a tensor of no subclass that stands for no others: real, or traced as if it were."""
    return type(tensor) in REAL_TYPES and not is_wrapped_by_transform(tensor) and not is_batch_of_cotangents(tensor)


def all_hold_numbers(*values: object) -> bool:
    """True if `holds_numbers` is true of all the tensors among the arguments, and no transform of torch.func is active.

    Not to be called in a trace by torch.compile, which cannot tell whether a transform is active.
    """
    if transforms_are_active():
        return False
    return all(holds_numbers(value) for value in values if isinstance(value, Tensor))


def is_transformed(tensor: Tensor) -> bool:
    """True for a tensor that a transform of torch.func has wrapped, or the vmap of torch.autograd.grad."""
    return is_wrapped_by_transform(tensor) or is_batch_of_cotangents(tensor)


def is_eager_cpu(*values: object) -> bool:
    """True if the values of all the tensors among the arguments can be looked at without waiting for a device."""
    for value in values:  # noqa: SIM110, as above
        if isinstance(value, Tensor) and not (value.is_cpu and is_real(value)):
            return False
    return True


def carries_gradient(*values: object) -> bool:
    """False if no derivative with respect to the tensors among the arguments can be asked for."""
    tensors = [v for v in values if isinstance(v, Tensor)]
    if not all_eager(*tensors):
        return True
    if torch.is_grad_enabled() and any(v.requires_grad for v in tensors):
        return True
    return any(forward_ad.unpack_dual(v).tangent is not None for v in tensors)
