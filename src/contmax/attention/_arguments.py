"""Checks of the arguments of `entmax_attention`, and `Inputs`, the checked arguments."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from contmax._eager import as_autocast_takes, is_eager, is_eager_cpu
from contmax._mask import broadcasts_to, require_boolean
from contmax.kernels.attention import is_by_distance
from contmax.maps._arguments import checked_alpha


class Inputs(NamedTuple):
    """Checked arguments of `entmax_attention`; the scores have the shape (*batch, H, Q, L)."""

    query: Tensor  # (*batch, H, Q, d)
    key: Tensor  # (*batch, G, L, d); G divides H, and query head h attends to key head h·G // H
    value: Tensor  # (*batch, G, L, c)
    alpha: float | Tensor  # a float, or a tensor (*, 1, 1) that broadcasts to the scores
    mask: Tensor | None  # boolean, broadcasts to the scores, True where a query may attend a key; or None
    # Real; broadcasts to the scores, or has one number per distance j − i (`is_by_distance`); or None.
    bias: Tensor | None
    # The number of keys of each sequence, integers that broadcast to (*batch, 1, 1, 1); None if all have L.
    lengths: Tensor | None
    diagonal: int | None  # query i may attend keys j ≤ i + diagonal only; None without a causal mask
    scale: float  # factor of the products ⟨q, k⟩
    # The first key that each query may attend, and the end of its keys, integers that broadcast to (*batch, H, Q,
    # 2); (0, 0) for a query without keys. None for all keys; with spans `lengths` and `diagonal` are None.
    spans: Tensor | None = None
    # c > 0; the products times the scale become c·tanh(·/c), before the bias. None for no cap.
    softcap: float | None = None
    sinks: Tensor | None = None  # one more score per head, of a key whose value is 0, (H, 1, 1); or None

    # Methods, not properties, which torch.compile of torch 2.10 cannot trace.
    def sizes(self) -> tuple[int, int]:
        """Q and L."""
        return self.query.shape[-2], self.key.shape[-2]

    def tensors(self) -> list[Tensor]:
        """The arguments that are tensors."""
        return [x for x in self if isinstance(x, Tensor)]

    def hold_numbers(self) -> bool:
        """Whether the call is neither traced nor transformed by torch.func, and carries no forward-mode derivatives."""
        return is_eager(*self) and not self.have_tangents()

    def have_tangents(self) -> bool:
        """Whether the call carries forward-mode derivatives."""
        return any(forward_ad.unpack_dual(x).tangent is not None for x in self.tensors())


def save_inputs(ctx: Any, inputs: tuple[Any, ...], *others: Tensor) -> None:
    """Save all inputs, tensors or not, and `others` for the backward pass."""
    ctx.fixed = [None if isinstance(x, Tensor) else x for x in inputs]
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs), *others)


def saved_inputs(ctx: Any) -> tuple[Inputs, list[Tensor]]:
    """The inputs and the other tensors that `save_inputs` saved, read from `ctx` once."""
    saved, count = ctx.saved_tensors, len(ctx.fixed)  # a second read raises under checkpoint
    given: list[Any] = [f if x is None else x for x, f in zip(saved[:count], ctx.fixed, strict=True)]
    return Inputs(*given), list(saved[count:])


def checked_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    lengths: Tensor | None,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
    softcap: float | None,
    sinks: Tensor | None,
) -> Inputs:
    """Check the arguments of `entmax_attention`, and bring them to the shapes of `Inputs` and the dtype of autocast.

    Raises:
        ValueError, TypeError: if an argument does not fit; the message says what to pass.
    """
    named = {
        "query": query, "key": key, "value": value, "mask": mask, "bias": bias, "lengths": lengths, "sinks": sinks,
    }  # fmt: skip
    for name, x in named.items():
        if not isinstance(x, Tensor) and (x is not None or name in ("query", "key", "value")):
            raise TypeError(f"{name} must be a tensor; got {type(x).__name__}. Pass torch.as_tensor({name}).")
        if isinstance(x, Tensor) and x.is_nested:
            raise TypeError(
                f"{name} is a nested tensor. Pass its values, (H, positions of all sequences, d), with "
                "cu_seqlens=x.offsets(). Those of x, (B, H, ragged, d), are x.transpose(1, 2).values().transpose(0, 1)."
            )
    query, key, value = as_autocast_takes(query, key, value)
    _check_tensors(query, key, value)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is the share of weights that is dropped, in [0, 1); got {dropout_p}.")
    batch = _common_batch(query, key, value)
    groups = _checked_heads(query, key, value, enable_gqa)
    heads = query.shape[-3] if query.dim() > 2 else 1
    query, key, value = (  # expanding x to its own shape would add a node to autograd's graph
        x if x.shape[:-2] == (*batch, n) else x.expand(*batch, n, *x.shape[-2:])
        for x, n in ((query, heads), (key, groups), (value, groups))
    )
    shape = (*batch, heads, query.shape[-2], key.shape[-2])
    require_boolean(mask)
    if mask is not None:
        mask = torch.atleast_2d(beside(query, _fitting(mask, shape, "mask"), "mask"))
    if bias is not None:
        bias = torch.atleast_2d(beside(query, _fitting(bias, shape_of_bias(bias, shape), "bias"), "bias"))
        if not bias.is_floating_point():
            raise TypeError(
                f"bias is added to the scores and must be floating-point; got {bias.dtype}. Pass bias.float()."
            )
    scale = None if scale is None else float(scale)  # while tracing, the scale may be symbolic
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale multiplies the scores and must be finite; got {scale}. Leave it out for 1/√d.")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap bounds the scores and must be positive; got {softcap}. Leave it out for no cap.")
    return Inputs(
        query,
        key,
        value,
        _alpha_of_heads(alpha, query, heads),
        mask,
        bias,
        checked_lengths(lengths, batch, query),
        key.shape[-2] - query.shape[-2] if is_causal else None,
        1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale,
        softcap=None if softcap is None else float(softcap),
        sinks=None if sinks is None else _sinks_of_heads(sinks, query, heads),
    )


def shape_of_bias(bias: Tensor, scores: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which a bias must broadcast, from that of the scores; a bias by distance j − i has a single row."""
    return (*scores[:-2], 1, bias.shape[-1]) if is_by_distance(bias, *scores[-2:]) else scores


