"""Checks of attention that skips pages of keys, on a CPU and by Triton's kernels, against attention to all keys."""

import torch
from torch import Tensor

from contmax import KeyPages, entmax_attention
from contmax.attention import Certificate

# Options of calls with two heads, two queries and 300 keys.
OPTIONS: list[dict[str, object]] = [
    {"is_causal": True},
    {"lengths": torch.tensor([170])},
    {"lengths": torch.tensor([0])},
    {"mask": torch.arange(300) % 3 > 0},
    {"mask": torch.zeros(300, dtype=torch.bool)},
    {"bias": torch.linspace(-30, 0, 300)},
    {"bias": torch.zeros(300).masked_fill(torch.arange(300) < 150, -torch.inf)},
    {"bias": torch.linspace(-3, 3, 2 * 301).view(2, 1, 301)},  # by distance
    {"scale": -0.3},
    {"window": (40, 0)},
]


def assert_certified(
    given: list[Tensor], alpha: float | Tensor = 1.5, *, size: int = 32, tolerance: float = 5e-6, **options: object
) -> Certificate:
    """The result is that of all keys, in float64; returns the certificate."""
    query, key, value = given
    output, certificate = entmax_attention(
        query, key, value, alpha=alpha, key_pages=KeyPages(key, size=size), return_certificate=True, **options
    )
    wide = {k: v.double() if k == "bias" else v for k, v in options.items()}
    exact = entmax_attention(*(x.double() for x in given), alpha=alpha, **wide)
    assert (output.double() - exact).abs().max() < tolerance * exact.abs().max().clamp(min=0.5)
    assert certificate.is_exact.all()
    assert certificate.keys_read.shape == query.shape[:-1]
    assert (certificate.keys_read <= key.shape[-2]).all()
    return certificate


def clustered(keys: int, *, heads: int = 1, queries: int = 1, channels: int = 16, dtype: torch.dtype) -> list[Tensor]:
    """Queries near one of many narrow clusters of neighbouring keys, as topics of a text are; then keys and values."""
    centres = 3 * torch.randn(1, heads, -(-keys // 64), channels)
    key = centres.repeat_interleave(64, 2)[:, :, :keys] + 0.1 * torch.randn(1, heads, keys, channels)
    query = centres[:, :, torch.randint(centres.shape[2], (queries,))] + 0.1
    return [x.to(dtype) for x in (query, key, torch.randn(1, heads, keys, channels))]


def assert_budget_is_told(given: list[Tensor], budget: int, size: int = 32, **options: object) -> bool:
    """With a budget the certificate says whether the result is that of all keys; returns whether all are exact."""
    query, key, value = given
    options["enable_gqa"] = True
    exact = entmax_attention(*(x.double() for x in given), **options)
    pages = KeyPages(key, size=size)
    output, certificate = entmax_attention(
        query, key, value, key_pages=pages, key_budget=budget, return_certificate=True, **options
    )
    error = (output.double() - exact).abs().amax(-1)
    assert (error[certificate.is_exact] < 3e-3 * exact.abs().max()).all()
    in_group = query.shape[-3] // key.shape[-3] * query.shape[-2]
    assert (certificate.keys_read <= budget * in_group).all()
    return bool(certificate.is_exact.all())
