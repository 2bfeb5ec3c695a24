"""Attention by triton's kernels, in its interpreter, against the reference in float64: outputs and all gradients."""

import pytest
import torch
from torch.autograd import forward_ad

from attention_checks import (
    F16,
    F32,
    F64,
    _as_if_long,  # noqa: F401 a fixture
    apart,
    assert_same,
    check_ties_at_the_threshold,
    check_ties_of_all_keys,
    compared,
    drawn,
)
from contmax import entmax_attention
from contmax.kernels.attention import _gpu_call as _attention_call
from contmax.kernels.attention import _gpu_dense as _attention_dense
from contmax.kernels.attention import _sizes as _attention_tuning

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_as_if_long")


@pytest.mark.parametrize("alpha", [1.25, 4 / 3, 1.4, 2.0])
def test_every_alpha(alpha, lists):
    assert_same(drawn(), alpha, is_causal=True)
    assert lists[0].counts.max() > 1
    assert not lists[0].dense.any()


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"queries": 9, "keys": 70, "values": 24, "channels": 20}, {}),
        ({"queries": 11, "keys": 6}, {"is_causal": True}),
        ({"heads": 4, "groups": 2, "queries": 2, "dtype": F16}, {"is_causal": True, "enable_gqa": True}),
        # Rows of the cotangent are not as far apart as those of the queries.
        ({"heads": 4, "groups": 2, "queries": 3, "values": 40}, {"enable_gqa": True}),
        ({"dtype": F16, "keys": 150}, {"scale": -0.3}),
        ({}, {"lengths": torch.tensor([7])}),
        (
            {},
            {
                "mask": torch.arange(19) % 3 > 0,
                "bias": torch.linspace(-2, 2, 5).view(1, 5, 1).expand(1, 5, 19),
            },
        ),
        # One number of the bias for each distance.
        ({"heads": 2}, {"bias": torch.linspace(-3, 3, 46).view(2, 1, 23)}),
        ({"queries": 9, "keys": 70}, {"bias": -torch.arange(69.0, -9.0, -1).abs().view(1, 1, 78), "is_causal": True}),
    ],
)
def test_shapes_and_options(sizes, options):
    assert_same(drawn(**sizes), **options)


@pytest.mark.parametrize("sharp", [2.0, 0.01])
def test_rows_in_any_place(sharp):
    given = apart(drawn(queries=5, keys=150, heads=2, sharp=sharp))
    assert {x.stride(2) for x in given} == {64}
    assert_same(given, is_causal=True)


def test_rows_that_are_far_apart_are_copied():
    for stride, result in ((2**24 - 1, 2**24 - 1), (2**24, 16), (2**40, 16)):
        rows = torch.empty_strided((1, 2, 130, 16), (16, 32, stride, 1), device="meta")
        assert _attention_call.with_near_rows(rows).stride(2) == result


def test_one_alpha_per_head_and_its_gradient():
    assert_same(drawn(heads=2), torch.tensor([1.2, 1.8]))


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.0, 1.7])])
def test_flat_rows_are_dense(alpha, lists):
    given = drawn(queries=2, keys=150, heads=2, sharp=0.01)
    assert_same(given, alpha, is_causal=True)
    assert lists[0].dense.any()


