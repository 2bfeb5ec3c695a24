"""Fenchel–Young losses on finite sets, such as cross-entropy, with class ids or soft targets."""

import torch
from torch import Tensor

from contmax._backend import Backend, backend_of
from contmax._eager import is_eager_cpu, wide_dtype, widest_dtype
from contmax._mask import require_mask
from contmax._typing import Bool, Float, Shaped
from contmax.losses._row_losses import class_losses, fused_losses, losses_of_every_class, soft_losses
from contmax.maps._arguments import check_scores, checked_alpha, output_dtype, widened_scores
from contmax.maps._threshold import or_one

# Options of a loss: α, the mask, label smoothing, the axis of the classes.
_Options = tuple[float | Tensor, Tensor | None, float, int]


def entmax_loss(
    scores: Float[Tensor, "..."],
    target: Shaped[Tensor, "..."],
    alpha: float | Float[Tensor, "..."] = 1.5,
    *,
    dim: int | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    weight: Float[Tensor, " C"] | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    r"""The Fenchel–Young loss of α-entmax: cross-entropy at α = 1, the sparsemax loss at α = 2.

    .. math:: L_\alpha(z; y) = \Omega_\alpha^*(z) + \Omega_\alpha(y) - \langle z, y\rangle \ge 0

    It is convex in z, its gradient is entmax(z) − y, and it is zero exactly when entmax(z) = y. For α > 1 that
    happens at finite logits: once the margin reaches 1/(α−1) the loss is exactly 0.

    Args:
        scores: logits z with C classes along `dim`: (C), (N, C) or (N, C, d₁, …); −inf counts as masked.
        target: class ids y (integers, the shape of the scores without `dim`), or soft targets (probabilities, the
            shape of the scores; differentiable).
        alpha: α > 0, a float, or a tensor that broadcasts to the scores with size 1 along `dim`; differentiable.
        dim: the axis of classes; by default as in torch.nn.functional.cross_entropy, 1, or 0 for 1-D scores.
        mask: boolean, broadcastable to the scores; True = the class is possible.
        weight: one weight per class, (C,). An example counts w[y] (soft targets: Σ w_c y_c); label smoothing counts
            each class by its own weight, as torch.nn.functional.cross_entropy does.
        ignore_index: class id of examples to ignore.
        label_smoothing: ε in [0, 1]: (1−ε)·L(z; y) + ε·mean_c L(z; e_c), the mean over the classes the mask allows.
        reduction: "none", "sum", or "mean", which divides by the summed weight of the examples (0 if there is none).

    Returns:
        A scalar, or with reduction "none" the shape of the scores without `dim`. A target at a −inf logit has
        loss +inf and a finite gradient.

    Example:
        >>> import torch
        >>> from contmax.losses import entmax_loss
        >>> logits = torch.tensor([[3.0, 0.0, -1.0], [0.2, 0.1, 0.0]])
        >>> entmax_loss(logits, torch.tensor([0, 2]), alpha=1.5, reduction="none")
        tensor([0.0000, 0.6693])

    References: Blondel, Martins & Niculae 2020; Peters, Niculae & Martins 2019.
    """
    axis = (0 if scores.dim() < 2 else 1) if dim is None else dim
    check_scores(scores, axis, "entmax_loss")
    index = checked_alpha(alpha, scores, axis)
    check_options(weight, label_smoothing, reduction, scores.shape[axis])
    require_mask(mask, scores.shape)
    is_soft = target.is_floating_point()
    # Triton's loss kernels need a fixed α ≤ 2. For class ids they take class weights or label smoothing, but not both.
    fused = isinstance(index, float) and index <= 2 and (is_soft or weight is None or label_smoothing == 0)
    fused = fused and backend_of(scores) is Backend.TRITON
    z = scores if fused else widened_scores(scores)
    z = z if fused or mask is None else z.masked_fill(~mask, -torch.inf)
    options = (index, mask, label_smoothing, axis)
    if is_soft:
        losses, sample_weight = _weighted_soft_losses(z, target, weight, fused, options)
    else:
        losses, sample_weight = _weighted_class_losses(z, target, weight, fused, options, ignore_index)
    return reduced(losses, sample_weight, reduction).to(output_dtype(scores))


def sparsemax_loss(
    scores: Float[Tensor, "..."],
    target: Shaped[Tensor, "..."],
    *,
    dim: int | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    weight: Float[Tensor, " C"] | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    r"""The Fenchel–Young loss of sparsemax: :func:`entmax_loss` at α = 2, with the same arguments.

    .. math:: L_2(z; y) = \tfrac12 \|y - z\|^2 - \tfrac12 \|\mathrm{sparsemax}(z) - z\|^2

    Example:
        >>> import torch
        >>> from contmax.losses import sparsemax_loss
        >>> sparsemax_loss(torch.tensor([[1.0, 0.5]]), torch.tensor([0]))
        tensor(0.0625)

    Reference: Martins & Astudillo 2016.
    """
    return entmax_loss(
        scores,
        target,
        2.0,
        dim=dim,
        mask=mask,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def _weighted_class_losses(
    z: Tensor, target: Tensor, weight: Tensor | None, fused: bool, options: _Options, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Each example's loss times its weight, and the weight, which is 0 for ignored examples."""
    alpha, mask, smoothing, dim = options
    shape = z.shape[: dim % z.dim()] + z.shape[dim % z.dim() + 1 :]
    if target.shape != shape:
        # Suggest dim=-1 if the classes seem to stand last, as in language models; torch's losses have them second.
        last = f"dim=-1 if the classes stand last, as in {tuple(z.shape)}, or " if target.shape == z.shape[:-1] else ""
        raise ValueError(
            f"class ids of shape {tuple(target.shape)} do not fit scores of shape {tuple(z.shape)} with classes along "
            f"dim={dim}: pass {last}ids of shape {tuple(shape)}, or probabilities of the shape of the scores."
        )
    counted, ids = class_ids(target, ignore_index, z.shape[dim])
    wide = wide_dtype(z.dtype)
    sample_weight = counted.to(wide) if weight is None else counted * weight.to(wide)[ids]
    if weight is None or smoothing == 0:
        losses = (fused_losses if fused else class_losses)(z, ids, *options)  # type: ignore[arg-type]
        # The loss of an ignored example becomes 0, even if it is infinite.
        return torch.where(counted, losses, 0) if weight is None else weighted(losses, sample_weight), sample_weight
    every = losses_of_every_class(torch.where(counted.unsqueeze(dim), z, 0), alpha, dim)
    hard = weighted(every.gather(dim, ids.unsqueeze(dim)).squeeze(dim), sample_weight)
    allowed = torch.ones_like(z, dtype=torch.bool) if mask is None else mask.expand_as(z)
    share = torch.where(allowed, _along(weight.to(z.dtype), z, dim), 0) / allowed.sum(dim, keepdim=True).clamp(min=1)
    spread = weighted(every, share).sum(dim)
    return (1 - smoothing) * hard + smoothing * torch.where(counted, spread, 0), sample_weight


def class_ids(target: Tensor, ignore_index: int, classes: int) -> tuple[Tensor, Tensor]:
    """Where `target` is not `ignore_index`, and the class ids in int64, with 0 for ignored examples."""
    counted = target != ignore_index
    ids = torch.where(counted, target, 0).long()
    if is_eager_cpu(ids) and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < classes:
        raise ValueError(
            f"class ids must be in [0, {classes - 1}] or ignore_index = {ignore_index}; "
            f"got min {int(ids.min())}, max {int(ids.max())}."
        )
    return counted, ids


def _weighted_soft_losses(
    z: Tensor, target: Tensor, weight: Tensor | None, fused: bool, options: _Options
) -> tuple[Tensor, Tensor]:
    """Each example's loss times its weight, and the weight Σ w_c y_c, for soft targets y."""
    alpha, dim = options[0], options[-1]
    if target.shape != z.shape:
        raise ValueError(
            f"soft targets of shape {tuple(target.shape)} do not fit scores of shape {tuple(z.shape)}: "
            "pass the same shape, or integer class ids."
        )
    _check_simplex(target, dim)
    if fused:
        losses = fused_losses(z, target, *options)  # type: ignore[arg-type]
    else:
        # Use float64 for α < 1, where with many classes the loss is a small difference of two large numbers, Ω* and Ω.
        wide = widest_dtype(z) if isinstance(alpha, float) and alpha < 1 else z.dtype
        losses = soft_losses(z.to(wide), target.to(wide), *options)
    if weight is None:
        return losses, torch.ones_like(losses)
    target = target.to(losses.dtype)
    shares = target / or_one(target.detach().sum(dim, keepdim=True))
    sample_weight = (_along(weight.to(losses.dtype), z, dim) * shares).sum(dim)
    return weighted(losses, sample_weight), sample_weight


def _along(weight: Tensor, z: Tensor, dim: int) -> Tensor:
    """Class weights (C,), reshaped to broadcast with the logits."""
    return weight.view([-1 if d == dim % z.dim() else 1 for d in range(z.dim())])


def weighted(losses: Tensor, weight: Tensor) -> Tensor:
    """Losses times their weights; a weight of 0 removes even an infinite loss."""
    return torch.where(weight == 0, 0, losses * weight)


def reduced(losses: Tensor, sample_weight: Tensor, reduction: str) -> Tensor:
    """The weighted losses, their sum, or their sum divided by the sum of the weights."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / or_one(sample_weight.sum())


def check_options(weight: Tensor | None, smoothing: float, reduction: str, classes: int) -> None:
    """Raise if an option is out of range or does not fit the number of classes."""
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"weight must have one entry per class, shape ({classes},); got shape {tuple(weight.shape)}.")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1]; got {smoothing}.")
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction must be 'none', 'sum' or 'mean'; got {reduction!r}.")


def _check_simplex(target: Tensor, dim: int) -> None:
    if not is_eager_cpu(target) or target.numel() == 0:
        return
    lowest = target.detach().min().item()
    off = (target.detach().sum(dim, dtype=torch.float64) - 1).abs().max().item()
    # Tolerate the rounding of a softmax to half precision, which may move its sum by half of the dtype's epsilon.
    if lowest < 0 or off > max(1e-3, torch.finfo(target.dtype).eps):
        raise ValueError(
            f"soft targets must be probabilities along dim {dim}; got a minimum of {lowest:g} and sums up to {off:g} "
            "away from 1. Pass target.softmax(dim), or integer class ids."
        )
