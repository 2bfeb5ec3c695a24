"""Attention of few queries by triton's kernels for decoding, in its interpreter, against the reference in float64."""

import pytest
import torch

from attention_checks import F16, F32, F64, apart, drawn
from contmax import entmax_attention
from contmax.attention import _compiled
from contmax.kernels import attention as kernels
from contmax.kernels.attention import _gpu_attention, _gpu_launches, _sizes
from masked_checks import ALL, filled

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")
PER_HEAD = torch.tensor([1.0, 1.02, 1.5, 2.0])


@pytest.fixture
def states(monkeypatch):
    """For each call of the kernels, the maximum of every row and its t; t is 0 where the row is not dense."""
    seen, launches_of = [], _gpu_attention.decoding

    def watched(*given, **options):
        plan = launches_of(*given, **options)

        def average(*tensors):
            seen.append(tensors[4].clone())
            plan.average(*tensors)

        return plan._replace(average=average)

    monkeypatch.setattr(_gpu_attention, "decoding", watched)
    return seen


def assert_same(given, alpha=1.5, **options):
    """Compare with the reference, which computes in float64."""
    tolerance = 5e-6 if given[0].dtype == F32 else 3e-3
    ours = entmax_attention(*given, alpha=alpha, **options)
    wide = {k: v.double() if k == "bias" else v for k, v in options.items()}
    exact = entmax_attention(*(x.double() for x in given), alpha=alpha, **wide)
    assert exact.dtype == F64
    error = (ours.double() - exact).abs().max()
    assert error < tolerance * exact.abs().max().clamp(min=0.5)


@pytest.mark.parametrize("alpha", [1.0001, 1.05, 1.25, 4 / 3, 1.5, 1.7, 2.0, PER_HEAD])
@pytest.mark.parametrize(("dtype", "sharp"), [(F32, 0.01), (F16, 0.01), (F32, 3.0)])  # dense, dense, in a list
def test_every_alpha(alpha, dtype, sharp, states):
    heads = 4 if isinstance(alpha, torch.Tensor) else 1
    assert_same(drawn(1, 700, heads=heads, groups=1, dtype=dtype, sharp=sharp), alpha, enable_gqa=True)
    assert len(states) == 1


@pytest.mark.parametrize(("share", "is_dense"), [(1.0, True), (0.5, True), (0.02, False)])
def test_rows_with_mass_on_a_share_of_many_keys(share, is_dense, states):
    query, key, value = drawn(1, 4000, dtype=F16)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = torch.where(torch.rand(4000) < share, -0.003 * torch.rand(4000), -50.0).to(F16)
    assert_same([query, key, value], scale=1.0)
    assert bool((states[0][:, 1] > 0).all()) == is_dense


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"queries": 3, "keys": 70, "values": 24, "channels": 20}, {}),
        ({"queries": 2, "keys": 300, "heads": 4, "groups": 2}, {"is_causal": True, "enable_gqa": True}),
        ({"queries": 4, "keys": 3}, {"is_causal": True}),  # the first queries attend nothing
        ({"keys": 300}, {"lengths": torch.tensor([170])}),
        ({"keys": 300}, {"lengths": torch.tensor([0])}),
        ({"keys": 300}, {"lengths": torch.tensor([999])}),
        ({"keys": 150}, {"scale": -0.3}),
        ({"keys": 150}, {"mask": torch.arange(150) % 3 > 0}),
        ({"keys": 150}, {"mask": torch.rand(2, 150, generator=torch.Generator().manual_seed(0)) < 0.3}),
        ({"keys": 150}, {"mask": torch.zeros(150, dtype=torch.bool)}),
        ({"heads": 2, "keys": 90}, {"bias": torch.linspace(-3, 3, 2 * 91).view(2, 1, 91)}),  # by distance
        ({"queries": 1, "heads": 2, "keys": 90}, {"bias": torch.linspace(-9, 0, 180).view(2, 1, 90)}),
        ({"keys": 150}, {"bias": torch.zeros(150).masked_fill(torch.arange(150) % 2 > 0, -torch.inf)}),
        ({"keys": 150}, {"scale": 0.0}),
    ],
)
@pytest.mark.parametrize("dtype", [F32, F16])
def test_shapes_and_options(sizes, options, dtype):
    assert_same(drawn(**{"queries": 2, **sizes}, dtype=dtype), **options)


def test_more_queries_than_a_program_has():
    assert_same(drawn(queries=23, keys=150, heads=3, groups=1), is_causal=True, enable_gqa=True)


def test_rows_in_any_place():
    assert_same(apart(drawn(2, 150, heads=2)), is_causal=True)


