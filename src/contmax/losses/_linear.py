"""The entmax loss of a linear layer whose logits are never all in memory.

Each of T tokens has a hidden vector h, logits z = W h + b of C classes, p̂ = entmax(z) and a smoothed target q. For a
fixed α ≤ 2 two operators work on blocks of the logits. The forward pass computes z of a block of tokens, and from it
(p̂ − q) W, which times the cotangent is the gradient of h. The gradient of W is computed in one of two ways:

* With Triton's kernels and α ≥ 1.25, the forward pass lists the classes in the support of each token's p̂, and the
  backward pass sums hidden vectors over these lists.
* Otherwise the backward pass recomputes z for a block of classes and all tokens. One matrix product gives the gradients
  of these rows of W, which are rounded once.

A token's statistics are four numbers. Three turn a logit into p̂: the maximum of z, t = p_max^(α−1), and p_max = max p̂.
The fourth is the mass that smoothing gives to each class. In place of p_max, Triton's kernels store the reciprocal of
the sum of the token's unnormalised probabilities, see kernels/losses/README.md.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contmax._autograd import gradients_by_reference, refused_by_kernels
from contmax._backend import Backend, backend_of
from contmax._eager import all_hold_numbers, as_autocast_takes, is_exporting, wide_dtype, without_autocast
from contmax._operator import operator
from contmax._torch_private import forward_mode_is_on
from contmax._typing import Float, Shaped
from contmax.kernels.losses import LinearLoss, Supports, row_losses
from contmax.losses._finite import check_options, class_ids, entmax_loss, reduced, weighted
from contmax.losses._row_losses import class_losses, losses_and_map
from contmax.maps._arguments import checked_alpha, output_dtype, widened_scores
from contmax.maps._threshold import deformed_exp

# The class id of ignored tokens, whose hidden vectors may be NaN. On a GPU other ids outside [0, C) give a NaN loss.
_IGNORED = torch.iinfo(torch.int64).min
# Numbers of blocks: of tokens in the forward pass, of classes in the backward pass, and of both with Triton's kernels.
# Their blocks are larger, since they allocate one tensor of the size of a block; torch operations allocate several.
_TOKEN_BLOCKS, _CLASS_BLOCKS, _BLOCKS_FUSED = 64, 128, 24
# Least sizes of blocks. A block longer than a tile consists of whole tiles: matrix products of other sizes are slow.
_FEWEST_TOKENS, _FEWEST_CLASSES = 32, 128
_TILE = 128
# The least α for which supports are listed: for smaller α few tokens have a small support, and lists save no time.
_LEAST_LISTED_ALPHA = 1.25
# Arguments without batch axes, the fields of `loss`: if torch.vmap runs over one of them, that is, over several layers,
# it calls the operators once for each layer.
_LAYER = ("loss_hidden", "loss_weight", "loss_bias", "loss_target")


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
    # Our operators support neither torch.func nor forward mode; in exported programs they must not be called.
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
    layer = (hidden.reshape(-1, hidden.shape[-1]), weight, bias, torch.where(counted, ids, _IGNORED).reshape(-1))
    fused = backend_of(hidden) is Backend.TRITON
    if isinstance(index, float) and index <= 2:
        # Find out here which inputs need a gradient: the forward pass of an autograd.Function cannot see it.
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
        return _linear_losses(loss, fused, needs_hidden, needs_weight)

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
        grads = _linear_losses_backward(loss, ctx.fused, statistics, slopes, supports, g, needed[1] or needed[2])
        return *(x if need else None for x, need in zip(grads, needed, strict=True)), *others


def _two_step_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, alpha: float | Tensor, smoothing: float
) -> Tensor:
    """Losses (T,) from all logits W h + b at once, which are computed in the dtype of `hidden`."""
    dtype, counted = hidden.dtype, ids != _IGNORED
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

    Checkpoints recompute whole blocks, so that the logits are bitwise those of the forward pass: for α > 2 a rounding
    error of a logit could change its probability by much more.
    """
    hidden, weight, bias, ids = layer
    # Widen weight and bias: autograd sums the gradients of the blocks in their dtype.
    weight = weight.to(wide_dtype(weight.dtype))
    bias = None if bias is None else bias.to(wide_dtype(bias.dtype))
    losses = [hidden.new_empty(0, dtype=weight.dtype)]
    for rows in _slices(len(hidden), _TOKEN_BLOCKS, _FEWEST_TOKENS, fused):
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


