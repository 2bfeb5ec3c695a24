"""Attention on a GPU to few keys, in half precision: no lists, numbers and gradients of float64 on the CPU."""

import pytest
import torch

import contmax
from attention_checks import (
    check_lengths_above_the_number_of_keys,
    check_slopes_that_half_precision_cannot_hold,
    check_whole_blocks_whose_scores_share_a_large_number,
)
from cuda_attention_checks import attend, triple
from cuda_checks import BF16, DEVICE, F16, ON_GPU, Captured, Fixed, assert_accurate, drawn, without_waiting

pytestmark = pytest.mark.gpu
HALF = pytest.mark.parametrize(("dtype", "tolerance"), [(F16, 3e-3), (BF16, 2e-2)], ids=["float16", "bfloat16"])


@HALF
@pytest.mark.parametrize("alpha", [1.05, 1.25, 4 / 3, 1.5, 1.7, 2.0])
def test_every_alpha(alpha, dtype, tolerance):
    assert_accurate(attend(alpha, is_causal=True), triple(queries=300, keys=300), dtype, tolerance=tolerance)


def test_one_alpha_per_head():
    given = [*triple(heads=6, groups=3, queries=200, keys=300), torch.linspace(1.05, 2.0, 6)]
    assert_accurate(attend(enable_gqa=True, is_causal=True), given, BF16, tolerance=2e-2)


@pytest.mark.parametrize(("queries", "keys"), [(33, 1), (64, 64), (65, 63), (200, 70), (129, 1024), (40, 1000)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_length(queries, keys, causal):
    assert_accurate(attend(is_causal=causal), triple(queries=queries, keys=keys), BF16, tolerance=2e-2)


@pytest.mark.parametrize("alpha", [1.25, 4 / 3])
def test_a_small_alpha_has_no_lists_of_more_keys(alpha):
    assert_accurate(attend(alpha, is_causal=True), triple(queries=200, keys=4000), F16, tolerance=3e-3)


@pytest.mark.parametrize("channels", [16, 40, 128, 256])
def test_every_width(channels):
    assert_accurate(attend(), triple(channels=channels, values=channels), BF16, tolerance=2e-2)


@HALF
@pytest.mark.parametrize("sharp", [0.0, 0.1, 5.0, 30.0])
def test_flat_and_sharp_scores(sharp, dtype, tolerance):
    assert_accurate(attend(), triple(keys=500, sharp=sharp), dtype, tolerance=tolerance)


def test_masks_biases_and_lengths():
    given = [*triple(), drawn(2, 150, 200) > -0.3, Fixed(drawn(2, 1, 200, seed=4)), torch.tensor([150])]
    call = lambda q, k, v, m, b, n: contmax.entmax_attention(q, k, v, mask=m, bias=b, lengths=n)  # noqa: E731
    assert_accurate(call, given, BF16, tolerance=2e-2)


def test_the_same_bits_every_time_and_in_a_graph():
    given = [x.to(DEVICE, BF16).requires_grad_() for x in triple(queries=300, keys=300, heads=4)]

    def call():
        output = attend(is_causal=True)(*given)
        # Without its graph, which would tie the recording to the stream of this call.
        return [output.detach(), *torch.autograd.grad(output, given, torch.ones_like(output))]

    first = without_waiting(call)
    for again in (call(), Captured(call).replay()):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("alpha", [1.02, 1.25, 1.5, 1.7, 2.0])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_as_large_as_can_be(alpha, causal):
    query, key, value = triple(queries=100, keys=100)
    given = [x.clamp(-1, 1).mul(size).to(F16) for x, size in ((query, 6e4), (key, 6e4), (value, 1.0))]
    exact = attend(alpha, is_causal=causal)(*(x.double() for x in given))
    ours = attend(alpha, is_causal=causal)(*(x.to(DEVICE) for x in given))
    assert (ours.cpu() - exact).abs().max() < 3e-3


@pytest.mark.parametrize("alpha", [1.25, 1.5])
def test_whole_blocks_whose_scores_share_a_large_number(alpha):
    check_whole_blocks_whose_scores_share_a_large_number(alpha, DEVICE)


@pytest.mark.parametrize("small", ["keys", "queries"])
def test_slopes_that_half_precision_cannot_hold(small):
    check_slopes_that_half_precision_cannot_hold(small, DEVICE)


def test_lengths_above_the_number_of_keys():
    check_lengths_above_the_number_of_keys(40, 70, F16, DEVICE)


@pytest.mark.skipif(not ON_GPU, reason="the memory of a GPU")
def test_nothing_is_kept_for_lists():
    inputs = [x.to(DEVICE, BF16).requires_grad_() for x in triple(heads=32, queries=512, keys=512)]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    output = attend(is_causal=True)(*inputs)
    size = output.numel() * output.element_size()
    assert torch.cuda.memory_allocated() - before < 4 * size  # the output, means of float32 and a few numbers a row