@pytest.mark.parametrize("seed", range(3))
def test_random_caches(seed, states):
    """Forty caches each, of any length, width, sharpness and α."""
    torch.manual_seed(seed)

    def one_of(*choices):
        return choices[int(torch.randint(len(choices), ()))]

    for _ in range(40):
        heads, queries, keys = one_of(1, 1, 1, 2), one_of(1, 1, 1, 2), int(torch.randint(1, 900, ()))
        sizes = {"heads": heads, "groups": 1, "channels": one_of(8, 40), "values": one_of(8, 40)}
        given = drawn(queries, keys, **sizes, dtype=one_of(F32, F16), sharp=one_of(0.0, 0.1, 1.0, 5.0))
        alpha = one_of(1.1, 1.5, 2.0, 1 + torch.rand(heads))
        options = one_of({}, {"is_causal": True}, {"lengths": torch.randint(keys + 1, (1,))})
        assert_same(given, alpha, enable_gqa=True, **options)
    assert len(states) == 40


@pytest.mark.parametrize("keys", [300, 700])  # in a list, and dense where scores are flat
@pytest.mark.parametrize("dtype", [F32, F16])
def test_numbers_of_masked_keys_never_matter(dtype, keys):
    query, key, value = drawn(2, keys, dtype=dtype)
    mask = torch.arange(keys) < keys - 50
    for alpha, sharp in ((1.5, 1.0), (1.5, 0.0), (1.01, 1.0)):
        without = entmax_attention(sharp * query, key[..., :-50, :], value[..., :-50, :], alpha=alpha)
        for options in ({"mask": mask}, {"lengths": torch.tensor([keys - 50])}):
            exact = entmax_attention(sharp * query, key, value, alpha=alpha, **options)
            assert (exact - without).abs().max() < (2e-6 if dtype == F32 else 2e-3)
            broken = [filled(y, mask.unsqueeze(-1), ALL) for y in (key, value)]
            assert torch.equal(entmax_attention(sharp * query, *broken, alpha=alpha, **options), exact)


def test_a_broken_key_breaks_the_rows_that_attend_it():
    query, key, value = drawn(2, 300)
    key[..., 299, :] = torch.nan
    output = entmax_attention(query, key, value, is_causal=True)
    assert output[..., 1, :].isnan().all()
    assert output[..., 0, :].isfinite().all()
    assert entmax_attention(query, key, value, alpha=torch.tensor([0.5])).isnan().all()


def test_one_key_far_above_and_keys_that_are_all_equal():
    query, key, value = drawn(1, 5000, dtype=F16)
    assert_same([query, key[..., :1, :].expand_as(key), value])
    key[..., 4321, :] = 50 * query[..., 0, :]
    assert torch.equal(entmax_attention(query, key, value), value[..., 4321:4322, :])


def test_scores_that_share_a_large_number():
    query, key, value = drawn(1, 500)
    query[..., 0], key[..., 0] = 100.0, 100.0
    ours = entmax_attention(query, key, value, scale=1.0)
    exact = entmax_attention(*(x.double() for x in (query, key, value)), scale=1.0)
    assert (ours - exact).abs().max() < 5e-3  # scores of 10,000 have three digits behind the point


def test_gradients_and_many_scores_go_another_way(states, monkeypatch):
    query, key, value = drawn(1, 40)
    entmax_attention(query.requires_grad_(), key, value).sum().backward()
    assert not states
    monkeypatch.setattr(_sizes, "_MOST_TILES", 1)
    with torch.no_grad():
        assert kernels.decoding_fits(query, key, value)
        entmax_attention(query, key, value)
        assert len(states) == 1
        entmax_attention(query, *drawn(1, 140)[1:])
    assert len(states) == 1


def test_launches_do_not_depend_on_the_length():
    """Constants of compilation are those of the next power of two."""
    found = []
    for keys in (1025, 1999, 2048):
        call = _gpu_attention.AttentionCall(*drawn(1, keys), 1.5, kernels.AttentionOptions(None, None, None, None, 1.0))
        sizes = _sizes.decoding_sizes(1, keys, 1, call.kind.block_width, 4)
        found.append([x._launch._kinds for x in _gpu_launches.decoding(call.kind, sizes)[-3:]])
    assert found[0] == found[1] == found[2]


def test_the_longest_cache_has_as_many_warps_as_a_program_may_have():
    keys = _sizes.most_keys_of_decoding(128, 2)
    key = torch.empty(1, 1, 1, 128, dtype=F16).expand(1, 1, keys, 128)
    options = kernels.AttentionOptions(None, None, None, None, 1.0)
    call = _gpu_attention.AttentionCall(key[:, :, :1], key, key, 1.5, options)
    sizes = _sizes.decoding_sizes(1, keys, 1, 128, 2)
    assert sizes.tiles == 2**15
    assert _gpu_launches.decoding(call.kind, sizes).solve._launch._options["num_warps"] == 32


def test_fewest_queries_of_the_other_kernels(states):
    entmax_attention(*drawn(_compiled._FEWEST_QUERIES - 1, 40))
    assert len(states) == 1
    entmax_attention(*drawn(_compiled._FEWEST_QUERIES, 40))
    assert len(states) == 1
