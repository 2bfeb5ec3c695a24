"""What the original accepts as α or as a budget: Python numbers and tensors, integer ones included."""

from torch import Tensor

from contmax._precision import wide_dtype


def real(parameter: float | Tensor, scores: Tensor) -> float | Tensor:
    """A float, or a tensor in the dtype of the computation, which is never below float32."""
    if not isinstance(parameter, Tensor):
        return float(parameter)
    return parameter.to(wide_dtype(scores.dtype))
