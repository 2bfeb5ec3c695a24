"""The public function `entmax_attention`, and the choice among its implementations."""

from typing import Any

from torch import Tensor

from contmax._backend import Backend
from contmax._eager import refuse_tracing
from contmax._typing import Bool, Float, Int
from contmax.attention._arguments import Inputs, checked_inputs
from contmax.attention._certified import KeyPages, attend_certified
from contmax.attention._compiled import attend_fused, attend_listed, backend_of_attention
from contmax.attention._masked import masked_as_zeros
from contmax.attention._reference import attend_in_blocks, attend_reference, attend_softmax, can_be_softmax
from contmax.attention._spans import with_spans


def entmax_attention(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    *,
    alpha: float | Float[Tensor, "..."] = 1.5,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    lengths: Int[Tensor, "..."] | None = None,
    cu_seqlens: Int[Tensor, "..."] | tuple[Int[Tensor, "..."], Int[Tensor, "..."]] | None = None,
    window: tuple[int | None, int | None] | None = None,
    block_mask: Any = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    need_weights: bool = False,
    key_pages: KeyPages | None = None,
    key_budget: int | None = None,
    return_certificate: bool = False,
) -> Float[Tensor, "..."] | tuple[Float[Tensor, "..."], Any]:
    r"""Attention with exact zeros: `scaled_dot_product_attention` with α-entmax in place of softmax.

    .. math:: o_i = \sum_j p_{ij} v_j, \qquad p_i = \alpha\text{-entmax}_j\big(s\,\langle q_i, k_j\rangle + b_{ij}\big)

    The same numbers as ``entmax(scale * query @ key.mT + bias, alpha, mask=mask) @ value``, but the weights (Q, L) are
    held in memory only for a few queries at a time. At α = 1 it is `scaled_dot_product_attention` itself.

    Args:
        query: q, (\*batch, H, Q, d).
        key: k, (\*batch, H, L, d).
        value: v, (\*batch, H, L, c).
        alpha: α > 0, a float or a tensor with one α per head, (H,), or one for all, (); differentiable. The GPU kernels
            take α in (1, 2]. Any other float uses a slower path: the weights of a block of queries are computed as a
            matrix, and zeros save no work. A tensor on a GPU cannot be checked without waiting for it and is assumed to
            lie in [1, 2]; heads where it does not get NaN.
        mask: boolean, broadcastable to (\*batch, H, Q, L); True = may be attended. It combines with `bias`, `is_causal`
            and `lengths`. Keys and values that no query may attend may hold anything, NaN too.
        bias: b, added to the scores, broadcastable to them; −inf counts as masked. Differentiable. One that depends on
            the distance of query i and key j alone takes little memory as (…, 1, Q + L − 1), with the number of (i, j)
            at j − i + Q − 1; for Q > 1 a bias of that length is always read so.
        is_causal: whether a query may attend only to keys up to its own position. The *last* query is aligned with the
            *last* key, so that a query of a cached sequence sees all of it; `scaled_dot_product_attention` aligns the
            first query with the first key. Both agree only for Q = L.
        lengths: how many keys each sequence has, (\*batch); keys after these are padding.
        cu_seqlens: offsets 0, n₁, n₁ + n₂, … of N sequences packed one after the other along Q and L, (N + 1,), or one
            tensor for queries and one for keys; nothing attends beyond its own sequence, and `is_causal` aligns the
            last query of each sequence with its last key. Positions after the last sequence get zeros.
        window: (left, right), how many keys a query may attend before and after its own position, None for all.
            Queries are aligned with keys as for `is_causal`; a causal window of 512 keys is ``is_causal=True,
            window=(511, 0)``.
        block_mask: a ``BlockMask`` of torch.nn.attention.flex_attention, combined with all of these. It is read once,
            by a pass over all pairs: tensors that its function reads must not change later. A mask that gives every
            query one span of keys (documents, windows, prefixes) takes memory for the queries only, any other becomes
            a boolean mask.
        softcap: c > 0: scores s⟨q, k⟩ become c·tanh(s⟨q, k⟩/c), before the bias is added.
        sinks: one more score per head, (H,), for a key whose value is 0: it takes weight from all other keys.
            Differentiable. With sinks or a cap the weights of a block of queries are computed as a matrix.
        dropout_p: share of the weights to drop; the rest is scaled by 1/(1 − dropout_p). As in
            `scaled_dot_product_attention` it is always applied: pass 0 in evaluation.
        scale: s, 1/√d by default.
        enable_gqa: whether keys and values may have fewer heads than queries; each then serves a group of neighbouring
            query heads.
        need_weights: whether to return the weights too. All of them are then held in memory.
        key_pages: boxes around pages of the keys, by which a step of generation leaves out pages that have no weight;
            the result does not change. Calls with a gradient, or with 32 queries or more, read all keys.
        key_budget: the most keys that each query may choose, which makes the result approximate: those of the pages
            with the largest bounds. None to read every page that may have weight.
        return_certificate: whether to return what was read, and whether the result is exact.

    Returns:
        Means of the values, (\*batch, H, Q, c), in the dtype of the query; with `need_weights` also p, (\*batch, H, Q,
        L), before dropout; with `return_certificate` also a ``Certificate``: keys_read, (\*batch, H, Q), and is_exact,
        whether no other key has weight. A query with nothing to attend gets zeros, with zero gradient. float16 and
        bfloat16 are computed in float32; on a GPU products are of numbers in half precision, as in flash attention.
        Under autocast the output has the dtype of autocast.

    Raises:
        ValueError, TypeError: if shapes or dtypes do not fit each other, or a number is out of range.

    Example:
        >>> import torch, contmax
        >>> query, key, value = (torch.randn(1, 2, 5, 8) for _ in range(3))
        >>> contmax.entmax_attention(query, key, value, is_causal=True).shape
        torch.Size([1, 2, 5, 8])
        >>> _, weights = contmax.entmax_attention(query, key, value, alpha=2.0, need_weights=True)
        >>> bool((weights == 0).any())
        True
        >>> packed = torch.tensor([0, 2, 5])  # a sequence of two positions, and one of three
        >>> output = contmax.entmax_attention(query, key, value, cu_seqlens=packed)
        >>> first = contmax.entmax_attention(*(x[..., :2, :] for x in (query, key, value)))
        >>> torch.allclose(output[..., :2, :], first)
        True

    References: Peters, Niculae & Martins 2019; Correia, Niculae & Martins 2019; Gonçalves et al. 2025 (AdaSplash).
    """
    refuse_tracing()
    inputs = checked_inputs(
        query, key, value, alpha, mask, bias, is_causal, lengths, dropout_p, scale, enable_gqa, softcap, sinks
    )  # fmt: skip
    if cu_seqlens is not None or window is not None or block_mask is not None:
        inputs = with_spans(inputs, cu_seqlens, window, block_mask)
    if key_pages is not None or key_budget is not None or return_certificate:
        if need_weights or dropout_p > 0:
            raise ValueError(
                "weights and dropout need all keys; leave out key_pages, key_budget and return_certificate."
            )
        given = (inputs, key_pages, key_budget, return_certificate)
        output, certificate = attend_certified(*given, lambda x: _attended(x, 0.0))
        output = _as_given(output, query, inputs)
        if certificate is not None and query.dim() == 2:
            certificate = type(certificate)(*(x.squeeze(-2) for x in certificate))
        return (output, certificate) if return_certificate else output
    if need_weights:
        output, weights = (_as_given(x, query, inputs) for x in attend_reference(masked_as_zeros(inputs), dropout_p))
        return output, weights
    return _as_given(_attended(inputs, dropout_p), query, inputs)


def _attended(inputs: Inputs, dropout_p: float) -> Tensor:
    """The means of the values, by the fastest implementation that takes these arguments."""
    if inputs.key.shape[-2] == 0:
        return attend_reference(inputs, dropout_p).output
    backend = backend_of_attention(inputs, dropout_p)
    if backend is Backend.TRITON:
        return attend_fused(inputs)
    inputs = masked_as_zeros(inputs)
    if can_be_softmax(inputs):
        return attend_softmax(inputs, dropout_p)
    if backend is Backend.NUMBA:
        return attend_listed(inputs)
    return attend_in_blocks(inputs, dropout_p) if inputs.hold_numbers() else attend_reference(inputs, dropout_p).output


def _as_given(x: Tensor, query: Tensor, inputs: Inputs) -> Tensor:
    """x in the dtype of the checked query; without the axis of heads if the user's `query` has none."""
    x = x.to(inputs.query.dtype)
    return x.squeeze(-3) if query.dim() == 2 else x