@pytest.mark.parametrize(
    ("alpha", "dtype"),
    [
        (1.25, F32),
        (4 / 3, F16),
        (1.5, F32),
        (1.5, F16),
        (2.0, F16),
        (torch.tensor([1.05]), F16),
        (torch.tensor([1.4]), F32),
    ],
)
def test_dense_rows_with_mass_in_some_blocks_of_keys(alpha, dtype, lists):
    query, key, value = drawn(queries=3, keys=700, dtype=dtype)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = -50.0
    key[..., 200:450, 0] = -0.003 * torch.rand(250).to(dtype)
    key[..., 330, 0] = 0.0
    assert_same([query, key, value], alpha, scale=1.0)
    columns = _attention_tuning.TUNING.dense_columns
    span = lists[0].dense.item()
    assert (span % 2**32, span // 2**32) == (200 // columns, 449 // columns + 1)


@pytest.mark.parametrize(
    ("alpha", "second", "cluster", "width", "near", "dtype"),
    [
        (alpha, *scores, near, dtype)
        for alpha, scores, dtypes in (
            (1.5, (-1.6861, -1.8908, 0.0029), (F16, F32)),
            (1.7, (-1.0923, -1.0853, 0.0231), (F32, F16)),
            (torch.tensor([1.7]), (-1.0923, -1.0853, 0.0231), (F16, F32)),
            (torch.tensor([2.0]), (-0.3332, -0.2724, 0.0036), (F32, F16)),
        )
        for near, dtype in zip((120, 1024), dtypes, strict=True)  # in a list, and dense
    ],
)
def test_rows_with_many_keys_next_to_the_threshold(alpha, second, cluster, width, near, dtype, lists):
    # A step of Newton's method is small where so many keys have next to no mass, and much of it is left to do.
    query, key, value = drawn(queries=1, keys=near + 100, dtype=dtype)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = -20.0
    key[..., 0, 0], key[..., 1, 0] = 0.0, second
    if cluster == -0.2724:
        key[..., 2:4, 0] = 0.0
    key[..., 4 : near - 4, 0] = (cluster - width * torch.rand(near - 8)).to(dtype)
    value[..., 0] = torch.where(key[..., 0] < -0.01, -1.0, 1.0).to(dtype)
    for i, (ours, exact) in enumerate(compared([query, key, value], alpha, scale=1.0)):
        error = (ours - exact).abs().max() / exact.abs().max().clamp(min=0.1)
        assert error < ((2e-5 if i < 1 else 1e-4) if dtype == F32 else 2e-3), i
    assert bool(lists[0].dense.any()) == (near == 1024)


def along_one_channel(scores):
    """A query with these scores, and values that tell where errors of p lie: one of them is 1 or −1 by the score."""
    query, key, value = drawn(queries=1, keys=len(scores), dtype=F16)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = scores.to(F16)
    value[..., 0] = torch.where(key[..., 0] > key[..., 0].topk(40).values[..., -1:], 1.0, -1.0).to(F16)
    return [query, key, value]


# A power, products and a tensor; scores that are close together, and not.
@pytest.mark.parametrize(
    ("alpha", "spread"), [(1.2, 1.0), (1.25, 0.3), (4 / 3, 1.0), (torch.tensor([1.3]), 1.0), (torch.tensor([1.3]), 0.3)]
)
def test_dense_rows_in_half_precision(alpha, spread, lists):
    for i, (ours, exact) in enumerate(compared(along_one_channel(spread * torch.randn(1536)), alpha, scale=1.0)):
        assert (ours - exact).abs().max() / exact.abs().max().clamp(min=0.1) < 2e-3, i


@pytest.mark.parametrize(
    ("alpha", "above"),
    # Every α where half of the keys are above the threshold; some where none or all are.
    [(alpha, 0.002) for alpha in (1.2, 1.25, 4 / 3, 1.5, torch.tensor([1.3]))]
    + [(1.2, 0.01), (1.25, -0.002), (1.25, 0.3), (1.5, -0.002), (torch.tensor([1.3]), 0.01)],
)
def test_dense_rows_with_a_thousand_keys_next_to_the_threshold(alpha, above, lists):
    epsilon = float(alpha) - 1
    few = torch.tensor([0.0, -0.3, -0.7, -1.2])
    t = torch.linspace(0, 1, 100001, dtype=F64)[:, None]
    t = t[((t + epsilon * few).clamp(min=0).pow(1 / epsilon).sum(1) < 1).sum()].item()
    scores = torch.full((1536,), -t / epsilon + above) + 0.002 * torch.rand(1536)
    scores[:1024:256] = few
    # At α = 3/2 an error of 1e-4 of all mass is a hundredth of what these keys have in Σ p^{2−α}.
    most = 3e-3 if alpha < 1.5 else 6e-3
    for i, (ours, exact) in enumerate(compared(along_one_channel(scores), alpha, scale=1.0)):
        assert (ours - exact).abs().max() / exact.abs().max().clamp(min=0.1) < most, i


@pytest.mark.parametrize(
    ("scale", "alpha", "options"),
    [(scale, alpha, {}) for scale, alpha in ((0.0, 1.3), (0.0, 1.5), (1e-31, 1.3), (1e-12, 1.5))]
    + [
        (scale, 1.3, options)
        for scale, options in (
            (0.0, {"is_causal": True}),
            (1e-31, {"mask": torch.arange(300) % 2 > 0}),
            (0.0, {"lengths": torch.tensor([200])}),
        )
    ],
)
def test_a_scale_next_to_nothing(scale, options, alpha):
    assert_same(drawn(queries=3, keys=300, dtype=F16), alpha, scale=scale, **options)


@pytest.mark.parametrize("alpha", [1.25, 1.5])
def test_dense_rows_whose_scores_share_a_large_number(alpha, monkeypatch):
    # What is left of Σ p − 1 is rounding, and no step makes it less.
    blocks, scores = [], _attention_dense.dense_scores
    monkeypatch.setattr(_attention_dense, "dense_scores", lambda *given: blocks.append(1) or scores(*given))
    query, key, value = drawn(queries=64, keys=1024, dtype=F16)
    query[..., 0], query[..., 1:] = 1.0, 0.01 * query[..., 1:]
    key[..., 0] = 8000.0
    entmax_attention(query, key, value, alpha=alpha, scale=1.0)
    assert 2 * 1024 // 64 <= len(blocks) <= 8 * 1024 // 64


def test_runs_of_dense_blocks_of_rows(lists):
    query, key, value = drawn(queries=192, keys=200, dtype=F16)
    query[..., :64, :], query[..., 128:, :] = 0.001 * query[..., :64, :], 0.001 * query[..., 128:, :]
    query[..., 64:128, :] *= 3
    assert_same([query, key, value])
    assert lists[0].dense.bool().tolist() == [[True, False, True]]


@pytest.mark.parametrize("alpha", [1.0, 1.01])
@pytest.mark.parametrize("keys", [60, 200])
def test_probabilities_below_the_smallest_normal_number(alpha, keys):
    query, key, value = drawn(queries=2, keys=keys, dtype=F16)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = torch.linspace(-110.0, 0.0, keys).half()
    for ours, exact in compared([query, key, value], torch.tensor([alpha]), scale=1.0):
        assert ours.isfinite().all()
        assert (ours - exact).abs().max() < 1e-2 * exact.abs().max().clamp(min=0.1)


@pytest.mark.parametrize(("others", "dense"), [(-1.0, 0), (-0.7, 1)])
def test_more_tiles_than_a_first_bound_leaves(lists, others, dense):
    # The largest of each tile know of three of the 48 keys with mass: by these alone scores above −1.15 have mass, of
    # which 27 tiles have two, too many to multiply again. By both tops of all tiles those above −0.82 have.
    query, key, value = drawn(queries=1, keys=500)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = -10.0
    keys = torch.arange(500)
    key[..., (keys < 64) & (keys % 8 < 6), 0] = 0.0
    key[..., (keys >= 64) & (keys < 448) & (keys % 64 < 8), 0] = others
    assert_same([query, key, value], scale=1.0)
    assert lists[0].dense.bool().flatten().tolist() == [dense]
    assert dense or lists[0].counts.flatten().tolist() == [48]


@pytest.mark.parametrize("keys", [2100, 5000])
def test_the_largest_of_several_tiles(keys, lists):
    query, key, value = drawn(queries=3, keys=keys, dtype=F16)
    query[0, 0, 0], key[0, 0, 96:128] = 1.5, 1.5  # a row whose keys with mass are neighbours
    ours, exact = (entmax_attention(*(x.to(dtype) for x in (query, key, value))) for dtype in (F16, F64))
    assert (ours - exact).abs().max() < 3e-3
    assert not lists[0].dense.any()
    assert lists[0].counts[0, 0] == 32


def test_dense_and_listed_blocks_together(lists):
    query, key, value = drawn(queries=66, keys=150)
    query[:, :, :3] *= 0.001
    query[:, :, 3:] *= 20  # short lists
    assert_same([query, key, value])
    assert lists[0].dense.bool().flatten().tolist() == [True, False]


def test_keys_of_one_tile_are_all_found(lists):
    """The support lies in one tile, of which only two tops are known; neighbours of the threshold are told apart."""
    tile = torch.tensor([2, 3, 10, 11, 18, 19, 26, 27])
    key = torch.full((1, 1, 64, 16), -9.0)
    key[..., 1:] = 0
    key[0, 0, tile, 0] = torch.tensor([0.0, -0.1, -0.2, -0.3, -0.4, -1.0, -1.2, -1.3])
    query = torch.zeros(1, 1, 4, 16)
    query[..., 0] = torch.tensor([1.0, 0.5, 2.0, 30.0])
    value = torch.randn(1, 1, 64, 16)
    assert_same([query, key, value], scale=1.0)
    for i, alpha in enumerate((1.25, 1.5, 2.0)):
        _, weights = entmax_attention(
            query.double(), key.double(), value.double(), alpha=alpha, scale=1.0, need_weights=True
        )
        entmax_attention(query.requires_grad_(), key, value, alpha=alpha, scale=1.0)
        for row in range(4):
            count = lists[1 + i].counts[0, row]
            assert sorted(lists[1 + i].keys[0, row, :count].tolist()) == weights[0, 0, row].nonzero().flatten().tolist()


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_support_that_changes_in_the_last_step(alpha):
    """Keys within rounding of the threshold: the second key has mass if it is above −1/(α − 1)."""
    gaps = torch.tensor([1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0, -1e-5, -1e-3])
    key = torch.zeros(1, 8, 40, 16)
    key[..., 0] = -3.0
    key[:, :, 5, 0] = 0.0
    key[:, :, 37, 0] = gaps - 1 / (alpha - 1)
    query = torch.zeros(1, 8, 2, 16)
    query[..., 0] = 1.0
    value = torch.zeros(1, 8, 40, 16)
    value[:, :, 37] = 1.0
    (ours, exact), *_ = compared([query, key, value], alpha, scale=1.0)
    assert torch.allclose(ours, exact, rtol=2e-3 if alpha < 2 else 1e-2, atol=1e-12)
    assert ((ours[0, :5] > 0) == (exact[0, :5] > 0)).all()
    assert (ours[0, 5:] == 0).all()


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("count", [128, 129])
def test_one_key_of_each_of_many_tiles(count, dtype, lists):
    """The first keys of tiles have all the mass: without one of 129 the output is off by 0.02."""
    query, key, value = drawn(queries=1, keys=33 * 64, dtype=dtype)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = -20.0
    firsts = (64 * torch.arange(33)[:, None] + 2 * torch.arange(4)).flatten()
    key[..., firsts[:count], 0] = 0.0
    output = entmax_attention(query, key, value, scale=1.0)
    exact = value[:, :, firsts[:count]].double().mean(2, keepdim=True)
    assert (output - exact).abs().max() < 2e-3
    assert lists[0].dense.bool().tolist() == [[count > 128]]


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("keys", [64, 65, 130])
def test_ties_of_all_keys(keys, dtype, lists):
    """A block in which all keys have mass is dense, unless there are 64 keys or fewer."""
    check_ties_of_all_keys(3, keys, dtype)
    assert lists[0].dense.bool().tolist() == [[keys > 64]]
    assert keys > 64 or (lists[0].counts == keys).all()


def test_rows_of_nothing_and_of_nan():
    query, key, value = drawn(queries=5, keys=9, heads=1)
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[1] = False
    query[0, 0, 3] = torch.nan
    given = [x.requires_grad_() for x in (query, key, value)]
    output = entmax_attention(*given, mask=mask)
    assert (output[0, 0, 1] == 0).all()
    assert output[0, 0, 3].isnan().all()
    assert output[0, 0, [0, 2, 4]].isfinite().all()
    (grad,) = torch.autograd.grad(output[0, 0, [0, 1, 2, 4]].sum(), given[:1])
    assert (grad[0, 0, 1] == 0).all()
    assert grad[0, 0, 3].isnan().all()
    outside = entmax_attention(*given, alpha=torch.tensor([2.5]))
    assert outside.isnan().all()


def test_higher_derivatives_by_the_reference():
    given = [x.requires_grad_() for x in drawn(queries=3, keys=4, heads=1)]
    exact = [x.detach().double().requires_grad_() for x in given]
    seconds = []
    for inputs in (given, exact):
        (slope,) = torch.autograd.grad(entmax_attention(*inputs).square().sum(), inputs[0], create_graph=True)
        seconds.append(torch.autograd.grad(slope.square().sum(), inputs[1])[0])
    assert torch.allclose(seconds[0].double(), seconds[1], rtol=1e-3, atol=1e-4)
    moves = [torch.randn_like(x) for x in exact]
    tangents = []
    for inputs, dtype in ((given, F32), (exact, F64)):
        with forward_ad.dual_level():
            duals = [
                torch.autograd.forward_ad.make_dual(x.detach(), m.to(dtype)) for x, m in zip(inputs, moves, strict=True)
            ]
            tangents.append(torch.autograd.forward_ad.unpack_dual(entmax_attention(*duals)).tangent)
    assert torch.allclose(tangents[0].double(), tangents[1], rtol=1e-3, atol=1e-4)


@pytest.mark.graph
def test_is_one_node_of_a_graph():
    given = [x.requires_grad_() for x in drawn(queries=4, keys=5, heads=2)]
    alpha = torch.tensor([1.3, 1.6], requires_grad=True)

    def attend(*inputs):
        return entmax_attention(*inputs[:3], alpha=inputs[3], is_causal=True)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager_default_partitioner")
    inputs = [*given, alpha]
    found, expected = compiled(*inputs), attend(*inputs)
    assert torch.equal(found, expected)
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("keys", "dtype"), [(100, F32), (150, F16)])
def test_ties_at_the_threshold(keys, dtype):
    check_ties_at_the_threshold(keys, dtype)
