"""Triton's kernels that skip pages of keys, in its interpreter, against attention to all keys in float64."""

import pytest
import torch

from attention_checks import F16, F32, drawn
from contmax import KeyPages, entmax_attention
from contmax.attention import _certified
from contmax.kernels.attention._gpu_call import AttentionCall
from key_pages_checks import OPTIONS, assert_budget_is_told, assert_certified, clustered
from masked_checks import ALL, filled

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "small_caches", "dirty_memory")
TOLERANCES = {F32: 1e-4, F16: 3e-3}  # scores reach 70


@pytest.fixture
def small_caches(monkeypatch):
    """Caches of any size have pages that are skipped, as otherwise only large ones have on a GPU."""
    monkeypatch.setattr(_certified, "_FEWEST_BYTES", 0)


@pytest.fixture
def dirty_memory(monkeypatch):
    """Memory that was never written holds numbers above all scores, as it may on a GPU."""
    empty = AttentionCall.empty
    monkeypatch.setattr(AttentionCall, "empty", lambda *given: [x.fill_(125) for x in empty(*given)])


@pytest.fixture
def by_kernels(monkeypatch):
    """The number of calls that the kernels took."""
    calls, decode = [], _certified.decode_by_pages

    def counted(*given):
        calls.append(given)
        return decode(*given)

    monkeypatch.setattr(_certified, "decode_by_pages", counted)
    return calls


@pytest.mark.parametrize(
    ("alpha", "dtype"),
    [(1.05, F16), (1.25, F32), (1.5, F16), (1.5, F32), (1.7, F16), (2.0, F32), (torch.tensor([1.0, 1.5]), F16)],
)
def test_every_alpha(alpha, dtype, by_kernels):
    read = assert_certified(clustered(900, heads=2, dtype=dtype), alpha, tolerance=TOLERANCES[dtype]).keys_read
    if not isinstance(alpha, torch.Tensor) and alpha >= 1.5:
        assert (read < 500).all()
    assert len(by_kernels) == 1


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [F32, F16])
def test_options(options, dtype, by_kernels):
    assert_certified(drawn(2, 300, heads=2, dtype=dtype), tolerance=TOLERANCES[dtype], **options)
    assert len(by_kernels) == 1


def test_far_keys_are_not_read_where_a_bias_falls_with_the_distance():
    bias = -0.1 * torch.arange(1999, -1, -1.0)
    assert (assert_certified(drawn(1, 2000), bias=bias, size=64).keys_read < 1000).all()


@pytest.mark.parametrize("seed", range(2))
def test_random_caches(seed, by_kernels):
    """Twelve caches each, of any length, width, sharpness, page and α; little is read that the reference skips."""
    torch.manual_seed(seed)

    def one_of(*choices):
        return choices[int(torch.randint(len(choices), ()))]

    read, needed = 0, 0
    for _ in range(12):
        groups, queries, keys = one_of(1, 1, 2), one_of(1, 1, 2), int(torch.randint(1, 500, ()))
        dtype, channels, size = one_of(F32, F16), one_of(8, 40), one_of(32, 64, 128)
        if one_of(True, False):
            given = clustered(keys, heads=groups, queries=queries, channels=channels, dtype=dtype)
        else:
            given = drawn(queries, keys, 2 * groups, groups, channels, channels, dtype, one_of(0.0, 0.1, 1.0, 5.0))
        heads = given[0].shape[1]
        alpha = one_of(1.1, 1.5, 2.0, 1 + torch.rand(heads))
        options = one_of({}, {"is_causal": True}, {"lengths": torch.randint(keys + 1, (1,))})
        options |= one_of({}, {"bias": -torch.rand(heads, 1, 1) * torch.arange(keys).flip(0)})
        options |= {"size": size, "tolerance": 1e-4 if dtype == F32 else 3e-3, "enable_gqa": True}
        found = assert_certified(given, alpha, **options).keys_read
        with pytest.MonkeyPatch.context() as replaced:
            replaced.setattr(_certified, "pages_fit", lambda *_: False)
            expected = assert_certified(given, alpha, **options).keys_read
        assert (found >= expected - size).all()  # a bound may be next to the threshold
        read, needed = read + int(found.sum()), needed + int(expected.sum())
    assert read < 1.2 * needed
    assert len(by_kernels) == 12


