"""Attention by triton's kernels: blocks of keys without mass are left alone, and nothing else is, nor any row."""

import pytest
import torch

from attention_checks import (
    F16,
    F32,
    _as_if_long,  # noqa: F401 a fixture
    assert_same,
    check_lengths_above_the_number_of_keys,
    check_slopes_that_half_precision_cannot_hold,
    check_ties_at_the_threshold,
    drawn,
)
from contmax import entmax_attention
from contmax.kernels.attention import _gpu_call as _attention_call
from contmax.kernels.attention import _sizes as _attention_tuning
from contmax.kernels.attention._gpu_tile_maxima import tile_maxima
from contmax.kernels.gpu._cached_launch import Launch

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_as_if_long")


@pytest.fixture
def tops(monkeypatch):
    """The tops of the tiles of every call, (heads, queries, tiles, 2)."""
    made, plain = [], Launch._by_triton

    def noted(self, tensors):
        plain(self, tensors)
        if self.kernel is tile_maxima:
            made.append(tensors[6])

    monkeypatch.setattr(Launch, "_by_triton", noted)
    return made


def far_keys(keys=1000, dtype=F32):
    """Two queries for which the last keys have scores near 0, all others −10."""
    query, key, value = drawn(queries=2, keys=keys, dtype=dtype)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = -10.0
    key[..., -5:, 0] = torch.tensor([-0.5, 0.0, -0.2, -0.1, -1.0], dtype=dtype)
    return query, key, value


def left_alone(tops):
    """Which blocks of 128 keys have no tops."""
    return (tops[0].unflatten(1, (-1, 8)) < -1e29).all(-1).all(-1)[0].tolist()


@pytest.mark.parametrize(("alpha", "dtype"), [(1.5, F32), (1.25, F16), (2.0, F16), (torch.tensor([1.4]), F32)])
def test_blocks_without_mass_are_left_alone(alpha, dtype, tops):
    query, key, value = far_keys(dtype=dtype)
    reach = 1 / (float(alpha) - 1)
    key[..., 300, 0] = -0.9 * reach  # has mass
    key[..., -5:-1, 0] = -10.0
    key[..., -1, 0] = 0.0
    assert_same([query, key, value], alpha, scale=1.0)
    assert left_alone(tops[0]) == [True, True, False, True, True, True, True, False]


def test_a_block_with_the_largest_scores_may_come_last():
    query, key, value = far_keys()
    key[..., 3, 0] = 7.0
    key[..., 700, 0] = 6.0
    assert_same([query, key, value], scale=1.0)


def test_long_tiles_of_which_parts_are_left_alone(tops, monkeypatch):
    # So that four blocks of keys share their tiles.
    monkeypatch.setattr(_attention_call, "TUNING", _attention_tuning.Tuning(most_tiles=64))
    query, key, value = far_keys(5000, F16)
    for place in (40, 1000, 1290, 2690, 4100):
        key[..., place, 0] = -0.3
    output = entmax_attention(query, key, value, scale=1.0)
    exact = entmax_attention(query.double(), key.double(), value.double(), scale=1.0)
    assert (output - exact).abs().max() < 3e-3
    # Of ten times four blocks six have one that counts.
    assert (tops[0] < -1e29).float().mean() == pytest.approx(0.4)


@pytest.mark.parametrize("alpha", [1.0000001, torch.tensor([1.0])])
def test_near_softmax_every_block_counts(alpha, tops):
    query, key, value = far_keys()
    ours = entmax_attention(query, key, value, alpha=alpha, scale=1.0)
    exact = torch.softmax(query.double() @ key.double().mT, -1) @ value.double()
    assert (ours - exact).abs().max() < 1e-5
    assert not any(left_alone(tops[0]))


def test_nan_far_below_is_not_left_alone():
    query, key, value = far_keys()
    key[..., 130, 0] = torch.nan
    assert entmax_attention(query, key, value, scale=1.0).isnan().all()


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"is_causal": True}, F32),
        ({"lengths": torch.tensor([20])}, F16),
        ({"mask": torch.arange(40) < 20}, F32),
        ({"mask": torch.arange(40) < 20}, F16),
    ],
)
def test_where_every_score_has_mass_what_is_not_allowed_has_none(options, dtype):
    query, key, value = (torch.zeros(1, 1, 40, 16, dtype=dtype) for _ in range(3))
    value[:, :, 30:] = 1000.0
    ours = entmax_attention(query, key, value, alpha=torch.tensor([1.0]), **options)
    assert (ours[:, :, :20] == 0).all()


