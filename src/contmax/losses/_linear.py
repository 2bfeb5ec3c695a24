"""The entmax loss of a linear layer whose logits are never all in memory."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contmax._backend import Backend, backend_of
from contmax._by_reference import gradients_by_reference, refused_by_kernels
from contmax._eager import all_hold_numbers, as_autocast_takes, is_exporting, wide_dtype
from contmax._torch_private import forward_mode_is_on
from contmax._typing import Float, Shaped
from contmax.kernels.losses import LinearLoss, Supports
from contmax.losses._finite import check_options, class_ids, entmax_loss, reduced, weighted
from contmax.losses._linear_operators import IGNORED, linear_losses, linear_losses_backward, token_blocks
from contmax.losses._row_losses import class_losses
from contmax.maps._arguments import checked_alpha, output_dtype
from contmax.maps._half_precision import widened_scores


def linear_entmax_loss(
    hidden: Float[Tensor, "..."],
    weight: Float[Tensor, "..."],
    target: Shaped[Tensor, "..."],
    alpha: float | Float[Tensor, "..."] = 1.5,
    *,
    bias: Float[Tensor, "..."] | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    r"""The entmax loss of a linear layer over many classes, in little memory: the logits are made block by block.

    .. math:: L_\alpha(W h + b; y) = \Omega_\alpha^*(W h + b) - \langle W h + b, y\rangle

    The same numbers as ``entmax_loss(F.linear(hidden, weight, bias), target, alpha, dim=-1)`` up to rounding, with the
    same gradients, each rounded once, also in half precision. With many tokens and classes about a twentieth of the
    logits is in memory at a time; the backward pass needs memory of the size of `hidden`, in float32.

    The logits are computed twice, so there are four matrix products instead of three. On a GPU, for 1.25 ≤ α ≤ 2, there
    is one: both gradients are sums over the few classes with a positive probability. Tokens with more than a few
    hundred such classes, as at the beginning of training, take all four.

    Args:
        hidden: h, (\*batch, D).
        weight: W, (C, D), as in torch.nn.Linear.
        target: class ids y, (\*batch).
        alpha: α > 0, a float, or a tensor that broadcasts to the logits (\*batch, C) with size 1 along the classes.
            A tensor, or α > 2, takes a few more operations, and in half precision a copy of the weight in float32.
        bias: b, (C,); −inf rules a class out.
        ignore_index: class id of tokens to ignore.
        label_smoothing: ε in [0, 1]: (1−ε)·L(z; y) + ε·mean_c L(z; e_c).
        reduction: "none", "sum", or "mean", which divides by the number of tokens that are not ignored (0 if there are
            none).

    Returns:
        A scalar, or with reduction "none" the shape of `target`. Under autocast the logits have its dtype, as in a
        linear layer, and the loss is in float32. Second derivatives, forward mode, the transforms of torch.func and
        torch.export compute all logits at once.

    Example:
        >>> import torch
        >>> from contmax.losses import linear_entmax_loss
        >>> hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> weight = torch.tensor([[3.0, 0.2], [0.0, 0.1], [-1.0, 0.0]])
        >>> linear_entmax_loss(hidden, weight, torch.tensor([0, 2]), reduction="none")
        tensor([0.0000, 0.6693])

    References: Blondel, Martins & Niculae 2020; for the cross-entropy, Wijmans et al. 2025 (Cut Your Losses).
    """
    _check_shapes(hidden, weight, target, bias)
    check_options(None, label_smoothing, reduction, weight.shape[0])
    hidden, weight, bias = as_autocast_takes(hidden, weight, bias)
    # Our operators take no tensors of torch.func or forward mode, and exported programs must not call our operators.
    if torch.compiler.is_compiling():
        in_blocks = not is_exporting()
    else:
        in_blocks = not forward_mode_is_on() and all_hold_numbers(hidden, weight, target, bias, alpha)
    if target.numel() == 0 or not in_blocks:
        logits = F.linear(_zero_where_ignored(hidden, target != ignore_index), weight, bias)
        options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        return entmax_loss(logits, target, alpha, dim=-1, reduction=reduction, **options)
    # This tensor has the shape and dtype of the logits, without their memory.
    logits = hidden.detach().new_empty(1).expand(*target.shape, weight.shape[0])
    index = checked_alpha(alpha, logits, -1)
    counted, ids = class_ids(target, ignore_index, weight.shape[0])
    layer = (hidden.reshape(-1, hidden.shape[-1]), weight, bias, torch.where(counted, ids, IGNORED).reshape(-1))
    fused = backend_of(hidden) is Backend.TRITON
    if isinstance(index, float) and index <= 2:
        # The forward pass of an autograd.Function cannot see which inputs need a gradient.
        live = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in layer[:3]]
        losses: Tensor = _LinearLosses.apply(*layer, index, label_smoothing, fused, live[0], live[1] or live[2])[0]
    else:
        if isinstance(index, Tensor):
            index = index.expand(*target.shape, 1).reshape(-1, 1)
        losses = _checkpointed_losses(layer, index, label_smoothing, fused)
    counts = counted.to(losses.dtype)
    return reduced(weighted(losses.reshape(target.shape), counts), counts, reduction).to(output_dtype(logits))


class _LinearLosses(torch.autograd.Function):
    """Losses (T,) by blocks of logits; a backward pass that may be differentiated computes all logits at once."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        alpha: float,
        smoothing: float,
        fused: bool,
        needs_hidden: bool,
        needs_weight: bool,
    ) -> tuple[Tensor, ...]:
        loss = LinearLoss(hidden, weight, bias, ids, alpha, smoothing)
        return linear_losses(loss, fused, needs_hidden, needs_weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *layer, ctx.alpha, ctx.smoothing, ctx.fused, _, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*layer, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        needed, others = ctx.needs_input_grad[:3], (None,) * 6
        if g is None:
            return None, None, None, *others
        hidden, weight, bias, ids, statistics, slopes, places, masses, counts = ctx.saved_tensors
        if refused_by_kernels(g):
            reference = functools.partial(_two_step_losses, ids=ids, alpha=ctx.alpha, smoothing=ctx.smoothing)
            return *gradients_by_reference(reference, (hidden, weight, bias), needed, g), *others
        loss = LinearLoss(hidden, weight, bias, ids, ctx.alpha, ctx.smoothing)
        supports = Supports(places, masses, counts)
        grads = linear_losses_backward(loss, ctx.fused, statistics, slopes, supports, g, needed[1] or needed[2])
        return *(x if need else None for x, need in zip(grads, needed, strict=True)), *others


def _two_step_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, alpha: float | Tensor, smoothing: float
) -> Tensor:
    """Losses (T,) from all logits W h + b at once, which are computed in the dtype of `hidden`."""
    dtype, counted = hidden.dtype, ids != IGNORED
    hidden, ids = _zero_where_ignored(hidden, counted), torch.where(counted, ids, 0)
    z = widened_scores(F.linear(hidden, weight.to(dtype), None if bias is None else bias.to(dtype)))
    return class_losses(z, ids, alpha, None, smoothing, -1)


