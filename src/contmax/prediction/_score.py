"""Reading a score: calling it on points of the right dtype, or taking values as they are, with one check for both."""

from collections.abc import Callable

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax._typing import Float

Score = Callable[[Tensor], Tensor] | Tensor


def read_score(score: Score, points: Tensor, domain: object) -> tuple[Float[Tensor, "*batch n"], torch.dtype]:
    """Values at the points in float64, and the dtype results are to have.

    A callable is called with the points in their own dtype, and once more in the dtype of its answer if that is wider:
    a score with float64 parameters is read at float64 points wherever the domain came from.

    Args:
        score: t ↦ values with the points along the last dimension, or those values.
        points: (n,) or (n, N).
        domain: where they lie, for messages.
    """
    if isinstance(score, Tensor):
        values = score
    elif callable(score):
        values = _called(score, points)
        wider = torch.promote_types(values.dtype, points.dtype)
        if wider != points.dtype:
            values = _called(score, points.to(wider))
    else:
        raise TypeError(
            f"score must be a callable on points or a tensor of values; got {type(score).__name__}. "
            "Pass a function of t, or its values at domain.nodes."
        )
    _check_values(values, points, domain)
    return values.double(), torch.promote_types(values.dtype, points.dtype)


def checked_alpha(alpha: float | int | Tensor, device: torch.device) -> Float[Tensor, "..."]:
    """α as a float64 tensor, positive and finite."""
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"a tensor alpha must be floating-point; got {alpha.dtype}. Pass alpha.float() or a float.")
        if is_eager_cpu(alpha) and not bool(((alpha > 0) & (alpha < torch.inf)).all()):
            raise ValueError(
                f"alpha must be positive and finite; got min {float(alpha.min()):g}, max {float(alpha.max()):g}."
            )
        return alpha.double()
    if isinstance(alpha, bool) or not isinstance(alpha, float | int):
        raise TypeError(f"alpha must be a number or a tensor; got {type(alpha).__name__}. Pass for example alpha=2.0.")
    if not 0 < alpha < torch.inf:
        raise ValueError(f"alpha must be positive and finite; got {alpha}. 1 is exponential, 2 is the sparse map.")
    return torch.full((), alpha, dtype=torch.float64, device=device)


def broadcast_alpha(values: Tensor, alpha: Tensor) -> Tensor:
    """Values expanded over the common batch of scores and α."""
    if not alpha.shape:
        return values
    try:
        batch = torch.broadcast_shapes(values.shape[:-1], alpha.shape)
    except RuntimeError:
        raise ValueError(
            f"alpha of shape {tuple(alpha.shape)} does not broadcast with a batch of scores of shape "
            f"{tuple(values.shape[:-1])}. Pass one alpha, or one per score."
        ) from None
    return values.expand(*batch, values.shape[-1])


def _called(score: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    values = score(points)
    if not isinstance(values, Tensor):
        raise TypeError(f"score must return a tensor; got {type(values).__name__}. Use torch operations on t.")
    return values


def _check_values(values: Tensor, points: Tensor, domain: object) -> None:
    count = points.shape[0]
    if not values.is_floating_point():
        raise TypeError(f"score must be real and floating-point; got {values.dtype}. Pass values.float().")
    if values.dim() == 0 or values.shape[-1] != count:
        raise ValueError(
            f"score must have one value per point in its last dimension, {count} on {domain!r}; got shape "
            f"{tuple(values.shape)}. Points come as {tuple(points.shape)}; a batch of scores goes in front."
        )
    if is_eager_cpu(values) and not bool((values < torch.inf).all()):
        bad = ~(values < torch.inf)
        first = points[bad.reshape(-1, count).any(0).nonzero()[0, 0]].tolist()
        raise ValueError(
            f"score must not be NaN or +inf; got {int(bad.sum())} such of {bad.numel()} values, first at t = {first}. "
            "−inf is allowed and means no mass."
        )
