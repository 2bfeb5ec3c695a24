"""Whether a tensor holds numbers now, or stands for numbers to come.

Decisions that look at values (is any scale negative? has Newton's method arrived?) are taken only on real tensors.
Tracers, fake tensors and vmapped tensors have no values, and on an accelerator looking means waiting for it.
"""

import torch
from torch import Tensor


def is_eager(tensor: Tensor) -> bool:
    """True for a real tensor outside torch.compile, torch.export and the transforms of torch.func."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_eager_cpu(*values: object) -> bool:
    """True if the values of all the tensors among the arguments can be looked at without waiting for a device."""
    return all(v.device.type == "cpu" and is_eager(v) for v in values if isinstance(v, Tensor))