def _slices(count: int, parts: int, fewest: int, fused: bool) -> Iterator[slice]:
    """About `parts` slices (for Triton's kernels `_BLOCKS_FUSED`) of `count` tokens or classes.

    A slice has at least `fewest` elements, and whole tiles if it is longer than a tile; the last slice may be shorter.
    """
    size = max(-(-count // (_BLOCKS_FUSED if fused else parts)), fewest)
    if size > _TILE:
        size = -(-size // _TILE) * _TILE
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _results_like(
    loss: LinearLoss, fused: bool, needs_hidden: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    hidden = loss.hidden
    tokens, wide = hidden.shape[0], wide_dtype(hidden.dtype)
    return (
        hidden.new_empty(tokens, dtype=wide),
        hidden.new_empty((tokens, 4), dtype=wide),
        hidden.new_empty(hidden.shape if needs_hidden else (0,), dtype=wide),
        *Supports.empty(hidden, tokens if needs_weight and fused and loss.alpha >= _LEAST_LISTED_ALPHA else 0),
    )


@operator("linear_losses", like=_results_like, shared=_LAYER)
def _linear_losses(
    loss: LinearLoss, fused: bool, needs_hidden: bool, needs_weight: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses of tokens, from blocks of logits that are computed one after the other.

    Args:
        loss: the layer, the class ids and the options. The losses of `_IGNORED` tokens are arbitrary; the caller gives
            them cotangents of 0.
        fused: whether Triton's kernels take the logits.
        needs_hidden: whether the hidden vectors need a gradient.
        needs_weight: whether the weight or the bias needs a gradient.

    Returns:
        Losses (T,), statistics (T, 4), and the gradient of each loss in its hidden vector, (T, D) or empty; float32 at
        least. Then the three tensors of `Supports`, of 0 tokens if the backward pass reads no lists.
    """
    results = _results_like(loss, fused, needs_hidden, needs_weight)
    losses, statistics, slopes, *lists = results
    hidden, weight, bias, _, alpha, smoothing = loss
    listed = fused and alpha >= _LEAST_LISTED_ALPHA and (needs_hidden or needs_weight)
    supports = Supports(*lists) if needs_weight else Supports.empty(hidden, len(hidden) if listed else 0)
    with without_autocast(hidden):
        mean_row = weight.mean(0, dtype=statistics.dtype) if listed and needs_hidden and smoothing > 0 else None
        for rows in _slices(len(hidden), _TOKEN_BLOCKS, _FEWEST_TOKENS, fused):
            block = loss.of(rows)
            block = block._replace(target=block.target.masked_fill(block.target == _IGNORED, 0))
            logits = F.linear(block.hidden, weight, bias)
            losses[rows], of_block = _losses_and_statistics(logits, block, fused)
            statistics[rows] = of_block[:, :4]
            if listed:
                from contmax.kernels.losses._gpu_supports import list_supports, support_products

                list_supports(logits, alpha, of_block, supports.of(rows))
                if needs_hidden:
                    slopes[rows] = support_products(logits, block, of_block, supports.of(rows), mean_row)
            elif needs_hidden:
                slopes[rows] = _dense_products(logits, block, of_block, fused)
            del logits  # frees memory for the next block
    return results


def _losses_and_statistics(logits: Tensor, loss: LinearLoss, fused: bool) -> tuple[Tensor, Tensor]:
    """Losses (T,) and statistics (T, 4) of a block of tokens; Triton's kernels add columns with the maxima of tiles."""
    if fused:
        return row_losses(logits, loss.target, None, loss.alpha, loss.smoothing)
    z = logits.to(wide_dtype(logits.dtype))
    losses, p = losses_and_map(z, loss.alpha, loss.target.unsqueeze(-1), None, loss.smoothing, -1)
    top, p_max = z.amax(-1), p.amax(-1)
    # Take t = 1 in a fully masked row, where p_max = 0: for α < 1 the power of 0 would be infinite.
    t = torch.where(p_max == 0, 1, p_max) ** (loss.alpha - 1)
    return losses.squeeze(-1), torch.stack([top, t, p_max, torch.full_like(t, loss.smoothing / z.shape[-1])], -1)


def _residual(logits: Tensor, ids: Tensor, loss: LinearLoss, statistics: Tensor, g: Tensor, fused: bool) -> Tensor:
    """g (p̂ − q) for a block of logits, in their dtype; may overwrite them. `ids` count from the block's first class."""
    if fused:
        from contmax.kernels.gpu._launch import in_parts
        from contmax.kernels.losses._gpu_losses import write_gradients

        in_parts(write_gradients, (logits, ids, None, statistics, g, logits, None), loss.alpha, loss.smoothing)
        return logits
    top, t, p_max, share = statistics.unsqueeze(-1).unbind(1)
    y = logits - torch.where(top == -torch.inf, 0, top)
    p = p_max * deformed_exp(y / t, loss.alpha - 1)
    inside = (ids >= 0) & (ids < p.shape[-1])
    mass = inside.to(p.dtype) * (loss.smoothing - 1)
    p.scatter_add_(-1, torch.where(inside, ids, 0).unsqueeze(-1), mass.unsqueeze(-1))
    if loss.smoothing > 0:
        p.sub_(share)
    # An ignored token has g = 0, but its logits may be NaN: write 0 there.
    return torch.where(g.unsqueeze(-1) == 0, 0, g.unsqueeze(-1) * p).to(logits.dtype)


def _dense_products(logits: Tensor, loss: LinearLoss, statistics: Tensor, fused: bool) -> Tensor:
    """(p̂ − q) W from logits of a block of tokens, all classes: (T, D), float32 at least; may overwrite the logits."""
    weight, ones = loss.weight, statistics.new_ones(()).expand(statistics.shape[:1])
    difference, wide = _residual(logits, loss.target, loss, statistics, ones, fused), wide_dtype(weight.dtype)
    if weight.dtype == wide:
        return difference @ weight
    if weight.is_cuda:
        return torch.mm(difference, weight, out_dtype=wide)
    total = difference.new_zeros(difference.shape[0], weight.shape[1], dtype=wide)
    for columns in _slices(len(weight), _CLASS_BLOCKS, _FEWEST_CLASSES, fused):
        total.addmm_(difference[:, columns].to(wide), weight[columns].to(wide))
    return total


def _gradients_like(
    loss: LinearLoss, fused: bool, statistics: Tensor, slopes: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *_, needs_weight = rest
    hidden, weight, bias = loss[:3]
    return (
        hidden.new_empty(slopes.shape),
        weight.new_empty(weight.shape if needs_weight else (0,)),
        weight.new_empty(weight.shape[0] if needs_weight and bias is not None else 0),
    )


@operator(
    "linear_losses_backward",
    like=_gradients_like,
    shared=(*_LAYER, "statistics", "slopes", "supports_places", "supports_masses", "supports_counts", "g"),
)
def _linear_losses_backward(
    loss: LinearLoss,
    fused: bool,
    statistics: Tensor,
    slopes: Tensor,
    supports: Supports,
    g: Tensor,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden, weight and bias from g (T,), the gradient of the losses.

    The gradient of hidden is empty if `slopes` is; the others are empty unless `needs_weight`.
    """
    results = _gradients_like(loss, fused, statistics, slopes, needs_weight)
    grad_hidden, grad_weight, grad_bias = results
    if slopes.numel() > 0:
        torch.mul(slopes, g.unsqueeze(-1), out=grad_hidden)
        grad_hidden.masked_fill_((loss.target == _IGNORED).unsqueeze(-1), 0)
    if not needs_weight:
        return results
    with without_autocast(loss.hidden):
        if supports.counts.numel() > 0:
            from contmax.kernels.losses._gpu_weight_gradients import write_weight_gradients

            write_weight_gradients(loss, statistics, supports, g, grad_weight, grad_bias)
        else:
            _write_dense_sums(loss, fused, statistics, g, grad_weight, grad_bias)
    return results


def _write_dense_sums(
    loss: LinearLoss, fused: bool, statistics: Tensor, g: Tensor, grad_weight: Tensor, grad_bias: Tensor
) -> None:
    """Write the gradients of W, Σ_t g_t (p̂_t − q_t) h_tᵀ, and of b, Σ_t g_t (p̂_t − q_t), from recomputed logits."""
    hidden, weight, bias, target = loss[:4]
    # Write zeros for ignored tokens: their hidden vectors may be NaN, and NaN times a residual of 0 is NaN.
    hidden = hidden.masked_fill((target == _IGNORED).unsqueeze(-1), 0)
    for columns in _slices(len(weight), _CLASS_BLOCKS, _FEWEST_CLASSES, fused):
        logits = F.linear(hidden, weight[columns], None if bias is None else bias[columns])
        difference = _residual(logits, target - columns.start, loss, statistics, g, fused)
        torch.mm(difference.mT, hidden, out=grad_weight[columns])
        if bias is not None:
            grad_bias[columns] = difference.sum(0, dtype=wide_dtype(bias.dtype))
        del logits, difference  # frees memory for the next block
