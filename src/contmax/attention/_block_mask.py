"""Converts a FlexAttention `BlockMask` to spans of keys if every query has a single span, else to a boolean mask."""

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

# The largest number of entries of a mask that may be in memory at once.
_MOST_ENTRIES = 2**27


class Allowed(NamedTuple):
    """The keys that queries may attend: spans (B, H, Q, 2) as in `Inputs`, or a boolean mask (B, H, Q, L)."""

    spans: Tensor | None
    mask: Tensor | None


# Results are cached as long as their `BlockMask` lives: a conversion is a pass over all pairs of queries and keys.
_READ: "weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], Allowed]]" = weakref.WeakKeyDictionary()


def keys_allowed_by(block_mask: Any, queries: int, keys: int, device: torch.device) -> Allowed:
    """Which keys a `BlockMask` allows to `queries` queries; waits for the GPU, once per mask.

    Raises:
        TypeError, ValueError: if it is no `BlockMask`, or one of another size; the message says what to pass.
    """
    if not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"block_mask must be a BlockMask of torch.nn.attention.flex_attention; got {type(block_mask).__name__}. "
            "Pass a boolean tensor as mask."
        )
    *_, of_queries, of_keys = block_mask.shape
    if (of_queries, of_keys) != (queries, keys):
        raise ValueError(
            f"block_mask is for {of_queries} queries and {of_keys} keys; got {queries} and {keys}. Create one by "
            f"create_block_mask(mask_mod, None, None, {queries}, {keys}, device={str(device)!r})."
        )
    if torch.compiler.is_compiling():
        raise ValueError(
            "block_mask is read in Python and cannot be traced. Pass cu_seqlens or window, or a boolean tensor as mask."
        )
    read = _READ.setdefault(block_mask, {})
    place = (queries, keys, device, block_mask.mask_mod)
    if place not in read:
        # Leave inference mode: its tensors could not be saved for a later backward pass.
        with torch.inference_mode(False), torch.no_grad():
            read[place] = _read(block_mask, queries, keys, device)
    return read[place]


def _read(block_mask: BlockMask, queries: int, keys: int, device: torch.device) -> Allowed:
    """The allowed keys: spans if each query has a single span, else a mask. Tests a block of queries at a time."""
    batch, heads = block_mask.kv_num_blocks.shape[:2]
    size = max(1, _MOST_ENTRIES // max(1, batch * heads * keys))
    spans = []
    for start in range(0, queries, size):
        allowed = _allowed(block_mask, torch.arange(start, min(start + size, queries), device=device), keys)
        count = allowed.sum(-1)
        begin = allowed.to(torch.uint8).argmax(-1)  # argmax returns the first maximum
        end = torch.where(count > 0, begin + count, 0)
        begin = torch.where(count > 0, begin, 0)
        place = torch.arange(keys, device=device)
        if bool((((place >= begin.unsqueeze(-1)) & (place < end.unsqueeze(-1))) != allowed).any()):
            return Allowed(None, _allowed(block_mask, torch.arange(queries, device=device), keys))
        spans.append(torch.stack([begin, end], -1))
    return Allowed(torch.cat(spans, -2), None)


def _allowed(block_mask: BlockMask, rows: Tensor, keys: int) -> Tensor:
    """Which keys the queries `rows` may attend, (B, H, rows, keys)."""
    by_query, by_key = block_mask.BLOCK_SIZE
    place = torch.arange(keys, device=rows.device)
    blocks = -(-keys // by_key)
    some = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, blocks)
    whole = torch.zeros_like(some)
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        whole = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, blocks)
    some, whole = (x.to(rows.device)[..., rows // by_query, :][..., place // by_key] for x in (some, whole))
    batch, heads = (torch.arange(n, device=rows.device) for n in some.shape[:2])
    test = block_mask.mask_mod
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        test = torch.vmap(test, axes)
    return whole | (some & test(batch, heads, rows, place))


def _listed(counts: Tensor, indices: Tensor, blocks: int) -> Tensor:
    """Which key blocks each query block lists, as the first `counts` of `indices`; (B, H, query blocks, key blocks)."""
    is_listed = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    # Unlisted entries are arbitrary: they are scattered to an extra column, which the slice below drops.
    place = torch.where(is_listed, indices.long(), blocks)
    return is_listed.new_zeros((*counts.shape, blocks + 1)).scatter(-1, place, True)[..., :blocks]
