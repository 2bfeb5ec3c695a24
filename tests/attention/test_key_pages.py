"""Attention that skips pages of keys, on a CPU: boxes of growing and constant caches, certificates, hostile pages."""

import pytest
import torch

import contmax
from attention_checks import F16, F32, drawn
from contmax import KeyPages, entmax_attention
from key_pages_checks import OPTIONS, assert_budget_is_told, assert_certified, clustered

ALL_BOXES = pytest.mark.parametrize("size", [32, 64, 128])


def boxes_of(key, size):
    """The least and the largest numbers of each page, one page after the other."""
    pages = key.split(size, -2)
    return torch.stack([x.amin(-2) for x in pages], -2), torch.stack([x.amax(-2) for x in pages], -2)


@ALL_BOXES
def test_a_cache_that_grows(size):
    key = torch.randn(2, 3, 500, 8)
    pages = KeyPages(key[..., :70, :], size=size)
    for begin, end in ((70, 71), (71, 71), (71, 128), (128, 129), (129, 500)):
        pages.append(key[..., begin:end, :])
        low, high = boxes_of(key[..., :end, :], size)
        assert torch.equal(pages.low, low)
        assert torch.equal(pages.high, high)


@ALL_BOXES
def test_a_cache_of_constant_size(size):
    cache = torch.zeros(2, 3, 300, 8)
    cache[..., :40, :] = torch.randn(2, 3, 40, 8)
    pages = KeyPages(cache[..., :40, :], size=size, capacity=300)
    for positions in (torch.tensor([40]), torch.tensor([41, 42, 130]), torch.tensor([299])):
        new = torch.randn(2, 3, len(positions), 8)
        cache[..., positions, :] = new
        pages.write(new, positions)
    lengths = torch.tensor([43, 43])
    query, value = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 300, 8)
    assert pages.low.shape == (2, 3, -(-300 // size), 8)
    output = entmax_attention(query, cache, value, lengths=lengths, key_pages=pages)
    assert torch.allclose(output, entmax_attention(query, cache, value, lengths=lengths), atol=1e-6)
    mask = torch.zeros(300, dtype=torch.bool).index_fill(0, torch.tensor([3, 42, 130, 299]), value=True)
    output = entmax_attention(query, cache, value, mask=mask, key_pages=pages)
    assert torch.allclose(output, entmax_attention(query, cache, value, mask=mask), atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.5, 2.0, torch.tensor([1.0, 1.5])])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_every_alpha(alpha, dtype):
    given = clustered(700, heads=2, dtype=dtype)
    read = assert_certified(given, alpha, tolerance=5e-6 if dtype == F32 else 3e-3).keys_read
    if not isinstance(alpha, torch.Tensor) and 1.5 <= alpha <= 2:
        assert (read < 350).all()


@pytest.mark.parametrize("options", [*OPTIONS, {"softcap": 3.0}, {"sinks": torch.tensor([1.0, -1.0])}])
def test_options(options):
    assert_certified(drawn(2, 300, heads=2), **options)


def test_bounds_of_random_pages_are_true():
    """Keys of a page lie on one side of the origin in each channel, and queries on either side."""
    for seed in range(30):
        torch.manual_seed(seed)
        query, key, value = clustered(900, heads=2, queries=2, channels=4, dtype=F32)
        assert_certified([query * torch.tensor([1.0, -1.0]).view(2, 1, 1), key, value], 2.0, tolerance=1e-4)


def test_far_keys_are_not_read_where_a_bias_falls_with_the_distance():
    given, bias = drawn(1, 4000), -0.1 * torch.arange(3999, -1, -1.0)
    assert (assert_certified(given, bias=bias, size=64).keys_read < 1000).all()


def test_query_heads_share_the_keys_that_are_read():
    read = assert_certified(drawn(2, 900, heads=6, groups=2), enable_gqa=True).keys_read
    shared = read.unflatten(1, (2, 3))
    assert (shared == shared[:, :, :1, :1]).all()


def test_one_key_far_above_keys_that_are_all_equal_and_pages_without_keys():
    query, key, value = drawn(1, 1000)
    equal = key[..., :1, :].expand_as(key)
    assert (assert_certified([query, equal, value]).keys_read == 1000).all()
    above = key.clone()
    above[..., 777, :] = 100 * query[..., 0, :]
    read = assert_certified([query, above, value]).keys_read
    assert (read <= 300).all()
    assert torch.equal(entmax_attention(query, above, value, key_pages=KeyPages(above)), value[..., 777:778, :])


def test_broken_pages():
    query, key, value = drawn(1, 300)
    key[..., 64:96, :], value[..., 64:96, :] = torch.nan, torch.inf
    mask = (torch.arange(300) < 64) | (torch.arange(300) >= 96)
    output, certificate = entmax_attention(
        query, key, value, mask=mask, key_pages=KeyPages(key, size=32), return_certificate=True
    )
    assert torch.allclose(output, entmax_attention(query, key[..., mask, :], value[..., mask, :]), atol=1e-6)
    assert (certificate.keys_read <= 268).all()
    assert entmax_attention(query, key, value, key_pages=KeyPages(key)).isnan().all()
    assert certificate.is_exact.all()
    bias = torch.zeros(300).index_fill(0, torch.tensor([70]), torch.nan)
    plain = drawn(1, 300)
    assert entmax_attention(*plain, bias=bias, key_pages=KeyPages(plain[1], size=32)).isnan().all()


def test_a_budget():
    torch.manual_seed(0)
    assert assert_budget_is_told(clustered(2000, dtype=F32), 1024)
    query, key, value = drawn(2, 500, heads=4, groups=2)
    assert not assert_budget_is_told([query, key, value], 64)


def test_what_reads_all_keys():
    query, key, value = drawn(64, 300)
    for given in ([query, key, value], [query[..., :1, :].requires_grad_(), key, value]):
        output, certificate = entmax_attention(*given, return_certificate=True)
        assert (certificate.keys_read == 300).all()
        assert certificate.is_exact.all()
        assert torch.equal(output, entmax_attention(*given))


def test_autocast_and_inputs_without_heads_or_keys():
    query, key, value = drawn(1, 300)
    with torch.autocast("cpu", torch.bfloat16):
        pages = entmax_attention(query, key, value, key_pages=KeyPages(key))
        assert torch.equal(pages, entmax_attention(query, key, value))
    output, certificate = entmax_attention(query[0, 0], key[0, 0], value[0, 0], return_certificate=True)
    assert output.shape == (1, 16)
    assert certificate.keys_read.shape == certificate.is_exact.shape == (1,)
    output, certificate = entmax_attention(query, key[..., :0, :], value[..., :0, :], return_certificate=True)
    assert (output == 0).all()
    assert (certificate.keys_read == 0).all()
    assert certificate.is_exact.all()


def test_wrong_pages_are_refused():
    query, key, value = drawn(1, 300)
    with pytest.raises(ValueError, match="Append new keys"):
        entmax_attention(query, key, value, key_pages=KeyPages(key[..., :200, :]))
    with pytest.raises(ValueError, match="at least the 64 keys"):
        entmax_attention(query, key, value, key_budget=10)
    with pytest.raises(ValueError, match="need all keys"):
        entmax_attention(query, key, value, return_certificate=True, need_weights=True)
    with pytest.raises(ValueError, match="32, 64 or 128"):
        KeyPages(key, size=48)
    with pytest.raises(ValueError, match="capacity"):
        KeyPages(key, capacity=10)
    with pytest.raises(ValueError, match="float32"):
        KeyPages(key).append(key.double())
    with pytest.raises(TypeError, match=r"KeyPages\(key\).* got Tensor|whilst typechecking parameter"):
        entmax_attention(query, key, value, key_pages=key)
    with pytest.raises((ValueError, TypeError), match=r"floating-point.*int64|whilst typechecking parameter"):
        KeyPages(key.long())


@pytest.mark.parametrize("count", [290, 299, 301])
def test_pages_of_fewer_or_more_keys_are_refused(count):
    """Also where both have as many pages: a key that was never appended may be the one with all the weight."""
    query, key, value = drawn(1, 310)
    pages = KeyPages(key[..., :count, :])
    with pytest.raises(ValueError, match=rf"300 keys.* of {count} keys.* Append new keys"):
        entmax_attention(query, key[..., :300, :], value[..., :300, :], key_pages=pages)


@pytest.mark.parametrize("positions", [[5], [5, 6], [298, 299, 300], [-1, 0, 1], [[5], [6], [7]]])
def test_keys_that_are_written_need_a_position_each(positions):
    _, key, _ = drawn(1, 300)
    pages = KeyPages(key[..., :10, :], capacity=300)
    with pytest.raises(ValueError, match=r"one for each of 3 keys, from 0 to 299; got"):
        pages.write(key[..., :3, :], torch.tensor(positions))
    assert contmax.attention.Certificate._fields == ("keys_read", "is_exact")
