"""What the original accepts as α or as a budget: Python numbers and tensors, integer ones included."""

import torch
from torch import Tensor


def real(parameter: float | Tensor, scores: Tensor) -> float | Tensor:
    """A float, or a tensor in the dtype of the computation, which is never below float32."""
    if not isinstance(parameter, Tensor):
        return float(parameter)
    return parameter.to(torch.promote_types(scores.dtype, torch.float32))