def _zero_where_ignored(hidden: Tensor, counted: Tensor) -> Tensor:
    """`hidden` with zeros for ignored tokens: NaN there times a residual of 0 would spoil the weight's gradient."""
    return torch.where(counted.unsqueeze(-1), hidden, 0)


def _checkpointed_losses(
    layer: tuple[Tensor, Tensor, Tensor | None, Tensor], alpha: float | Tensor, smoothing: float, fused: bool
) -> Tensor:
    """Losses (T,) for any α, by blocks of tokens, whose logits the backward pass recomputes.

    For α > 2 a probability may change by more than its logit, so recomputed logits must equal those of the forward pass
    bitwise: checkpoints recompute whole blocks.
    """
    hidden, weight, bias, ids = layer
    # Autograd adds up the gradients of blocks in the dtype of weight and bias.
    weight = weight.to(wide_dtype(weight.dtype))
    bias = None if bias is None else bias.to(wide_dtype(bias.dtype))
    losses = [hidden.new_empty(0, dtype=weight.dtype)]
    for rows in token_blocks(len(hidden), fused):
        index = alpha[rows] if isinstance(alpha, Tensor) else alpha
        arguments = (hidden[rows], weight, bias, ids[rows], index, smoothing)
        losses.append(checkpoint(_two_step_losses, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(losses)


def _check_shapes(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    if hidden.dim() == 0 or weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"hidden of shape {tuple(hidden.shape)} and weight of shape {tuple(weight.shape)} do not fit each other: "
            "pass hidden (*batch, D) and weight (C, D), as torch.nn.Linear keeps it."
        )
    if weight.shape[0] == 0:
        raise ValueError(f"weight of shape {tuple(weight.shape)} has no classes. Pass at least one row.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have one entry per class, ({weight.shape[0]},); got shape {tuple(bias.shape)}.")
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(
            f"linear_entmax_loss takes class ids; got a target of {target.dtype}. Pass integers, or the logits and "
            "soft targets to entmax_loss."
        )
    if target.shape != hidden.shape[:-1]:
        raise ValueError(
            f"class ids of shape {tuple(target.shape)} do not fit hidden vectors of shape {tuple(hidden.shape)}: pass "
            f"shape {tuple(hidden.shape[:-1])}."
        )