def _common_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The broadcast batch axes: all axes before (heads, positions, channels)."""
    batch: tuple[int, ...] = query.shape[:-3]
    if batch == key.shape[:-3] == value.shape[:-3]:
        return batch  # torch.broadcast_shapes takes longer than a short attention
    try:
        batch = torch.broadcast_shapes(batch, key.shape[:-3], value.shape[:-3])
    except RuntimeError:
        shapes = ", ".join(str(tuple(x.shape[:-3])) for x in (query, key, value))
        raise ValueError(
            f"query, key and value must have batch axes that broadcast, those before (heads, positions, channels); got "
            f"{shapes}."
        ) from None
    return batch


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 2 or not x.is_floating_point():
            raise ValueError(
                f"{name} must be real with at least two axes, (…, heads, positions, channels); got {x.dtype} of shape "
                f"{tuple(x.shape)}."
            )
        if x.dtype != query.dtype or x.device != query.device:
            raise ValueError(
                f"query, key and value must have one dtype and device; got a query of {query.dtype} on {query.device} "
                f"and a {name} of {x.dtype} on {x.device}."
            )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query and key must have the same number of channels; got query {tuple(query.shape)} and key "
            f"{tuple(key.shape)}."
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"there must be one value per key; got key {tuple(key.shape)} and value {tuple(value.shape)}.")


def _checked_heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> int:
    """G, the number of heads of keys and values."""
    of_query, of_key, of_value = (x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value))
    if enable_gqa:
        if of_key != of_value or of_key == 0 or of_query % of_key:
            raise ValueError(
                f"with enable_gqa the number of query heads must be a multiple of the number of key and value heads; "
                f"got {of_query}, {of_key} and {of_value}."
            )
        return of_key
    if len({of_query, of_key, of_value} - {1}) > 1 or (of_query == 1 and max(of_key, of_value) > 1):
        raise ValueError(
            f"query, key and value have {of_query}, {of_key} and {of_value} heads. Pass enable_gqa=True if each head "
            "of the keys serves a group of query heads."
        )
    return max(of_key, of_value)


def _fitting(x: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """x, if it broadcasts to `shape`; raises ValueError otherwise."""
    if not broadcasts_to(x, shape):
        raise ValueError(
            f"{name} of shape {tuple(x.shape)} does not broadcast to the scores (*batch, heads, queries, keys) = "
            f"{shape}. Pass a mask (B, L) of keys as mask[:, None, None]."
        )
    return x


def beside(query: Tensor, x: Tensor, name: str) -> Tensor:
    """x on the device of the queries. As in torch, only a 0-dimensional tensor may come from another device."""
    if x.device == query.device:
        return x
    if x.dim() == 0:
        return x.to(query.device, non_blocking=query.is_cuda)  # a blocking copy would wait for the GPU
    raise ValueError(f"{name} is on {x.device}, but the queries are on {query.device}. Pass {name}.to(query.device).")


def _alpha_of_heads(alpha: float | Tensor, query: Tensor, heads: int) -> float | Tensor:
    """`Inputs.alpha`: a float, or a tensor (H or 1, 1, 1) on the device of the queries."""
    if isinstance(alpha, Sequence):
        raise TypeError(f"alpha must be a number or a tensor; got {type(alpha).__name__}. Pass torch.tensor(alpha).")
    if isinstance(alpha, Tensor) and (alpha.dim() > 1 or (alpha.dim() == 1 and alpha.shape[0] not in (1, heads))):
        raise ValueError(
            f"alpha must be a number or one per head, ({heads},); got a tensor of shape {tuple(alpha.shape)}."
        )
    # Check α before moving it to the queries' device: reading a number from a GPU would wait for the GPU.
    checked = checked_alpha(alpha[:, None, None] if isinstance(alpha, Tensor) and alpha.dim() else alpha, query, -1)
    return beside(query, checked, "alpha").reshape(-1, 1, 1) if isinstance(checked, Tensor) else checked


def _sinks_of_heads(sinks: Tensor, query: Tensor, heads: int) -> Tensor:
    """`Inputs.sinks`: one score per head, (H or 1, 1, 1), on the device of the queries."""
    if sinks.dim() > 1 or (sinks.dim() == 1 and sinks.shape[0] not in (1, heads)) or not sinks.is_floating_point():
        raise ValueError(
            f"sinks must be real, one score per head, ({heads},); got {sinks.dtype} of shape {tuple(sinks.shape)}."
        )
    return beside(query, sinks, "sinks").reshape(-1, 1, 1)


def checked_lengths(lengths: Tensor | None, batch: tuple[int, ...], query: Tensor) -> Tensor | None:
    """`Inputs.lengths`: keys per sequence, broadcastable to (*batch, 1, 1, 1), on the device of the queries."""
    if lengths is None:
        return None
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(
            f"lengths counts the keys of each sequence and must be integers; got {lengths.dtype}. Pass a boolean mask "
            "as mask=."
        )
    if not broadcasts_to(lengths, batch):
        raise ValueError(f"lengths must have one number per sequence, {tuple(batch)}; got {tuple(lengths.shape)}.")
    if is_eager_cpu(lengths) and lengths.numel() and int(lengths.min()) < 0:
        raise ValueError(
            f"lengths counts the keys of each sequence and must not be negative; got {int(lengths.min())}."
        )
    return beside(query, lengths, "lengths")[..., None, None, None]
