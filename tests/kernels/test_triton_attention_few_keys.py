"""Attention by triton's kernels to few keys, of which no lists are made."""

import pytest
import torch

from attention_checks import (
    F16,
    F32,
    F64,
    _few_queries_too,  # noqa: F401 a fixture
    apart,
    assert_same,
    check_lengths_above_the_number_of_keys,
    check_slopes_that_half_precision_cannot_hold,
    check_ties_at_the_threshold,
    check_whole_blocks_whose_scores_share_a_large_number,
    compared,
    drawn,
)
from contmax import entmax_attention
from contmax.kernels.attention import _sizes as _attention_tuning

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too")
PER_HEAD = torch.tensor([1.02, 1.3, 1.1, 2.0])
ALPHAS = [1.05, 1.25, 4 / 3, 1.5, 1.7, 2.0, PER_HEAD]


IN_GROUPS = ({"queries": 3, "keys": 150, "groups": 2}, {"enable_gqa": True, "lengths": torch.tensor([90])})
MASKED = ({"queries": 5, "keys": 40}, {"mask": torch.arange(40) % 3 > 0})


# Every α with a part of a block of queries and of keys; a power, products and a tensor with the other options.
@pytest.mark.parametrize(
    ("alpha", "sizes", "options"),
    [(alpha, {"queries": 70, "keys": 70}, {"is_causal": True}) for alpha in ALPHAS]
    + [(alpha, *given) for alpha in (1.5, 1.7, PER_HEAD) for given in (IN_GROUPS, MASKED)],
)
def test_every_alpha(alpha, sizes, options, lists):
    # Every head is as many programs more.
    heads = 4 if "groups" in sizes or torch.is_tensor(alpha) else 1
    assert_same(drawn(heads=heads, dtype=F16, **sizes), alpha, **options)
    assert lists[0].are_empty
    assert lists[0].keys.numel() == lists[0].weights.numel() == lists[0].counts.numel() == 0


@pytest.mark.parametrize(
    ("sharp", "alpha"), [(0.0, 1.25), (0.1, 1.5), (1.0, 2.0), (5.0, 1.25), (50.0, 1.5), (0.0, 2.0), (50.0, 2.0)]
)
def test_flat_and_sharp_scores(sharp, alpha):
    assert_same(drawn(queries=6, keys=130, dtype=F16, sharp=sharp), alpha)


@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [
        (1, 1, True),
        (64, 64, True),
        (65, 63, False),
        (65, 63, True),
        (3, 200, False),
        (200, 70, True),
        (2, 1000, True),
        (80, 300, False),
    ],
)
def test_every_length(queries, keys, causal, lists):
    assert_same(drawn(queries=queries, keys=keys, dtype=F16), is_causal=causal)
    assert lists[0].are_empty


def test_rows_in_any_place():
    assert_same(apart(drawn(queries=70, keys=150, heads=2, dtype=F16)), is_causal=True)


@pytest.mark.parametrize("channels", [8, 40, 128])
def test_every_width(channels):
    assert_same(drawn(queries=9, keys=60, channels=channels, values=2 * channels, dtype=F16, sharp=0.5))


def test_biases():
    given = drawn(queries=20, keys=30, heads=2, dtype=F16)
    assert_same(given, bias=torch.randn(2, 20, 30))
    assert_same(given, bias=torch.randn(2, 1, 49), is_causal=True)
    assert_same(given, bias=torch.randn(30), scale=0.0)