def test_keys_behind_the_last_are_not_read():
    query, key = (torch.zeros(1, 1, 40, 16) for _ in range(2))
    value = torch.full((1, 1, 64, 16), 1e4)[:, :, :40].zero_()
    assert (entmax_attention(query, key, value, alpha=torch.tensor([1.0]), scale=1.0) == 0).all()


@pytest.mark.parametrize("keys", [65, 129, 257])
def test_a_last_key_that_is_alone_in_its_block(keys):
    query, key, value = drawn(queries=2, keys=keys)
    key[..., -1, :] = query[..., -1, :]
    assert_same([query, key, value], is_causal=True)


@pytest.mark.parametrize("dtype", [F32, F16])
def test_lengths_above_the_number_of_keys(dtype, lists):
    check_lengths_above_the_number_of_keys(5, 19, dtype)
    assert not lists[0].are_empty


@pytest.mark.parametrize(("alpha", "groups"), [(1.25, 1), (torch.tensor([1.05, 1.3, 1.1, 2.0]), 2)])
def test_dense_and_listed_rows_share_keys(alpha, groups):
    """Of two heads for each key head; blocks of keys have entries of lists and dense rows, dense rows, or neither."""
    query, key, value = drawn(heads=2 * groups, groups=groups, queries=72, keys=210, dtype=F16)
    query[:, :, :64] *= 0.01  # flat: dense
    query[:, :, 64:] *= 0.1
    query[:, :, 64:, 0] = 4.0
    key[..., 0] = -1.0
    key[..., :5, 0], key[..., 70:73, 0] = 1.0, 1.1  # what the others attend
    assert_same([query, key, value], alpha, lengths=torch.tensor([140]), enable_gqa=True, scale=1.0)


# Every α with lists and with 200 keys, which are dense; in both some numbers that half precision holds, or float32.
@pytest.mark.parametrize(
    ("alpha", "keys", "shared", "dtype"),
    [
        (alpha, *given)
        for alpha, pair in (
            (1.2, ((64, 1e8, F32), (200, 1e4, F16))),
            (4 / 3, ((64, 1e8, F16), (200, 1e8, F32))),
            (1.5, ((64, 1e3, F32), (64, 1e8, F16), (200, 1e4, F16))),
            (1.7, ((64, 1e8, F32), (200, 1e8, F32))),
            (2.0, ((64, 1e8, F16), (200, 1e4, F16))),
            (torch.tensor([1.05]), ((64, 1e8, F32), (200, 1e4, F16))),
            (torch.tensor([1.9]), ((64, 1e3, F32), (64, 1e8, F16), (200, 1e8, F32))),
        )
        for given in pair
    ],
)
def test_no_row_is_lost_where_scores_share_a_large_number(alpha, keys, shared, dtype):
    channel = (shared / 16) ** 0.5
    query = (channel * (0.5 + torch.rand(1, 1, 16, 1))).expand(1, 1, 16, 16)
    key, value = torch.full((1, 1, keys, 16), channel), torch.ones(1, 1, keys, 16)
    output = entmax_attention(query.to(dtype), key.to(dtype), value.to(dtype), alpha=alpha, scale=0.37)
    torch.testing.assert_close(output, torch.ones_like(output), rtol=0, atol=2e-3)


@pytest.mark.parametrize("alpha", [1.25, 2.0])
def test_no_block_is_lost_where_scores_share_a_large_number(alpha):
    value = torch.rand(1, 1, 400, 16)
    query, key = (torch.full((1, 1, n, 16), 2500.0) for n in (3, 400))
    output = entmax_attention(query, key, value, alpha=alpha, scale=0.37)
    torch.testing.assert_close(output, value.mean(2, keepdim=True).expand(1, 1, 3, 16), rtol=0, atol=1e-5)


@pytest.mark.parametrize("small", ["keys", "queries"])
def test_slopes_that_half_precision_cannot_hold(small):
    check_slopes_that_half_precision_cannot_hold(small)


@pytest.mark.parametrize("dtype", [F32, F16])
def test_ties_at_the_threshold(dtype):
    check_ties_at_the_threshold(300, dtype)
