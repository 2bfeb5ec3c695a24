"""What kind of device a tensor is on."""

from torch import Tensor


def device_type(tensor: Tensor) -> str:
    """``tensor.device.type``, for which torch makes a string in every call; the common kinds are known sooner."""
    return "cuda" if tensor.is_cuda else "cpu" if tensor.is_cpu else tensor.device.type
