"""`KeyPages`: boxes around pages of neighbouring keys, by which attention skips pages. `Certificate`: what it read."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax._typing import Bool, Float, Int

_SIZES = (32, 64, 128)


class Certificate(NamedTuple):
    """What `entmax_attention` has read, for each query of each head.

    Attributes:
        keys_read: the number of keys whose scores were computed, (*batch, H, Q), int64. Query heads that share a head
            of the keys read the keys of all of them.
        is_exact: whether no key that was not read has weight, (*batch, H, Q), bool; without a budget always True.
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

    def __init__(self, key: Float[Tensor, "..."], *, size: int = 64, capacity: int | None = None) -> None:
        if size not in _SIZES:
            raise ValueError(f"size counts the keys of a page: 32, 64 or 128; got {size}.")
        if key.dim() < 3:
            raise ValueError(f"key must have the shape (*batch, G, L, d); got {tuple(key.shape)}.")
        if capacity is not None and capacity < key.shape[-2]:
            raise ValueError(
                f"capacity counts all keys of the cache, of which {key.shape[-2]} are given; got {capacity}."
            )
        self.size = size
        self._length = 0
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

    def append(self, key: Float[Tensor, "..."]) -> None:
        """Include keys (*batch, G, n, d) that follow those so far."""
        self._check(key)
        key, begin, end = key.detach(), self._length, self._length + key.shape[-2]
        if begin == end:
            return
        first, last = begin // self.size, -(-end // self.size)
        if last > self._low.shape[-2]:
            # Double memory that is full: a key then costs constant time on average.
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
        read on the host: a CUDA graph may contain the call.
        """
        self._check(key)
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
