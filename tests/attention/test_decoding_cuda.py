"""Decoding on a GPU: a hundred thousand caches beside the kernels for many queries, and a captured step."""

import itertools

import pytest
import torch

from contmax import KeyPages, entmax_attention
from contmax.attention import _certified
from cuda_attention_checks import attend, triple
from cuda_checks import BF16, DEVICE, DTYPES, F16, F32, ON_GPU, Captured, Fixed, assert_accurate, drawn, without_waiting

pytestmark = pytest.mark.gpu
TOLERANCES = {F32: 1e-5, F16: 3e-3, BF16: 2e-2}
# Batches of 2,048 caches each; a CPU tries the test with small ones.
BATCHES, SEQUENCES, LONGEST = (50, 512, 3000) if ON_GPU else (2, 3, 200)


@torch.no_grad()
def assert_same(call, given, dtype):
    assert_accurate(call, [Fixed(x) if x.is_floating_point() else x for x in given], dtype, tolerance=TOLERANCES[dtype])


@DTYPES
@pytest.mark.parametrize("alpha", [1.01, 1.25, 4 / 3, 1.5, 1.7, 2.0])
@pytest.mark.parametrize("sharp", [0.0, 0.1, 3.0])
def test_every_alpha(alpha, sharp, dtype):
    assert_same(attend(alpha, is_causal=True), triple(queries=3, keys=5000, sharp=sharp), dtype)


@pytest.mark.parametrize("keys", [1, 31, 128, 129, 4096, 66_000, 300_000])
@pytest.mark.parametrize("sharp", [0.0, 1.5])
def test_every_length(keys, sharp):
    assert_same(attend(enable_gqa=True), triple(heads=8, groups=2, queries=1, keys=keys, sharp=sharp), BF16)


@DTYPES
@pytest.mark.parametrize("channels", [16, 40, 128, 256])
def test_every_width(channels, dtype):
    assert_same(attend(), triple(queries=1, channels=channels, values=channels), dtype)


def test_a_hundred_thousand_caches():
    generator = torch.Generator(DEVICE).manual_seed(0)
    alphas = itertools.cycle((1.5, 1.25, 2.0, torch.tensor([1.0, 1.1, 1.6, 2.0], device=DEVICE)))
    for batch, alpha in zip(range(BATCHES), alphas, strict=False):
        keys = int(torch.randint(1, LONGEST, (), generator=torch.Generator().manual_seed(batch)))
        shapes = ((SEQUENCES, 4, 1, 32), (SEQUENCES, 2, keys, 32), (SEQUENCES, 2, keys, 32))
        query, key, value = (torch.randn(shape, device=DEVICE, generator=generator, dtype=BF16) for shape in shapes)
        sharp = torch.rand(SEQUENCES, 1, 1, 1, device=DEVICE, generator=generator) ** 2 * 5
        query = (sharp * query).to(BF16)
        lengths = torch.randint(keys + 1, (SEQUENCES,), device=DEVICE, generator=generator)
        options = {"alpha": alpha, "lengths": lengths, "enable_gqa": True}
        few = entmax_attention(query, key, value, **options)
        many = entmax_attention(query.expand(-1, -1, 64, -1), key, value, **options)[:, :, :1]
        assert few.isfinite().all()
        assert (few - many).abs().max() < 3e-2 * value.abs().max()
        assert (few - many).float().norm() < 4e-3 * many.float().norm()


@DTYPES
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize(("keys", "size"), [(1, 64), (700, 32), (9000, 64), (66_000, 128)])
def test_pages_that_are_skipped(keys, size, alpha, dtype, monkeypatch):
    """Neighbouring keys are alike, so that most pages are not read; the last words are nearest."""
    monkeypatch.setattr(_certified, "_FEWEST_BYTES", 0)  # small caches too
    generator = torch.Generator(DEVICE).manual_seed(keys)
    centres = 3 * torch.randn(2, 2, -(-keys // 64), 32, device=DEVICE, generator=generator)
    key = centres.repeat_interleave(64, 2)[:, :, :keys]
    key = (key + 0.1 * torch.randn(key.shape, device=DEVICE, generator=generator)).to(dtype)
    value = torch.randn(key.shape, device=DEVICE, generator=generator).to(dtype)
    query = (centres[:, :, -1:].repeat_interleave(2, 1) + 0.1).to(dtype)
    bias = -0.01 * torch.arange(keys - 1, -1, -1.0, device=DEVICE)
    pages = KeyPages(key, size=size)
    for options in ({}, {"bias": bias}, {"lengths": torch.tensor([keys // 2, keys], device=DEVICE)}):
        options = {"alpha": alpha, "enable_gqa": True, **options}
        exact = entmax_attention(query, key, value, **options)
        call = lambda: entmax_attention(  # noqa: E731
            query,
            key,
            value,
            key_pages=pages,
            return_certificate=True,
            **options,  # noqa: B023
        )
        output, certificate = call()
        assert (output - exact).abs().max() <= TOLERANCES[dtype] * exact.abs().max()
        assert certificate.is_exact.all()
        if keys >= 9000:
            assert (certificate.keys_read < keys // 2).all()
    without_waiting(call)
    replayed = Captured(lambda: call()[0]).replay()
    assert torch.equal(replayed, output)


def test_masks_biases_and_lengths():
    given = [*triple(queries=2), drawn(2, 2, 200) > -0.3, drawn(2, 1, 201, seed=4), torch.tensor([150])]
    assert_same(lambda q, k, v, m, b, n: entmax_attention(q, k, v, mask=m, bias=b, lengths=n), given, BF16)


def test_one_alpha_per_head():
    alpha = torch.linspace(1.0, 2.0, 6)
    assert_same(attend(enable_gqa=True), [*triple(heads=6, groups=3, queries=1, keys=3000), alpha], F32)


def test_numbers_of_masked_keys_never_matter():
    query, key, value = (x.to(DEVICE, BF16) for x in triple(queries=2, keys=3000))
    options = {"lengths": torch.tensor([2000], device=DEVICE)}
    for sharp in (0.0, 1.0):
        exact = entmax_attention(sharp * query, key[:, :, :2000], value[:, :, :2000])
        broken = [x.clone().index_fill_(2, torch.arange(2000, 3000, device=DEVICE), torch.nan) for x in (key, value)]
        assert torch.equal(entmax_attention(sharp * query, *broken, **options), exact)


def test_no_waiting_and_the_same_bits_in_a_graph_over_a_static_cache():
    """One captured step serves every length of the cache, by the lengths or by the mask."""
    query, key, value = (x.to(DEVICE, BF16) for x in triple(heads=8, groups=2, queries=1, keys=4096))
    lengths = torch.tensor([4096], device=DEVICE)
    call = lambda: entmax_attention(query, key, value, lengths=lengths, enable_gqa=True)  # noqa: E731
    without_waiting(call)
    graph = Captured(call)
    for length in (4096, 1, 77, 3000):
        lengths.fill_(length)
        exact = entmax_attention(query, key[:, :, :length], value[:, :, :length], enable_gqa=True)
        replayed = graph.replay()
        assert (replayed - exact).abs().max() < 2e-2
        assert torch.equal(replayed, call())


def test_weights_that_half_precision_cannot_hold():
    """Each of 260,000 weights lies between two numbers of half precision, and both are off by 0.8 %."""
    key = torch.zeros(1, 1, 260_000, 16, dtype=F16, device=DEVICE)
    output = entmax_attention(key[:, :, :1], key, torch.ones_like(key))
    assert (output - 1).abs().max() < 1e-3
