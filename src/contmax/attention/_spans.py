"""Spans of keys: the first key that each query may attend, and the end of its keys.

Packed sequences, sliding windows, causal masks and lengths all give every query one span of neighbouring keys. Spans
take memory in proportion to the number of queries, where a mask takes queries times keys.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax.attention._arguments import Inputs, beside

if TYPE_CHECKING:
    from contmax.attention._block_mask import Allowed

# Larger entries of `window` are clamped to this number, which exceeds the length of every sequence and can be added to
# a position without overflow.
_FAR = 2**40


def with_spans(
    inputs: Inputs,
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | None,
    window: tuple[int | None, int | None] | None,
    block_mask: Any,
) -> Inputs:
    """The inputs with spans that replace these arguments, the causal mask and the lengths.

    A `block_mask` that does not give every query a single span is combined with `inputs.mask` instead.

    Raises:
        ValueError, TypeError: if an argument does not fit; the message says what to pass.
    """
    queries, keys = inputs.sizes()
    device = inputs.query.device
    position = torch.arange(queries, device=device)
    if cu_seqlens is None:
        begin, end, aligned = torch.zeros_like(position), position.new_full((queries,), keys), position + keys - queries
        if inputs.lengths is not None:
            end = torch.minimum(end, inputs.lengths.squeeze(-1).to(end.dtype))
    else:
        if inputs.lengths is not None:
            raise ValueError("lengths counts the keys of padded sequences; pass it or cu_seqlens, not both.")
        begin, end, aligned = _in_packing(position, *_checked_packing(cu_seqlens, inputs))
    if inputs.diagonal is not None:
        end = torch.minimum(end, aligned + 1)
    if window is not None:
        is_pair = isinstance(window, Sequence) and len(window) == 2
        if not is_pair or not all(x is None or (isinstance(x, int) and x >= 0) for x in window):
            raise ValueError(
                "window must be two numbers of keys, those that a query may attend before and after its own position, "
                f"or None for all; got {window!r}. For a causal window of 512 keys pass is_causal=True, "
                "window=(511, 0)."
            )
        left, right = window
        begin = begin if left is None else torch.maximum(begin, aligned - min(left, _FAR))
        end = end if right is None else torch.minimum(end, aligned + min(right, _FAR) + 1)
    mask = inputs.mask
    if block_mask is not None:
        # Import only if needed: the import takes longer than most calls.
        from contmax.attention._block_mask import keys_allowed_by

        allowed = _of_batch(keys_allowed_by(block_mask, queries, keys, device), inputs)
        if allowed.spans is not None:
            begin, end = torch.maximum(begin, allowed.spans[..., 0]), torch.minimum(end, allowed.spans[..., 1])
        elif allowed.mask is not None:
            mask = allowed.mask if mask is None else allowed.mask & mask
    begin, end = torch.broadcast_tensors(begin.clamp(0, keys), end.clamp(0, keys))
    spans = torch.stack([begin, end], -1).masked_fill((begin >= end).unsqueeze(-1), 0)
    return inputs._replace(mask=mask, lengths=None, diagonal=None, spans=spans)


def _of_batch(allowed: "Allowed", inputs: Inputs) -> "Allowed":
    """`allowed` with its leading axes (B, H) reshaped so that they broadcast to those of the scores, (*batch, H)."""
    *batch, heads = inputs.query.shape[:-2]
    given = next(x for x in allowed if x is not None).shape[:2]
    if given[0] not in (1, math.prod(batch)) or given[1] not in (1, heads):
        raise ValueError(
            f"block_mask is for {given[0]} sequences and {given[1]} heads; got {math.prod(batch)} and {heads}. Create "
            "one for as many, or for all alike: create_block_mask(mask_mod, None, None, …)."
        )
    leading = (*(batch if given[0] > 1 else ()), given[1])
    return type(allowed)(*(None if x is None else x.reshape(*leading, *x.shape[2:]) for x in allowed))


def _in_packing(position: Tensor, of_queries: Tensor, of_keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each query the first key of its sequence, the end of the sequence's keys, and the key aligned with the query.

    The last query of a sequence is aligned with its last key. Queries after the last sequence get no keys. Sequence n
    has the positions offsets[n], …, offsets[n + 1] − 1, with offsets `of_queries` and `of_keys`, int64 (N + 1,).
    """
    sequence = torch.searchsorted(of_queries, position, right=True) - 1
    is_packed = (sequence >= 0) & (sequence < of_queries.shape[0] - 1)
    sequence = sequence.clamp(0, max(of_queries.shape[0] - 2, 0))
    following = (sequence + 1).clamp(max=of_queries.shape[0] - 1)
    end = torch.where(is_packed, of_keys[following], 0)
    return of_keys[sequence], end, position + of_keys[following] - of_queries[following]


def _checked_packing(cu_seqlens: Tensor | tuple[Tensor, Tensor], inputs: Inputs) -> list[Tensor]:
    both = cu_seqlens if isinstance(cu_seqlens, Sequence) else (cu_seqlens, cu_seqlens)
    if len(both) != 2 or not all(isinstance(offsets, Tensor) for offsets in both):
        raise TypeError(
            "cu_seqlens must be a tensor (N + 1,), or a pair of them, one for queries and one for keys; got "
            f"{type(cu_seqlens).__name__} of {', '.join(type(offsets).__name__ for offsets in both)}."
        )
    for offsets, size, name in zip(both, inputs.sizes(), ("queries", "keys"), strict=True):
        if offsets.dim() != 1 or offsets.shape[0] == 0 or offsets.is_floating_point() or offsets.dtype == torch.bool:
            raise ValueError(
                "cu_seqlens holds integers 0, n₁, n₁ + n₂, …, where sequences of n₁, n₂, … positions begin and end, "
                f"(N + 1,); got {offsets.dtype} of shape {tuple(offsets.shape)}. Pass lengths for padded sequences."
            )
        if is_eager_cpu(offsets):
            steps = offsets.diff()
            if int(offsets[0]) != 0 or bool((steps < 0).any()) or int(offsets[-1]) > size:
                raise ValueError(
                    f"cu_seqlens must begin with 0, not fall, and end at most at the number of {name}, {size}; got "
                    f"{offsets.tolist() if len(offsets) < 10 else f'{int(offsets[0])}, …, {int(offsets[-1])}'}."
                )
    if both[0].shape[0] != both[1].shape[0]:
        raise ValueError(
            f"cu_seqlens must count as many sequences of queries as of keys; got {both[0].shape[0] - 1} and "
            f"{both[1].shape[0] - 1}."
        )
    return [beside(inputs.query, offsets.long().contiguous(), "cu_seqlens") for offsets in both]