def test_blocks_without_mass_are_left_out_of_gradients(lists):
    query, key, value = drawn(queries=4, keys=200, dtype=F16)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = -50.0
    key[..., 70:75, 0] = 0.0
    assert_same([query, key, value], scale=1.0)
    columns = _attention_tuning.TUNING.dense_columns
    assert lists[0].dense.tolist() == [[((75 // columns + 1) << 32) + 70 // columns]]


def test_many_keys_and_float32_have_lists(lists):
    entmax_attention(*drawn(queries=2, keys=1025, dtype=F16))
    entmax_attention(*drawn(queries=2, keys=20, dtype=F32))
    assert not any(kept.are_empty for kept in lists)
    entmax_attention(*drawn(queries=2, keys=1024, dtype=F16))
    assert lists[-1].are_empty


def test_a_small_alpha_leaves_long_lists_which_are_not_made(lists, monkeypatch):
    monkeypatch.setattr(_attention_tuning, "_FEW_KEYS", 100)
    given = drawn(queries=2, keys=400, dtype=F16, sharp=1.0)
    entmax_attention(*given, alpha=1.5)
    entmax_attention(*given, alpha=torch.tensor(1.3))
    assert not any(kept.are_empty for kept in lists)
    for alpha in (1.25, 4 / 3, 1.4):
        assert_same(given, alpha)
        assert lists[-1].are_empty


def test_rows_of_nan_of_infinity_and_of_nothing():
    query, key, value = drawn(queries=6, keys=9, dtype=F16)
    query[0, 0, 3] = torch.nan
    query[0, 0, 5] = torch.inf
    mask = torch.ones(6, 9, dtype=torch.bool)
    mask[1] = False
    inputs = [x.requires_grad_() for x in (query, key, value)]
    output = entmax_attention(*inputs, mask=mask)
    assert (output[0, 0, 1] == 0).all()
    assert output[0, 0, [3, 5]].isnan().all()
    assert output[0, 0, [0, 2, 4]].isfinite().all()
    of_query, _, _ = torch.autograd.grad(output[0, 0, [0, 1, 2, 4]].sum(), inputs)
    assert of_query[0, 0, [0, 1, 2, 4]].isfinite().all()
    assert (of_query[0, 0, 1] == 0).all()
    assert of_query[0, 0, [3, 5]].isnan().all()


def test_a_number_that_all_scores_share_changes_nothing():
    query, key, value = drawn(queries=5, keys=20, channels=8, dtype=F16)
    shared = [torch.cat([x, torch.full_like(x[..., :1], 2.0**7)], -1) for x in (query, key)]
    plain, moved = (entmax_attention(*given, value, scale=1.0) for given in ((query, key), shared))
    assert (plain - moved).abs().max() < 5e-3


def test_without_gradients_nothing_is_kept(lists):
    given = drawn(queries=5, keys=20, dtype=F16)
    output = entmax_attention(*given)
    assert lists[0].states.numel() == lists[0].means.numel() == 0
    exact = entmax_attention(*(x.to(F64) for x in given))
    assert (output - exact).abs().max() < 3e-3


def test_zeros_are_those_of_the_reference():
    """Weights are read off by values that are unit vectors."""
    query, key, _ = drawn(queries=8, keys=64, channels=16, dtype=F16)
    identity = torch.eye(64, dtype=F16)[None, None]
    output = entmax_attention(query, key, identity)
    exact = entmax_attention(query.to(F64), key.to(F64), identity.to(F64))
    assert ((output > 0) == (exact > 0)).float().mean() > 0.995  # the others are below what half precision tells
    assert output[exact == 0].max() < 1e-5
    assert exact[output == 0].max() < 1e-5


@pytest.mark.parametrize(
    ("size", "alpha"),
    [(6e4, alpha) for alpha in (1.02, *ALPHAS[1:])] + [(size, a) for size in (1e3, 1e4) for a in (1.5, 1.7, PER_HEAD)],
)
def test_scores_as_large_as_can_be(size, alpha, lists):
    """Of differences that float32 still tells, none is lost: the largest score has all the mass, or its neighbours."""
    heads = 4 if torch.is_tensor(alpha) else 1
    query, key, value = drawn(queries=70, keys=70, heads=heads, sharp=1.0, dtype=F16)
    query, key = (x.float().clamp(-1, 1).mul(size).half() for x in (query, key))
    ours, exact = compared([query, key, value], alpha, is_causal=True)[0]
    assert ours.isfinite().all()
    assert (ours - exact).abs().max() < 3e-3
    assert (lists[0].shifts != 0).any(-1).all()
    assert (lists[0].marks == 1).all()


@pytest.mark.parametrize("alpha", [1.3, 1.5, 1.7, 2.0])
@pytest.mark.parametrize("scale", [1e3, 1e7, 1e9, 1e20])
def test_scales_as_large_as_can_be(scale, alpha):
    given = drawn(queries=4, keys=70, dtype=F16)
    (ours, exact), *gradients = compared(given, alpha, scale=scale)
    assert (ours - exact).abs().max() < 3e-3
    assert all(x.isfinite().all() for x, _ in gradients)


def test_a_shift_of_one_row_leaves_others_as_they_are(lists):
    """The gradients are those of the other rows: what keys would get from this one is 1e4 times as large."""
    query, key, value = drawn(queries=20, keys=90, dtype=F16)
    query[..., 3, :] = 3e4
    rest = (torch.arange(20) != 3).unsqueeze(-1)
    results = []
    for dtype in (F16, F64):
        inputs = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        output = entmax_attention(*inputs, mask=torch.arange(90) % 7 > 0)
        results.append([output, *torch.autograd.grad(output, inputs, rest.expand_as(output).to(dtype))])
    assert lists[0].shifts.nonzero().tolist() == [[0, 3]]
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).abs().max() < 5e-3 * exact.abs().max()


@pytest.mark.parametrize("alpha", [1.25, 1.5])
def test_whole_blocks_whose_scores_share_a_large_number(alpha, lists):
    check_whole_blocks_whose_scores_share_a_large_number(alpha)
    assert (lists[0].shifts != 0).all()


@pytest.mark.parametrize("small", ["keys", "queries"])
def test_slopes_that_half_precision_cannot_hold(small):
    check_slopes_that_half_precision_cannot_hold(small)


def test_lengths_above_the_number_of_keys(lists):
    check_lengths_above_the_number_of_keys(5, 70, F16)
    assert lists[0].are_empty


def test_ties_at_the_threshold():
    check_ties_at_the_threshold(150, F16)
