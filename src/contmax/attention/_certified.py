"""Attention that skips pages of keys which can have no weight, and certifies which pages it has read.

`KeyPages` are boxes around pages of neighbouring keys, and give an upper bound of the scores in each page. First the
page with the largest bound in each group of pages is read (with a budget: the pages with the largest bounds). α-entmax
gives weight only to scores above a threshold. The threshold τ of the scores read so far is a lower bound of the
threshold of all scores, so keys in pages with a bound of at most τ have weight 0. Then, without a budget, all pages
with larger bounds are read. A page has the bound −∞ for a query that may attend none of its keys.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax._backend import Backend
from contmax._eager import is_eager_cpu, wide_dtype, without_autocast
from contmax._typing import Bool, Float, Int
from contmax.attention._arguments import Inputs
from contmax.attention._compiled import backend_of_attention, decode_by_pages, is_decoding
from contmax.attention._masked import allowed_keys, bias_of_scores
from contmax.attention._reference import repeated_heads, scores_of
from contmax.kernels.attention import PAGES_OF_GROUP, ROUNDING_OF_PAGES, Bounded, Boxes, pages_fit
from contmax.maps._threshold import newton_normaliser

# The possible numbers of keys per page, and the default.
_SIZES, _SIZE = (32, 64, 128), 64
# On a GPU, if the keys have fewer bytes, all are read: to choose pages would take longer.
_FEWEST_BYTES = 256 * 2**20


class Certificate(NamedTuple):
    """What `entmax_attention` has read, for each query of each head.

    Attributes:
        keys_read: the number of keys whose scores were computed, (*batch, H, Q), int64. Query heads that share a head
            of the keys read the keys of all of them.
        is_exact: whether all pages that may have weight were read, (*batch, H, Q), bool; always True without a budget.
    """

    keys_read: Int[Tensor, "..."]
    is_exact: Bool[Tensor, "..."]


class KeyPages:
    r"""The box around each page of `size` neighbouring keys: the least and the largest number of each channel.

    Boxes bound the scores of a page: every key k in it has

    .. math:: \langle q, k\rangle \le \sum_c \max(q_c\,\text{low}_c,\ q_c\,\text{high}_c)

    For α > 1, α-entmax gives weight only to scores above a threshold, and the threshold τ of the scores of some keys is
    at most that of all keys. So a page whose bound is not above τ has no weight, and `entmax_attention` gives the same
    result without reading the page.

    Args:
        key: keys so far, (\*batch, G, L, d).
        size: keys per page: 32, 64 or 128.
        capacity: the number of keys of a cache of constant size, of which `key` are the first; None for a cache that
            grows.

    Attributes:
        low, high: (\*batch, G, pages, d), in the dtype of the keys; +∞ and −∞ for pages without keys.
        size: keys per page.

    Raises:
        ValueError: if a size or a shape does not fit.

    Example:
        >>> import torch, contmax
        >>> query, key, value = (torch.randn(1, 2, n, 8) for n in (1, 300, 300))
        >>> pages = contmax.KeyPages(key)
        >>> output, certificate = contmax.entmax_attention(query, key, value, key_pages=pages, return_certificate=True)
        >>> bool(certificate.is_exact.all())
        True
        >>> torch.allclose(output, contmax.entmax_attention(query, key, value), atol=1e-6)
        True
    """

    def __init__(self, key: Float[Tensor, "..."], *, size: int = _SIZE, capacity: int | None = None) -> None:
        if size not in _SIZES:
            raise ValueError(f"size counts the keys of a page: 32, 64 or 128; got {size}.")
        if key.dim() < 3 or not key.is_floating_point():
            raise ValueError(
                f"key must be floating-point, of shape (*batch, G, L, d); got {key.dtype} of shape {tuple(key.shape)}."
            )
        if capacity is not None and capacity < key.shape[-2]:
            raise ValueError(
                f"capacity counts all keys of the cache, of which {key.shape[-2]} are given; got {capacity}."
            )
        self.size = size
        self._length, self._capacity = 0, capacity
        self._pages = -(-(capacity or 0) // size)
        self._low = key.new_full((*key.shape[:-2], self._pages, key.shape[-1]), torch.inf)
        self._high = torch.full_like(self._low, -torch.inf)
        self.append(key)

    @property
    def low(self) -> Float[Tensor, "..."]:
        """The least numbers, (*batch, G, pages, d)."""
        return self._low[..., : self._pages, :]

    @property
    def high(self) -> Float[Tensor, "..."]:
        """The largest numbers, (*batch, G, pages, d)."""
        return self._high[..., : self._pages, :]

    @property
    def _count(self) -> int:
        """The number of keys that the boxes are of: all of a cache of constant size, those so far of one that grows."""
        return self._length if self._capacity is None else self._capacity

    def append(self, key: Float[Tensor, "..."]) -> None:
        """Include keys (*batch, G, n, d) that follow those so far."""
        self._check(key)
        key, begin, end = key.detach(), self._length, self._length + key.shape[-2]
        if begin == end:
            return
        first, last = begin // self.size, -(-end // self.size)
        if last > self._low.shape[-2]:
            # Double the memory when it is full, so that a key costs constant time on average.
            more = (0, 0, 0, max(last, 2 * self._low.shape[-2]) - self._low.shape[-2])
            self._low, self._high = F.pad(self._low, more, value=torch.inf), F.pad(self._high, more, value=-torch.inf)
        self._pages = max(self._pages, last)
        around = (0, 0, begin - first * self.size, last * self.size - end)
        for box, far, reduce in ((self._low, torch.inf, torch.amin), (self._high, -torch.inf, torch.amax)):
            pages = reduce(F.pad(key, around, value=far).unflatten(-2, (-1, self.size)), -2)
            both = torch.stack([box[..., first:last, :], pages])
            box[..., first:last, :] = reduce(both, 0)
        self._length = end

    def write(self, key: Float[Tensor, "..."], positions: Int[Tensor, "..."]) -> None:
        """Include keys (*batch, G, n, d) that are written at `positions`, (n,), of a cache of constant size.

        Where keys are replaced, a box includes the old keys too: bounds stay true, and become wider. No position is
        read on a GPU: a CUDA graph may contain the call.
        """
        self._check(key)
        fits = positions.shape == (key.shape[-2],)
        if fits and is_eager_cpu(positions):
            fits = bool(((positions >= 0) & (positions < self._count)).all())
        if not fits:
            got = positions.tolist() if is_eager_cpu(positions) else f"a tensor of shape {tuple(positions.shape)}"
            raise ValueError(
                f"positions of a cache must be one for each of {key.shape[-2]} keys, from 0 to {self._count - 1}; got "
                f"{got}."
            )
        page = (positions // self.size).unsqueeze(-1).expand(key.shape)
        self._low.scatter_reduce_(-2, page, key.detach(), "amin")
        self._high.scatter_reduce_(-2, page, key.detach(), "amax")

    def _check(self, key: Tensor) -> None:
        expected = (*self._low.shape[:-2], self._low.shape[-1])
        if (*key.shape[:-2], key.shape[-1]) != expected or key.dtype != self._low.dtype:
            raise ValueError(
                f"the pages are of keys {self._low.dtype} of shape (*{expected[:-1]}, n, {expected[-1]}); got "
                f"{key.dtype} of shape {tuple(key.shape)}."
            )


def attend_certified(
    inputs: Inputs, pages: KeyPages | None, budget: int | None, certifies: bool, attend: Callable[[Inputs], Tensor]
) -> tuple[Tensor, Certificate | None]:
    """Means of the values from only the pages that may have weight, and the certificate if it is needed.

    Args:
        inputs: checked arguments.
        pages: boxes of all keys; None to compute them.
        budget: the most keys that a query may choose to read; None to read all that may have weight.
        certifies: whether the certificate is needed; after Triton's kernels it takes extra operations.
        attend: computes the means for given inputs by reading all keys. Where no kernel skips pages, the inputs get a
            mask that allows only keys in the pages that count as read.
    """
    if pages is not None:
        _check_pages(pages, inputs)
    size = _SIZE if pages is None else pages.size
    if budget is not None and budget < size:
        raise ValueError(
            f"key_budget must be at least the {size} keys of a page; got {budget}. Make smaller pages: "
            "KeyPages(key, size=32)."
        )
    # A threshold can rule out pages only for few queries and 1 < α ≤ 2, without a gradient, cap or sinks.
    has_threshold = isinstance(inputs.alpha, Tensor) or 1 < inputs.alpha <= 2
    has_threshold = has_threshold and inputs.softcap is None and inputs.sinks is None
    if inputs.key.shape[-2] == 0 or not has_threshold or not is_decoding(inputs):
        return attend(inputs), _of_all_keys(inputs)
    by_kernels = backend_of_attention(inputs, 0.0) is Backend.TRITON and pages_fit(*inputs[:3], size)
    if by_kernels and budget is None and inputs.key.numel() * inputs.key.element_size() < _FEWEST_BYTES:
        return attend(inputs), _of_all_keys(inputs)
    pages = KeyPages(inputs.key) if pages is None else pages
    count = pages.low.shape[-2]
    most = None if budget is None else min(count, budget // pages.size)
    # Autocast may have rounded the keys. Rounding preserves order, so the rounded boxes are those of the rounded keys.
    low, high = (x.to(inputs.key.dtype) for x in (pages.low, pages.high))
    boxes = Boxes(low, high, pages.size, most)
    if by_kernels:
        output, bounded = decode_by_pages(inputs, boxes)
        return output, _certificate(bounded, inputs, boxes)[1] if certifies else None
    read, certificate = _certificate(_bounded(inputs, boxes), inputs, boxes)
    keys = read.repeat_interleave(pages.size, -1)[..., : inputs.key.shape[-2]]
    mask = keys if inputs.mask is None else inputs.mask & keys
    return attend(inputs._replace(mask=mask)), certificate


def _of_all_keys(inputs: Inputs) -> Certificate:
    keys_read = inputs.query.new_full(inputs.query.shape[:-1], inputs.key.shape[-2], dtype=torch.int64)
    return Certificate(keys_read, torch.ones_like(keys_read, dtype=torch.bool))


def _check_pages(pages: object, inputs: Inputs) -> None:
    if not isinstance(pages, KeyPages):
        raise TypeError(f"key_pages must be KeyPages(key), boxes around these keys; got {type(pages).__name__}.")
    key = inputs.key
    needed = (*key.shape[:-2], -(-key.shape[-2] // pages.size), key.shape[-1])
    if pages.low.shape != needed or pages.low.device != key.device or pages._count != key.shape[-2]:
        raise ValueError(
            f"key_pages must hold boxes {needed} of these {key.shape[-2]} keys, on {key.device}; got "
            f"{tuple(pages.low.shape)} of {pages._count} keys, on {pages.low.device}. Append new keys to the pages as "
            "the cache grows: pages.append(key[..., -1:, :])."
        )


def _bounded(inputs: Inputs, boxes: Boxes) -> Bounded:
    """Upper bounds for all pages, the pages that are read first, and lower bounds of thresholds from their scores."""
    heads, dtype = inputs.query.shape[-3], wide_dtype(inputs.query.dtype)
    query = inputs.query.to(dtype) * inputs.scale
    low, high = (repeated_heads(x.to(dtype), heads).mT for x in boxes[:2])
    with without_autocast(query):
        bounds = query.clamp(min=0) @ high + query.clamp(max=0) @ low
        bounds = bounds + ROUNDING_OF_PAGES * (query.abs() @ torch.maximum(low.abs(), high.abs()))
        scores = scores_of(inputs)
    added = torch.zeros_like(scores)
    if inputs.bias is not None:
        added = added + bias_of_scores(inputs.bias, *inputs.sizes()).to(dtype)
    allowed = allowed_keys(inputs)
    if allowed is not None:
        added = added.masked_fill(~allowed, -torch.inf)
    short = -scores.shape[-1] % boxes.size
    added = F.pad(added, (0, short), value=-torch.inf).unflatten(-1, (-1, boxes.size)).amax(-1)
    bounds = bounds + added + ROUNDING_OF_PAGES * added.abs()
    # A box or a bias with NaN or infinite numbers gives no bound: take +∞, so that the page is read.
    bounds = bounds.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
    bounds = torch.where(added == -torch.inf, -torch.inf, bounds)
    if boxes.budget is None:  # of each group of pages the one with the largest bound
        short = -bounds.shape[-1] % PAGES_OF_GROUP
        groups = F.pad(bounds, (0, short), value=-torch.inf).unflatten(-1, (-1, PAGES_OF_GROUP))
        best = F.one_hot(groups.argmax(-1), PAGES_OF_GROUP).flatten(-2)[..., : bounds.shape[-1]]
    else:
        best = torch.zeros_like(bounds, dtype=torch.int64).scatter_(-1, bounds.topk(boxes.budget, -1).indices, 1)
    chosen = (best > 0) & (bounds > -torch.inf)
    is_read = _shared(chosen, inputs).repeat_interleave(boxes.size, -1)[..., : scores.shape[-1]]
    scores = scores.masked_fill(~is_read if allowed is None else ~(is_read & allowed), -torch.inf)
    return Bounded(bounds, chosen, _threshold(scores, inputs.alpha))


def _threshold(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """A lower bound, (…, 1), of the α-entmax threshold of scores (…, L), rounding included; −∞ if there is none."""
    maximum = scores.amax(-1, keepdim=True)
    shifted = scores - torch.where(maximum.isfinite(), maximum, 0)
    below = newton_normaliser(shifted, alpha, None) - 1 / (alpha - 1)
    threshold = maximum + below - 1e-5 * (maximum.abs() + below.abs())
    return threshold.where(threshold.isfinite() & (below < 0), -torch.inf)  # at α = 1 there is no threshold


def _shared(pages: Tensor, inputs: Inputs) -> Tensor:
    """For each query, the pages that are read: `pages` of all queries whose heads share the key head."""
    heads, groups = inputs.query.shape[-3], inputs.key.shape[-3]
    shared: Tensor = pages.unflatten(-3, (groups, heads // groups)).any(-2, keepdim=True).any(-3, keepdim=True)
    shared = shared.expand(*pages.shape[:-3], groups, heads // groups, *pages.shape[-2:])
    return shared.flatten(-4, -3)


def _certificate(bounded: Bounded, inputs: Inputs, boxes: Boxes) -> tuple[Tensor, Certificate]:
    """Which pages are read, (*batch, H, Q, pages), and the certificate."""
    may_have_weight = bounded.bounds > bounded.thresholds
    chosen = bounded.chosen > 0
    read = _shared(chosen | may_have_weight if boxes.budget is None else chosen, inputs)
    # All pages but the last are full.
    keys_read = read.sum(-1) * boxes.size - read[..., -1] * (-inputs.key.shape[-2] % boxes.size)
    return read, Certificate(keys_read, (read | ~may_have_weight).all(-1))
