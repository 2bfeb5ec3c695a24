"""Attention by triton's kernels: rows of few keys are multiplied whole, which costs less than lists."""

import pytest
import torch

from attention_checks import F16, F32, _as_if_long, _dense_if_cheaper, assert_same, drawn  # noqa: F401 fixtures
from contmax import entmax_attention
from contmax.kernels import triton as kernels
from contmax.kernels.triton import _attention, _attention_tuning

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_dense_if_cheaper")


@pytest.fixture
def dense(monkeypatch):
    """Which blocks of rows of every call are dense, one list for each head."""
    made = []
    launch = kernels.entmax_attention

    def noted(*arguments):
        out, lists = launch(*arguments)
        made.append(lists.dense.bool().tolist())
        return out, lists

    monkeypatch.setattr(kernels, "entmax_attention", noted)
    return made


def pointed(queries, keys, support=4, dtype=F16):
    """Rows that have mass at so many keys, the first ones."""
    query, key, value = drawn(queries=queries, keys=keys, dtype=dtype)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    key[..., 0] = -10.0
    key[..., :support, 0] = -0.01 * torch.arange(support)
    return [query, key, value]


@pytest.mark.parametrize(("keys", "expected"), [(150, True), (170, False)])
def test_dense_where_an_entry_costs_more_than_the_products(keys, expected, dense):
    assert _attention_tuning.TUNING.entry_products == 40
    assert_same(pointed(3, keys), scale=1.0)
    assert dense[0] == [[expected]]


def test_only_keys_that_a_row_may_attend_are_counted(dense):
    inputs = pointed(3, 1000)
    assert_same(inputs, lengths=torch.tensor([150]), scale=1.0)
    assert_same(inputs, is_causal=True, scale=1.0)
    assert dense == [[[True]], [[False]]]


def test_a_causal_mask_leaves_few_keys_to_the_first_rows(dense):
    assert_same(pointed(300, 300), is_causal=True, scale=1.0)
    assert dense == [[[True] * 3 + [False] * 2]]


def test_float32_is_listed(dense):
    assert_same(pointed(3, 100, dtype=F32), scale=1.0)
    assert dense == [[[False]]]


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, torch.tensor([1.05, 1.3, 1.1, 2.0])])
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"queries": 70, "keys": 70}, {"is_causal": True}),
        ({"groups": 2, "queries": 3, "keys": 150}, {"enable_gqa": True, "lengths": torch.tensor([90])}),
        ({"queries": 5, "keys": 40}, {"mask": torch.arange(40) % 3 > 0}),
    ],
)
def test_short_rows(sizes, options, alpha, dense):
    assert_same(drawn(heads=4, dtype=F16, sharp=1.0, **sizes), alpha, **options)
    assert dense == [[[True] * -(-sizes["queries"] // 64)] * 4]


@pytest.mark.parametrize("columns", [32, 64])
def test_keys_of_listed_rows_alone_have_no_part_of_dense_ones(columns, monkeypatch, dense):
    """What is not written must not be read: dense rows have mass in the first keys, listed ones in all."""
    tuning = _attention_tuning.Tuning(entry_products=0, dense_columns=columns)
    monkeypatch.setattr(_attention, "TUNING", tuning)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan if k["dtype"] == F32 else 0))
    query, key, value = drawn(queries=72, keys=400, dtype=F16)
    query[..., 0], query[..., 1:] = 1.0, 0.0
    query[:, :, 64:, 1] = 1.0
    key[..., :2] = torch.tensor([-50.0, 0.0])
    key[..., :200, 0] = -0.001 * torch.rand(200).half()  # what the first rows attend: too many for a list
    key[..., 100, 1] = 60.0
    key[..., 390, 1] = 110.0
    assert_same([query, key, value], scale=1.0)
    assert dense == [[[True, False]]]


def test_rows_of_nan_and_of_nothing():
    query, key, value = drawn(queries=5, keys=9, dtype=F16)
    query[0, 0, 3] = torch.nan
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[1] = False
    output = entmax_attention(query, key, value, mask=mask)
    assert (output[0, 0, 1] == 0).all()
    assert output[0, 0, 3].isnan().all()
    assert output[0, 0, [0, 2, 4]].isfinite().all()