def test_one_key_far_above_keys_that_are_all_equal_and_broken_pages():
    query, key, value = drawn(1, 1000, dtype=F16)
    assert_certified([query, key[..., :1, :].expand_as(key), value], tolerance=3e-3)
    above = key.clone()
    above[..., 777, :] = 50 * query[..., 0, :]
    assert torch.equal(entmax_attention(query, above, value, key_pages=KeyPages(above)), value[..., 777:778, :])
    mask = (torch.arange(1000) < 64) | (torch.arange(1000) >= 130)
    exact = entmax_attention(query, key, value, mask=mask, key_pages=KeyPages(key))
    broken = [filled(x, mask.unsqueeze(-1), ALL) for x in (key, value)]
    assert torch.equal(entmax_attention(query, *broken, mask=mask, key_pages=KeyPages(broken[0])), exact)
    key[..., 70, :] = torch.nan
    assert entmax_attention(query, key, value, key_pages=KeyPages(key)).isnan().all()


def test_a_budget(by_kernels):
    torch.manual_seed(0)
    assert assert_budget_is_told(clustered(2000, dtype=F32), 1024)
    assert not assert_budget_is_told(drawn(2, 500, heads=4, groups=2), 64)
    query, key, value = drawn(1, 700)
    equal = key[..., :1, :].expand_as(key)
    assert not assert_budget_is_told([query, equal, value], 128)
    assert len(by_kernels) == 3


def test_queries_of_several_programs_do_not_share_what_is_read(by_kernels):
    """A budget is told truly: 23 queries of three heads would be in two programs, and are left to torch."""
    assert not assert_budget_is_told(drawn(23, 500, heads=3, groups=1), 32)
    assert not by_kernels
    assert not assert_budget_is_told(drawn(21, 500, heads=3, groups=1), 32)
    assert len(by_kernels) == 1


def test_flat_rows_whose_pages_are_not_all_read(by_kernels):
    """A dense row takes passes over all of its scores: those of pages that were not read must not count."""
    query, key, value = drawn(1, 3000, channels=16)
    key[..., 1500:, :] = 1e-3 * key[..., 1500:, :]
    key[..., :1500, :] = -10 * query.abs().sign() * query.sign()
    read = assert_certified([query, key, value], 1.5, size=64, tolerance=1e-4).keys_read
    assert len(by_kernels) == 1
    assert (read < 2000).all()


def test_a_budget_where_most_of_a_cache_holds_no_keys(by_kernels):
    """Tile maxima past the last key that counts must not raise the threshold."""
    given = drawn(1, 600, sharp=0.1)
    assert not assert_budget_is_told(given, 64, lengths=torch.tensor([200]))
    assert len(by_kernels) == 1


def test_a_flat_row_that_ends_before_a_page_that_is_not_read(by_kernels):
    """A dense row shares its program with a longer one: what lies past its own end must not count."""
    query, key, value = drawn(2, 2561)
    query[..., 1, :] = query[..., 0, :]
    key[..., :2560, :] *= 1e-3
    key[..., 2560:, :] = -5 * query[..., :1, :]
    read = assert_certified([query, key, value], is_causal=True, size=64, tolerance=1e-4).keys_read
    assert (read == 2560).all()
    assert len(by_kernels) == 1


def test_small_caches_are_read_whole(monkeypatch, by_kernels):
    monkeypatch.setattr(_certified, "_FEWEST_BYTES", 10**6)
    assert (assert_certified(drawn(1, 300)).keys_read == 300).all()
    assert not by_kernels
