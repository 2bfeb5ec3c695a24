"""Packed sequences and windows by triton's kernels, which read one span of keys per query and skip all other blocks."""

import pytest
import torch

from attention_checks import (
    F16,
    F32,
    _as_if_long,  # noqa: F401 a fixture
    _few_queries_too,  # noqa: F401 a fixture
    assert_same,
    drawn,
)
from contmax import entmax_attention
from contmax.attention import _compiled
from contmax.kernels.attention import _gpu_call, _sizes

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")
LISTED, DENSE = pytest.mark.usefixtures("_as_if_long"), pytest.mark.usefixtures("_few_queries_too")
# A sequence of one position, one without keys, one without queries, one that crosses blocks of 64 and of 128 keys, and
# room at the end.
OFFSETS = torch.tensor([0, 1, 9, 20, 20, 35]), torch.tensor([0, 1, 40, 40, 60, 190])
OPTIONS = [
    {"cu_seqlens": OFFSETS},
    {"cu_seqlens": OFFSETS, "is_causal": True, "window": (50, 0)},
    {"window": (130, 3)},
    {"window": (0, 0)},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("dtype", "sharp"), [(F32, 2.0), (F16, 0.01)])  # in lists, and longer than these may be
@LISTED
def test_lists(options, dtype, sharp, lists):
    assert_same(drawn(queries=40, keys=200, dtype=dtype, sharp=sharp), **options)
    assert not lists[0].are_empty


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("alpha", "dtype"), [(1.5, F16), (torch.tensor([1.05, 1.7]), F32)])
@DENSE
def test_few_keys(options, alpha, dtype, lists):
    heads = 2 if torch.is_tensor(alpha) else 1
    assert_same(drawn(queries=40, keys=200, heads=heads, dtype=dtype), alpha, **options)
    assert lists[0].are_empty == (dtype == F16)


@DENSE
def test_blocks_of_rows_that_hold_several_sequences():
    offsets = torch.tensor([0, 10, 70, 75, 130])
    assert_same(drawn(queries=130, keys=130, heads=2, groups=1), cu_seqlens=offsets, is_causal=True, enable_gqa=True)


@LISTED
def test_tiles_longer_than_blocks(monkeypatch, lists):
    """A span begins inside of a tile whose first blocks are outside of it: the tile is complete all the same."""
    monkeypatch.setattr(_gpu_call, "TUNING", _sizes.Tuning(most_tiles=64))
    query, key, value = drawn(queries=3, keys=3000)
    options = {"cu_seqlens": (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1400, 1500, 3000]))}
    output = entmax_attention(query.requires_grad_(), key, value, **options)
    exact = entmax_attention(*(x.double() for x in (query, key, value)), **options)
    assert (output - exact).abs().max() < 1e-5
    assert not lists[0].are_empty


@LISTED
def test_numbers_after_the_last_sequence_never_matter():
    """NaN in positions after the last sequence."""
    query, key, value = drawn(queries=40, keys=40, dtype=F16)
    outside = torch.arange(40) >= 30
    results = []
    for x in (0.0, torch.nan):
        inputs = [y.masked_fill(outside.unsqueeze(-1), x).requires_grad_() for y in (query, key, value)]
        output = entmax_attention(*inputs, cu_seqlens=torch.tensor([0, 10, 30]))
        results.append([output, *torch.autograd.grad(output.sum(), inputs)])
    for zeros, broken in zip(*results, strict=True):
        assert torch.equal(zeros, broken)
        assert (broken[..., 30:, :] == 0).all()


@torch.no_grad()
def test_decoding(monkeypatch):
    query, key, value = drawn(queries=4, keys=500, dtype=F16)
    options = {"is_causal": True, "window": (99, 0)}
    called = []
    decode = _compiled.kernels.decoding
    monkeypatch.setattr(_compiled.kernels, "decoding", lambda *given: called.append(1) or decode(*given))
    output = entmax_attention(query, key, value, **options)
    exact = entmax_attention(*(x.double() for x in (query, key, value)), **options)
    assert (output - exact).abs().max() < 3e-3
    assert called
