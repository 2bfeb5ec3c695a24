"""Checks of the parameters and samples of a density: shapes always, values only where reading values is free."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contmax._eager import common_dtype, in_dtype, is_eager_cpu, is_exporting_to_onnx

Number = float | Tensor
Samples = Tensor | np.ndarray | Sequence[Any]


def checks_values(validate_args: bool | None, *parameters: Tensor) -> bool:
    """Whether to read the values of the parameters.

    An explicit ``validate_args`` decides. By default values are read on eager CPU tensors only: on other devices
    reading waits for the device, and traced tensors have no values. Torch's global validation default is ignored,
    because the first ``torch.compile`` switches it off for the whole process.
    """
    if validate_args is not None:
        return validate_args
    return all(is_eager_cpu(parameter) for parameter in parameters)


def as_parameters(**given: Number) -> list[Tensor]:
    """The parameters as floating-point tensors of one dtype; numbers take the dtype and device of the tensors."""
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    first = tensors[0].dtype if tensors else torch.bool
    if len(tensors) == len(given) and first.is_floating_point and all(x.dtype == first for x in tensors):
        return tensors  # the usual case
    for name, value in given.items():
        if not isinstance(value, (Tensor, float, int)):
            raise TypeError(
                f"{name} must be a tensor or a number; got {type(value).__name__}. Pass torch.as_tensor({name})."
            )
        if isinstance(value, Tensor) and value.is_complex():
            raise TypeError(f"{name} must be real; got {value.dtype}. Pass a floating-point tensor.")
    floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()] or [torch.get_default_dtype()]
    dtype = functools.reduce(common_dtype, floating)
    device = tensors[0].device if tensors else None
    return [
        in_dtype(value, dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=device)
        for value in given.values()
    ]


def expanded(parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The parameter expanded to a shape, or itself if it has that shape, since a view costs time in backward passes."""
    return parameter if parameter.shape == shape else parameter.expand(shape)


def broadcast_batch(**shapes: tuple[int, ...]) -> torch.Size:
    """The common batch shape of parameters, given as ``name=batch_shape``."""
    first, *others = shapes.values()
    if all(shape == first for shape in others):
        return torch.Size(first)
    try:
        return torch.Size(torch.broadcast_shapes(*shapes.values()))
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"batch shapes do not broadcast: {listed}. Pass shapes that agree or are 1.") from None


def require_finite(name: str, value: Tensor, validate_args: bool | None = True) -> None:
    """Refuse NaN and infinity, where :func:`checks_values` allows reading values."""
    if checks_values(validate_args, value) and value.numel() and not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"{name} must be finite; got {bad} NaN or infinite of {value.numel()} entries. "
            "Check the computation that produced them."
        )


def require_positive(name: str, value: Tensor, hint: str, validate_args: bool | None = True) -> None:
    """Refuse values that are not finite and positive; ``hint`` ends the message with what to pass instead."""
    require_finite(name, value, validate_args)
    if checks_values(validate_args, value) and value.numel() and not bool((value > 0).all()):
        low = float(value.detach().min())
        raise ValueError(
            f"{name} must be positive; got min {low:.4g} in a tensor of shape {tuple(value.shape)}. {hint}"
        )


def require_broadcastable(name: str, shape: tuple[int, ...], batch_shape: torch.Size) -> None:
    """Refuse points whose shape, without event dimensions, does not broadcast with the batch of the density."""
    if shape[len(shape) - len(batch_shape) :] == batch_shape:
        return  # the usual case
    try:
        torch.broadcast_shapes(shape, batch_shape)
    except RuntimeError:
        raise ValueError(
            f"{name} of batch shape {tuple(shape)} does not broadcast with a density of batch shape "
            f"{tuple(batch_shape)}. Put sample dimensions in front of the batch."
        ) from None


def as_index(alpha: Number, dim: int, validate_args: bool | None) -> Number:
    """α as a Python float or a floating-point tensor; refuses α ≤ N/(N+2) in N = ``dim`` dimensions."""
    if isinstance(alpha, Tensor):
        if alpha.is_complex() or alpha.dtype == torch.bool:
            raise TypeError(f"alpha must be real; got {alpha.dtype}. Pass a floating-point tensor.")
        if is_exporting_to_onnx():
            raise NotImplementedError(
                "A density whose α is a tensor, as a learned one, needs the Gamma function, which ONNX does not have. "
                "Export an attention with the number: alpha=float(attention.alpha) and the same state dict otherwise."
            )
        alpha = alpha if alpha.is_floating_point() else alpha.to(torch.get_default_dtype())
        if not alpha.numel() or not checks_values(validate_args, alpha):
            return alpha
        if not bool(torch.isfinite(alpha).all()):
            raise ValueError(
                "alpha must be finite in a tensor; got NaN or infinity. Pass alpha=math.inf as a float instead."
            )
        which, lowest = "min ", float(alpha.detach().min())
    elif isinstance(alpha, bool) or not isinstance(alpha, (float, int)):
        raise TypeError(f"alpha must be a number or a tensor; got {type(alpha).__name__}. Pass for example alpha=2.0.")
    else:
        # α selects formulas, so a compiled program must hold it as a constant. math.ldexp makes the tracer read α.
        alpha = lowest = math.ldexp(alpha, 0)
        which = ""
    bound = dim / (dim + 2)
    if math.isnan(lowest):
        raise ValueError(f"alpha must be a number; got nan. Pass alpha > {bound:.6g}, for example 2.0.")
    if not lowest > bound:
        raise ValueError(
            f"alpha must exceed N/(N+2) = {bound:.6g} in N = {dim} dimension{'s' if dim > 1 else ''}; got {which}"
            f"{lowest:.6g}, where variance and negentropy are infinite. Pass a larger alpha; 1 is the Gaussian, 2 the "
            "parabola."
        )
    return alpha


def as_samples(samples: Samples) -> Tensor:
    """Observations along the first dimension as a floating-point tensor; refuses no samples, NaN and infinity."""
    tensor = torch.as_tensor(samples)
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    if tensor.ndim < 1 or not tensor.shape[0]:
        raise ValueError(
            f"samples must have observations along their first dimension; got shape {tuple(tensor.shape)}."
        )
    require_finite("samples", tensor, None)
    return tensor


def require_spread(samples: Tensor) -> None:
    """Refuse samples that are all equal in a batch element: their variance is zero or a rounding error."""
    if checks_values(None, samples):
        equal = (samples == samples[:1]).all(0)
        if bool(equal.any()):
            raise ValueError(
                f"samples must differ from each other; got {len(samples)} that are all "
                f"{float(samples[0][equal].reshape(-1)[0]):g}, and no density is so narrow. Pass more samples, or make "
                "the density with from_support(low, high)."
            )
