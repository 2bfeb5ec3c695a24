"""Attention on a GPU: numbers and gradients of float64 on the CPU, for every kind of input; nothing waits."""

import pytest
import torch
from triton.runtime.jit import JITFunction

import contmax
from attention_checks import (
    _as_if_long,  # noqa: F401 a fixture
    check_lengths_above_the_number_of_keys,
    check_ties_at_the_threshold,
    check_ties_of_all_keys,
)
from cuda_attention_checks import attend, triple
from cuda_checks import BF16, DEVICE, DTYPES, F16, F32, ON_GPU, Captured, Fixed, assert_accurate, drawn, without_waiting

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("_as_if_long")]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
def test_every_dtype(dtype, causal):
    assert_accurate(attend(is_causal=causal), triple(), dtype, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("alpha", [1.1, 1.25, 4 / 3, 1.7, 2.0])
def test_every_alpha(alpha):
    assert_accurate(attend(alpha, is_causal=True), triple(sharp=3.0), tolerance=2e-5)


def test_one_alpha_per_head():
    assert_accurate(attend(), [*triple(heads=3), torch.tensor([1.2, 1.5, 1.9])], tolerance=1e-4)
    # With α = 1 every score has mass, and what is not allowed still has none.
    short = triple(heads=2, queries=40, keys=40, sharp=0.1)
    assert_accurate(attend(is_causal=True), [*short, Fixed(torch.tensor([1.0, 1.5]))], tolerance=1e-4)


@DTYPES
@pytest.mark.parametrize("size", [150, 700, 5000])
@pytest.mark.parametrize("sharp", [3.0, 0.02])
def test_packed_sequences_and_windows(size, sharp, dtype):
    offsets = torch.tensor([0, 1, size // 3, size // 3, size - size // 4, size - 5])
    given = triple(queries=size, keys=size, sharp=sharp)

    def packed(query, key, value, offsets):
        return contmax.entmax_attention(query, key, value, cu_seqlens=offsets, is_causal=True)

    assert_accurate(packed, [*given, offsets], dtype, tolerance=TOLERANCE[dtype])
    offsets = offsets[:2] * (size // 3)  # whole blocks of queries have no key
    assert_accurate(packed, [*given, offsets], dtype, tolerance=TOLERANCE[dtype])
    assert_accurate(attend(1.25, window=(130, 20)), given, dtype, tolerance=TOLERANCE[dtype])
    query, key, value = (x.to(DEVICE, dtype) for x in given)
    offsets = offsets.to(DEVICE)
    without_waiting(lambda: contmax.entmax_attention(query, key, value, cu_seqlens=offsets, window=(100, 0)))


@pytest.mark.parametrize("length", [1000, 9000, 17000])
def test_blocks_without_mass_are_left_alone(length):
    # Queries and keys near the same of few centres, in order: far from the diagonal there is no mass.
    centres = 3 * drawn(1, 2, -(-length // 64), 64, seed=3).repeat_interleave(64, 2)[:, :, :length]
    query, key, value = triple(queries=length, keys=length)
    given = [(centres + query)[:, :, -200:], centres + 0.5 * key, value]
    assert_accurate(attend(is_causal=True), given, BF16, tolerance=2e-2)
    assert_accurate(attend(1.25), given, BF16, tolerance=2e-2)


@pytest.mark.parametrize("channels", [16, 40, 128, 256])
def test_every_width(channels):
    assert_accurate(attend(), triple(channels=channels, values=channels), BF16, tolerance=2e-2)


@pytest.mark.parametrize(("queries", "keys"), [(33, 1), (64, 64), (65, 63), (200, 70), (129, 1025), (40, 9000)])
def test_every_length(queries, keys):
    assert_accurate(attend(is_causal=True), triple(queries=queries, keys=keys), tolerance=2e-5)


def test_groups_masks_biases_and_lengths():
    for values in (64, 40):  # rows of the cotangent are as far apart as those of the queries, or not
        given = triple(heads=6, groups=2, values=values)
        assert_accurate(attend(enable_gqa=True, is_causal=True), given, BF16, tolerance=2e-2)
    given = [*triple(), drawn(2, 150, 200) > -0.3, Fixed(drawn(2, 1, 200, seed=4)), torch.tensor([150])]
    call = lambda q, k, v, m, b, n: contmax.entmax_attention(q, k, v, mask=m, bias=b, lengths=n)  # noqa: E731
    assert_accurate(call, given, tolerance=2e-5)


@pytest.mark.parametrize("dtype", [F32, F16], ids=["float32", "float16"])
def test_lengths_above_the_number_of_keys(dtype):
    check_lengths_above_the_number_of_keys(40, 300, dtype, DEVICE)


@pytest.mark.parametrize("keys", [128, 129, 130])  # a list holds 128
@pytest.mark.parametrize("dtype", [F32, F16], ids=["float32", "float16"])
def test_ties_of_all_keys(dtype, keys):
    check_ties_of_all_keys(40, keys, dtype, DEVICE)


@pytest.mark.parametrize("keys", [100, 1500, 3000])
@pytest.mark.parametrize("dtype", [F32, F16], ids=["float32", "float16"])
def test_ties_at_the_threshold(dtype, keys):
    check_ties_at_the_threshold(keys, dtype, DEVICE)


@pytest.mark.parametrize(("queries", "keys"), [(150, 200), (200, 150), (33, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_distances(queries, keys, causal):
    call = lambda q, k, v, b: contmax.entmax_attention(q, k, v, bias=b, is_causal=causal)  # noqa: E731
    bias = Fixed(drawn(2, 1, queries + keys - 1, seed=4))
    assert_accurate(call, [*triple(queries=queries, keys=keys), bias], tolerance=2e-5)
    # Flat rows, which are multiplied whole.
    assert_accurate(call, [*triple(queries=queries, keys=keys, sharp=0.02), bias], BF16, tolerance=2e-2)


@pytest.mark.skipif(not ON_GPU, reason="the memory of a GPU")
def test_alibi_has_no_matrix():
    attend = contmax.nn.EntmaxAttention(64, 4, is_causal=True, alibi="half").to(DEVICE, BF16)
    x = drawn(1, 16384, 64).to(DEVICE, BF16).requires_grad_()
    attend(x).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(x).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 400e6  # the bias would take 4.3 GB


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
def test_flat_rows_and_mixtures_of_flat_and_sparse(dtype):
    assert_accurate(
        attend(is_causal=True), triple(keys=600, queries=600, sharp=0.02), dtype, tolerance=TOLERANCE[dtype]
    )
    query, key, value = triple(keys=600, queries=600)
    query = query * torch.logspace(1, -3, 600).view(-1, 1)
    assert_accurate(attend(), [query, key, value], dtype, tolerance=TOLERANCE[dtype])


def test_the_same_bits_every_time_and_in_a_graph():
    given = [x.to(DEVICE, BF16).requires_grad_() for x in triple(queries=1000, keys=1000, heads=4)]

    def call():
        output = contmax.entmax_attention(*given, is_causal=True)
        # Without its graph, which would tie the recording to the stream of this call.
        return [output.detach(), *torch.autograd.grad(output, given, torch.ones_like(output))]

    first = without_waiting(call)
    for again in (call(), Captured(call).replay()):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.skipif(not ON_GPU, reason="the interpreter is asked every time")
def test_triton_is_asked_once_for_each_kind_of_call(monkeypatch):
    given = [x.to(DEVICE, BF16).requires_grad_() for x in triple()]
    asked, run = [], JITFunction.run
    monkeypatch.setattr(JITFunction, "run", lambda self, *a, **o: (asked.append(self), run(self, *a, **o))[1])
    for expected in (None, 0, 0):
        asked.clear()
        output = contmax.entmax_attention(*given, is_causal=True)
        torch.autograd.grad(output, given, torch.ones_like(output))
        assert expected is None or len(asked) == expected


def test_biases_of_every_dtype_in_turns():
    given = [x.to(DEVICE, BF16) for x in triple()]
    bias = (4 * drawn(2, 150, 200)).round().div(4).to(DEVICE)  # the same numbers in every dtype
    expected = attend(bias=bias)(*given)
    for dtype in (BF16, torch.float16, F32, torch.float64) * 2:
        assert torch.equal(attend(bias=bias.to(dtype))(*given), expected)


@pytest.mark.parametrize("places", [1, 3])
def test_addresses_that_are_no_multiples_of_sixteen(places):
    given = [x.to(DEVICE, BF16) for x in triple()]
    memory = [torch.empty(x.numel() + places, dtype=BF16, device=DEVICE) for x in given]
    shifted = [m[places:].view(x.shape).copy_(x) for m, x in zip(memory, given, strict=True)]
    expected = attend(is_causal=True)(*given)
    for inputs in (shifted, given, shifted):
        assert torch.equal(attend(is_causal=True)(*inputs), expected)


@pytest.mark.skipif(not ON_GPU, reason="needs two devices")
def test_what_is_on_another_device_is_refused_and_single_numbers_are_not():
    given = [x.to(DEVICE, BF16) for x in triple()]
    for options in ({"mask": torch.ones(150, 200, dtype=torch.bool)}, {"lengths": torch.tensor([100])}):
        attend(**{name: x.to(DEVICE) for name, x in options.items()})(*given)  # launches are kept
        with pytest.raises(ValueError, match="but the queries are on cuda"):
            attend(**options)(*given)
    learned = torch.tensor(1.5)
    assert torch.equal(attend(learned)(*given), attend(learned.to(DEVICE))(*given))


def test_strides_and_transposed_heads():
    packed = drawn(2, 100, 3, 4, 64).to(DEVICE, BF16)
    query, key, value = packed.permute(2, 0, 3, 1, 4)
    expected = contmax.entmax_attention(*(x.contiguous() for x in (query, key, value)))
    assert torch.equal(contmax.entmax_attention(query, key, value), expected)


def test_no_matrix_of_weights():
    if not ON_GPU:
        pytest.skip("counts what CUDA allocates")
    given = [drawn(1, 1, 32768, 64).to(DEVICE, BF16).requires_grad_() for _ in range(3)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    contmax.entmax_attention(*given, is_causal=True).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 600e6  # the weights alone would take 4 GB in float32


def test_modules_and_autocast():
    module = contmax.nn.EntmaxAttention(64, 4, learnable=True, is_causal=True, alibi="half", length_scale=True).to(
        DEVICE
    )
    x = drawn(2, 100, 64).to(DEVICE)
    with torch.autocast(DEVICE, BF16):
        output = module(x)
    assert output.dtype == BF16
    output.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("masked", [False, True])
def test_slices_that_begin_at_an_odd_address(alpha, masked):
    torch.manual_seed(0)
    place = lambda x: x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)  # noqa: E731
    given = [place(torch.randn(1, 3, n, 128, device=DEVICE)) for n in (100, 4100, 4100)]
    assert not ON_GPU or all(x.data_ptr() % 16 != 0 for x in given)
    options = {"mask": torch.rand(1, 3, 100, 4100, device=DEVICE) < 0.5} if masked else {}
    moved = [x.detach().requires_grad_() for x in given]
    output = contmax.entmax_attention(*moved, alpha=alpha, **options)
    gradients = torch.autograd.grad(output.square().sum(), moved)
    exact = [x.double().requires_grad_() for x in given]
    expected = contmax.entmax_attention(*exact, alpha=alpha, **options)
    wanted = torch.autograd.grad(expected.square().sum(), exact)
    for ours, theirs in zip((output, *gradients), (expected, *wanted), strict=True):
        assert (ours - theirs).norm() < 1e-4 * theirs.norm()
